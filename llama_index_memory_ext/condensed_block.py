"""Shows what was said in a session, condensed into one text within a token limit."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from llama_index.core.bridge.pydantic import Field, PrivateAttr, model_validator

from llama_index_memory_ext.errors import LimitError, StoreError
from llama_index_memory_ext.log_block import DEFAULT_SESSION_ID, LogBlock, Remembered
from llama_index_memory_ext.store import Seen
from llama_index_memory_ext.transcript import Entry, clip_entry, entry_of, is_result, split_entries
from llama_index_memory_ext.window import plan_cut, share_out

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index.core.base.llms.types import ChatMessage

    from llama_index_memory_ext.store import LogPage

logger = logging.getLogger(__name__)

_PAGE_ROWS = 256


_NOTHING_SEEN = Seen()


@dataclass(frozen=True, slots=True)
class _Window:
    """What a block remembers of one session: the entries that it shows, oldest first, and their text."""

    seen: Seen = _NOTHING_SEEN
    entries: tuple[Entry, ...] = ()
    text: str = ""
    tokens: int = 0

    @classmethod
    def of(cls, seen: Seen, entries: Sequence[Entry]) -> _Window:
        text = "".join(entry.text for entry in entries)
        return cls(seen, tuple(entries), text, sum(entry.tokens for entry in entries))


class CondensedMemoryBlock(LogBlock):
    """What was said in this session, oldest first, one element per message, within a token limit.

    The block reads the log of a ``MemoryStore``. While the record fits into ``token_limit`` it is shown
    whole. When it does not, the oldest messages leave until ``keep_ratio`` of the limit is left, so that
    the beginning of the prompt then stays the same for many turns and can be served from the provider's
    prompt cache. What has left stays in the store.

    Without a ``store`` the block keeps a private one in memory, fed by the messages that the memory
    flushes: it works in any ``Memory.from_defaults(memory_blocks=[...])``, and is empty after a restart.
    With a ``store``, give the same one to the memory: ``Memory.from_defaults(chat_store=store, ...)``.
    One block may serve many sessions; none sees another's messages.

    Raises:
        LimitError: ``keep_messages`` is larger than ``max_messages``.
        StoreError: By ``aput``, if the given store has never seen the session: the memory keeps its messages elsewhere.

    >>> CondensedMemoryBlock(token_limit=8_000).name
    'condensed_memory'
    """

    name: str = Field(default="condensed_memory", description="The name of the element around the record.")
    token_limit: int = Field(
        default=50_000, ge=1, description="Most tokens of the record, all tags included; never exceeded."
    )
    keep_ratio: float = Field(
        default=0.75, gt=0, le=1, description="Share of the limit that is left when the record is cut."
    )
    message_ratio: float = Field(
        default=0.5,
        gt=0,
        le=1,
        description="Share of the limit that one message (a tool call with its results counts as one) may "
        "have; a longer one is clipped in its middle.",
    )
    max_messages: int | None = Field(
        default=None, ge=1, description="Most messages of the record; None for any number."
    )
    keep_messages: int | None = Field(
        default=None,
        ge=1,
        description="Messages that are left when there are over `max_messages`; default: `keep_ratio` of them.",
    )
    _windows: Remembered[str, _Window] = PrivateAttr(default_factory=Remembered)

    @model_validator(mode="after")
    def _check_messages(self) -> CondensedMemoryBlock:
        if self.keep_messages is not None and self.keep_messages > (self.max_messages or 0):
            raise LimitError(
                f"keep_messages={self.keep_messages} needs a max_messages of at least as many; it is "
                f"{self.max_messages}."
            )
        return self

    @classmethod
    def class_name(cls) -> str:
        """The name under which LlamaIndex serialises this block."""
        return "CondensedMemoryBlock"

    # ---- what the host calls -----------------------------------------------------------------------

    async def _aget(
        self, messages: list[ChatMessage] | None = None, *, session_id: str | None = None, **block_kwargs: Any
    ) -> str:
        """The record as text, one line-ended element per message; empty if nothing was said yet."""
        session_id = session_id or DEFAULT_SESSION_ID
        window = await self._read(session_id)
        if self._is_over(window.tokens, len(window.entries)):
            window = await self._cut(session_id, window)
        return self._render(window)

    async def atruncate(self, content: Any, tokens_to_truncate: int) -> str | None:
        """The record without its oldest messages: at least ``tokens_to_truncate`` tokens shorter.

        None if nothing is left, or nothing was there.
        """
        entries = split_entries(content) if isinstance(content, str) else []
        gone = dropped = 0
        while dropped < len(entries) and (gone < tokens_to_truncate or is_result(entries[dropped])):
            gone += self.tokenizer_fn.count(entries[dropped])
            dropped += 1
        return "".join(entries[dropped:]) or None

    # ---- reading -----------------------------------------------------------------------------------

    async def _notice(self, messages: Sequence[ChatMessage], session_id: str) -> None:
        if self.store is None:
            await self._log.append(session_id, messages, len)
        elif session_id not in self._windows and not await self.store.knows(session_id):
            raise StoreError(
                f"{self.class_name()}(store=...) shows the log of its store, but that store holds no message of "
                f"session {session_id!r}: the memory keeps them elsewhere. Give both the same store: "
                "Memory.from_defaults(chat_store=store, memory_blocks=[...])."
            )

    async def _read(self, session_id: str) -> _Window:
        """The window with what the log has gained, and without what this or another worker has cut."""
        window = self._windows.get(session_id, _Window())
        page = await self._page(session_id, window.seen)
        new = self._entries(page)
        if not page.fresh or (window.entries and new and new[0].is_result):
            # A result shares the room of its call, so both must be read together.
            window = _Window()
            page = await self._page(session_id, window.seen)
            new = self._entries(page)
        if not page.rows and page.position == window.seen.position:
            return window
        newest = page.rows[-1].id if page.rows else window.seen.last_id
        while page.more and not self._is_full(new):
            page = await self._page(session_id, window.seen, before=page.rows[0].id)
            new = self._entries(page) + new
        # If there are older messages than these, they and what was known cannot be in the record any more.
        known = () if page.more else window.entries
        entries = [entry for entry in (*known, *self._within_shares(new)) if entry.row_id > page.position]
        window = _Window.of(Seen(page.epoch, page.position, newest), entries)
        self._windows.put(session_id, window)
        return window

    async def _page(self, session_id: str, seen: Seen, before: int | None = None) -> LogPage:
        return await self._log.read_log(session_id, self.name, seen, before=before, limit=_PAGE_ROWS)

    def _entries(self, page: LogPage) -> list[Entry]:
        entries = (entry_of(row.id, row.message, self.tokenizer_fn, (self.name,)) for row in page.rows)
        return [entry for entry in entries if entry is not None]

    # ---- within the limits ---------------------------------------------------------------------------

    @property
    def _room(self) -> int:
        """Tokens for the entries: the limit without the element around them."""
        return self._room_within(self.token_limit)

    def _is_over(self, tokens: int, messages: int) -> bool:
        return tokens > self._room or (self.max_messages is not None and messages > self.max_messages)

    def _is_full(self, entries: list[Entry]) -> bool:
        """Whether nothing older than these entries can be shown; the oldest unit may be incomplete yet."""
        if not self._is_over(sum(entry.tokens for entry in entries), len(entries)):
            return False
        shown = self._within_shares([entry for unit in _units(entries)[1:] for entry in unit])
        return self._is_over(sum(entry.tokens for entry in shown), len(shown))

    def _within_shares(self, entries: list[Entry]) -> list[Entry]:
        """The entries with each that is over its share of the limit clipped."""
        limit = int(self._room * min(self.message_ratio, self.keep_ratio))
        shown: list[Entry] = []
        for unit in _units(entries):
            shares = share_out([entry.tokens for entry in unit], limit)
            clipped = [clip_entry(entry, share, self.tokenizer_fn) for entry, share in zip(unit, shares, strict=True)]
            if sum(entry.tokens for entry in clipped) <= limit:
                shown += clipped
        return shown

    def _plan_cut(self, entries: Sequence[Entry]) -> int:
        keep_messages = self.keep_messages
        if keep_messages is None and self.max_messages is not None:
            keep_messages = max(1, int(self.max_messages * self.keep_ratio))
        return plan_cut(
            [entry.tokens for entry in entries],
            turn_starts=[entry.starts_turn for entry in entries],
            results=[entry.is_result for entry in entries],
            token_limit=self._room,
            keep_tokens=int(self._room * self.keep_ratio),
            max_messages=self.max_messages,
            keep_messages=keep_messages,
        )

    async def _cut(self, session_id: str, window: _Window) -> _Window:
        """The window from the planned cut on, with the cursor moved there for every worker."""
        seen, entries = window.seen, window.entries[self._plan_cut(window.entries) :]
        position = entries[0].row_id - 1
        if await self._log.move_cursor(session_id, self.name, epoch=seen.epoch, old=seen.position, new=position):
            window = _Window.of(replace(seen, position=position), entries)
            self._windows.put(session_id, window)
            return window
        # Another worker has cut, or the database is busy: show what there is, within the limit.
        window = await self._read(session_id)
        return _Window.of(window.seen, window.entries[self._plan_cut(window.entries) :])

    def _render(self, window: _Window) -> str:
        if window.tokens > self._room:
            return ""
        if self.tokenizer_fn.adds_up:
            self.tokenizer_fn.remember(window.text, window.tokens)
            return window.text
        text, entries = window.text, window.entries
        while self.tokenizer_fn.count(text) > self._room:
            entries = entries[1:]
            text = "".join(entry.text for entry in entries)
        return text


def _units(entries: Sequence[Entry]) -> list[list[Entry]]:
    """The entries in groups that must not be parted: each with the tool results behind it."""
    units: list[list[Entry]] = []
    for entry in entries:
        if entry.is_result and units:
            units[-1].append(entry)
        else:
            units.append([entry])
    return units
