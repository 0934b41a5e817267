"""The commands under ``sessions``: list the conversations, and show one of them."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from llama_index_memory_ext.cli import TerminalError, one_line, pluralize
from llama_index_memory_ext.cli import app as cli
from llama_index_memory_ext.cli.app import Db, Json, Output, User
from llama_index_memory_ext.cli.facts import facts_table

if TYPE_CHECKING:
    from datetime import datetime

    import llama_index_memory_ext as ext

_Id = Annotated[str, typer.Argument(metavar="SESSION", help="The id of a session. `sessions list` shows them.")]
_LAST_HELP = "So many of the newest messages; 0 for none."
_Last = Annotated[int, typer.Option("--last", metavar="NUMBER", min=0, help=_LAST_HELP)]

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
cli.app.add_typer(app, name="sessions", help="The conversations: list them, look at one.")


@app.command("list")
def list_(*, user: User = None, db: Db = None, json: Json = False) -> None:
    """List the sessions, the one that was used last first."""

    async def read(store: ext.MemoryStore) -> Output:
        found = await store.sessions(user)
        rows = [(info.session_id, str(info.messages), ", ".join(info.user_ids), _time(info.last_at)) for info in found]
        empty = "No sessions." if user is None else f"No sessions of {user}."
        return [asdict(info) for info in found], cli.table(
            ["session", "messages", "user", "last used"], rows, empty=empty
        )

    cli.run(db, read, as_json=json)


@app.command("show")
def show(session: _Id, *, last: _Last = 50, db: Db = None, json: Json = False) -> None:
    """Show one session: its users, messages and facts.

    Of the messages the newest ones, with their times; how many are in the record, which the model is shown; and the
    facts that came from it. Long messages are cut here: --json and `export --session` have all of their text.
    """
    cli.run(db, lambda store: _show(store, session, last), as_json=json)


async def _show(store: ext.MemoryStore, session: str, last: int) -> Output:
    # Imported here: it imports LlamaIndex.
    from llama_index_memory_ext.facts.book import FactBook
    from llama_index_memory_ext.store.tables import ACTIVE, ARCHIVED
    from llama_index_memory_ext.text.messages import body_of

    info = next(iter(await store.sessions(session_ids=[session])), None)
    if info is None:
        raise TerminalError(f"There is no session {session!r}. `sessions list` shows those that there are.")
    reader = cli.memory_on(store, "any").condensed_block.name
    counts = await store.users.counts(session, record=reader, extraction="", namespace="")
    active, left = int(counts["active"]), int(counts["left"])
    in_record = info.messages - active - left
    rows = await store.readers.find(session, (ACTIVE, ARCHIVED), limit=last, offset=max(0, info.messages - last))
    facts = [
        fact
        for user in info.user_ids or (session,)
        for fact in await FactBook(store, user).alist(with_retired=True, with_expired=True)
        if fact.session_id == session
    ]
    places = {"current_turn": active, "in_record": in_record, "older_than_record": left}
    log = [{"at": row.said_at, "role": row.role, "text": body_of(row.message)} for row in rows]
    result = {**asdict(info), **places, "log": log, "facts": facts}

    where = f"{active} of the current turn, {in_record} in the record, {left} older than it"
    summary = [
        ("session", info.session_id),
        ("users", ", ".join(info.user_ids) or "unknown: only LlamaIndex's own Memory has written to it"),
        ("messages", f"{info.messages}: {where}"),
        ("written", f"{_time(info.first_at) or 'unknown'} to {_time(info.last_at) or 'unknown'}"),
        ("facts", f"{len(facts)} came from this session"),
    ]
    shown: list[RenderableType] = [Text(f"{name:<9} {one_line(text)}") for name, text in summary]
    if rows:
        if len(rows) < info.messages:
            shown += ["", f"The newest {len(rows)} of {pluralize(info.messages, 'message')}:"]
        lines = [(_time(row.said_at), row.role, body_of(row.message)) for row in rows]
        shown += ["", cli.table(["time", "role", "message"], lines)]
    if facts:
        shown += ["", facts_table(facts, "")]
    return result, Group(*shown)


def _time(time: datetime | None) -> str:
    return f"{time.astimezone():%Y-%m-%d %H:%M}" if time else ""
