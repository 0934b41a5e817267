"""The media of the last turns, which a prompt sends again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from llama_index.core.base.llms.types import (
    ChatMessage,
    ContentBlock,
    ImageBlock,
    MessageRole,
    TextBlock,
)

from llama_index_memory_ext.text.entries import MEDIA_TOKENS, Entry
from llama_index_memory_ext.text.messages import ASSISTANT_ROLES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from llama_index_memory_ext.record.reader import RecordReader


class MediaEntry(NamedTuple):
    """An entry with media, of the last turn (1) or an earlier one."""

    entry: Entry
    turns_ago: int

    @property
    def description(self) -> str:
        """The role of the message and its age, for the line above each medium."""
        plural = "s" if self.turns_ago > 1 else ""
        return f"the {self.entry.role}'s message, {self.turns_ago} turn{plural} ago"


async def newest_media(
    reader: RecordReader,
    session_id: str,
    turns: int,
    roles: Sequence[str],
    room: int,
    tokens: Callable[[ChatMessage], int],
) -> list[ContentBlock]:
    """Return the newest media of the last turns of the record, each behind a line that names its message.

    Media without an answer of the assistant are left out: a provider may have
    refused them, and would again. If the newest turn before the question has no
    answer, all media are left out. ``roles``: the roles of the messages behind the
    record, with the question.
    """
    content: list[ContentBlock] = []
    window = reader.window(session_id)
    if window is None or not window.has_media:
        return content
    roles_so_far = [*(entry.role for entry in window.entries), *roles]
    if not has_answer_before_question(roles_so_far):
        return content
    for media_entry in entries_with_media(window.entries, turns):
        row_id = media_entry.entry.row_id
        media = await _read_media(reader, session_id, row_id, window.seen.epoch)
        for block in reversed(media):
            line = f"[{block.block_type} of {media_entry.description}]\n"
            labelled = [TextBlock(text=line), block]
            room -= tokens(ChatMessage(blocks=labelled))
            if room < 0:
                return content
            content = [*labelled, *content]
    return content


async def _read_media(
    reader: RecordReader, session_id: str, row_id: int, epoch: int
) -> list[ContentBlock]:
    rows = await reader.store.readers.rows_in_epoch(session_id, [row_id], epoch)
    if not rows:
        return []
    # Megabytes are decoded, for which the event loop must not be blocked.
    message: ChatMessage = await asyncio.to_thread(getattr, rows[0], "message")
    return [block for block in message.blocks if can_be_sent(block)]


def has_answer_before_question(roles: Sequence[str]) -> bool:
    """Return whether the turn before the last question has an answer or a call; True without such a turn.

    >>> has_answer_before_question(["user", "assistant", "user"])
    True
    >>> has_answer_before_question(["user", "user", "assistant", "tool"])
    False
    """
    is_before_question = False
    for role in reversed(roles):
        if role == MessageRole.USER.value:
            if is_before_question:
                return False
            is_before_question = True
        elif is_before_question and role in ASSISTANT_ROLES:
            return True
    return True


def entries_with_media(entries: Sequence[Entry], turns: int) -> Iterator[MediaEntry]:
    """Yield the entries with media that the assistant has answered, of the last turns, newest first."""
    turns_ago = 1
    is_answered = False
    for entry in reversed(entries):
        if turns_ago > turns:
            return
        is_answered = is_answered or entry.role in ASSISTANT_ROLES
        if entry.has_media and is_answered:
            yield MediaEntry(entry, turns_ago)
        if entry.role == MessageRole.USER.value:
            turns_ago += 1
            is_answered = False


def can_be_sent(block: ContentBlock) -> bool:
    """Return whether a block is a medium with its bytes, or with a file that still exists.

    An address may have expired. The bytes of a tool that are no picture were never sent
    as a picture.
    """
    is_readable = not isinstance(block, ImageBlock) or block.image_mimetype or block.url
    address = getattr(block, "url", None)
    path = getattr(block, "path", None)
    return bool(
        block.block_type in MEDIA_TOKENS
        and is_readable
        and (not address or str(address).startswith("data:"))
        and (not path or Path(path).exists())
    )
