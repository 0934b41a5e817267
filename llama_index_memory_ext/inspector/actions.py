"""The actions of a page: add, edit, retire, restore and forget, each described before it is confirmed."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from llama_index_memory_ext.errors import FactError
from llama_index_memory_ext.fact import ALL, Fact
from llama_index_memory_ext.facts.book import FactBook, known_as
from llama_index_memory_ext.inspector.pages import NotFoundError
from llama_index_memory_ext.store.tables import display_name, namespace_of_session

if TYPE_CHECKING:
    from collections.abc import Mapping

    from llama_index_memory_ext.store import MemoryStore

_ADDED = "The fact is stored, and all agents of this user share it. Write one sentence."
# The fields of a form that changes a fact, with the values for a new fact.
_NEW_FACT = {"content": "", "category": "knowledge", "confidence": "1.0", "tags": ""}
_FACT_OUTCOMES = {
    "edit": "The fact says this from now on. The words that it was learned from stay beside it.",
    "pin": "The model is shown this fact for every question, within the limit of the facts.",
    "unpin": "The model is shown this fact for the questions that it concerns.",
    "approve": "The fact holds from now on, and the model is shown it. The facts that it corrects are retired.",
    "reject": "The fact is retired and not learned again. The facts that it would have corrected still hold.",
    "retire": "The fact is kept, and the model is no longer shown it. It can be restored.",
    "restore": "The model is shown the fact again, without an end. The facts that replaced it still hold.",
    "forget-fact": "The fact is deleted for good, with its quote and its embedding. The message with the quote stays.",
}


class Action(NamedTuple):
    """An action that a form asks for.

    ``name``: "add", "forget-session", "forget-user", or an action on a
    fact.
    ``user``: the user whose facts or sessions change, or "".
    ``item``: the id of the fact or the session, or "".
    """

    name: str
    user: str
    item: str


@dataclass(frozen=True)
class Confirmation:
    """The question that a page asks before an action.

    ``subject``: the fact, session or user that changes.
    ``outcome``: the effect of the action.
    ``page``, ``query``: the page that follows.
    ``fields``: the fields of the fact that the person can edit; {} without such fields.
    ``error``: why the fields were refused, beginning with the name of a field; "" before.
    """

    action: Action
    subject: str
    outcome: str
    page: str
    query: Mapping[str, str]
    fields: Mapping[str, str] = field(default_factory=dict)
    error: str = ""


async def ask(store: MemoryStore, action: Action) -> Confirmation:
    """Return the question to confirm before an action; the store is only read.

    Raises:
        NotFoundError: No such action, fact, session or user exists.
    """
    query = {"user": action.user}
    if action.name == "add":
        subject = display_name(action.user)
        return Confirmation(action, subject, _ADDED, "facts", query, _NEW_FACT)
    if action.name in _FACT_OUTCOMES:
        return await _ask_about_fact(store, action)
    if action.name == "forget-session":
        return await _ask_about_session(store, action)
    if action.name == "forget-user":
        return await _ask_about_user(store, action)
    raise NotFoundError


async def _ask_about_fact(store: MemoryStore, action: Action) -> Confirmation:
    outcome = _FACT_OUTCOMES[action.name]
    query = {"user": action.user}
    page = "facts"
    if action.name != "forget-fact":
        page = "fact"
        query["fact"] = action.item
    for fact in (await store.facts.read(action.user, view=ALL)).facts:
        if fact.id == action.item:
            fields = {}
            if action.name == "edit":
                fields = {name: str(getattr(fact, name)) for name in _NEW_FACT}
                fields["tags"] = ", ".join(fact.tags)
            return Confirmation(action, fact.content, outcome, page, query, fields)
    raise NotFoundError


async def _ask_about_session(store: MemoryStore, action: Action) -> Confirmation:
    sessions = await store.sessions(session_ids=[action.item])
    if not sessions:
        raise NotFoundError
    facts = "The facts that were learned from the session stay with its user."
    if await store.owners.anonymous_namespaces([action.item]):
        facts = "It belongs to no user, so its facts are deleted with it."
    outcome = f"Its {sessions[0].messages} messages are deleted for good. {facts}"
    return Confirmation(action, action.item, outcome, "sessions", {})


async def _ask_about_user(store: MemoryStore, action: Action) -> Confirmation:
    facts = (await store.facts.read(action.user, view=ALL)).facts
    sessions = await store.sessions(action.user)
    if not (facts or sessions):
        raise NotFoundError
    own = [info for info in sessions if {*info.user_ids} <= {action.user}]
    messages = sum(info.messages for info in own)
    outcome = (
        f"All data of this user is deleted for good: {len(facts)} facts, and the sessions of this user "
        f"alone ({len(own)}) with {messages} messages."
    )
    if len(own) < len(sessions):
        shared = len(sessions) - len(own)
        outcome += f" In sessions with others ({shared}), only this user's turns go."
    return Confirmation(action, display_name(action.user), outcome, "users", {})


async def do(store: MemoryStore, action: Action, form: Mapping[str, str]) -> None:
    """Carry out an action; without effect if the fact, session or user was deleted meanwhile.

    Raises:
        FactError: No fact may have these fields of the form.
    """
    if action.name == "add":
        book = FactBook(store, action.user, scope="all")
        fields = _fields_in(form)
        if not await known_as(book, fields.get("content", "")):
            await book.aadd(Fact(**fields))
    elif action.name in _FACT_OUTCOMES:
        await _change_fact(store, action, form)
    elif action.name == "forget-user":
        await store.forget_user(action.user, vacuum=False)
    elif await store.owners.anonymous_namespaces([action.item]):
        # A session without a user owns its facts.
        await store.forget_user(namespace_of_session(action.item), vacuum=False)
    else:
        await store.forget(action.item)
    if action.name.startswith("forget"):
        await store.vacuum()


def _fields_in(form: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of a fact that a form has."""
    fields: dict[str, Any] = {
        name: form[name].strip() for name in _NEW_FACT if name in form
    }
    if "tags" in fields:
        tags = map(str.strip, fields["tags"].split(","))
        fields["tags"] = tuple(filter(None, tags))
    return fields


async def _change_fact(
    store: MemoryStore, action: Action, form: Mapping[str, str]
) -> None:
    book = FactBook(store, action.user, scope="all")
    if action.name == "edit":
        await book.aupdate(action.item, **_fields_in(form))
    elif action.name in ("pin", "unpin"):
        await book.aupdate(action.item, pinned=action.name == "pin")
    else:
        changes: dict[str, Any] = {
            "approve": book.aapprove,
            "reject": book.areject,
            "retire": book.aretire,
            "restore": book.arestore,
            "forget-fact": book.aforget,
        }
        with suppress(FactError):
            await changes[action.name](action.item)
