"""The actions of the forms: add, edit, pin, approve, reject, retire, restore and forget."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from llama_index_memory_ext import Fact, FactBook, FactError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from llama_index_memory_ext import MemoryStore

# The fields of a form that adds or edits a fact.
_FIELDS = ("content", "category", "confidence", "tags")


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


class Target(NamedTuple):
    """The page that follows an action, with its query."""

    page: str
    query: Mapping[str, str]


def target_of(action: Action) -> Target:
    """Return the page that follows an action, and that shows its form again after an error."""
    if action.name == "forget-user":
        return Target("users", {})
    if action.name == "forget-session":
        return Target("sessions", {})
    query = {"user": action.user}
    if action.name in ("add", "forget-fact"):
        return Target("facts", query)
    return Target("fact", {**query, "fact": action.item})


async def do(store: MemoryStore, action: Action, form: Mapping[str, str]) -> None:
    """Carry out an action; without effect if the fact, session or user was deleted meanwhile.

    Raises:
        FactError: No fact may have these fields of the form.
    """
    book = FactBook(store, action.user, scope="all")
    if action.name == "add":
        fields = _fields_in(form)
        if not await book.afind(fields.get("content", "")):
            await book.aadd(Fact(**fields))
    elif action.name == "edit":
        await book.aupdate(action.item, **_fields_in(form))
    elif action.name in ("pin", "unpin"):
        await book.aupdate(action.item, pinned=action.name == "pin")
    elif action.name == "forget-user":
        await store.forget_user(action.user, vacuum=False)
    elif action.name == "forget-session":
        await _forget_session(store, action.item)
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
    if action.name.startswith("forget"):
        await store.vacuum()


async def _forget_session(store: MemoryStore, session_id: str) -> None:
    """Delete a session, and its facts if no user owns them."""
    for info in await store.sessions(session_ids=[session_id]):
        if info.own_namespace in info.namespaces:
            await store.forget_user(info.own_namespace, vacuum=False)
        else:
            await store.forget(session_id)


def _fields_in(form: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of a fact that a form has."""
    fields: dict[str, Any] = {
        name: form[name].strip() for name in _FIELDS if name in form
    }
    if "tags" in fields:
        tags = map(str.strip, fields["tags"].split(","))
        fields["tags"] = tuple(filter(None, tags))
    return fields
