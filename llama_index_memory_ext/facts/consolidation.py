"""Finds facts that need not be kept: checks propose them, a model confirms them, and no fact is ever written anew.

Facts are compared word by word, so that whatever a model answers, none is retired that
says something else.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from itertools import accumulate, groupby
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.tools import FunctionTool

from llama_index_memory_ext.errors import FactReplyError
from llama_index_memory_ext.fact import Fact, retire, utc_now
from llama_index_memory_ext.facts.prompt import ask, on_one_line
from llama_index_memory_ext.facts.reply import json_values, objects_in, read_number
from llama_index_memory_ext.language import pattern, phrases, word_lists
from llama_index_memory_ext.language.dates import Found, dates_in, period_of
from llama_index_memory_ext.language.numbers import names_of_numbers
from llama_index_memory_ext.language.words import comparable
from llama_index_memory_ext.models.ask import context_window, tokens_left

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from llama_index.core.llms import LLM

    from llama_index_memory_ext.text.tokens import TokenCounter

TidyKind: TypeAlias = Literal["duplicate", "contradiction", "over"]
_INSTRUCTIONS, _FORM = (
    (files(__package__) / "tidying.txt").read_text("utf-8").strip().split("\n---\n")
)


@dataclass(frozen=True, slots=True)
class Proposal:
    """That one fact need not be kept. Nothing has changed yet; ``str`` shows it before and after.

    Attributes:
        kind: "duplicate": ``keep`` says all that it says; "contradiction": ``keep`` is
            newer, and both cannot be true; "over": it is a plan whose day has passed.
        retired: The fact that would be retired, as it was when it was looked at.
        keep: The fact that stays as it is, and takes its place; None for a plan that is
            over.
    """

    kind: TidyKind
    retired: Fact
    keep: Fact | None

    @property
    def facts(self) -> tuple[Fact, ...]:
        """The facts that it comes from: what is there before. After it there is ``keep``, or nothing."""
        return tuple(filter(None, (self.retired, self.keep)))

    def applied(self, now: datetime) -> Fact:
        """Return the fact as it is retired; what has held until now stays part of the past."""
        why = f"tidied up: {self.kind}"
        keep_id = self.keep.id if self.keep else None
        return retire(
            self.retired,
            why,
            now,
            keep_id,
            by="hand" if self.kind == "duplicate" else "change",
        )

    def __str__(self) -> str:
        said = [
            f"{on_one_line(fact.content)} (known since {fact.created_at:%Y-%m-%d})"
            for fact in self.facts
        ]
        return f"{self.kind}: {' -> '.join(said if self.keep else (*said, 'nothing'))}"


# Its name, its docstring and its argument are sent to the model.
def report_numbers(numbers: list[int]) -> None:
    """Report the numbers of the lines that are right."""


async def confirmed(
    proposed: Sequence[Proposal], limit: int, llm: LLM, counter: TokenCounter
) -> list[Proposal]:
    """Return those of the proposals that a model confirms; [] if there are none.

    It is asked in batches of about ``limit`` tokens, or half of its window. Raises what
    the model raises, and a FactReplyError for an answer that cannot be read.
    """
    tool = FunctionTool.from_defaults(report_numbers)
    found = list[Proposal]()
    window = tokens_left(context_window(llm), counter.count(_INSTRUCTIONS))
    limit = max(limit if window is None else min(limit, window // 2), 1)
    ends = accumulate(counter.count(f"{one}") for one in proposed)
    for _, pairs in groupby(
        zip(ends, proposed, strict=True), key=lambda pair: pair[0] // limit
    ):
        batch = [one for _, one in pairs]
        lines = "".join(f"{i}. {one}\n" for i, one in enumerate(batch, 1))
        text = f"<lines>\n{lines}</lines>\n\nToday is {utc_now():%Y-%m-%d}. Report the numbers of the right ones."
        prompt = [ChatMessage(_INSTRUCTIONS, role="system"), ChatMessage(text)]
        # A number has few tokens, and the form around them has some.
        bounds: Any = {"answer_tokens": 10 * len(batch) + 100, "heard": []}
        numbers, _ = await ask(
            llm, prompt, tool, _FORM, lambda answers, _: _numbers_in(answers), **bounds
        )
        found += [one for i, one in enumerate(batch, 1) if i in numbers]
    return found


def proposals(facts: Iterable[Fact], now: datetime) -> list[Proposal]:
    """Return what passes the checks; [] for nothing. No pinned fact is retired, and none that stays by another."""
    alike = defaultdict[object, list[Fact]](list)
    for fact in sorted(facts, key=lambda fact: fact.created_at):
        # Every check of two facts needs the same first words, but for a number.
        first = pattern(r"\d+").sub("#", _read(fact.content)[0]).split()[:2]
        alike[(_scope(fact), *first)].append(fact)
    found = dict[str, Proposal]()
    kept = set[str]()
    for some in alike.values():
        for fact in some:
            others = [one for one in some if one is not fact and one.id not in found]
            same, newer = (
                [one for one in others if check(one, fact)]
                for check in (covers, excludes)
            )
            if is_over(fact, now):
                kind: TidyKind = "over"
            else:
                kind = "duplicate" if same else "contradiction"
            keep = max(
                same or newer[-1:], key=lambda one: len(one.content), default=None
            )
            if (keep or kind == "over") and not fact.pinned and fact.id not in kept:
                found[fact.id] = Proposal(kind, fact, None if kind == "over" else keep)
                kept |= {one.id for one in found[fact.id].facts[1:]}
    return list(found.values())


def covers(keep: Fact, fact: Fact) -> bool:
    """Return whether all that one fact says is said by another, word by word but for the groups of ``same.txt``.

    >>> from llama_index_memory_ext import Fact
    >>> cat, more = Fact(content="Has a cat"), Fact(content="Owns a cat named Tom")
    >>> covers(more, cat), covers(cat, more), covers(more, Fact(content="Has no cat"))
    (True, False, False)
    """
    (longer, denies, _), (shorter, is_denied, _) = (
        _read(keep.content),
        _read(fact.content),
    )
    # "Eats no meat" says more than "Eats no meat on Fridays". The cheapest comes first:
    # there are many pairs of facts.
    is_said = longer == shorter or (not denies and _begins(longer, shorter))
    return (
        is_said
        and denies == is_denied
        and fact.valid_from in (None, keep.valid_from)
        and _scope(keep) == _scope(fact)
    )


def excludes(new: Fact, old: Fact) -> bool:
    """Return whether a newer fact denies an older one, or has another value for what a person has one of at a time.

    An older one that was confirmed or changed after the newer was learned is not
    excluded.

    >>> from llama_index_memory_ext import Fact
    >>> oslo, rome = Fact(content="Lives in Oslo"), Fact(content="Resides in Rome")
    >>> excludes(rome, oslo), excludes(oslo, rome)
    (True, False)
    """
    is_newer = (
        old.updated_at < new.created_at
        and old.began <= new.began <= new.created_at.date()
    )
    (text, denies, frame), (old_text, is_denied, old_frame) = (
        _read(new.content),
        _read(old.content),
    )
    flips = denies != is_denied and (
        _begins(old_text, text) if denies else _begins(text, old_text)
    )
    has_other = (
        bool(frame)
        and frame == old_frame
        and text != old_text
        and not (denies or is_denied)
    )
    return is_newer and (flips or has_other) and _scope(new) == _scope(old)


def is_over(fact: Fact, now: datetime) -> bool:
    """Return whether a fact is a plan, and its last valid day, or all dates in it, have passed."""
    is_plan = fact.said_as == "planned" or phrases("same", "plan").search(
        _read(fact.content)[0]
    )
    if not is_plan or phrases("same", "since").search(fact.content):
        return False
    dates = [found for found in dates_in(fact.content) if _is_date(fact.content, found)]
    periods = [day.year and period_of(day) for found in dates for day in found.readings]
    if fact.valid_until:
        ends = [fact.valid_until]
    else:
        ends = [period and period.end for period in periods]
    return bool(ends) and all(end and end < now.date() for end in ends)


def _is_date(text: str, found: Found) -> bool:
    """Return whether digits that may be a year are one: "in 2024", but not "2000 bricks" or "a 2010s party"."""
    day = found.readings[0]
    written = text[found.start : found.end]
    if day.month is None and written.endswith(("s", "er", "年代")):
        return False
    if day.day or not written[-4:].isdecimal():
        return True
    return any(
        match.end() == found.end for match in phrases("same", "year").finditer(text)
    )


@lru_cache(maxsize=20_000)
def _read(content: str) -> tuple[str, bool, str]:
    """Return what a statement says, in words that stand for others and without denial, and whether it denies.

    And what is left without the value of what a person has one of; "" if there is none.
    """
    plain, denials = phrases("same", "denial").subn(
        " ", comparable(content).rstrip(".!").replace(",", " , ")
    )
    lists = word_lists("same")
    names = names_of_numbers("en")
    said = [
        f"{names[one]:g}" if one in names else one
        for one in plain.split()
        if one not in lists["fillers"][0]
    ]
    first = {
        other.replace("_", " "): group[0].replace("_", " ")
        for group in lists["groups"]
        for other in group
    }
    known = rf"(?<!\S)(?:{'|'.join(sorted(first, key=len, reverse=True))})(?!\S)"
    text = pattern(known).sub(lambda found: first[found.group()], " ".join(said))
    frame, count = phrases("same", "one_value").subn(r"\1#", text)
    return text, denials > 0, frame if count else ""


def _begins(text: str, part: str) -> bool:
    """Return whether a text begins with a part of it, and what follows neither limits nor alters that."""
    if not part or text == part or not text.startswith(f"{part} "):
        return bool(part) and text == part
    return (
        phrases("same", "more").search(f"{part} | {text.removeprefix(part).strip()}")
        is not None
    )


def _scope(fact: Fact) -> tuple[object, ...]:
    """Return what two facts must have in common to be compared: whose they are, about whom, and when they hold."""
    told_on = (
        phrases("same", "relative").search(fact.content) and fact.created_at.date()
    )
    if fact.said_as in ("planned", "past"):
        tense = fact.said_as
    else:
        tense = None
    return (
        fact.agent_id,
        fact.about or "user",
        tense,
        fact.valid_until,
        fact.expires_at,
        told_on,
    )


def _numbers_in(answers: Iterable[str]) -> set[int]:
    """Return the numbers that an answer reports; a FactReplyError if it reports nothing."""
    values = [value for text in answers for value in json_values(text)[0]]
    lists = [
        part["numbers"]
        for part in objects_in(
            values, lambda part: isinstance(part.get("numbers"), list)
        )
    ]
    if not lists:
        raise FactReplyError("".join(answers), form='{"numbers": []}')
    return {read_number(number) for numbers in lists for number in numbers}
