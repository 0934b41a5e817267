"""Deletes a person or a session for good, and proves it: the command ``forget``."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import typer

from llama_index_memory_ext.cli.database import Place, existing, place_of
from llama_index_memory_ext.cli.options import AsJson, Database, Session, User, Yes, confirmed, one_of
from llama_index_memory_ext.cli.reasons import TerminalError, counted
from llama_index_memory_ext.cli.screen import say, show_json, waiting

if TYPE_CHECKING:
    from collections.abc import Iterator

    from llama_index.core.base.llms.types import ChatMessage

    from llama_index_memory_ext.cli.leftovers import Leftovers
    from llama_index_memory_ext.fact import Fact


@dataclass(frozen=True)
class Doomed:
    """What is to be deleted: its sessions, the users who are, and all that was said and is known."""

    sessions: tuple[str, ...]
    users: tuple[str, ...]
    messages: tuple[ChatMessage, ...]
    facts: tuple[Fact, ...]
    is_person: bool

    @property
    def texts(self) -> set[str]:
        """The words of messages and facts, each text once."""
        return {text for text in (*_said(self.messages), *_known(self.facts)) if text.strip()}


def forget(
    *, user: User = None, session: Session = None, yes: Yes = False, db: Database = None, json: AsJson = False
) -> None:
    """Delete a person, or one session, for good.

    Of a person all facts and all sessions. It asks before it does.
    Afterwards the file is searched for the words that were deleted (SQLite only); exit code 1 if some are left.
    """
    one_of(user, session)
    place, name = place_of(db), user or str(session)
    doomed = asyncio.run(_look(place, user, session))
    if not (doomed.sessions or doomed.facts):
        raise TerminalError(f"Nothing is stored about {name!r}.")
    if not (json and yes):
        say(_summary(doomed, name), stderr=True)
    if not confirmed("Delete all of it for good?", yes=yes):
        say("Nothing was deleted.", stderr=True)
        raise typer.Exit(1)
    with waiting("Deleting, and rewriting the database"):
        counts = asyncio.run(_delete(place, doomed))
    with waiting("Searching the file for what was deleted"):
        left = _searched(place, doomed)
    if json:
        show_json({"deleted": counts, "file": asdict(left) if left else None})
    else:
        _show(counts, left)
    if left is not None and left.left:
        raise typer.Exit(1)


async def _look(place: Place, user: str | None, session: str | None) -> Doomed:
    async with existing(place) as store:
        infos = await store.sessions(user, session_ids=[session] if session else [])
        # A session that no user was named for is a user of its own.
        own = [info.session_id for info in infos if info.session_id in info.user_ids]
        users = tuple(own) if user is None else (user, *own)
        sessions = tuple(info.session_id for info in infos)
        messages = [message for key in sessions for message in await store.get_messages(key, None)]
        facts = [fact for name in dict.fromkeys(users) for fact in (await store.facts.read(name)).facts]
    return Doomed(sessions, users, tuple(messages), tuple(facts), is_person=user is not None)


async def _delete(place: Place, doomed: Doomed) -> dict[str, int]:
    async with existing(place) as store:
        if doomed.users:
            return await store.forget_user(doomed.users[0], session_ids=doomed.sessions)
        (session,) = doomed.sessions
        counts = await store.forget(session)
        await store.vacuum()
    return counts


def _searched(place: Place, doomed: Doomed) -> Leftovers | None:
    """What is left in the file; None where the database is none."""
    from llama_index_memory_ext.cli.leftovers import search_file

    return search_file(place.file, doomed.texts, {*doomed.users, *doomed.sessions}) if place.file else None


def _summary(doomed: Doomed, name: str) -> str:
    sessions = f" in {counted(len(doomed.sessions), 'session')}" if doomed.is_person else ""
    stays = "" if doomed.users else "\nWhat is known of its user stays; `forget --user` deletes that too."
    messages, facts = counted(len(doomed.messages), "message"), counted(len(doomed.facts), "fact")
    return f"Stored about {name}: {messages}{sessions}, {facts}.{stays}"


def _show(counts: dict[str, int], left: Leftovers | None) -> None:
    say("Deleted " + ", ".join(counted(count, kind.removesuffix("s")) for kind, count in counts.items()) + ".")
    if left is None:
        say("The files of a server cannot be searched from here; its log, replicas and backups are its operator's.")
        return
    if left.elsewhere:
        say(f"Also said elsewhere, and kept there, in whole or in part: {counted(left.elsewhere, 'text')}.")
    if left.left:
        say(f"Still in the file or in its journal: {left.left} of {counted(left.searched, 'text')}.", stderr=True)
    else:
        say(f"The file was searched: none of {counted(left.searched, 'text')} is left in it.")


def _said(messages: tuple[ChatMessage, ...]) -> Iterator[str]:
    for message in messages:
        for block in message.blocks:
            yield from _strings(block.model_dump(exclude={"block_type"}))


def _known(facts: tuple[Fact, ...]) -> Iterator[str]:
    for fact in facts:
        yield from (fact.content, fact.quote, fact.source, fact.retired_reason or "")


def _strings(value: Any) -> Iterator[str]:
    """All texts in what a block holds: words, and the arguments of calls."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)
