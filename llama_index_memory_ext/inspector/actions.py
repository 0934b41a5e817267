"""Does what a person asks for on a page that says "really?": adds, edits, retires, restores and forgets."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from llama_index_memory_ext.errors import FactError
from llama_index_memory_ext.fact import ALL, utc_now
from llama_index_memory_ext.facts.book import FactBook, known_as
from llama_index_memory_ext.facts.consolidation import proposals
from llama_index_memory_ext.inspector.pages import NotFoundError
from llama_index_memory_ext.store.tables import anonymous, name_of

if TYPE_CHECKING:
    from llama_index_memory_ext.facts.consolidation import Proposal
    from llama_index_memory_ext.store import MemoryStore

_OF_FACTS = {
    "edit": "It says this from now on. The words that it was learned from stay beside it.",
    "pin": "It is shown to the model for every question, as far as its limit goes.",
    "unpin": "It is shown to the model where it concerns the question.",
    "approve": "It holds from now on, and is shown to the model. What it corrects is retired.",
    "reject": "It is retired, and not learned again. What it would have corrected goes on to hold.",
    "tidy": "It is retired: another fact says as much or is newer, or its day has passed. It can be restored.",
    "retire": "It is kept, and no longer shown to the model. It can be restored.",
    "restore": "It is shown to the model again, without an end. What has replaced it holds, too.",
    "forget-fact": "It is deleted for good, with its quote and its embedding. The message in which it was said stays.",
}


async def ask(store: MemoryStore, deed: str, user: str, thing: str) -> dict[str, Any]:
    """Return what is to be asked for a deed; a NotFoundError for what there is not. The store is only read.

    The ``name`` of the thing, the ``outcome``, and as ``target`` the page that is shown
    then, with its query. The ``text`` can be changed in the answer; None: there is
    none.
    """
    question = {"deed": deed, "user": user, "thing": thing, "name": thing, "text": None}
    if deed == "add":
        outcome = "It is stored as a fact that all agents of this user share. Say it in one sentence."
        return question | {
            "name": name_of(user),
            "text": "",
            "outcome": outcome,
            "target": ("facts", {"user": user}),
        }
    if deed in _OF_FACTS:
        for fact in (await store.facts.read(user, view=ALL)).facts:
            if fact.id == thing:
                if deed == "forget-fact":
                    there = ("facts", {"user": user})
                else:
                    there = ("fact", {"user": user, "fact": thing})
                text = fact.content if deed == "edit" else None
                return question | {
                    "name": fact.content,
                    "text": text,
                    "outcome": _OF_FACTS[deed],
                    "target": there,
                }
    elif deed == "forget-session":
        for info in await store.sessions(session_ids=[thing]):
            facts = "The facts that were learned from it stay with its user."
            if await store.users.own_users([thing]):
                facts = "It belongs to no user, so its facts are deleted with it."
            outcome = f"Its {info.messages} messages are deleted for good. {facts}"
            return question | {"outcome": outcome, "target": ("sessions", {})}
    elif deed == "forget-user":
        known = (await store.facts.read(user, view=ALL)).facts
        infos = await store.sessions(user)
        counts = f"{len(known)} facts, {len(infos)} sessions and their {sum(info.messages for info in infos)} messages"
        outcome = f"All that is stored of this user is deleted for good: {counts}, also what others said in them."
        if known or infos:
            return question | {
                "name": name_of(user),
                "outcome": outcome,
                "target": ("users", {}),
            }
    raise NotFoundError


async def tidying(store: MemoryStore, user: str) -> list[Proposal]:
    """Return what of a user's facts can be tidied up by the checks alone: no model is asked."""
    now = utc_now()
    held = [
        one
        for one in (await store.facts.read(user, view=ALL)).facts
        if one.state(now) in ("present", "past")
    ]
    return await asyncio.to_thread(
        proposals, [one for one in held if not one.retired], now
    )


async def do(
    store: MemoryStore, deed: str, user: str, thing: str, text: str = ""
) -> None:
    """Do what was asked. What is gone already is no error; a FactError for a text that no fact may have."""
    book = FactBook(store, user, scope="all")
    of_facts: dict[str, Any] = {
        "approve": book.aapprove,
        "reject": book.areject,
        "retire": book.aretire,
    }
    of_facts |= {"restore": book.arestore, "forget-fact": book.aforget}
    changes: dict[str, Any] = {
        "edit": {"content": text},
        "pin": {"pinned": True},
        "unpin": {"pinned": False},
    }
    if deed == "add":
        if not await known_as(book, text):
            await book.aadd(text)
    elif deed in changes:
        await book.aupdate(thing, **changes[deed])
    elif deed == "tidy":
        await book.aapply(
            [one for one in await tidying(store, user) if one.retired.id == thing]
        )
    elif deed in _OF_FACTS:
        with suppress(FactError):
            await of_facts[deed](thing)
    elif deed == "forget-session" and not await store.users.own_users([thing]):
        await store.forget(thing)
    else:
        # A session without a user has facts of its own.
        await store.forget_user(
            user if deed == "forget-user" else anonymous(thing), vacuum=False
        )
    if deed.startswith("forget"):
        await store.vacuum()
