"""Counts tokens exactly, and clips a text to a number of them."""

from __future__ import annotations

import logging
import math
import os
import re
import threading
from collections import OrderedDict
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import tiktoken

logger = logging.getLogger(__name__)

DEFAULT_ENCODING = "o200k_base"

# llama-index-core ships these two vocabularies; tiktoken finds them by the SHA-1 of their address.
_SHIPPED = {
    "cl100k_base": "9b5ad71b2ce5302211f9c61530b329a4922fc6a4",
    "o200k_base": "fb374d419588a4632f3f557e76b4b70aebbca790",
}
# tiktoken's regular expression overflows its stack on white space of about a million characters.
_PIECE_CHARACTERS = 100_000
# Every encoding of tiktoken starts a new token at a single space, and behind a line's end.
_TOKEN_START = re.compile(r"(?<=\S) (?=\S)|(?<=\n)(?=[^\s/])")
_REMEMBERED_TEXTS = 16
_WORTH_REMEMBERING = 500

_environment = threading.Lock()


class TokenCounter:
    """Exact token counts by tiktoken; callable, so that it serves as ``Memory(tokenizer_fn=...)``.

    Args:
        name: An encoding (``"o200k_base"``) or an OpenAI model (``"gpt-4o"``). ``o200k_base`` and
            ``cl100k_base`` are read from files that llama-index-core ships, never from the network.
            Any other encoding is tiktoken's to load. If it cannot, one warning is logged and every
            count is an estimate: a token for three ASCII characters, one for any other character.

    No ``str`` makes it raise: special tokens are plain text, lone surrogates count as U+FFFD. A run
    of over 100,000 characters without a word boundary is counted in pieces.

    Examples:
        >>> TokenCounter().count("Hello, world")
        3
        >>> TokenCounter().count("")
        0
    """

    # Whether the tokens of lines that begin with "<" and end with ">" add up to those of the whole text.
    adds_up = True

    def __init__(self, name: str = DEFAULT_ENCODING) -> None:
        self.name = name
        self._counts: OrderedDict[str, int] = OrderedDict()
        self._guard = threading.Lock()

    def __call__(self, text: str) -> list[int]:
        """The token ids of a text; as many zeros as there are estimated tokens if nothing was loaded."""
        encoding = _encoding(self.name)
        if encoding is None:
            return [0] * estimate(text)
        return [token for piece in _pieces(text) for token in encoding.encode_ordinary(piece)]

    def count(self, text: str) -> int:
        """The number of tokens in a text, 0 for the empty text; the last long texts are remembered."""
        if len(text) < _WORTH_REMEMBERING:
            return len(self(text))
        with self._guard:
            known = self._counts.get(text)
        if known is None:
            known = len(self(text))
            self.remember(text, known)
        return known

    def remember(self, text: str, tokens: int) -> None:
        """Take the word of a caller who knows the exact count of this text from its parts."""
        if len(text) < _WORTH_REMEMBERING:
            return
        with self._guard:
            self._counts[text] = tokens
            self._counts.move_to_end(text)
            while len(self._counts) > _REMEMBERED_TEXTS:
                self._counts.popitem(last=False)

    def clip(self, text: str, limit: int) -> str:
        """The text itself if it has at most ``limit`` tokens, else its head and tail around a mark.

        The mark says how many tokens were left out. What comes back never has more than ``limit``
        tokens: too small a limit leaves only the beginning, and 0 or less the empty text.
        """
        if limit <= 0:
            return ""
        total = self.count(text)
        if total <= limit:
            return text
        kept = limit
        while kept > 0:
            clipped = self._head_and_tail(text, total, kept, limit)
            excess = self.count(clipped) - limit
            if excess <= 0:
                return clipped
            kept -= excess
        return ""

    def tail(self, text: str, limit: int) -> str:
        """The end of the text: as much of it as has at most ``limit`` tokens, without any mark.

        One character more would be over the limit. "" for a limit of 0 or less, and where not even the
        last character fits.
        """
        if limit <= 0:
            return ""
        if self.count(text) <= limit:
            return text
        # From `over` on the text is too long, from `within` on it is not; tokens tell where to look first.
        over, within, step = 0, len(text), 1
        at = len(text) - len(self._cut(text, limit, from_end=True))
        while within - over > 1:
            if not over < at < within:
                at = (over + within) // 2
            if self.count(text[at:]) <= limit:
                within, at = at, at - step
            else:
                over, at = at, at + step
            step *= 2
        return text[within:]

    def _head_and_tail(self, text: str, total: int, kept: int, limit: int) -> str:
        mark = f"\n[... {total - kept} tokens left out ...]\n"
        room = kept - self.count(mark)
        if room < limit // 2:
            return self._cut(text, kept, from_end=False)
        tail = self._cut(text, room // 2, from_end=True)
        return self._cut(text, room - room // 2, from_end=False) + mark + tail

    def _cut(self, text: str, tokens: int, *, from_end: bool) -> str:
        if tokens <= 0:
            return ""
        encoding = _encoding(self.name)
        if encoding is None:
            length = math.floor(len(text) * tokens / self.count(text))
            return text[len(text) - length :] if from_end else text[:length]
        ids = self(text)
        cut = encoding.decode_bytes(ids[-tokens:] if from_end else ids[:tokens])
        # A token may end within a character; the torn bytes at the edge are dropped.
        return cut.decode("utf-8", errors="ignore")

    def __reduce__(self) -> tuple[Callable[..., TokenCounter], tuple[str]]:
        return TokenCounter, (self.name,)

    def __repr__(self) -> str:
        return f"TokenCounter({self.name!r})"


def as_counter(tokenizer: Callable[[str], list[Any]]) -> TokenCounter:
    """The counter itself, or a counter around any function that turns a text into a list of tokens.

    Raises:
        TypeError: It is something else, such as a function that only counts.
    """
    if isinstance(tokenizer, TokenCounter):
        return tokenizer
    tokens = tokenizer("a b") if callable(tokenizer) else tokenizer
    if not callable(tokenizer) or not hasattr(tokens, "__len__"):
        raise TypeError(
            "tokenizer_fn must be a function from a text to the list of its tokens; this one "
            f"{'gives' if callable(tokenizer) else 'is'} a {type(tokens).__name__}. "
            'TokenCounter("gpt-4o") is such a function for a model.'
        )
    return _ForeignCounter(tokenizer)


class _ForeignCounter(TokenCounter):
    """Counts with a tokenizer that the user brought along, and clips by its counts."""

    adds_up = False

    def __init__(self, tokenizer: Callable[[str], list[Any]]) -> None:
        super().__init__(name="the given tokenizer")
        self._tokenizer = tokenizer

    def __call__(self, text: str) -> list[Any]:
        return self._tokenizer(text)

    def _cut(self, text: str, tokens: int, *, from_end: bool) -> str:
        length = math.floor(len(text) * max(tokens, 0) / max(self.count(text), 1))
        return text[len(text) - length :] if from_end else text[:length]

    def __reduce__(self) -> tuple[Callable[..., TokenCounter], tuple[Any]]:
        return _ForeignCounter, (self._tokenizer,)


def estimate(text: str) -> int:
    """About how many tokens a text has, for an encoding that cannot be loaded.

    >>> estimate("abcdef"), estimate("日本"), estimate("")
    (2, 2, 0)
    """
    wide = sum(character > "\x7f" for character in text)
    return wide + math.ceil((len(text) - wide) / 3)


def _pieces(text: str) -> list[str]:
    if len(text) <= _PIECE_CHARACTERS:
        return [text]
    pieces, start = [], 0
    while len(text) - start > _PIECE_CHARACTERS:
        end = start + _PIECE_CHARACTERS
        ends = [match.start() for match in _TOKEN_START.finditer(text, end - 1000, end)]
        end = ends[-1] if ends else end
        pieces.append(text[start:end])
        start = end
    return [*pieces, text[start:]]


@cache
def _encoding(name: str) -> tiktoken.Encoding | None:
    # Imported here: it costs time that a program without a single count need not spend.
    import tiktoken

    try:
        encoding = tiktoken.encoding_name_for_model(name)
    except KeyError:
        encoding = name
    try:
        return _shipped_encoding(encoding) or tiktoken.get_encoding(encoding)
    except Exception as error:  # noqa: BLE001 - whatever stops the download, counting must go on
        logger.warning(
            "No tokenizer could be loaded for %r (%s). Tokens are estimated. Name an encoding that needs "
            "no network: %s.",
            name,
            type(error).__name__,
            " or ".join(sorted(_SHIPPED)),
        )
        return None


def is_shipped(name: str) -> bool:
    """Whether an encoding can be loaded from llama-index-core's own files: exact counts without a network."""
    try:
        return _shipped_encoding(name) is not None
    except Exception:  # noqa: BLE001 - a damaged file is none, in whatever way tiktoken says it
        return False


def _shipped_encoding(name: str) -> tiktoken.Encoding | None:
    import tiktoken

    folder = Path(str(files("llama_index.core"))) / "_static" / "tiktoken_cache"
    if name not in _SHIPPED or not (folder / _SHIPPED[name]).is_file():
        return None
    with _environment:
        before = os.environ.get("TIKTOKEN_CACHE_DIR")
        os.environ["TIKTOKEN_CACHE_DIR"] = str(folder)
        try:
            return tiktoken.get_encoding(name)
        finally:
            if before is None:
                del os.environ["TIKTOKEN_CACHE_DIR"]
            else:
                os.environ["TIKTOKEN_CACHE_DIR"] = before
