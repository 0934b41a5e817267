"""A model behind OpenAI's protocol that keeps its replies in a file, so that a run that was stopped goes on."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llama_index.core.base.llms.types import ChatMessage, ChatResponse, MessageRole
from llama_index.core.bridge.pydantic import Field

from benchmarks.command import option
from benchmarks.locomo import prompt_text, text_of
from benchmarks.real_facts import Model
from llama_index_memory_ext.models.ask import usage_of
from llama_index_memory_ext.text.tokens import TokenCounter

_ANSWER_TOKENS, _SECONDS = 60, 900


class AskedModel(Model):
    """A model that remembers its replies in a file, and counts the tokens that memories pay it for learning."""

    file: Path
    replies: dict[str, dict[str, Any]] = Field(default_factory=dict)
    learning: dict[str, dict[str, Any]] = Field(default_factory=dict)

    def read_file(self) -> None:
        """Read the replies of earlier runs."""
        if not self.file.exists():
            return
        for line in self.file.read_text(encoding="utf-8").splitlines():
            entry = json.loads(line)
            self.replies[entry["prompt"]] = entry

    async def answer(self, prompt: Sequence[ChatMessage]) -> str:
        """Return the model's greedy answer to a question."""
        entry = await self._reply(prompt, max_tokens=_ANSWER_TOKENS)
        return str(entry["reply"])

    async def achat(
        self, messages: Sequence[ChatMessage], **kwargs: Any
    ) -> ChatResponse:
        """Answer a memory that learns, and keep what it costs."""
        return self._response(await self._reply(messages, **kwargs))

    def tokens_of_learning(self) -> tuple[int, int]:
        """Return the tokens sent and received."""
        sent = sum(entry["sent"] for entry in self.learning.values())
        received = sum(entry["received"] for entry in self.learning.values())
        return sent, received

    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """Answer a buffer that summarizes, and keep what it costs."""
        name = self._name_of(messages, **kwargs)
        if name not in self.replies:
            start = time.perf_counter()
            self._store(name, messages, super().chat(messages, **kwargs), start)
        return self._response(self.replies[name])

    def _response(self, entry: dict[str, Any]) -> ChatResponse:
        self.learning[entry["prompt"]] = entry
        message = ChatMessage(entry["reply"], role=MessageRole.ASSISTANT)
        return ChatResponse(message=message)

    def _name_of(self, messages: Sequence[ChatMessage], **kwargs: Any) -> str:
        settings = {"model": self.model, "max_tokens": kwargs.get("max_tokens")}
        text = json.dumps(settings) + prompt_text(messages)
        return hashlib.sha256(text.encode()).hexdigest()

    async def _reply(
        self, messages: Sequence[ChatMessage], **kwargs: Any
    ) -> dict[str, Any]:
        name = self._name_of(messages, **kwargs)
        if name not in self.replies:
            start = time.perf_counter()
            self._store(name, messages, await super().achat(messages, **kwargs), start)
        return self.replies[name]

    def _store(
        self,
        name: str,
        messages: Sequence[ChatMessage],
        response: ChatResponse,
        start: float,
    ) -> None:
        usage = usage_of(messages, response, TokenCounter())
        self.replies[name] = {
            "prompt": name,
            "asked": text_of(messages[-1])[-200:],
            "reply": str(response.message.content or ""),
            "sent": usage.prompt_tokens,
            "received": usage.completion_tokens,
            "seconds": round(time.perf_counter() - start, 1),
        }
        with self.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(self.replies[name], ensure_ascii=False) + "\n")


def asked_model(name: str) -> AskedModel | None:
    """Return the model of the command, with the replies of the file of ``--answers``, or else of ``NAME.jsonl``.

    None, and a printed line, if the command names no address.
    """
    base_url = option("base-url")
    if not base_url:
        print(
            "There is no --base-url=URL, the address of a server with OpenAI's protocol: nothing is measured. "
            "benchmarks/answer_model.py serves a small model."
        )
        return None
    llm = AskedModel(
        model=option("model", "default"),
        api_base=base_url,
        api_key=os.environ.get("OPENAI_API_KEY", "none"),
        temperature=0,
        timeout=_SECONDS,
        file=Path(option("answers", f"{name}.jsonl")),
    )
    llm.read_file()
    return llm
