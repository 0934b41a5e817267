"""Finds the end of a text that fits: by tokens, or by the whole pieces of a text splitter."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from llama_index_memory_ext.errors import SplitterError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from llama_index_memory_ext.text.tokens import TokenCounter


@runtime_checkable
class SplitsText(Protocol):
    """Anything with the method of LlamaIndex's text splitters."""

    def split_text(self, text: str) -> list[str]:
        """The pieces of a text, in their order."""


Splitter: TypeAlias = SplitsText | Callable[[str], list[str]]


def checked_splitter(splitter: Any) -> Splitter | None:
    """The splitter, if it is one; None for none.

    Raises:
        SplitterError: It is something else.
    """
    if splitter is None or callable(splitter) or isinstance(splitter, SplitsText):
        known: Splitter | None = splitter
        return known
    raise SplitterError(
        "text_splitter must be a function from a text to its pieces, or one of LlamaIndex's text splitters; this is "
        f"a {type(splitter).__name__}. str.splitlines keeps whole lines."
    )


def end_of(text: str, limit: int, counter: TokenCounter, text_splitter: Splitter | None = None) -> str:
    """The end of the text with at most ``limit`` tokens; the whole text if it fits.

    Args:
        text: Any.
        limit: Most tokens; 0 or less gives "".
        counter: Counts them.
        text_splitter: A function from a text to its pieces, or an object with ``split_text``. The end then
            begins where a piece begins, and is "" if not even the last piece fits. Pieces may overlap, and
            may lack the white space between them: they are looked up in the text, and what comes back
            stands there. Pieces that do not stand in the text are no places to begin at.

    >>> from llama_index_memory_ext import TokenCounter
    >>> end_of("one two. three four. five", 4, TokenCounter())
    ' three four. five'
    >>> end_of("one two. three four. five", 3, TokenCounter(), lambda text: text.split(". "))
    'five'
    """
    end = counter.tail(text, limit)
    if text_splitter is None or end in ("", text):
        return end
    # LlamaIndex's splitters can be called too, but with documents.
    split = text_splitter.split_text if isinstance(text_splitter, SplitsText) else text_splitter
    begin = len(text) - len(end)
    for start in sorted(_starts(text, split(text), begin)):
        if counter.count(text[start:]) <= limit:
            return text[start:]
    return ""


def _starts(text: str, pieces: Sequence[str], begin: int) -> Iterator[int]:
    """Where the pieces begin in the text, from the last one back to ``begin``."""
    start = len(text)
    for piece in reversed(pieces):
        if piece.strip():
            start = _place(text, piece, start)
            if start < begin:
                return
            yield start


def _place(text: str, piece: str, before: int) -> int:
    """Where a piece begins in front of the next one: right before it if that can be, else overlapping it."""
    apart = text.rfind(piece, 0, before)
    if apart >= 0 and not text[apart + len(piece) : before].strip():
        return apart
    return text.rfind(piece, 0, before + len(piece) - 1)
