"""How the prompt caches of providers match: what of a prompt is found, and what is written.

Each class is a cache that is empty at first and remembers what it has served. Nothing expires.

| rule | class | who |
|---|---|---|
| R1 | ``TokenPrefix`` | OpenAI's models before GPT-5.6, vLLM, llama.cpp |
| R2 | ``NewestMessage`` | OpenAI's GPT-5.6 and later, when a request says nothing of caches |
| R3 | ``Marks`` | the same, with ``prompt_cache_breakpoint`` |
| R4 | ``Blocks`` | Anthropic's ``cache_control``, Amazon Bedrock's ``cachePoint`` |
| R5 | ``Units`` | DeepSeek |

Sources, of autumn 2026: https://developers.openai.com/api/docs/guides/prompt-caching and the reference of
``prompt_cache_options``; https://platform.claude.com/docs/en/build-with-claude/prompt-caching;
https://api-docs.deepseek.com/guides/kv_cache and /quick_start/pricing. Where OpenAI was measured by others, the end of
the instructions was at times found as well, without a mark (BerriAI/litellm 37628); its guide does not promise it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from itertools import accumulate
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from benchmarks.recipe import o200k

Tokens = NDArray[np.int32]

MOST_WRITES, MOST_LOOKED_UP = 4, 80
MOST_BLOCK_MARKS, LOOKED_BACK = 4, 20

# Here every token of tiktoken's encodings ends, so that lines are encoded once for all prompts.
_LINE = re.compile(r"(?<=\n)(?=[^\s/])")


class Part(NamedTuple):
    """A piece of a prompt, which begins with a new token.

    Attributes:
        text: What it adds to the prompt, with its role and whatever else must be the same.
        marked: Whether a breakpoint stands at its end.
        ends_message: Whether it ends a message of the user's or of a tool's, where OpenAI puts its own breakpoint.
    """

    text: str
    marked: bool = False
    ends_message: bool = False


class Usage(NamedTuple):
    """Tokens of a prompt: all, those found in the cache, and those written to it. The others are neither."""

    prompt: int
    found: int
    written: int


class Price(NamedTuple):
    """What a token costs, in prices of an input token without a cache."""

    found: float
    written: float
    other: float = 1.0


# GPT-4o pays .5 and GPT-4.1 .25 for what is found; DeepSeek's smallest model .02.
PRICES = {
    "TokenPrefix": Price(0.1, 1.0),
    "NewestMessage": Price(0.1, 1.25),
    "Marks": Price(0.1, 1.25),
    "Blocks": Price(0.1, 1.25),
    "Blocks, 1h": Price(0.1, 2.0),
    "Units": Price(1 / 30, 1.0),
}


class Rule(Protocol):
    """A prompt cache; its name is that of its price."""

    @property
    def name(self) -> str: ...

    def serve(self, parts: Sequence[Part]) -> Usage:
        """What of a prompt is found and written. It is remembered for the prompts that follow."""


def paid(usage: Usage, rule: Rule) -> float:
    """What a prompt costs, in input tokens without a cache."""
    price = PRICES[rule.name]
    other = usage.prompt - usage.found - usage.written
    return (
        usage.found * price.found + usage.written * price.written + other * price.other
    )


@dataclass
class TokenPrefix:
    """R1: the longest beginning that the prompt shares with an earlier one, in tokens; all else is written."""

    from_: int = 1024
    step: int = 128
    name: str = field(default="TokenPrefix", init=False)
    _sent: list[Tokens] = field(default_factory=list, init=False, repr=False)

    def serve(self, parts: Sequence[Part]) -> Usage:
        tokens = _tokens(parts)
        shared = _most_shared(tokens, self._sent)
        found = served(shared, self.from_, self.step)
        self._sent.append(tokens)
        return Usage(len(tokens), found, len(tokens) - found)


@dataclass
class Marks:
    """R3: the longest beginning that ends at a mark of this request and that an earlier request has written.

    With ``managed`` ("implicit" mode) OpenAI marks the newest message of the user's or of a tool's, and looks up where
    earlier ones end, too. A request writes at its four latest marks, the managed one among them. Each token beyond
    what was found is written once, up to the last mark.
    """

    managed: bool
    from_: int = 1024
    name: str = field(default="Marks", init=False)
    _written: set[bytes] = field(default_factory=set, init=False, repr=False)

    def serve(self, parts: Sequence[Part]) -> Usage:
        marks = [i for i, part in enumerate(parts) if part.marked]
        endings = (
            [i for i, part in enumerate(parts) if part.ends_message]
            if self.managed
            else []
        )
        writes = sorted({*endings[-1:], *marks[-(MOST_WRITES - len(endings[-1:])) :]})
        looked_up = sorted({*marks, *endings})[-MOST_LOOKED_UP:]
        return _matched(parts, looked_up, writes, self._written, self.from_)


@dataclass
class NewestMessage:
    """R2: R3 without marks: only prompts that were sent before and end where a message of this one ends are found."""

    from_: int = 1024
    name: str = field(default="NewestMessage", init=False)

    def __post_init__(self) -> None:
        self._managed = Marks(managed=True, from_=self.from_)

    def serve(self, parts: Sequence[Part]) -> Usage:
        return self._managed.serve([part._replace(marked=False) for part in parts])


@dataclass
class Blocks:
    """R4: as R3, with at most four marks, each of which looks back for what an earlier request wrote.

    A part is a block, in the order tools, system, messages. A mark looks at 20 blocks, its own among them. Nothing is
    kept of a beginning with less than ``from_`` tokens: 512 to 4,096, by model.
    """

    from_: int = 1024
    ttl: str = "5m"
    _written: set[bytes] = field(default_factory=set, init=False, repr=False)

    @property
    def name(self) -> str:
        """The name of its price."""
        return "Blocks, 1h" if self.ttl == "1h" else "Blocks"

    def serve(self, parts: Sequence[Part]) -> Usage:
        """As for any rule; a ``ValueError`` for more marks than the provider accepts."""
        marks = [i for i, part in enumerate(parts) if part.marked]
        if len(marks) > MOST_BLOCK_MARKS:
            raise ValueError(
                f"A maximum of 4 blocks with cache_control may be provided. Found {len(marks)}."
            )
        looked_up = {
            i for mark in marks for i in range(max(0, mark - LOOKED_BACK + 1), mark + 1)
        }
        return _matched(parts, looked_up, marks, self._written, self.from_)


@dataclass
class Units:
    """R5: the longest stored unit that the whole prompt begins with.

    A request stores two units: what was sent, and that with the model's answer. What it has in common with an earlier
    request is stored once it has been served, so the third one finds it. Units at fixed numbers of tokens, which
    DeepSeek also stores, are left out, because it does not say how many; so are answers that are not given.
    """

    name: str = field(default="Units", init=False)
    _sent: list[Tokens] = field(default_factory=list, init=False, repr=False)
    _units: dict[int, set[bytes]] = field(default_factory=dict, init=False, repr=False)

    def serve(self, parts: Sequence[Part], answer: Part | None = None) -> Usage:
        """As for any rule; ``answer`` is the part that the model's answer will be in the next prompt."""
        tokens = _tokens(parts)
        found = max(
            (
                end
                for end, unit in _hashes(tokens, sorted(self._units))
                if unit in self._units[end]
            ),
            default=0,
        )
        shared = _most_shared(tokens, self._sent)
        with_answer = _tokens([*parts, answer]) if answer else tokens
        self._sent.append(tokens)
        for end, unit in _hashes(
            with_answer, sorted({shared, len(tokens), len(with_answer)} - {0})
        ):
            self._units.setdefault(end, set()).add(unit)
        return Usage(len(tokens), found, len(tokens) - found)


def served(shared: int, from_: int = 1024, step: int = 128) -> int:
    """How many tokens R1 serves of a beginning of so many tokens that was sent before."""
    return shared - (shared - from_) % step if shared >= from_ else 0


def lines_of(text: str) -> list[str]:
    """Return the pieces of a text that are encoded apart: their tokens are those of the whole text."""
    return [line for line in _LINE.split(text) if line]


def count_tokens(text: str) -> int:
    """Return the number of tokens in a text; no line is encoded twice."""
    return sum(len(_line(line)) for line in lines_of(text))


def _tokens(parts: Sequence[Part]) -> Tokens:
    return _joined([_encoded(part.text) for part in parts])


# The rules of a prompt read the same parts, and most parts are in the next prompt, too.
@lru_cache(1 << 10)
def _encoded(text: str) -> Tokens:
    return _joined([_line(line) for line in lines_of(text)])


def _joined(pieces: list[Tokens]) -> Tokens:
    return np.concatenate(pieces) if pieces else np.zeros(0, np.int32)


def _matched(
    parts: Sequence[Part],
    looked_up: Iterable[int],
    writes: Iterable[int],
    written: set[bytes],
    from_: int,
) -> Usage:
    """What is found at the ends of some parts, and written at those of others; ``written`` grows by that."""
    prompt, ends, beginnings = _beginnings(parts)
    found = max((ends[i] for i in looked_up if beginnings[i] in written), default=0)
    kept = [i for i in writes if ends[i] >= from_]
    written.update(beginnings[i] for i in kept)
    return Usage(
        prompt,
        found,
        max((ends[i] - found for i in kept if ends[i] > found), default=0),
    )


def _beginnings(parts: Sequence[Part]) -> tuple[int, list[int], list[bytes]]:
    """The tokens of the prompt, and of each part the tokens up to its end and what tells that beginning from others."""
    counts = [len(_encoded(part.text)) for part in parts]
    growing, beginnings = sha256(), []
    for part in parts:
        text = part.text.encode()
        growing.update(b"%d " % len(text) + text)
        beginnings.append(growing.digest())
    return sum(counts), list(accumulate(counts)), beginnings


@lru_cache(1 << 17)
def _line(text: str) -> Tokens:
    return np.array(o200k().encode_ordinary(text), np.int32)


def _most_shared(tokens: Tokens, sent: Sequence[Tokens]) -> int:
    """Return the length of the longest beginning that the tokens share with an earlier prompt, 0 for none."""
    most = 0
    # The newest prompts share most. A prompt that differs at ``most`` shares no more.
    for earlier in reversed(sent):
        if most < min(len(tokens), len(earlier)) and tokens[most] == earlier[most]:
            most = max(most, _shared(tokens, earlier))
    return most


def _shared(one: Tokens, other: Tokens) -> int:
    length = min(len(one), len(other))
    different = one[:length] != other[:length]
    return int(different.argmax()) if different.any() else length


def _hashes(tokens: Tokens, ends: Sequence[int]) -> Iterator[tuple[int, bytes]]:
    """Of the beginnings that end there, and not behind the end, what tells each from others."""
    growing, start = sha256(), 0
    for end in ends:
        if end > len(tokens):
            return
        growing.update(tokens[start:end].tobytes())
        start = end
        yield end, growing.digest()
