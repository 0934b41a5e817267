"""Tokens of texts: counts texts exactly, and clips them to a number of tokens."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from contextlib import contextmanager, suppress
from functools import cache, lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from llama_index_memory_ext.background.locks import import_lock
from llama_index_memory_ext.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import tiktoken


# A tokenizer may return tokens of any type, such as ids or texts.
Item = TypeVar("Item")
Tokenizer: TypeAlias = "Callable[[str], list[Any]]"

logger = logging.getLogger(__name__)

# llama-index-core ships these two vocabularies; tiktoken finds them by the SHA-1 of
# their address.
_SHIPPED = {
    "cl100k_base": "9b5ad71b2ce5302211f9c61530b329a4922fc6a4",
    "o200k_base": "fb374d419588a4632f3f557e76b4b70aebbca790",
}
_NOT_LOADED = (
    "No tokenizer could be loaded for %r (%s). Tokens are estimated. "
    "Name an encoding that needs no network: %s."
)
# tiktoken's regular expression overflows its stack on white space of about a million
# characters. So long texts are split where every encoding begins a token: at a single
# space, or after the end of a line.
_PIECE_CHARACTERS = 100_000
_PIECE = re.compile(
    r".{1,100000}(?:(?<=\S)(?= \S)|(?<=\n)(?=[^\s/])|\Z)|.{1,100000}", re.DOTALL
)
# Shorter texts are counted faster than they are looked up.
_CACHED_CHARACTERS = 500
# Longer texts are counted in a thread: some megabytes take seconds.
LONG_CHARACTERS = 50_000

# Held while tiktoken and a vocabulary are loaded.
_loading = import_lock()
_loaded: set[str] = set()


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
        tokenizer_fn: Turns a text into a list of its tokens, instead of an encoding.

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
        self.function = tokenizer_fn
        self._count_long = lru_cache(16)(lambda text: len(self(text)))

    def __call__(self, text: str) -> list[Any]:
        """Return the tokens of a text: their ids, or as many zeros as are estimated if nothing could be loaded."""
        if self.function is not None:
            return self.function(text)
        encoding = _encoding(self.name)
        if encoding is None:
            ascii_characters = len(text.encode("ascii", "ignore"))
            return [0] * (len(text) - ascii_characters + (ascii_characters + 2) // 3)
        if len(text) <= _PIECE_CHARACTERS:
            return encoding.encode_ordinary(text)
        # One piece after the other, so that other threads get their turn.
        tokens = []
        for piece in _PIECE.finditer(text):
            tokens += encoding.encode_ordinary(piece[0])
        return tokens

    async def load(self) -> None:
        """Load the vocabulary in a thread, unless it is loaded, so that the event loop does not wait."""
        if self.function is None and self.name not in _loaded:
            await asyncio.to_thread(_encoding, self.name)

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
        kept_tokens = limit
        while kept_tokens > 0:
            clipped = self._clip_to(text, ids, kept_tokens, limit // 2)
            excess = self.count(clipped) - limit
            if excess <= 0:
                return clipped
            kept_tokens -= excess
        return ""

    def _clip_to(self, text: str, ids: list[Any], tokens: int, least_text: int) -> str:
        """Return the beginning and the end of a text around a mark; the beginning alone if the mark leaves little room.

        The tokens of the parts need not add up, so that the result can have more.
        """
        mark = f"\n[... {len(ids) - tokens} tokens left out ...]\n"
        text_tokens = tokens - self.count(mark)
        if text_tokens < least_text:
            return self._cut(text, ids, tokens)
        end = text_tokens // 2
        return (
            self._cut(text, ids, text_tokens - end) + mark + self._cut(text, ids, -end)
        )

    def _cut(self, text: str, ids: list[Any], tokens: int) -> str:
        """Return the first n tokens of a text, or its last n tokens for -n. ``ids`` are all of its tokens."""
        encoding = None
        if self.function is None:
            encoding = _encoding(self.name)
        if encoding is None:
            length = int(len(text) * tokens / max(len(ids), 1))
            if tokens > 0:
                return text[:length]
            return text[len(text) + length :]
        part = ids[:tokens] if tokens > 0 else ids[len(ids) + tokens :]
        # A token may end within a character, whose bytes at the edge are dropped.
        return encoding.decode_bytes(part).decode("utf-8", errors="ignore")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TokenCounter):
            return NotImplemented
        return (self.name, self.function) == (other.name, other.function)

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"TokenCounter({self.name!r})"

    def __reduce__(self) -> tuple[type[TokenCounter], tuple[str, Tokenizer | None]]:
        return type(self), (self.name, self.function)


def as_counter(tokenizer: Tokenizer) -> TokenCounter:
    """Return a counter as it is, or a counter around a function from a text to its tokens.

    Raises a SettingError for another value.
    """
    if isinstance(tokenizer, TokenCounter):
        return tokenizer
    if not callable(tokenizer):
        problem = f"a value of type {type(tokenizer).__name__}"
    else:
        tokens = tokenizer("a b")
        if hasattr(tokens, "__len__"):
            return TokenCounter("the given tokenizer", tokenizer)
        problem = f"a function that returns {type(tokens).__name__}"
    raise SettingError(
        f"tokenizer_fn must be a function from a text to the list of its tokens; got {problem}. "
        'TokenCounter("gpt-4o") is such a function for a model.'
    )


def take_fitting(
    items: Iterable[Item],
    tokens_of: Callable[[Item], int],
    limit: int,
    shortest: int = 0,
) -> list[Item]:
    """Return the items that fit into ``limit`` tokens together, best item first; other items are skipped.

    ``shortest``: no item has fewer tokens, so the search ends when fewer are left. The
    tokens of items must add up, as they do for lines from "<" to ">" and a newline.

    >>> take_fitting(["five.", "nine dots", "four", "1"], len, 10)
    ['five.', 'four', '1']
    """
    taken = []
    for item in items:
        if limit < shortest:
            break
        tokens = tokens_of(item)
        if tokens <= limit:
            taken.append(item)
            limit -= tokens
    return taken


@cache
def _encoding(name: str) -> tiktoken.Encoding | None:
    """Return the encoding of a model, or the encoding of that name; None, with a warning, if it cannot be loaded."""
    try:
        with _loading:
            # Imported here, because it takes time and many programs count nothing.
            import tiktoken

            encoding = name
            with suppress(KeyError):
                encoding = tiktoken.encoding_name_for_model(name)
            folder = files("llama_index.core") / "_static" / "tiktoken_cache"
            if encoding in _SHIPPED and (folder / _SHIPPED[encoding]).is_file():
                with _cache_folder(str(folder)):
                    return tiktoken.get_encoding(encoding)
        return tiktoken.get_encoding(encoding)
    except Exception as error:  # noqa: BLE001 - counting must go on without the download
        logger.warning(
            _NOT_LOADED, name, type(error).__name__, " or ".join(sorted(_SHIPPED))
        )
        return None
    finally:
        _loaded.add(name)


@contextmanager
def _cache_folder(folder: str) -> Iterator[None]:
    """Let tiktoken read the vocabularies in a folder."""
    # LlamaIndex sets TIKTOKEN_CACHE_DIR for a moment where it is not set, and then
    # deletes it. A thread must not meddle with that. The older variable has the same
    # effect where TIKTOKEN_CACHE_DIR is not set.
    current = os.environ.get("TIKTOKEN_CACHE_DIR")
    if current is None or os.path.realpath(current) == os.path.realpath(folder):
        variable = "DATA_GYM_CACHE_DIR"
    else:
        variable = "TIKTOKEN_CACHE_DIR"
    before = os.environ.get(variable)
    os.environ[variable] = folder
    try:
        yield
    finally:
        del os.environ[variable]
        if before is not None:
            os.environ[variable] = before
