"""Does what a person asks for on a page that says "really?": retires, restores and forgets."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from llama_index_memory_ext.errors import FactError
from llama_index_memory_ext.facts.book import FactBook
from llama_index_memory_ext.inspector.views import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from llama_index_memory_ext.fact import Fact
    from llama_index_memory_ext.store import MemoryStore, SessionInfo

_OF_FACTS = {
    "retire": "It is kept, and no longer shown to the model. It can be restored.",
    "restore": "It is shown to the model again, without an end. What has replaced it holds, too.",
    "forget-fact": "It is deleted for good, with its quote and its embedding. The message in which it was said stays.",
}
DEEDS = (*_OF_FACTS, "forget-session", "forget-user")


class Question(NamedTuple):
    """What is asked before something is done: to whom, to what, and what becomes of it. Then ``target`` is shown."""

    deed: str
    user: str
    thing: str
    name: str
    outcome: str
    target: tuple[str, dict[str, str]]

    @property
    def fields(self) -> tuple[str, str, str]:
        """What the form has to prove."""
        return self.deed, self.user, self.thing


@dataclass(frozen=True, slots=True)
class Deeds:
    """Asks by a store that is only read, and does by one that is written to."""

    reader: MemoryStore
    writer: MemoryStore

    async def ask(self, query: Mapping[str, str]) -> Question:
        """What is to be asked for a deed; a NotFoundError for what there is not."""
        deed, user, thing = (query.get(name, "") for name in ("deed", "user", "thing"))
        if deed in _OF_FACTS:
            fact = await self._fact(user, thing)
            there = ("facts", {"user": user}) if deed == "forget-fact" else ("fact", {"user": user, "fact": thing})
            return Question(deed, user, thing, fact.content, _OF_FACTS[deed], there)
        if deed == "forget-session":
            info = await self._session(thing)
            outcome = f"Its {info.messages} messages are deleted for good."
            if await self._is_own_user(thing):
                outcome += " It belongs to no user, so its facts are deleted with it."
            else:
                outcome += " The facts that were learned from it stay with its user."
            return Question(deed, user, thing, thing, outcome, ("sessions", {}))
        if deed == "forget-user":
            facts, infos = (await self.reader.facts.read(user)).facts, await self.reader.sessions(user)
            messages = sum(info.messages for info in infos)
            counts = f"{len(facts)} facts, {len(infos)} sessions and their {messages} messages"
            outcome = f"All that is stored of this user is deleted for good: {counts}, also what others said in them."
            if facts or infos:
                return Question(deed, user, "", user, outcome, ("users", {}))
        raise NotFoundError

    async def do(self, question: Question) -> None:
        """Does what was asked. What is gone already is no error."""
        deed, user, thing = question.fields
        book = FactBook(self.writer, user)
        if deed in _OF_FACTS:
            with suppress(FactError):
                await (book.aforget(thing) if deed == "forget-fact" else _changed(book, deed, thing))
        elif deed == "forget-session" and not await self._is_own_user(thing):
            await self.writer.forget(thing)
        else:
            # A session without a user is a user of its own.
            await self.writer.forget_user(user if deed == "forget-user" else thing, vacuum=False)
        if deed.startswith("forget"):
            await self.writer.vacuum()

    async def _fact(self, user: str, fact_id: str) -> Fact:
        facts = (await self.reader.facts.read(user)).facts
        found = next((fact for fact in facts if fact.id == fact_id), None)
        if found is None:
            raise NotFoundError
        return found

    async def _session(self, session_id: str) -> SessionInfo:
        infos = await self.reader.sessions(session_ids=[session_id])
        if not infos:
            raise NotFoundError
        return infos[0]

    async def _is_own_user(self, session_id: str) -> bool:
        return bool(await self.reader.users.own_users([session_id]))


async def _changed(book: FactBook, deed: str, fact_id: str) -> object:
    return await (book.aretire(fact_id) if deed == "retire" else book.arestore(fact_id))
