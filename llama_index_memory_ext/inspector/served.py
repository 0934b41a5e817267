"""Says what of a prompt the providers' prompt caches would find of the prompt for the turn before."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# Of less than this nothing is kept. OpenAI serves 1,024 tokens and then steps of 128; Anthropic from 1,024 on for most
# models.
_LEAST, _STEP = 1_024, 128
# So many blocks Anthropic looks at from a mark backwards, the marked one among them.
_LOOKED_BACK = 20


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a prompt: of the record, the facts, the question, or a further message of the turn.

    ``marked``: a cache point stands behind it. ``prefix`` and ``marks``: a cache of that kind would serve all of it.
    """

    kind: str
    role: str
    text: str
    tokens: int
    marked: bool = False
    prefix: bool = False
    marks: bool = False


@dataclass(frozen=True, slots=True)
class Served:
    """Tokens of a prompt that are found in a cache, which the instructions and tools in front of it would raise.

    ``prefix``: by those that find the longest common beginning (OpenAI before GPT-5.6, vLLM, llama.cpp).
    ``marks``: by those that find it at cache points (Anthropic, Bedrock, GPT-5.6 and later).
    """

    parts: Sequence[Part]
    prompt: int
    prefix: int
    marks: int


def served(before: Sequence[Part], now: Sequence[Part], count: Callable[[str], int]) -> Served:
    """Returns what is found of a prompt if that of the turn before was the only one in the cache.

    >>> parts = [Part("record", "user", "tea " * 2_000, 2_000, marked=True), Part("question", "user", "Why?", 2)]
    >>> found = served(parts, [parts[0], Part("question", "user", "How?", 2)], lambda text: len(text) // 4)
    >>> found.prompt, found.prefix, found.marks
    (2002, 1920, 2000)
    """
    earlier, text = _joined(before), _joined(now)
    shared = _shared(earlier, text)
    in_common = count(text[:shared])
    prefix = in_common - (in_common - _LEAST) % _STEP if in_common >= _LEAST else 0
    marked = _marked_end(before, now, shared)
    marks = count(text[:marked])
    if marks < _LEAST:
        marked = marks = 0
    ends = (shared if prefix else 0, marked)
    parts = [
        replace(part, prefix=end <= ends[0], marks=end <= ends[1]) for end, part in zip(_ends(now), now, strict=True)
    ]
    return Served(parts, sum(part.tokens for part in now), prefix, marks)


def _marked_end(before: Sequence[Part], now: Sequence[Part], shared: int) -> int:
    """After how many characters the longest beginning ends that was written at a mark and is looked up; 0: none."""
    written = {end for end, part in zip(_ends(before), before, strict=True) if part.marked and end <= shared}
    ends, places = _ends(now), marks_of([i for i, part in enumerate(now) if part.marked])
    return max((ends[i] for place in places for i in place if ends[i] in written), default=0)


def marks_of(marked: Sequence[int]) -> list[range]:
    """Returns the places at which a cache looks from each marked one.

    >>> marks_of([3, 30])
    [range(0, 4), range(11, 31)]
    """
    return [range(max(0, mark - _LOOKED_BACK + 1), mark + 1) for mark in marked]


def runs(parts: Sequence[Part]) -> list[list[Part]]:
    """Returns the parts in runs that are shown as one: of one kind and role, served alike, up to a cache point.

    >>> [len(run) for run in runs([Part("record", "user", "", 0), Part("record", "user", "", 0, marked=True)] * 2)]
    [2, 2]
    """
    found: list[list[Part]] = []
    for part in parts:
        last = found[-1][-1] if found else None
        if last is None or last.marked or _look(last) != _look(part):
            found.append([])
        found[-1].append(part)
    return found


def _joined(parts: Sequence[Part]) -> str:
    return "".join(part.text for part in parts)


def _ends(parts: Sequence[Part]) -> list[int]:
    return list(accumulate(len(part.text) for part in parts))


def _shared(one: str, other: str) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


def _look(part: Part) -> tuple[object, ...]:
    return part.kind, part.role, part.prefix, part.marks
