"""Searches a SQLite file for texts that were deleted from it."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

# The search looks up this many bytes at once; a shorter text is too common to prove anything.
_KEY = 8
_PIECE = 48
_BLOCK = 1 << 22
# Columns that name nobody: a user may be called "assistant".
_NAMELESS = ("role", "status")


@dataclass(frozen=True)
class Leftovers:
    """How many texts were looked for, how many of them are left, and how many stand in what remains of others."""

    searched: int
    left: int
    elsewhere: int


def search_file(file: Path, texts: Collection[str], owners: Collection[str]) -> Leftovers:
    """Look for texts in a database file and in its journals, byte by byte.

    Args:
        file: The SQLite file.
        texts: What was deleted. Those of less than eight bytes are left out.
        owners: The users and sessions that were deleted: a row that names one of them is none of others'.
    """
    pieces_of = {text: pieces for text in texts if (pieces := set(_pieces(text)))}
    wanted = {piece for pieces in pieces_of.values() for piece in pieces}
    found = set[bytes]()
    for path in (file, *(Path(f"{file}{ending}") for ending in ("-wal", "-journal"))):
        if path.exists():
            found |= found_in(path, wanted)
    kept = _in_rows_of_others(file, found, owners) if found else set()
    left = sum(bool(pieces & (found - kept)) for pieces in pieces_of.values())
    elsewhere = sum(bool(pieces & kept) and not pieces & (found - kept) for pieces in pieces_of.values())
    return Leftovers(len(pieces_of), left, elsewhere)


def found_in(path: Path, pieces: Collection[bytes]) -> set[bytes]:
    """Those of the pieces that stand in a file. One pass, however many there are."""
    # Imported here: it takes a while, and only this command needs it.
    import numpy as np

    by_key: dict[int, list[bytes]] = {}
    for piece in pieces:
        by_key.setdefault(int.from_bytes(piece[:_KEY], "little"), []).append(piece)
    keys = np.array(list(by_key), dtype="<u8")
    found = set[bytes]()
    for block in _blocks(path):
        for shift in range(_KEY):
            numbers = np.frombuffer(block, "<u8", (len(block) - shift) // _KEY, shift)
            for place in np.flatnonzero(np.isin(numbers, keys)):
                start = int(place) * _KEY + shift
                found.update(piece for piece in by_key[int(numbers[place])] if block.startswith(piece, start))
    return found


def _pieces(text: str) -> Iterator[bytes]:
    """The text as the database holds it, in pieces: long ones are scattered over several pages there."""
    forms = {json.dumps(text)[1:-1].encode(), text.encode(errors="replace")}
    for form in forms:
        for start in range(0, len(form), _PIECE):
            piece = form[start : start + _PIECE]
            if len(piece) >= _KEY:
                yield piece


def _blocks(path: Path) -> Iterator[bytes]:
    """The file in blocks that overlap by a piece."""
    with path.open("rb") as file:
        block = file.read(_BLOCK)
        while len(block) >= _KEY:
            yield block
            more = file.read(_BLOCK)
            if not more:
                return
            block = block[-_PIECE:] + more


def _in_rows_of_others(file: Path, pieces: Iterable[bytes], owners: Collection[str]) -> set[bytes]:
    """Those of the pieces that stand in rows which were not to be deleted, or in what the tables are called."""
    missing, kept, gone = set(pieces), set[bytes](), set(owners)
    with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in ("sqlite_master", *tables):
            quoted = table.replace('"', '""')
            rows = connection.execute(f'SELECT * FROM "{quoted}"')  # noqa: S608 - a name from the database itself
            names = [i for i, column in enumerate(rows.description) if column[0] not in _NAMELESS]
            for row in rows:
                if not gone.intersection(row[i] for i in names if isinstance(row[i], str)):
                    content = b"\n".join(_as_bytes(value) for value in row)
                    kept.update(piece for piece in missing if piece in content)
                    missing -= kept
    return kept


def _as_bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode(errors="replace")
