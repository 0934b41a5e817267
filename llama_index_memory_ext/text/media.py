"""Tells the blocks of a message that are media, and estimates their tokens."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from llama_index.core.base.llms.types import ContentBlock

# What LlamaIndex's Memory counts for a block that is not text.
MEDIA_TOKENS = {"image": 256, "audio": 256, "video": 256, "document": 2048}


def is_medium(block: ContentBlock) -> bool:
    """Returns whether a block is a picture, a sound, a film or a document."""
    return block.block_type in MEDIA_TOKENS


def media_tokens(blocks: Iterable[ContentBlock], least: Mapping[str, int]) -> int:
    """Returns the tokens of the media among the blocks: as LlamaIndex estimates them by their bytes, or ``least``.

    ``least`` is of each kind of medium. It is the estimate where there are no bytes in the block, for which no file and
    no address is read, or bytes that cannot be read. It takes as long as it takes to decode the bytes.
    """
    return sum(max(_by_bytes(block), least[block.block_type]) for block in blocks if is_medium(block))


def _by_bytes(block: ContentBlock) -> int:
    held = getattr(block, "data" if block.block_type == "document" else block.block_type)
    if not held and not str(getattr(block, "url", None) or "").startswith("data:"):
        return 0
    # It is asynchronous in name alone: with the bytes at hand it waits for nothing.
    with closing(block.aestimate_tokens()) as estimate:
        try:
            estimate.send(None)
        except StopIteration as done:
            return int(done.value)
        except Exception:  # noqa: BLE001 - whatever a parser makes of bytes of any kind
            return 0
    return 0
