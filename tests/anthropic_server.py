"""An HTTP server that speaks Anthropic's Messages API, caches prompts as it does, and refuses what it refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from benchmarks.prompt_caches import Blocks, Part, Usage
from tests.openai_server import Handler, Message, Model, listening

_MOST_MARKS = 4


@dataclass
class AnthropicServer:
    """Where the server listens, the bodies of the requests that it accepted, and what its cache found of each.

    The model answers with ``say``, ``call`` or ``fail``, as that of the OpenAI server does.
    """

    base_url: str
    model: Model
    cache: Blocks = field(default_factory=Blocks)
    requests: list[Message] = field(default_factory=list)
    usages: list[Usage] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)


@contextmanager
def serve(model: Model) -> Iterator[AnthropicServer]:
    """Serve until the end of the block, on a free port of this machine."""
    with listening(
        _AnthropicHandler, lambda address: AnthropicServer(address, model)
    ) as server:
        yield server


def why_refused(body: Message) -> str | None:
    """Anthropic's complaint about a request, or None."""
    checks = (_about_messages, _about_texts, _about_marks, _about_calls)
    return next((complaint for check in checks for complaint in check(body)), None)


def marks_of(body: Message) -> list[Message]:
    """What the ``cache_control`` of each marked block says, in the order in which the cache sees them."""
    return [
        block["cache_control"]
        for _, _, block in _blocks(body)
        if "cache_control" in block
    ]


def _about_messages(body: Message) -> Iterator[str]:
    for i, message in enumerate(body["messages"]):
        if message["role"] not in ("user", "assistant"):
            yield f"messages.{i}.role: Input should be 'user' or 'assistant'"
        elif not message["content"]:
            yield f"messages.{i}: {message['role']} messages must have non-empty content"
    if [message["role"] for message in body["messages"][:1]] != ["user"]:
        yield 'messages: first message must use the "user" role'


def _about_texts(body: Message) -> Iterator[str]:
    for where, role, block in _blocks(body):
        if role != "tools" and block["type"] == "text" and not block["text"].strip():
            if "cache_control" in block:
                yield f"{where}.text: cache_control cannot be set for empty text blocks"
            yield f"{where.partition('.')[0]}: text content blocks must contain non-whitespace text"


def _about_marks(body: Message) -> Iterator[str]:
    marks, shorter = marks_of(body), False
    asked = body.get("cache_control")
    if asked and "cache_control" not in list(_blocks(body))[-1][2]:
        marks = [*marks, asked]
    for mark in marks:
        if (
            mark.get("type") != "ephemeral"
            or set(mark) - {"type", "ttl"}
            or mark.get("ttl", "5m") not in ("5m", "1h")
        ):
            yield "cache_control: Input should be {'type': 'ephemeral'}, with a 'ttl' of '5m' or '1h'"
        if mark.get("ttl") == "1h" and shorter:
            yield "a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block."
        shorter |= mark.get("ttl", "5m") == "5m"
    if len(marks) > _MOST_MARKS:
        yield f"A maximum of 4 blocks with cache_control may be provided. Found {len(marks)}."


def _about_calls(body: Message) -> Iterator[str]:
    """Each call is answered at the beginning of the next message; messages of one role in a row are one."""
    turns: list[tuple[str, list[Message]]] = []
    for i, message in enumerate(body["messages"]):
        blocks = [
            block
            for where, _, block in _blocks(body)
            if where.startswith(f"messages.{i}.")
        ]
        if turns and turns[-1][0] == message["role"]:
            turns[-1][1].extend(blocks)
        else:
            turns.append((message["role"], blocks))
    waiting: list[str] = []
    for i, (_, blocks) in enumerate([*turns, ("", [])]):
        first = {block.get("tool_use_id") for block in blocks[: len(waiting)]}
        for name in set(waiting) - first:
            yield f"messages.{i - 1}: `tool_use` ids were found without `tool_result` blocks immediately after: {name}."
        answered = {
            block["tool_use_id"] for block in blocks if block["type"] == "tool_result"
        }
        for name in sorted(answered - set(waiting)):
            yield f"messages.{i}.content.0: unexpected `tool_use_id` found in `tool_result` blocks: {name}."
        waiting = [block["id"] for block in blocks if block["type"] == "tool_use"]


def _blocks(body: Message) -> Iterator[tuple[str, str, Message]]:
    """Where each block stands, whose it is, and the block itself, in the order in which the cache sees them."""
    for i, tool in enumerate(body.get("tools") or []):
        yield f"tools.{i}", "tools", tool
    for i, block in enumerate(_as_blocks(body.get("system") or [])):
        yield f"system.{i}", "system", block
    for i, message in enumerate(body.get("messages") or []):
        for j, block in enumerate(_as_blocks(message["content"])):
            yield f"messages.{i}.content.{j}", message["role"], block


def _as_blocks(content: str | list[Message]) -> list[Message]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _part(role: str, block: Message) -> Part:
    plain = {name: value for name, value in block.items() if name != "cache_control"}
    text = (
        block["text"]
        if block.get("type") == "text"
        else json.dumps(plain, sort_keys=True)
    )
    return Part(f"{role}: {text}\n", "cache_control" in block)


class _AnthropicHandler(Handler):
    def do_POST(self) -> None:  # noqa: N802 - what the library calls
        state: AnthropicServer = self.server.state  # type: ignore[attr-defined]
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        complaint = why_refused(body)
        if not self.headers["x-api-key"] or not self.headers["anthropic-version"]:
            self.refuse(
                401,
                "authentication_error",
                "x-api-key and anthropic-version headers are required",
            )
        elif complaint:
            state.refusals.append(complaint)
            self.refuse(400, "invalid_request_error", complaint)
        else:
            state.requests.append(body)
            parts = [_part(role, block) for _, role, block in _blocks(body)]
            # A request may ask the server to mark the last block itself.
            parts[-1] = parts[-1]._replace(
                marked=parts[-1].marked or "cache_control" in body
            )
            state.usages.append(state.cache.serve(parts))
            answer = state.model(
                body["messages"], [tool["name"] for tool in body.get("tools") or []]
            )
            self.answer(body, answer, state.usages[-1])

    def answer(self, body: Message, answer: Message, usage: Usage) -> None:
        if "error" in answer:
            self.refuse(answer["status"], "api_error", answer["error"]["message"])
        else:
            self.send(200, message_of(body["model"], answer, usage))

    def refuse(self, status: int, kind: str, message: str) -> None:
        self.send(
            status, {"type": "error", "error": {"type": kind, "message": message}}
        )


def message_of(model: str, answer: Message, usage: Usage) -> dict[str, Any]:
    calls = answer.get("tool_calls") or []
    text = (
        [{"type": "text", "text": answer["content"]}] if answer.get("content") else []
    )
    uses = []
    for one in calls:
        named = {"id": one["id"], "name": one["function"]["name"]}
        uses.append(
            {
                "type": "tool_use",
                **named,
                "input": json.loads(one["function"]["arguments"]),
            }
        )
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [*text, *uses],
        "stop_reason": "tool_use" if calls else "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": usage.prompt - usage.found - usage.written,
            "cache_read_input_tokens": usage.found,
            "cache_creation_input_tokens": usage.written,
            "output_tokens": 1,
        },
    }
