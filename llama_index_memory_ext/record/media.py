"""Decides which media are sent again behind the record, and says whose they are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from llama_index.core.base.llms.types import ContentBlock, ImageBlock, MessageRole

from llama_index_memory_ext.text.messages import MEDIA_TOKENS
from llama_index_memory_ext.text.tool_calls import ASSISTANT_ROLES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index_memory_ext.text.messages import Entry


def whose_media(entries: Sequence[Entry], turns: int) -> dict[int, str]:
    """Returns whose the media of the last ``turns`` turns are, by the row, newest first; {} for 0 or less.

    Only of those to which the assistant has said something: others may have been refused, and would be again.
    """
    whose: dict[int, str] = {}
    ago, answered = 1, False
    for entry in reversed(entries):
        if ago > turns:
            break
        answered = answered or entry.role in ASSISTANT_ROLES
        if entry.has_media and answered:
            whose[entry.row_id] = f"the {entry.role}'s message, {ago} turn{'s' if ago > 1 else ''} ago"
        if entry.role == MessageRole.USER.value:
            ago, answered = ago + 1, False
    return whose


def can_be_sent(block: ContentBlock) -> bool:
    """Whether it is a medium whose file is still there. A tool's bytes that are no picture were never sent as one."""
    is_readable = not isinstance(block, ImageBlock) or block.image_mimetype or block.url
    path = getattr(block, "path", None)
    return bool(block.block_type in MEDIA_TOKENS and is_readable and (not path or Path(path).exists()))
