"""The commands under ``sessions``: list the conversations, and show one of them."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer
from rich.console import Group, RenderableType

from llama_index_memory_ext.cli import TerminalError, one_line, pluralize
from llama_index_memory_ext.cli import app as cli
from llama_index_memory_ext.cli.app import Db, Json, User
from llama_index_memory_ext.cli.facts import facts_table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    import llama_index_memory_ext as ext
    from llama_index_memory_ext.store.rows import LogRow
    from llama_index_memory_ext.store.sessions import SessionInfo

_Id = Annotated[str, typer.Argument(metavar="SESSION", help="The id of a session. `sessions list` shows them.")]
_LAST_HELP = "So many of the newest messages; 0 for none."
_Last = Annotated[int, typer.Option("--last", metavar="NUMBER", min=0, help=_LAST_HELP)]

app = typer.Typer(rich_markup_mode=None)
cli.app.add_typer(app, name="sessions", help="The conversations: list them, look at one.")


@app.command("list")
def list_(*, user: User = None, db: Db = None, json: Json = False) -> None:
    """List the sessions, the one that was used last first."""
    found = cli.run(db, lambda store: store.sessions(user))
    rows = [(info.session_id, str(info.messages), ", ".join(info.user_ids), _time(info.last_at)) for info in found]
    empty = "No sessions." if user is None else f"No sessions of {user}."
    table = cli.table(["session", "messages", "user", "last used"], rows, empty=empty)
    cli.show([asdict(info) for info in found], table, as_json=json)


@app.command("show")
def show(session: _Id, *, last: _Last = 50, db: Db = None, json: Json = False) -> None:
    """Show one session: its users, messages and facts.

    Of the messages the newest ones, with their times; how many are in the record, which the model is shown; and the
    facts that came from it. Long messages are cut here: --json and `export --session` have all of their text.
    """
    found = cli.run(db, lambda store: _read(store, session, last))
    cli.show(_as_json(found), _as_text(found), as_json=json)


class _Session(NamedTuple):
    """A session: the messages of the current turn, in the record, and older than it; its newest rows, its facts."""

    info: SessionInfo
    active: int
    in_record: int
    left: int
    rows: Sequence[LogRow]
    facts: Sequence[ext.Fact]


async def _read(store: ext.MemoryStore, session: str, last: int) -> _Session:
    # Imported here: it imports LlamaIndex.
    from llama_index_memory_ext.facts.book import FactBook
    from llama_index_memory_ext.store.tables import ACTIVE, ARCHIVED

    info = next(iter(await store.sessions(session_ids=[session])), None)
    if info is None:
        raise TerminalError(f"There is no session {session!r}. `sessions list` shows those that there are.")
    reader = cli.memory_on(store, "any").condensed_block.name
    books = [FactBook(store, user) for user in info.user_ids or (session,)]
    counts = await store.users.counts(session, record=reader, extraction="", namespace="")
    active, left = int(counts["active"]), int(counts["left"])
    skipped = max(0, info.messages - last)
    rows = await store.readers.find(session, (ACTIVE, ARCHIVED), limit=last, offset=skipped)
    facts = [
        fact
        for book in books
        for fact in await book.alist(with_retired=True, with_expired=True)
        if fact.session_id == session
    ]
    return _Session(info, active, info.messages - active - left, left, rows, facts)


def _as_json(session: _Session) -> dict[str, object]:
    """Returns a session as values that JSON has; the newest messages are its "log", oldest first."""
    log = [{"at": row.said_at, "role": row.role, "text": _text(row)} for row in session.rows]
    counts = {"current_turn": session.active, "in_record": session.in_record, "older_than_record": session.left}
    return {**asdict(session.info), **counts, "log": log, "facts": session.facts}


def _as_text(session: _Session) -> RenderableType:
    info = session.info
    where = f"{session.active} of the current turn, {session.in_record} in the record, {session.left} older than it"
    summary = [
        ("session", info.session_id),
        ("users", ", ".join(info.user_ids) or "unknown: only LlamaIndex's own Memory has written to it"),
        ("messages", f"{info.messages}: {where}"),
        ("written", f"{_time(info.first_at) or 'unknown'} to {_time(info.last_at) or 'unknown'}"),
        ("facts", f"{len(session.facts)} came from this session"),
    ]
    head = "\n".join(f"{name:<9} {one_line(text)}" for name, text in summary)
    shown: list[RenderableType] = [cli.text(head)]
    if session.rows:
        rows = [(_time(row.said_at), row.role, _text(row)) for row in session.rows]
        if len(rows) < info.messages:
            shown += ["", cli.text(f"The newest {len(rows)} of {pluralize(info.messages, 'message')}:")]
        shown += ["", cli.table(["time", "role", "message"], rows)]
    if session.facts:
        shown += ["", facts_table(session.facts, "")]
    return Group(*shown)


def _text(row: LogRow) -> str:
    # Imported here: it imports LlamaIndex.
    from llama_index_memory_ext.text.messages import body_of

    return body_of(row.message)


def _time(time: datetime | None) -> str:
    return f"{time.astimezone():%Y-%m-%d %H:%M}" if time else ""
