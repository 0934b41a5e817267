"""Reads the facts that mem0, LangGraph's store and Zep have exported."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, NamedTuple
from uuid import NAMESPACE_OID, uuid5

from pydantic import TypeAdapter, ValidationError

from llama_index_memory_ext.errors import FactError, MessageError
from llama_index_memory_ext.fact import CATEGORIES, Fact, utc_now
from llama_index_memory_ext.facts.reply import read_category
from llama_index_memory_ext.formats import loaded_json
from llama_index_memory_ext.formats.layouts import described

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index_memory_ext.text.tool_calls import Json

EXPORTS = "JSON Lines as export writes them, or an export of mem0, LangGraph or Zep"
# Under these an export has its list.
_LISTS = ("results", "memories", "items", "facts", "edges")
# Where programs put the text of an item into LangGraph's store.
_TEXTS = ("memory", "content", "text", "data", "fact")
_TIME = TypeAdapter(datetime)


class _Entry(NamedTuple):
    """An entry of an export: whose it is, by the names that stand there, and the fields of its fact, {} for none."""

    source: str
    names: tuple[str, ...]
    fields: dict[str, Json]


def foreign_facts(text: str, namespace: str, categories: Sequence[str] = CATEGORIES) -> list[Fact] | None:
    """Returns the facts of an export of another memory; None for facts of our own, and for what is no JSON.

    Of the facts of several users, only those of ``namespace`` are returned. The ids are those of the export, so that a
    fact that is imported twice is stored once. What was deleted there is left out, and what was put away is retired.

    Raises a FactError, without any of the texts, for an entry that is no fact, and for facts of several users none of
    whom is called ``namespace``.
    """
    try:
        value = loaded_json(text)
    except MessageError:
        return None
    if isinstance(value, dict):
        value = next((value[key] for key in _LISTS if isinstance(value.get(key), list)), value)
    values = value if isinstance(value, list) else [value]
    read = [_read(one) for one in values]
    # A fact of our own has a content, and the head before them a version.
    ours = [isinstance(one, dict) and bool({"content", "version"} & one.keys()) for one in values]
    if values and not any(read) and all(ours):
        return None
    entries: dict[int, _Entry] = {}
    for place, entry in enumerate(read):
        if entry is None:
            raise FactError(f"Expected {EXPORTS}; entry {place}: saw {described(values[place])}. Nothing was imported.")
        if entry.source == "LangGraph" and not entry.fields["content"]:
            expected, seen = f"'value' with a text as {', '.join(_TEXTS)}", described(values[place]["value"])
            raise FactError(f"Expected in entry {place}: {expected}; saw {seen}. Nothing was imported.")
        entries[place] = entry
    named = {place: entry for place, entry in entries.items() if namespace in entry.names}
    users = {entry.names for entry in entries.values()}
    if not named and len(users) > 1:
        what = "namespaces" if entries[0].source == "LangGraph" else "users"
        raise FactError(
            "Expected the facts of one user, or of several of whom one is named as here; saw those of "
            f"{len(users)} {what}. Export those of one, or import them under a name that stands there. "
            "Nothing was imported."
        )
    return [_fact(entry, place, categories) for place, entry in (named or entries).items() if entry.fields]


def _fact(entry: _Entry, place: int, categories: Sequence[str]) -> Fact:
    fields = {key: value for key, value in entry.fields.items() if value is not None}
    kinds = [kind for kind in fields.pop("kinds", ()) if isinstance(kind, str)]
    # "user_preferences" is a preference.
    category = read_category([*kinds, *(re.sub(r"[\W_]+", ",", kind) for kind in kinds)], categories)
    try:
        return Fact.model_validate({**fields, "category": category, "imported_from": entry.source})
    except ValidationError as error:
        wrong = ", ".join(str(one["loc"][0] if one["loc"] else one["type"]) for one in error.errors()[:3])
        problem = f"Expected a fact of {entry.source} in entry {place}: what is wrong is {wrong}"
    raise FactError(f"{problem}. Nothing was imported.")  # Outside of the handler, because its error carries the text.


def _read(entry: Json) -> _Entry | None:
    """Return an entry by the keys that only one program writes; None for what none of them writes."""
    if not isinstance(entry, dict):
        return None
    if {"namespace", "value"} <= entry.keys():
        return _of_langgraph(entry)
    if "fact" in entry:
        return _of_zep(entry)
    # A memory of OpenMemory, which is mem0's, has its text as "content", as a fact of our own has with a namespace.
    is_bare = "content" in entry and "namespace" not in entry
    is_openmemorys = is_bare and {"metadata", "categories", "hash"} & entry.keys()
    if entry.get("memory") is None and not is_openmemorys:
        return None
    content, state = entry.get("memory"), entry.get("state")
    metadata = entry["metadata"] if isinstance(entry.get("metadata"), dict) else {}
    fields = _common(entry, entry.get("content") if content is None else content, entry.get("id"))
    fields["expires_at"] = _time(entry.get("expiration_date"))
    fields["kinds"] = [*_listed(metadata.get("category")), *_listed(entry.get("categories"))]
    if state in ("archived", "paused"):
        retired_at = _time(entry.get("archived_at") or entry.get("updated_at")) or utc_now()
        fields |= {"retired_at": retired_at, "retired_by": "hand", "retired_reason": f"{state} in mem0"}
    return _Entry("mem0", _names(entry.get("user_id")), {} if state == "deleted" else fields)


def _of_langgraph(entry: dict[str, Json]) -> _Entry:
    value = entry["value"] if isinstance(entry["value"], dict) else {}
    # LangMem writes the name of a schema and its fields.
    inner = value["content"] if isinstance(value.get("content"), dict) else value
    content = next((inner[key] for key in _TEXTS if isinstance(inner.get(key), str)), None)
    names = _names(*_listed(entry["namespace"]))
    # A key is the only one in its namespace.
    fact_id = uuid5(NAMESPACE_OID, json.dumps([*names, str(entry.get("key"))])).hex
    kinds = [kind for key in ("category", "type", "kind") for kind in _listed(value.get(key) or inner.get(key))]
    return _Entry("LangGraph", names, {**_common(entry, content, fact_id), "kinds": kinds})


def _of_zep(entry: dict[str, Json]) -> _Entry:
    began, last = _time(entry.get("valid_at")), _time(entry.get("invalid_at"))
    fields = _common(entry, entry["fact"], entry.get("uuid") or entry.get("uuid_"))
    if last is None and entry.get("expired_at"):
        retired_at = _time(entry["expired_at"])
        fields |= {"retired_at": retired_at, "retired_by": "change", "retired_reason": "expired in Zep"}
    if isinstance(last, datetime):
        # A fact that ends when a day begins was last true on the day before.
        last -= timedelta(microseconds=1)
        last = max(began, last) if isinstance(began, datetime) else last
    days = {"valid_from": began, "valid_until": last}
    fields |= {key: value.date() if isinstance(value, datetime) else value for key, value in days.items()}
    return _Entry("Zep", _names(entry.get("user_uuid")), fields)


def _common(entry: dict[str, Json], content: Json, fact_id: Json) -> dict[str, Json]:
    created_at = _time(entry.get("created_at"))
    updated_at = _time(entry.get("updated_at")) or created_at
    return {"id": fact_id, "content": content, "created_at": created_at, "updated_at": updated_at}


def _names(*values: Json) -> tuple[str, ...]:
    return tuple(str(value) for value in values if value is not None)


def _listed(value: Json) -> list[Json]:
    return value if isinstance(value, list) else [value]


def _time(value: Json) -> Json:
    """Return a time with its zone, by default UTC; what is none as it is, to be refused by the name of its field."""
    try:
        time = _TIME.validate_python(value)
        return time.replace(tzinfo=time.tzinfo or timezone.utc).astimezone(timezone.utc)
    except (ValidationError, OverflowError):
        return value
