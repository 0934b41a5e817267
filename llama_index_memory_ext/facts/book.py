"""Lists and changes the facts of a user."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeVar

from llama_index.core.async_utils import asyncio_run

from llama_index_memory_ext.background.jobs import in_sync
from llama_index_memory_ext.errors import FactError
from llama_index_memory_ext.fact import Fact, retire, utc_now

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from llama_index_memory_ext.store import MemoryStore

T = TypeVar("T")

_SCHEMA_VERSION = 1


def _run(_: FactBook, call: Coroutine[Any, Any, T]) -> T:
    result: T = asyncio_run(call)
    return result


class FactBook:
    """The facts of one namespace. Each method has a synchronous twin without the ``a``: ``list``, ..., ``import_``."""

    def __init__(self, store: MemoryStore, namespace: str) -> None:
        self._store = store
        self.namespace = namespace

    async def alist(self, *, with_retired: bool = False) -> list[Fact]:
        """The active facts, on request with the retired ones, newest first; [] if there are none."""
        facts = (await self._store.facts.read(self.namespace)).facts
        chosen = [fact for fact in facts if with_retired or not fact.retired]
        return sorted(chosen, key=lambda fact: fact.created_at, reverse=True)

    async def aadd(self, /, fact: Fact | str, **fields: Any) -> Fact:
        """Store a new fact, or a text with the fields of ``Fact``; returns it as stored in this namespace."""
        new = Fact(content=fact, **fields) if isinstance(fact, str) else fact.model_copy(update=fields)
        stored = new.model_copy(update={"namespace": self.namespace})
        await self._store.facts.write(self.namespace, [stored])
        return stored

    async def aupdate(self, /, fact_id: str, **fields: Any) -> Fact:
        """Change fields of a fact. A FactError if there is none with this id, pydantic's for what no field takes."""
        changed = {"updated_at": utc_now(), **fields}
        return await self._change(fact_id, lambda fact: Fact.model_validate({**fact.model_dump(), **changed}))

    async def aretire(self, fact_id: str, reason: str = "retired by hand", replaced_by: str | None = None) -> Fact:
        """Stop showing a fact; it is kept, for ``arestore``. A FactError if there is none with this id."""
        return await self._change(fact_id, lambda fact: retire(fact, reason, utc_now(), replaced_by))

    async def arestore(self, fact_id: str) -> Fact:
        """Show a retired fact again. A FactError if there is none with this id."""
        return await self.aupdate(fact_id, retired_at=None, retired_reason=None, replaced_by=None)

    async def aforget(self, *fact_ids: str) -> int:
        """Delete facts for good, without ids all of the namespace; returns how many there were."""
        return await self._store.facts.delete(self.namespace, list(fact_ids) or None)

    async def aexport(self) -> str:
        """All facts, retired ones too, as JSON Lines; the first line names the schema version."""
        facts = (await self._store.facts.read(self.namespace)).facts
        head = json.dumps({"schema": "llama_index_memory_ext.fact", "version": _SCHEMA_VERSION})
        return "".join(f"{line}\n" for line in [head, *(fact.model_dump_json() for fact in facts)])

    async def aimport(self, lines: str) -> int:
        """Store what ``aexport`` wrote; returns how many. A FactError for a wrong line; nothing is stored then."""
        facts = _parse(lines)
        await self._store.facts.write(self.namespace, facts)
        return len(facts)

    async def _change(self, fact_id: str, changed: Callable[[Fact], Fact]) -> Fact:
        fact = await self._store.facts.change(self.namespace, fact_id, changed)
        if fact is None:
            count = len((await self._store.facts.read(self.namespace)).facts)
            raise FactError(f"There is no fact {fact_id!r} of {self.namespace!r} among {count}. List them first.")
        return fact

    list = in_sync(alist, _run)
    add = in_sync(aadd, _run)
    update = in_sync(aupdate, _run)
    retire = in_sync(aretire, _run)
    restore = in_sync(arestore, _run)
    forget = in_sync(aforget, _run)
    export = in_sync(aexport, _run)
    import_ = in_sync(aimport, _run)


def _parse(lines: str) -> list[Fact]:
    facts = []
    for number, line in enumerate(filter(str.strip, lines.splitlines()), start=1):
        try:
            values = json.loads(line)
            is_head = number == 1 and isinstance(values, dict) and "version" in values
            if not is_head:
                facts.append(Fact.model_validate(values))
        except ValueError as error:
            raise FactError(
                f"Line {number} is no fact ({type(error).__name__}); expected JSON Lines as export writes them. "
                "Nothing was imported."
            ) from None
        if is_head and values["version"] != _SCHEMA_VERSION:
            raise FactError(
                f"These facts have schema version {values['version']!r}, and this package knows version "
                f"{_SCHEMA_VERSION}. Import them with the package that wrote them, or a newer one."
            )
    return facts
