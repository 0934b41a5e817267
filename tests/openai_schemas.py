"""What OpenAI's servers complain of in the schema that an answer should have."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

_KEYWORDS = {
    "$defs", "$ref", "additionalProperties", "anyOf", "const", "description", "enum", "items", "properties", "required",
    "title", "type",
}  # fmt: skip


def why_format_refused(wanted: Any) -> str | None:
    """The complaint about the ``response_format`` of a request, or None."""
    if wanted is None or wanted.get("type") in ("text", "json_object"):
        return None
    if wanted.get("type") != "json_schema":
        return f"Invalid value: {wanted.get('type')!r} (response_format.type)."
    named = wanted.get("json_schema", {})
    if not re.fullmatch("[a-zA-Z0-9_-]{1,64}", named.get("name", "")):
        return "Invalid 'response_format.json_schema.name': string does not match pattern '^[a-zA-Z0-9_-]+$'."
    complaints = _complaints(named.get("schema", {})) if named.get("strict") else iter(())
    return next((f"Invalid schema for response_format '{named['name']}': {one}" for one in complaints), None)


def _complaints(schema: dict[str, Any], context: tuple[str, ...] = ()) -> Iterator[str]:
    """What the strict dialect does not allow: each object is closed, and asks for all that it names."""
    place = f"In context={context},"
    for keyword in sorted(schema.keys() - _KEYWORDS):
        yield f"{place} '{keyword}' is not permitted."
    if "$ref" in schema and len(schema) > 1:
        yield f"{place} $ref cannot have keywords {sorted(schema.keys() - {'$ref'})}."
    if schema.get("type") == "object":
        if schema.get("additionalProperties") is not False:
            yield f"{place} 'additionalProperties' is required to be supplied and to be false."
        if set(schema.get("required", ())) != set(schema.get("properties", {})):
            yield f"{place} 'required' is required to be supplied and to be an array including every key in properties."
    if not {"type", "$ref", "anyOf", "enum", "const"} & schema.keys():
        yield f"{place} schema must have a 'type' key."
    for keyword in ("properties", "$defs"):
        for name, part in schema.get(keyword, {}).items():
            yield from _complaints(part, (*context, keyword, name))
    if "items" in schema:
        yield from _complaints(schema["items"], (*context, "items"))
