"""The parts of the prompt: they are counted and dropped apart, and joined to text at the end."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from llama_index_memory_ext.text.tokens import TokenCounter

EARLIER_OPENING = (
    '<earlier_messages note="said before the messages above; found for the question">\n'
)
# Without this heading, a small model answers with the value before a change, if the
# older message has more words of the question.
CHANGED_OPENING = '<earlier_messages note="said later">\nWhat has changed since then:\n'
# In front of the record.
STICKY_OPENING = '<earlier_messages note="said before the messages below">\n'
EARLIER_CLOSING = "</earlier_messages>\n"
# The heading above the messages of a day such as 2026-11-20 or "unknown", and the line
# below the messages of earlier days.
DAY_HEADING = "<message date>{}\n"
TODAY_HEADING = "<message date>{} (today)\n"

PartKind: TypeAlias = Literal[
    "unread",
    "fact",
    "recalled",
    "changed",
    "sticky",
    "message",
    "summary",
    "instructions",
    "today",
]
CacheMark: TypeAlias = Literal["block", "point"]
# The kinds in the order in which they are dropped. Of facts and unread messages the
# last is dropped first, of all other kinds the first.
_DROP_ORDER: tuple[PartKind, ...] = get_args(PartKind)
_LAST_FIRST = ("unread", "fact")
# The tags around the parts of a kind.
TAGS = {
    "recalled": (EARLIER_OPENING, EARLIER_CLOSING),
    "changed": (CHANGED_OPENING, EARLIER_CLOSING),
    "sticky": (STICKY_OPENING, EARLIER_CLOSING),
}


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the prompt.

    Attributes:
        kind: The kind of the part.
        text: The text, which ends with a newline.
        tokens: The tokens of the text.
        day: The day in the heading above the first part of this day; "" for no heading.
        sources: The fact or the recalled message that it shows.
        row_id: The row of a message in the log; 0 for none.
        is_result: Whether it is a tool's result, which is dropped with the part before.
    """

    kind: PartKind
    text: str
    tokens: int
    day: str = ""
    sources: tuple[Any, ...] = ()
    row_id: int = 0
    is_result: bool = False


@dataclass(frozen=True)
class Section:
    """The parts of an element of the prompt; false without parts.

    Attributes:
        parts: The parts in their order.
        tokens: The tokens of the text.
        cache_marks: The rows behind which a text block ends ("block"), with a cache
            point ("point").
    """

    parts: Sequence[Part] = field(default=(), repr=False)
    tokens: int = 0
    cache_marks: Mapping[int, CacheMark] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.parts)

    @cached_property
    def texts(self) -> list[str]:
        """The texts of the blocks that end with a cache mark, and the text behind them."""
        texts: list[str] = []
        pieces: list[str] = []
        kind = ""
        day = ""
        closing = ""
        for part in self.parts:
            if part.kind != kind:
                pieces.append(closing)
                opening, closing = TAGS.get(part.kind, ("", ""))
                pieces.append(opening)
                kind = part.kind
                day = ""
            if part.day != day:
                pieces.append(DAY_HEADING.format(part.day))
                day = part.day
            pieces.append(part.text)
            if part.row_id in self.cache_marks:
                texts.append("".join(pieces))
                pieces.clear()
        return [*texts, "".join([*pieces, closing])]

    @cached_property
    def text(self) -> str:
        """The whole text."""
        return "".join(self.texts)

    @cached_property
    def sources(self) -> list[Any]:
        """The facts or recalled messages that the parts show, in their order."""
        return [source for part in self.parts for source in part.sources]

    def without(self, tokens: int, counter: TokenCounter) -> Section:
        """Return the section without its least important parts, shorter by at least this number of tokens.

        Recalled messages, changes and sticky messages go first. The messages of the record
        follow, the oldest first and a call with its results, then the summary, the
        instructions and the line of today. Of facts, the last go first. The rest has no
        cache marks.
        """
        most_tokens = counter.count(self.text) - tokens
        while True:
            rest = counted_section(self._without(tokens, counter), counter)
            # A text may have other tokens than its parts, by any tokenizer.
            if rest.tokens <= most_tokens or not rest:
                return rest
            tokens += rest.tokens - most_tokens

    def _without(self, tokens: int, counter: TokenCounter) -> list[Part]:
        def drop_rank(place: int) -> tuple[int, int]:
            kind = self.parts[place].kind
            place_rank = -place if kind in _LAST_FIRST else place
            return _DROP_ORDER.index(kind), place_rank

        dropped = set[int]()
        for place in sorted(range(len(self.parts)), key=drop_rank):
            part = self.parts[place]
            if tokens > 0 or (part.is_result and place - 1 in dropped):
                tokens -= counter.count(part.text)
                dropped.add(place)
        return [part for place, part in enumerate(self.parts) if place not in dropped]


NO_PARTS = Section()


def counted_section(parts: Sequence[Part], counter: TokenCounter) -> Section:
    """Return the section of these parts, whose tokens are counted together."""
    return Section(parts, counter.count(Section(parts).text))
