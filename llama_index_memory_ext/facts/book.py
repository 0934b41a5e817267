"""Lets people and programs look at the facts of a user, and change them."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from llama_index.core.async_utils import asyncio_run
from pydantic import ValidationError

from llama_index_memory_ext.errors import FactError
from llama_index_memory_ext.fact import Fact, retire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from llama_index_memory_ext.store import MemoryStore

SCHEMA_VERSION = 1


class FactBook:
    """The facts of one namespace. Each method has a synchronous twin without the ``a``."""

    def __init__(self, store: MemoryStore, namespace: str) -> None:
        self._store = store
        self.namespace = namespace

    async def alist(self, *, with_retired: bool = False) -> list[Fact]:
        """The facts that hold, and on request those that do no longer, the newest first; [] if none is known."""
        facts = (await self._store.facts.read(self.namespace)).facts
        chosen = [fact for fact in facts if with_retired or not fact.retired]
        return sorted(chosen, key=lambda fact: fact.created_at, reverse=True)

    async def aadd(self, fact: Fact | str, **fields: Any) -> Fact:
        """Store a new fact, or a text with the fields of ``Fact``; what comes back is in this namespace."""
        new = Fact(content=fact, **fields) if isinstance(fact, str) else fact.model_copy(update=fields)
        return await self._write(new)

    async def aupdate(self, fact_id: str, **fields: Any) -> Fact:
        """Change fields of a fact.

        Raises:
            FactError: There is no fact with this id.
            pydantic.ValidationError: A field or a value that ``Fact`` does not have.
        """
        return await self._change(
            fact_id, lambda fact: Fact.model_validate({**fact.model_dump(), "updated_at": _now(), **fields})
        )

    async def aretire(self, fact_id: str, reason: str = "retired by hand", replaced_by: str | None = None) -> Fact:
        """Show a fact no longer; it is kept, for ``arestore``. A FactError if there is none with this id."""
        return await self._change(fact_id, lambda fact: retire(fact, reason, _now(), replaced_by))

    async def arestore(self, fact_id: str) -> Fact:
        """Show a retired fact again. A FactError if there is none with this id."""
        fields = {"retired_at": None, "retired_reason": None, "replaced_by": None}
        return await self.aupdate(fact_id, **fields)

    async def aforget(self, *fact_ids: str) -> int:
        """Delete facts for good, without ids all of the namespace; returns how many there were."""
        return await self._store.facts.delete(self.namespace, list(fact_ids) or None)

    async def aexport(self) -> str:
        """All facts, retired ones too, as JSON Lines; the first line names the schema version."""
        facts = (await self._store.facts.read(self.namespace)).facts
        head = json.dumps({"schema": "llama_index_memory_ext.fact", "version": SCHEMA_VERSION})
        return "".join(f"{line}\n" for line in [head, *(fact.model_dump_json() for fact in facts)])

    async def aimport(self, lines: str) -> int:
        """Store what ``aexport`` gave, here or elsewhere, in this namespace; returns how many facts these are.

        Raises:
            FactError: A line that is no fact, or a schema version that this package does not know. Nothing
                is stored then.
        """
        facts = _parsed(line for line in lines.splitlines() if line.strip())
        await self._store.facts.write(self.namespace, facts)
        return len(facts)

    def list(self, *, with_retired: bool = False) -> list[Fact]:
        """As ``alist``."""
        facts: list[Fact] = asyncio_run(self.alist(with_retired=with_retired))
        return facts

    def add(self, fact: Fact | str, **fields: Any) -> Fact:
        """As ``aadd``."""
        return _fact(asyncio_run(self.aadd(fact, **fields)))

    def update(self, fact_id: str, **fields: Any) -> Fact:
        """As ``aupdate``."""
        return _fact(asyncio_run(self.aupdate(fact_id, **fields)))

    def retire(self, fact_id: str, reason: str = "retired by hand", replaced_by: str | None = None) -> Fact:
        """As ``aretire``."""
        return _fact(asyncio_run(self.aretire(fact_id, reason, replaced_by)))

    def restore(self, fact_id: str) -> Fact:
        """As ``arestore``."""
        return _fact(asyncio_run(self.arestore(fact_id)))

    def forget(self, *fact_ids: str) -> int:
        """As ``aforget``."""
        count: int = asyncio_run(self.aforget(*fact_ids))
        return count

    def export(self) -> str:
        """As ``aexport``."""
        lines: str = asyncio_run(self.aexport())
        return lines

    def import_(self, lines: str) -> int:
        """As ``aimport``; the underscore is Python's."""
        count: int = asyncio_run(self.aimport(lines))
        return count

    async def _change(self, fact_id: str, changed: Callable[[Fact], Fact]) -> Fact:
        fact = await self._store.facts.change(self.namespace, fact_id, changed)
        if fact is None:
            count = await self._store.facts.count(self.namespace)
            raise FactError(f"There is no fact {fact_id!r} of {self.namespace!r} among {count}. List them first.")
        return fact

    async def _write(self, fact: Fact) -> Fact:
        here = fact.model_copy(update={"namespace": self.namespace})
        await self._store.facts.write(self.namespace, [here])
        return here


def _parsed(lines: Iterable[str]) -> list[Fact]:
    facts = []
    for number, line in enumerate(lines, start=1):
        try:
            values = json.loads(line)
            if number == 1 and isinstance(values, dict) and "version" in values:
                _check_version(values["version"])
                continue
            facts.append(Fact.model_validate(values))
        except (ValueError, ValidationError) as error:
            if isinstance(error, FactError):
                raise
            raise FactError(
                f"Line {number} is no fact ({type(error).__name__}); expected JSON Lines as export writes them. "
                "Nothing was imported."
            ) from None
    return facts


def _check_version(version: Any) -> None:
    if version != SCHEMA_VERSION:
        raise FactError(
            f"These facts have schema version {version!r}, and this package knows version {SCHEMA_VERSION}. "
            "Import them with the package that wrote them, or a newer one."
        )


def _fact(value: Any) -> Fact:
    assert isinstance(value, Fact)
    return value


def _now() -> datetime:
    return datetime.now(timezone.utc)
