"""Searches a SQLite file for texts that were deleted from it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    import llama_index_memory_ext as ext

# The search looks up this many bytes at once. A shorter text is too common to prove
# anything.
_KEY_BYTES = 8
# A database scatters a long text over several pages, so the search takes it in pieces.
_PIECE_BYTES = 48
_BLOCK_BYTES = 1 << 20


async def stored_texts(
    store: ext.MemoryStore, sessions: Iterable[str], facts: Iterable[ext.Fact]
) -> set[str]:
    """Return the texts of the sessions' messages and of the facts."""
    texts = set()
    for fact in facts:
        texts |= {fact.content, fact.quote, fact.source, fact.retired_reason or ""}
        texts.update(past.retired_reason or "" for past in fact.past_retirements)
    # One session at a time: a parsed message takes much more memory than its text.
    for session in sessions:
        for message in await store.get_messages(session, None):
            for block in message.blocks:
                texts.update(_strings(block.model_dump(exclude={"block_type"})))
    return texts


def _strings(value: object) -> Iterator[str]:
    """Yield the strings in a JSON value: text, and the arguments of calls."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from _strings(list(value.values()))
    elif isinstance(value, list):
        for entry in value:
            yield from _strings(entry)


def holds_deleted(file: Path, texts: Iterable[str]) -> bool:
    """Return whether a SQLite file or its journals hold a text of 8 bytes or more that is in no row any more."""
    pieces = set().union(*map(_pieces, texts))
    remaining: set[bytes] = set()
    for ending in ("", "-wal", "-journal"):
        remaining |= find_pieces(Path(f"{file}{ending}"), pieces)
    if remaining:
        for row in _rows(file):
            remaining = {piece for piece in remaining if piece not in row}
    return bool(remaining)


def _pieces(text: str) -> set[bytes]:
    """Return the pieces of both forms in which a database may hold a text; none for a text that is too short."""
    pieces = set()
    in_json = dumps(text)[1:-1].encode()
    for form in (in_json, text.encode(errors="replace")):
        for start in range(0, len(form), _PIECE_BYTES):
            pieces.add(form[start : start + _PIECE_BYTES])
    return {piece for piece in pieces if len(piece.strip()) >= _KEY_BYTES}


def find_pieces(path: Path, pieces: Collection[bytes]) -> set[bytes]:
    """Return the pieces (8 to 48 bytes) that are in a file, in one pass over the file."""
    # Imported here: it takes a while, and only this command needs it.
    import numpy as np
    from numpy.lib.stride_tricks import sliding_window_view

    found_pieces: set[bytes] = set()
    if not path.exists() or path.stat().st_size < _KEY_BYTES:
        return found_pieces
    by_key: dict[int, list[bytes]] = {}
    for piece in pieces:
        key = int.from_bytes(piece[:_KEY_BYTES], "little")
        by_key.setdefault(key, []).append(piece)
    keys = np.array(list(by_key), dtype="<u8")
    content = np.memmap(path, mode="r")
    # Blocks overlap by a piece, so that each piece is whole in one of them.
    for block_start in range(0, len(content) - _KEY_BYTES + 1, _BLOCK_BYTES):
        block = content[block_start : block_start + _BLOCK_BYTES + _PIECE_BYTES]
        text = block.tobytes()
        # The key at each byte of the block.
        numbers = sliding_window_view(block, _KEY_BYTES).copy().view("<u8").ravel()
        for start in np.flatnonzero(np.isin(numbers, keys)).tolist():
            for piece in by_key[int(numbers[start])]:
                if text.startswith(piece, start):
                    found_pieces.add(piece)
    return found_pieces


def _rows(file: Path) -> Iterator[bytes]:
    """Yield the texts and bytes of each row of all tables, and of the table of tables."""
    address = f"{file.absolute().as_uri()}?mode=ro"
    with closing(sqlite3.connect(address, uri=True)) as connection:
        tables = connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table'"
        ).fetchall()
        connection.text_factory = bytes
        for table in ("sqlite_master", *(name for (name,) in tables)):
            quoted = table.replace('"', '""')
            for row in connection.execute(f'SELECT * FROM "{quoted}"'):  # noqa: S608 - a name from the database itself
                yield b"\n".join(value for value in row if isinstance(value, bytes))
