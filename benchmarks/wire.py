"""A server that stands in for the providers, and reads from a request what a prompt cache would look at.

It answers every request with one word, if it is not told another answer. What counts is the body of the request, as the
real client has sent it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import ModuleType
from typing import Any
from unittest.mock import patch

import anthropic.resources.messages.messages
import openai.resources.chat.completions.completions
from llama_index.core.llms.llm import LLM
from llama_index.llms.anthropic import Anthropic
from llama_index.llms.openai import OpenAI

from benchmarks.prompt_caches import Part
from llama_index_memory_ext import CachingOpenAI

Body = dict[str, Any]

_MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-sonnet-4-5",
    "content": [{"type": "text", "text": "Yes."}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 1, "output_tokens": 1},
}


class Wire:
    """Where the server listens, the body of the last request, and what it answers as OpenAI."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.body: Body = {}
        self.answer = "Yes."

    def openai(self) -> LLM:
        """LlamaIndex's model for OpenAI's Chat Completions, without marks."""
        return OpenAI(model="gpt-4o", api_base=f"{self.address}/v1", api_key="none")

    def caching_openai(self) -> LLM:
        """The same, with marks."""
        return CachingOpenAI(
            model="gpt-5.6-sol", api_base=f"{self.address}/v1", api_key="none"
        )

    def anthropic(self, **kwargs: Any) -> LLM:
        """LlamaIndex's model for Anthropic's Messages API."""
        return Anthropic(
            model="claude-sonnet-4-5",
            base_url=self.address,
            api_key="none",
            max_tokens=8,
            additional_kwargs=kwargs,
        )


@contextmanager
def listening() -> Iterator[Wire]:
    """Serve on a free port of this machine until the end of the block."""
    http = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    wire = Wire(f"http://127.0.0.1:{http.server_address[1]}")
    http.wire = wire  # type: ignore[attr-defined]
    threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield wire
    finally:
        http.shutdown()
        http.server_close()


@contextmanager
def messages_as_they_are() -> Iterator[None]:
    """Let the clients of providers send messages without a copy of each key: the same requests in less time."""
    openai_client = openai.resources.chat.completions.completions
    anthropic_client = anthropic.resources.messages.messages
    with _sending_as_they_are(openai_client), _sending_as_they_are(anthropic_client):
        yield


@contextmanager
def _sending_as_they_are(client: ModuleType) -> Iterator[None]:
    copied = client.async_maybe_transform

    async def transformed(data: Mapping[str, Any], expected_type: Any) -> Body:
        options = {key: value for key, value in data.items() if key != "messages"}
        body = await copied(options, expected_type)
        return {**body, "messages": data["messages"]}

    with patch.object(client, "async_maybe_transform", transformed):
        yield


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Head and body are two packets, and the second must not wait until the first is acknowledged.
    disable_nagle_algorithm = True

    def log_message(self, *args: Any) -> None:
        """Silent."""

    def do_POST(self) -> None:
        wire: Wire = self.server.wire  # type: ignore[attr-defined]
        wire.body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        is_anthropic = self.path.endswith("/messages")
        answer = json.dumps(
            _MESSAGE if is_anthropic else _completion(wire.answer)
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)


def _completion(text: str) -> Body:
    message = {"role": "assistant", "content": text}
    choices = [{"index": 0, "finish_reason": "stop", "message": message}]
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 0,
        "model": "gpt-4o",
        "choices": choices,
    }


def parts_of(body: Body) -> list[Part]:
    """The parts of a prompt, of either provider. The role of a message stands before its first part."""
    messages = [*_system(body), *body["messages"]]
    parts = [part for message in messages for part in _parts_of(message)]
    if body.get("cache_control") and parts:
        # Anthropic marks the last block then.
        parts[-1] = parts[-1]._replace(marked=True)
    return parts


def _system(body: Body) -> list[Body]:
    return [{"role": "system", "content": body["system"]}] if body.get("system") else []


def _parts_of(message: Body) -> Iterator[Part]:
    role, content = message["role"], message.get("content") or []
    blocks = [
        *([{"text": content}] if isinstance(content, str) else content),
        *message.get("tool_calls", []),
    ]
    for i, block in enumerate(blocks):
        said = (
            block["text"]
            if "text" in block
            else json.dumps({**block, "cache_control": None})
        )
        text = f"<|{role}|>\n{said}" if i == 0 else said
        is_last = i == len(blocks) - 1
        marked = bool(
            block.get("cache_control") or block.get("prompt_cache_breakpoint")
        )
        yield Part(
            f"{text}\n" if is_last else text,
            marked,
            is_last and role in ("user", "tool"),
        )
