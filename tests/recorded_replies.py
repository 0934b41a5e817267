"""Answers of eight providers in the shape of their APIs, and a server that replays them to LlamaIndex's own classes."""

# ruff: noqa: PLC0415 - the packages of providers take seconds to import, and other tests do without them

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from benchmarks.prompt_caches import Usage
from tests.anthropic_server import message_of
from tests.openai_responses import response
from tests.openai_server import Handler, Message, call, completion, listening

# What no reader of a conversation wants: a signature of thoughts, as long as Gemini's are.
SIGNATURE = base64.b64encode(bytes(range(256)) * 6).decode()
THOUGHT = "The user greets."
WORDS = "I look it up."
QUERY = {"city": "Oslo"}


@dataclass
class ReplayServer:
    """Where the server listens, the answer that it gives, and the bodies of the requests."""

    address: str
    reply: Message
    bodies: list[dict[str, Any]] = field(default_factory=list)


@contextmanager
def replay(reply: Message) -> Iterator[ReplayServer]:
    """Answer each request with this reply until the end of the block, on a free port of this machine."""
    with listening(_Replaying, lambda address: ReplayServer(address, reply)) as server:
        yield server


class _Replaying(Handler):
    # No connection outlives its answer, because not every class can close its client.
    protocol_version = "HTTP/1.0"

    def do_GET(self) -> None:  # noqa: N802 - the server's name for it
        """Describe a model, as Google's API is asked to."""
        self.send(
            200,
            {
                "name": "models/gemini-3-pro",
                "inputTokenLimit": 100_000,
                "outputTokenLimit": 8_192,
            },
        )

    def do_POST(self) -> None:  # noqa: N802
        state: ReplayServer = self.server.state  # type: ignore[attr-defined]
        state.bodies.append(
            json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        )
        self.send(200, state.reply)


_FIRST_TRY: dict[str, Any] = {"api_key": "sk-test-key", "max_retries": 0}


def openai(address: str) -> Any:
    from llama_index.llms.openai import OpenAI

    return OpenAI(model="gpt-4o-audio-preview", api_base=address, **_FIRST_TRY)


def openai_responses(address: str) -> Any:
    from llama_index.llms.openai import OpenAIResponses

    return OpenAIResponses(model="gpt-5", api_base=address, **_FIRST_TRY)


def anthropic(address: str) -> Any:
    from llama_index.llms.anthropic import Anthropic

    return Anthropic(model="claude-sonnet-4-5", base_url=address, **_FIRST_TRY)


def google_genai(address: str) -> Any:
    from google.genai.types import HttpOptions
    from llama_index.llms.google_genai import GoogleGenAI

    return GoogleGenAI(
        model="gemini-3-pro", api_key="key", http_options=HttpOptions(base_url=address)
    )


def bedrock_converse(address: str) -> Any:
    from llama_index.llms.bedrock_converse import BedrockConverse

    keys = {
        "aws_access_key_id": "key",
        "aws_secret_access_key": "secret",
        "region_name": "us-east-1",
    }
    return BedrockConverse(
        model="amazon.nova-pro-v1:0", endpoint_url=address, max_retries=1, **keys
    )


def ollama(address: str) -> Any:
    from llama_index.llms.ollama import Ollama

    return Ollama(model="qwen3:8b", base_url=address, context_window=8_192)


def mistralai(address: str) -> Any:
    from llama_index.llms.mistralai import MistralAI

    return MistralAI(model="magistral-medium-latest", api_key="key", endpoint=address)


def cohere(address: str) -> Any:
    import cohere as client
    from llama_index.llms.cohere import Cohere

    llm = Cohere(model="command-r-plus", api_key="key")
    llm._client, llm._aclient = (
        client.Client("key", base_url=address),
        client.AsyncClient("key", base_url=address),
    )
    return llm


_TOKENS = {"input_tokens": 7, "output_tokens": 5}


_CALLED = call(("call_1", "weather", QUERY), content=WORDS)
_USAGE = {
    "prompt_tokens": 7,
    "prompt_tokens_details": {"cached_tokens": 0},
    "completion_tokens": 5,
    "total_tokens": 12,
}


def with_thoughts() -> Message:
    """Return an answer of the responses API with thoughts and a citation."""
    reply = response("resp_1", "gpt-5", _CALLED, _USAGE)
    thoughts = {
        "id": "rs_1",
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": THOUGHT}],
        "encrypted_content": SIGNATURE,
    }
    citation = {
        "type": "url_citation",
        "start_index": 0,
        "end_index": 6,
        "title": "Weather",
        "url": "https://weather.example/",
    }
    reply["output"][0]["content"][0]["annotations"] = [citation]
    reply["output"].insert(0, thoughts)
    return reply


def with_thinking() -> Message:
    """Return an answer of Anthropic's API with thoughts and a citation."""
    reply = message_of("claude-sonnet-4-5", _CALLED, Usage(7, 0, 0))
    citation = {
        "type": "search_result_location",
        "cited_text": "Rain in Oslo.",
        "source": "https://weather.example/",
        "title": "Weather",
        "start_block_index": 0,
        "end_block_index": 1,
        "search_result_index": 0,
    }
    reply["content"][0]["citations"] = [citation]
    thoughts = {"type": "thinking", "thinking": THOUGHT, "signature": SIGNATURE}
    reply["content"].insert(0, thoughts)
    return reply


REPLIES: dict[Callable[[str], Any], Message] = {
    openai: completion(
        "gpt-4o-audio-preview",
        {
            **_CALLED,
            "refusal": None,
            "annotations": [],
            "reasoning_content": THOUGHT,
            "audio": {
                "id": "audio_1",
                "data": SIGNATURE,
                "expires_at": 9,
                "transcript": WORDS,
            },
        },
        _USAGE,
    ),
    openai_responses: with_thoughts(),
    anthropic: with_thinking(),
    google_genai: {
        "candidates": [
            {
                "content": {
                    "role": "model",
                    "parts": [
                        {"text": THOUGHT, "thought": True},
                        {"text": WORDS, "thoughtSignature": SIGNATURE},
                        {
                            "functionCall": {
                                "id": "call_1",
                                "name": "weather",
                                "args": QUERY,
                            },
                            "thoughtSignature": SIGNATURE,
                        },
                    ],
                },
                "finishReason": "STOP",
                "index": 0,
            }
        ],
        "usageMetadata": {
            "promptTokenCount": 7,
            "candidatesTokenCount": 5,
            "totalTokenCount": 15,
            "thoughtsTokenCount": 3,
            "cachedContentTokenCount": 2,
        },
        "modelVersion": "gemini-3-pro",
        "responseId": "response_1",
    },
    bedrock_converse: {
        "output": {
            "message": {
                "role": "assistant",
                "content": [
                    {
                        "reasoningContent": {
                            "reasoningText": {"text": THOUGHT, "signature": SIGNATURE}
                        }
                    },
                    {"text": WORDS},
                    {
                        "toolUse": {
                            "toolUseId": "call_1",
                            "name": "weather",
                            "input": QUERY,
                        }
                    },
                ],
            }
        },
        "stopReason": "tool_use",
        "usage": {"inputTokens": 7, "outputTokens": 5, "totalTokens": 12},
        "metrics": {"latencyMs": 1},
    },
    ollama: {
        "model": "qwen3:8b",
        "created_at": "2026-11-20T10:00:00Z",
        "message": {
            "role": "assistant",
            "content": WORDS,
            "thinking": THOUGHT,
            "tool_calls": [{"function": {"name": "weather", "arguments": QUERY}}],
        },
        "done": True,
        "done_reason": "stop",
        "prompt_eval_count": 7,
        "eval_count": 5,
    },
    mistralai: completion(
        "magistral-medium-latest",
        {
            **_CALLED,
            "content": [
                {"type": "thinking", "thinking": [{"type": "text", "text": THOUGHT}]},
                {"type": "text", "text": WORDS},
            ],
        },
        _USAGE,
    ),
    cohere: {
        "text": WORDS,
        "generation_id": "generation_1",
        "response_id": "response_1",
        "finish_reason": "COMPLETE",
        "citations": [
            {"start": 0, "end": 6, "text": "I look", "document_ids": ["doc_1"]}
        ],
        "documents": [{"id": "doc_1", "title": "Weather", "snippet": "Rain in Oslo."}],
        "tool_calls": [{"name": "weather", "parameters": QUERY}],
        "meta": {"tokens": _TOKENS},
    },
}

# Whose next request holds the signature of this answer.
SIGNING = (anthropic, google_genai, bedrock_converse)
