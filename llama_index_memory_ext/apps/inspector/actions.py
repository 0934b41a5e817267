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


class Target(NamedTuple):
    """The page that follows an action, with its query."""

    page: str
    query: Mapping[str, str]


def target_of(form: Mapping[str, str]) -> Target:
    """Return the page that follows the action of a form, and that shows the form again after an error."""
    action = form["action"]
    if action == "forget-user":
        return Target("users", {})
    if action == "forget-session":
        return Target("sessions", {})
    query = {"user": form["user"]}
    if action in ("add", "forget-fact"):
        return Target("facts", query)
    return Target("fact", {**query, "fact": form["item"]})


async def do(store: MemoryStore, form: Mapping[str, str]) -> None:
    """Carry out the action of a form; most have no effect if the fact, session or user was deleted meanwhile.

    The ``action`` is "add", "forget-session", "forget-user", or an action on a fact. The
    ``user`` owns the facts or sessions that change, and the ``item`` is the id of the
    fact or the session. A fact that is known already is not added again.

    Raises:
        FactError: No fact may have these fields of the form, or the fact to edit, pin or
            unpin was deleted meanwhile.
    """
    action = form["action"]
    user = form["user"]
    item = form["item"]
    book = FactBook(store, user, scope="all")
    if action == "add":
        fields = _fields_in(form)
        if not await book.afind(fields.get("content", "")):
            await book.aadd(Fact(**fields))
    elif action == "edit":
        await book.aupdate(item, **_fields_in(form))
    elif action in ("pin", "unpin"):
        await book.aupdate(item, pinned=action == "pin")
    elif action == "forget-user":
        await store.forget_user(user, vacuum=False)
    elif action == "forget-session":
        await _forget_session(store, item)
    else:
        changes: dict[str, Any] = {
            "approve": book.aapprove,
            "reject": book.areject,
            "retire": book.aretire,
            "restore": book.arestore,
            "forget-fact": book.aforget,
        }
        with suppress(FactError):
            await changes[action](item)
    if action.startswith("forget"):
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
