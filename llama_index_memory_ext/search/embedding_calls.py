"""Asks an embedding model without stopping the event loop, and leaves it alone for a while after it has failed."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any

from llama_index.core.base.embeddings.base import BaseEmbedding

from llama_index_memory_ext.background.locks import lock_for
from llama_index_memory_ext.search.vectors import unit

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    Vector = NDArray[np.float32]

logger = logging.getLogger(__name__)

LONGEST_CALL_SECONDS = 120.0
LONGEST_PAUSE_SECONDS = 300.0
# Models refuse texts beyond their limit, 8,192 tokens at most, or leave out the end.
_MOST_CHARACTERS = 4_000


class EmbeddingCalls:
    """The calls of one embedding model.

    A model with asynchronous batches of its own is awaited. All others, local ones above all, compute within
    their asynchronous methods too: they are called in a thread, one call at a time.

    Args:
        model: Any embedding model of LlamaIndex.
        retry_seconds: The pause after a failure; each further one makes it twice as long.
        now: A clock that is never set back, in seconds.
    """

    def __init__(self, model: BaseEmbedding, retry_seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        self.model = model
        self._retry_seconds = retry_seconds
        self._now = now
        self._failures = 0
        self._resume_at = 0.0
        self._waits = type(model)._aget_text_embeddings is not BaseEmbedding._aget_text_embeddings  # noqa: SLF001

    @property
    def pausing(self) -> bool:
        """Whether the model has failed a short time ago."""
        return self._failures > 0 and self._now() < self._resume_at

    @property
    def batch_size(self) -> int:
        """How many texts to ask for at once: fewer after each failure, so that one which is refused is found."""
        return max(self.model.embed_batch_size >> self._failures, 1)

    def failed(self, why: str) -> None:
        """Begin a pause, with one line in the log; what was to be embedded is not in it."""
        if self.pausing:
            return
        pause = min(self._retry_seconds * 2**self._failures, LONGEST_PAUSE_SECONDS)
        self._failures += 1
        self._resume_at = self._now() + pause
        logger.warning(
            "%s did not embed (%s); facts are ranked by their words, trying again in %g s.",
            type(self.model).__name__,
            why,
            pause,
        )

    def worked(self) -> None:
        """The next pause is a short one again."""
        if not self.pausing:
            self._failures = 0

    async def queries(self, texts: Sequence[str]) -> list[Vector]:
        """The vectors of questions, each of length 1."""
        if self._waits:
            waiting = (self.model.aget_query_embedding(clipped(text)) for text in texts)
            return [unit(vector) for vector in await asyncio.wait_for(asyncio.gather(*waiting), LONGEST_CALL_SECONDS)]
        return [unit(await self._in_thread(self.model.get_query_embedding, clipped(text))) for text in texts]

    async def texts(self, texts: Sequence[str]) -> list[Vector]:
        """The vectors of what may be found, each of length 1.

        Raises:
            ValueError: The model has not given one vector of finite numbers for each text.
        """
        asked = [clipped(text) for text in texts]
        if self._waits:
            call = self.model.aget_text_embedding_batch(asked)
            vectors = await asyncio.wait_for(call, LONGEST_CALL_SECONDS)
        else:
            vectors = await self._in_thread(self.model.get_text_embedding_batch, asked)
        if len(vectors) != len(texts):
            raise ValueError(f"expected {len(texts)} vectors, saw {len(vectors)}")
        return [unit(vector) for vector in vectors]

    async def _in_thread(self, function: Callable[[Any], Any], argument: Any) -> Any:
        # The tokenizers of local models fail when two threads use one at the same time.
        async with lock_for("embedding model", id(self.model)):
            call: Awaitable[Any] = asyncio.to_thread(function, argument)
            return await asyncio.wait_for(call, LONGEST_CALL_SECONDS)


def model_key(model: BaseEmbedding) -> str:
    """What tells the vectors of one model from those of another."""
    dimensions = getattr(model, "dimensions", None)
    return f"{model.class_name()} {model.model_name}{f' {dimensions}' if dimensions else ''}"


def clipped(text: str) -> str:
    """The text, or its beginning and its end if it is too long for a model."""
    half = _MOST_CHARACTERS // 2
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:half]}\n{text[-half:]}"
