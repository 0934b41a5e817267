"""Counts the tokens of texts."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import threading
from bisect import bisect_left
from contextlib import suppress
from functools import cache, lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, TypeAlias

from typing_extensions import Self

from llama_index_memory_ext.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import tiktoken


# A tokenizer may return tokens of any type, such as ids or texts.
Tokenizer: TypeAlias = "Callable[[str], list[Any]]"

logger = logging.getLogger(__name__)

# llama-index-core ships these two vocabularies; tiktoken finds them by the SHA-1 of
# their address.
_SHIPPED = {
    "cl100k_base": "9b5ad71b2ce5302211f9c61530b329a4922fc6a4",
    "o200k_base": "fb374d419588a4632f3f557e76b4b70aebbca790",
}
_NOT_LOADED = "No tokenizer could be loaded for %r (%s). Tokens are estimated. Name an encoding that needs no network: %s."
# tiktoken's regular expression overflows its stack on white space of about a million
# characters. So long texts are split where every encoding begins a token: at a single
# space, or after the end of a line.
_PIECE_CHARACTERS = 100_000
_PIECE = re.compile(
    r".{1,100000}(?:(?<=\S)(?= \S)|(?<=\n)(?=[^\s/])|\Z)|.{1,100000}", re.DOTALL
)
# Short ones are counted faster than they are looked up.
_CACHED_CHARACTERS = 500
# More characters than these are counted in a thread: some megabytes take seconds.
LONG_CHARACTERS = 50_000

# Held while tiktoken and a vocabulary are loaded, and over a fork: a child would wait
# for ever for a thread that loads.
_loading = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_loading.acquire,
        after_in_parent=_loading.release,
        after_in_child=_loading.release,
    )
_loaded: set[str] = set()


class CountedText(str):
    """A text that knows its number of tokens, and what was found for a question and ``shown`` in it, each as text."""

    __slots__ = ("shown", "tokens")

    tokens: int
    shown: Sequence[tuple[Any, str]]

    def __new__(
        cls, text: str, tokens: int, shown: Sequence[tuple[Any, str]] = ()
    ) -> Self:
        """Make it of a text, its number of tokens and what it shows."""
        counted = super().__new__(cls, text)
        counted.tokens = tokens
        counted.shown = shown
        return counted

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)


class TokenCounter:
    """Exact token counts by tiktoken; callable, so that it serves as ``Memory(tokenizer_fn=...)``.

    No ``str`` raises an error: special tokens are counted as plain text, lone
    surrogates as U+FFFD. A run of over 100,000 characters without a word boundary is
    counted in pieces.

    Args:
        name: An encoding (``"o200k_base"``) or an OpenAI model (``"gpt-4o"``).
            ``o200k_base`` and ``cl100k_base`` are read from files that llama-index-core
            ships, never from the network. tiktoken loads any other encoding. If it
            cannot, one warning is logged and every count is an estimate: a token for
            three ASCII characters, one for any other character.
        tokenizer_fn: Turns a text into a list of its tokens, in place of an encoding.

    Examples:
        >>> TokenCounter().count("Hello, world")
        3
        >>> TokenCounter().count("")
        0
    """

    def __init__(
        self, name: str = "o200k_base", tokenizer_fn: Tokenizer | None = None
    ) -> None:
        self.name = name
        self._tokenizer_fn = tokenizer_fn
        self._count_long = lru_cache(16)(lambda text: len(self(text)))

    def __call__(self, text: str) -> list[Any]:
        """Return the tokens of a text: their ids, or as many zeros as are estimated if nothing could be loaded."""
        if self._tokenizer_fn is not None:
            return self._tokenizer_fn(text)
        encoding = _encoding(self.name)
        if encoding is None:
            ascii_characters = len(text.encode("ascii", "ignore"))
            return [0] * (len(text) - ascii_characters + (ascii_characters + 2) // 3)
        if len(text) <= _PIECE_CHARACTERS:
            return encoding.encode_ordinary(text)
        # One piece after the other, so that other threads get their turn.
        return [
            token
            for piece in _PIECE.finditer(text)
            for token in encoding.encode_ordinary(piece[0])
        ]

    def warm_up(self) -> None:
        """Begin to load the vocabulary, unless it is there."""
        if not self._is_ready:
            threading.Thread(
                target=_encoding, args=(self.name,), name="vocabulary", daemon=True
            ).start()

    async def load(self) -> None:
        """Load the vocabulary in a thread, unless it is there: the event loop must not wait for that."""
        if not self._is_ready:
            await asyncio.to_thread(_encoding, self.name)

    @property
    def _is_ready(self) -> bool:
        return self._tokenizer_fn is not None or self.name in _loaded

    def count(self, text: str) -> int:
        """Return the number of tokens in a text, 0 for the empty text. The counts of long texts are cached."""
        if len(text) < _CACHED_CHARACTERS:
            return len(self(text))
        return self._count_long(text)

    def clip(self, text: str, limit: int) -> str:
        """Return the text if it has at most ``limit`` tokens, else its beginning and its end around a mark.

        The mark gives the number of tokens that were left out; too small a limit leaves
        only the beginning. The result never has more than ``limit`` tokens, and is ""
        for a limit of 0 or less.
        """
        total = self.count(text)
        if total <= limit:
            return text
        ids = self(text)
        kept = limit
        while kept > 0:
            mark = f"\n[... {total - kept} tokens left out ...]\n"
            room = kept - self.count(mark)
            clipped = (
                self._cut(text, ids, room - room // 2)
                + mark
                + self._cut(text, ids, -(room // 2))
            )
            if room < limit // 2:
                clipped = self._cut(text, ids, kept)
            excess = self.count(clipped) - limit
            if excess <= 0:
                return clipped
            kept -= excess
        return ""

    def tail(self, text: str, limit: int) -> str:
        """Return the longest end of the text that has at most ``limit`` tokens, "" if not even a character fits."""
        if self.count(text) <= limit:
            return text
        # The end of a text need not have as many tokens as it has within the whole
        # text, so that ends are counted.
        starts = range(len(text))
        return text[
            bisect_left(
                starts, x=True, key=lambda start: self.count(text[start:]) <= limit
            ) :
        ]

    def _cut(self, text: str, ids: list[Any], tokens: int) -> str:
        """Return the first n tokens of a text, or its last n tokens for -n. ``ids`` are all of its tokens."""
        if self._tokenizer_fn is None:
            encoding = _encoding(self.name)
        else:
            encoding = None
        if encoding is None:
            length = int(len(text) * tokens / max(len(ids), 1))
            if tokens > 0:
                return text[:length]
            return text[len(text) + length :]
        if tokens > 0:
            chosen = ids[:tokens]
        else:
            chosen = ids[len(ids) + tokens :]
        # A token may end within a character, whose bytes at the edge are dropped.
        return encoding.decode_bytes(chosen).decode("utf-8", errors="ignore")

    def __repr__(self) -> str:
        return f"TokenCounter({self.name!r})"

    def __reduce__(self) -> tuple[type[TokenCounter], tuple[str, Tokenizer | None]]:
        return type(self), (self.name, self._tokenizer_fn)


def as_counter(tokenizer: Tokenizer) -> TokenCounter:
    """Return a counter as it is, or one around a function from a text to its tokens; a SettingError for all else."""
    if isinstance(tokenizer, TokenCounter):
        return tokenizer
    if callable(tokenizer):
        tokens = tokenizer("a b")
    else:
        tokens = tokenizer
    if not callable(tokenizer) or not hasattr(tokens, "__len__"):
        raise SettingError(
            "tokenizer_fn must be a function from a text to the list of its tokens; this one "
            f"{'gives' if callable(tokenizer) else 'is'} a {type(tokens).__name__}. "
            'TokenCounter("gpt-4o") is such a function for a model.'
        )
    return TokenCounter("the given tokenizer", tokenizer)


def fit_tokens(tokens: Iterable[int], limit: int) -> list[int]:
    """Return the places of the lines that fit into ``limit`` tokens, best line first; other lines are skipped.

    ``tokens`` are those of each line: of lines that begin with "<" and end with ">" and
    a newline they add up.

    >>> fit_tokens([5, 9, 4, 1], 10)
    [0, 2, 3]
    """
    kept = []
    left = limit
    for i, cost in enumerate(tokens):
        if cost <= left:
            kept.append(i)
            left -= cost
    return kept


@cache
def _encoding(name: str) -> tiktoken.Encoding | None:
    try:
        with _loading:
            # Imported here, because it takes time and many programs count nothing.
            import tiktoken

            encoding = name
            with suppress(KeyError):
                encoding = tiktoken.encoding_name_for_model(name)
            folder = files("llama_index.core") / "_static" / "tiktoken_cache"
            if encoding in _SHIPPED and (folder / _SHIPPED[encoding]).is_file():
                # LlamaIndex sets TIKTOKEN_CACHE_DIR for a moment where it is not set,
                # and then deletes it. A thread must not meddle with that: the older
                # variable does the same, and stands behind it.
                given = os.environ.get("TIKTOKEN_CACHE_DIR")
                is_free = given is None or os.path.realpath(given) == os.path.realpath(
                    str(folder)
                )
                if is_free:
                    variable = "DATA_GYM_CACHE_DIR"
                else:
                    variable = "TIKTOKEN_CACHE_DIR"
                before = os.environ.get(variable)
                os.environ[variable] = str(folder)
                try:
                    return tiktoken.get_encoding(encoding)
                finally:
                    del os.environ[variable]
                    if before is not None:
                        os.environ[variable] = before
        return tiktoken.get_encoding(encoding)
    except Exception as error:  # noqa: BLE001 - whatever stops the download, counting must go on
        logger.warning(
            _NOT_LOADED, name, type(error).__name__, " or ".join(sorted(_SHIPPED))
        )
        return None
    finally:
        _loaded.add(name)
