"""The prompt caches of OpenAI's servers: give them to the server of a test, and it reports what they find."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from typing import Any

from benchmarks.prompt_caches import Marks, Part, TokenPrefix, Usage
from tests.openai_complaints import BREAKPOINT


class PromptCaches:
    """A cache for each ``prompt_cache_key``, and one for the requests without a key."""

    def __init__(self) -> None:
        self.marks: defaultdict[str | None, Marks] = defaultdict(
            partial(Marks, managed=True)
        )
        self.prefixes: defaultdict[str | None, TokenPrefix] = defaultdict(TokenPrefix)
        self.lock = threading.Lock()

    def serve(self, body: dict[str, Any], *, older: bool) -> Usage:
        """What of the prompt of a request is found and written; models before GPT-5.6 find any common beginning."""
        parts, key = list(parts_of(body)), body.get("prompt_cache_key")
        with self.lock:
            if older:
                return self.prefixes[key].serve(parts)._replace(written=0)
            cache = self.marks[key]
            cache.managed = (
                body.get("prompt_cache_options", {}).get("mode") != "explicit"
            )
            return cache.serve(parts)


def parts_of(body: dict[str, Any]) -> Iterator[Part]:
    """The prompt of a request: what it says of tools and of the answer's form, and then its messages."""
    settings = {
        name: body[name]
        for name in ("tools", "response_format", "text", "instructions")
        if body.get(name)
    }
    if settings:
        yield Part(json.dumps(settings))
    items = body["input"] if "input" in body else body["messages"]
    for item in (
        [{"role": "user", "content": items}] if isinstance(items, str) else items
    ):
        yield from _parts_of_item(item)


def _parts_of_item(item: dict[str, Any]) -> Iterator[Part]:
    content = item.get("output", item.get("content")) or []
    pieces = [{"text": content}] if isinstance(content, str) else content
    head = json.dumps(
        {
            name: value
            for name, value in item.items()
            if name not in ("content", "output")
        }
    )
    yield Part(f"<|{head}|>")
    may_be_managed = item.get("role") in ("user", "tool") or "output" in item
    for i, piece in enumerate(pieces, start=1):
        bare = {name: value for name, value in piece.items() if name != BREAKPOINT}
        text = piece["text"] if "text" in piece else json.dumps(bare)
        yield Part(
            text,
            marked=BREAKPOINT in piece,
            ends_message=may_be_managed and i == len(pieces),
        )
