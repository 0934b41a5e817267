"""A copy of a user's data: a folder with the messages of all sessions and all facts, written and read again."""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import llama_index_memory_ext as ext
from llama_index_memory_ext.apps.cli import TerminalError, plain, pluralize
from llama_index_memory_ext.apps.cli import app as cli
from llama_index_memory_ext.apps.cli.app import Output

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_LIST = "copy.json"
_FACTS = "facts.jsonl"


class Copy(NamedTuple):
    """A folder with a copy.

    ``user``: the user whose data it has. ``sessions``: the session of each file.
    """

    folder: Path
    user: str
    sessions: Mapping[str, str]


@contextmanager
def file_errors(path: Path) -> Iterator[None]:
    """Name the file or the folder that cannot be read or written."""
    try:
        yield
    except OSError as error:
        raise TerminalError(
            f"{error.filename or path} cannot be read or written: {error.strerror}."
        ) from None


def write_text(path: Path, text: str) -> None:
    """Write a text to a file, or to stdout for the path "-"."""
    if str(path) != "-":
        with file_errors(path):
            path.write_bytes(text.encode())
        return
    if sys.stdout.isatty():
        text = plain(text)
    sys.stdout.buffer.write(text.encode())


async def write_copy(store: ext.MemoryStore, user: str, folder: Path) -> Output:
    """Write a copy into a new folder. The list of its files comes last, so a part of a copy cannot be imported."""
    facts = await cli.book_of(cli.memory_on(store, None, user)).aexport()
    infos = await store.sessions(user)
    names = {}
    with file_errors(folder):
        _make_folder(folder)
        (folder / _FACTS).write_bytes(facts.encode())
        for number, info in enumerate(infos, 1):
            rows = await store.rows(info.session_id)
            # Any text may name a session, but not a file.
            name = f"session-{number}.json"
            text = ext.messages_to_json([row.moved for row in rows])
            (folder / name).write_bytes(text.encode())
            names[name] = info.session_id
        text = json.dumps({"user": user, "sessions": names}, indent=2)
        (folder / _LIST).write_bytes(text.encode())
    count = pluralize(len(infos), "session")
    return Output(None, f"Wrote {count} and all facts of {user} to {folder}.")


def _make_folder(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise TerminalError(f"{folder} is not empty. Name a new folder.")


def read_copy(folder: Path) -> Copy:
    """Return the copy in a folder; raise a TerminalError if there is none."""
    try:
        copy = json.loads((folder / _LIST).read_bytes())
        return Copy(folder, copy["user"], dict(copy["sessions"]))
    except (OSError, ValueError, KeyError, TypeError):
        raise TerminalError(
            f"{folder} is no copy of a user's data: expected {_LIST}, as `export --user ID --output FOLDER` writes it."
        ) from None


async def import_copy(store: ext.MemoryStore, copy: Copy) -> Output:
    """Store a copy. Sessions that have messages here stay as they are."""
    user = copy.user
    stored = await store.sessions(session_ids=list(copy.sessions.values()))
    present = {info.session_id for info in stored}
    counts = {"messages": 0, "sessions": 0}
    skipped = []
    for name, session in copy.sessions.items():
        if session in present:
            skipped.append(session)
            continue
        with file_errors(copy.folder / name):
            content = (copy.folder / name).read_bytes()
        counts["messages"] += await import_session(store, session, user, content)
        counts["sessions"] += 1
    with file_errors(copy.folder / _FACTS):
        facts = (copy.folder / _FACTS).read_text(encoding="utf-8")
    book = cli.book_of(cli.memory_on(store, None, user))
    counts["facts"] = await book.aimport(facts)
    listed = [pluralize(count, kind[:-1]) for kind, count in counts.items()]
    text = f"Imported {', '.join(listed)} of {user}."
    if skipped:
        text += f" Left out, because they have messages here: {', '.join(skipped)}."
    return Output({**counts, "skipped": skipped}, text)


async def import_session(
    store: ext.MemoryStore,
    session: str,
    user: str | None,
    content: bytes,
) -> int:
    """Add messages to a session, and return their number.

    If the messages name speakers, the session is shared by them and the user.
    """
    messages = ext.messages_from_json(content)
    speakers = {message.additional_kwargs.get("user_id") for message in messages}
    if user is None:
        # Otherwise, all words would belong to the next user.
        user = min(filter(None, speakers), default=None)
    memory = ext.CondensedMemory.from_defaults(
        cli.NO_SESSION,
        user_id=user,
        shared=not speakers <= {None, user},
        chat_store=store,
        extract_facts=False,
    )
    # LlamaIndex may have stored an id that ``from_defaults`` does not accept.
    memory.session_id = session
    return await memory.aimport(content, show_progress=sys.stderr.isatty())
