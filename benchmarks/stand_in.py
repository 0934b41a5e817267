"""Stands in for a language model and for an embedding model: no network, and the same answers each time.

What such a model costs and how well it works is not measured with it; how much text comes back from it is like a real
one's: one statement of a few words for each message of the user where facts are asked for, and 300 words where a
summary is. Both are taken from what the model was given. As with a real model, a new summary is worded anew: it begins
with other words than the one before.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    MessageRole,
    TextBlock,
    ToolCallBlock,
)
from llama_index.core.tools import BaseTool
from sklearn.feature_extraction.text import HashingVectorizer  # type: ignore[import-untyped]

from benchmarks.locomo import text_of
from llama_index_memory_ext.models.offline import OfflineModel

SUMMARY_WORDS, FACT_WORDS = 300, 12
# One fewer than LlamaIndex's block asks for as it comes.
CONDENSED_FACTS = 49

_FACT = re.compile(r"<fact>(.*?)</fact>", re.DOTALL)
_USER_MESSAGE = re.compile(r"^\d+\. user: (.*)$", re.MULTILINE)
_TAG = re.compile(r"</?message\b[^>]*>")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")


class StandInModel(OfflineModel):
    """Answers what LlamaIndex's own blocks and buffers, and ours, ask a model for."""

    @classmethod
    def class_name(cls) -> str:
        return "StandInModel"

    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        return ChatResponse(
            message=ChatMessage(
                role=MessageRole.ASSISTANT, blocks=[_answer(messages, **kwargs)]
            )
        )

    async def achat(
        self, messages: Sequence[ChatMessage], **kwargs: Any
    ) -> ChatResponse:
        return self.chat(messages, **kwargs)


class HashedWords(BaseEmbedding):
    """Texts with words in common are similar."""

    model_name: str = "hashed words"

    def _get_text_embedding(self, text: str) -> list[float]:
        vector: list[float] = _VECTORIZER.transform([text]).toarray()[0].tolist()
        return vector

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)


_VECTORIZER = HashingVectorizer(
    n_features=256, stop_words="english", alternate_sign=False
)


def _answer(
    messages: Sequence[ChatMessage], tools: Sequence[BaseTool] = (), **_: Any
) -> TextBlock | ToolCallBlock:
    asked = text_of(messages[-1])
    if any(tool.metadata.name == "report_facts" for tool in tools):
        said = _USER_MESSAGE.findall(asked.partition("<transcript>")[2])
        return ToolCallBlock(
            tool_call_id="call_1", tool_name="report_facts", tool_kwargs=_reported(said)
        )
    if "fact extraction system" in asked:
        return TextBlock(
            text=_listed(
                text_of(one) for one in messages[:-1] if one.role == MessageRole.USER
            )
        )
    if "fact condensing system" in asked:
        existing = asked.partition("<existing_facts>")[2].partition(
            "</existing_facts>"
        )[0]
        return TextBlock(
            text="".join(
                f"<fact>{fact}</fact>"
                for fact in _FACT.findall(existing)[-CONDENSED_FACTS:]
            )
        )
    transcript = (
        asked.partition("<transcript>")[2].partition("</transcript>")[0] or asked
    )
    return TextBlock(text=" ".join(_TAG.sub(" ", transcript).split()[-SUMMARY_WORDS:]))


def _reported(said: Iterable[str]) -> dict[str, Any]:
    """A report of facts as our extraction asks for it."""
    facts = [
        {
            "message": i,
            "quote": fact,
            "fact": fact,
            "category": "context",
        }
        for i, fact in enumerate(map(_statement, said), 1)
    ]
    return {"facts": facts}


def _listed(said: Iterable[str]) -> str:
    return "".join(f"<fact>{_statement(text)}</fact>" for text in said)


def _statement(text: str) -> str:
    """The first words of the longest sentence."""
    return " ".join(max(_SENTENCE_END.split(text), key=len).split()[:FACT_WORDS])
