"""What can be set of a condensed block, and what that leaves for the messages."""

from __future__ import annotations

from collections.abc import Sequence  # noqa: TC003 - pydantic reads the annotations of fields
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from llama_index.core.bridge.pydantic import Field, ValidationInfo, field_validator

from llama_index_memory_ext.errors import LimitError
from llama_index_memory_ext.log_block import LogBlock
from llama_index_memory_ext.record.selection import Selection
from llama_index_memory_ext.text.cutting import Limits

if TYPE_CHECKING:
    from llama_index_memory_ext.text.messages import Entry

_MOST_SUMMARY_TOKENS = 1_000
# The tags of the record and of two messages, and a few words: with less beside a summary, nothing would be shown.
_LEAST_ROOM = 50


class CondensedSettings(LogBlock):
    """The settings of a ``CondensedMemoryBlock``."""

    name: str = Field(default="condensed_memory", description="The name of the element around the record.")
    token_limit: int = Field(
        default=50_000,
        ge=1,
        description="Most tokens of all that the block shows: tags, summary and recalled messages included.",
    )
    keep_ratio: float = Field(
        default=0.75, gt=0, le=1, description="Share of the limit that is left when the record is cut; 1: each turn."
    )
    message_ratio: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="Share of the limit that one message (a tool call with its results counts as one) may have; a "
        "longer one is clipped in its middle. Default: 0.5, or 1 with `allow_partial`.",
    )
    max_messages: int | None = Field(
        default=None, ge=1, description="Most messages of the record; None for any number."
    )
    keep_messages: int | None = Field(
        default=None,
        ge=1,
        description="Messages that are left when there are over `max_messages`; default: `keep_ratio` of them.",
    )
    allow_partial: bool = Field(
        default=False, description="Whether the end of a message is shown that only partly fits, instead of its middle."
    )
    text_splitter: Any = Field(
        default=None,
        exclude=True,
        repr=False,
        description="A function from text to its pieces, or a LlamaIndex text splitter: of a message that only partly "
        "fits, whole pieces are shown. None: as many tokens as fit.",
    )
    start_on: str | Sequence[str] | None = Field(
        default=None,
        description="Roles with one of which the record begins; earlier messages are not shown, unless there is no "
        "message of these roles in the record.",
    )
    end_on: str | Sequence[str] | None = Field(
        default=None, description="Roles with one of which the record ends; later messages are not shown yet."
    )
    include_system: bool = Field(
        default=False, description="Whether a first message of instructions (system, developer) stays for good."
    )
    summarize: bool = Field(
        default=False, description="Whether a model sums up what leaves the record, beside the conversation."
    )
    summary_token_limit: int | None = Field(
        default=None, ge=1, description="Most tokens of the summary; default: a quarter of the limit, at most 1,000."
    )
    recall_token_limit: int = Field(
        default=0,
        ge=0,
        validate_default=True,
        description="Most tokens of earlier messages that are found for the question; 0: none.",
    )

    # Checked field by field, because an error of the whole block would carry all that it was given, its model too.
    @field_validator("keep_messages", "text_splitter", "start_on", "end_on", "include_system")
    @classmethod
    def _check_limits(cls, value: Any, info: ValidationInfo) -> Any:
        Limits.checked(**{"max_messages": info.data.get("max_messages"), str(info.field_name): value})
        return value

    @field_validator("recall_token_limit")
    @classmethod
    def _check_room(cls, value: int, info: ValidationInfo) -> int:
        """The last field, so that all others are known."""
        limit, wanted = info.data.get("token_limit"), info.data.get("summary_token_limit")
        if limit is None:
            return value
        reserved = value + (_summary_limit(limit, wanted) if info.data.get("summarize") else 0)
        if reserved and reserved + _LEAST_ROOM > limit:
            raise LimitError(
                f"The summary and what is recalled may have {reserved} tokens, and leave no room for messages in "
                f"the {limit} of the whole record. Raise token_limit (condensed_token_limit of the memory), or lower "
                "summary_token_limit or recall_token_limit."
            )
        return value

    @property
    def _room(self) -> int:
        """Tokens for all that is shown: the limit without the element around it."""
        return self._room_within(self.token_limit)

    @property
    def _most_of_summary(self) -> int:
        return _summary_limit(self.token_limit, self.summary_token_limit)

    @property
    def _reserved(self) -> int:
        return self.recall_token_limit + (self._most_of_summary if self.summarize else 0)

    def _limit_of_summary(self, system: Entry | None) -> int:
        """Tokens for the summary; where none is made any more, an old one leaves half of the room to the messages."""
        left = self._room - self.recall_token_limit - (system.tokens if system else 0)
        return self._most_of_summary if self.summarize else min(self._most_of_summary, left // 2)

    def _limits(self, system: Entry | None = None, summary: str = "") -> Selection:
        """What is left for messages beside the summary as it is shown, what is recalled, and the first instructions."""
        taken_by_old = 0 if self.summarize else self.tokenizer_fn.count(summary)
        taken = 1 if system else 0
        most, keep = self.max_messages, self.keep_messages
        limits = Limits.checked(
            max_messages=None if most is None else max(most - taken, 1),
            keep_messages=None if keep is None else max(keep - taken, 1),
            keep_ratio=self.keep_ratio,
            allow_partial=self.allow_partial,
            text_splitter=self.text_splitter,
            start_on=self.start_on,
            end_on=self.end_on,
        )
        tokens = max(self._room - self._reserved - (system.tokens if system else 0) - taken_by_old, 0)
        message_ratio = self.message_ratio or (1.0 if self.allow_partial else 0.5)
        return Selection(replace(limits, tokens=tokens), self.tokenizer_fn, message_ratio)


def _summary_limit(token_limit: int, wanted: int | None) -> int:
    return wanted if wanted is not None else max(1, min(_MOST_SUMMARY_TOKENS, token_limit // 4))
