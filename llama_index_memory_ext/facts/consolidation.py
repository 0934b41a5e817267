"""Proposes which facts need not be kept: a model finds them, checks decide, and no fact is ever written anew.

Facts are compared word by word, so that what a model reports by mistake stays as it is.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from itertools import accumulate, groupby, permutations
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.tools import FunctionTool
from pydantic import BaseModel, Field

from llama_index_memory_ext.errors import FactReplyError
from llama_index_memory_ext.fact import Fact, retire
from llama_index_memory_ext.facts.prompt import ask, on_one_line
from llama_index_memory_ext.facts.reply import json_values, objects_in, read_number, read_text
from llama_index_memory_ext.language import pattern, phrases, word_lists
from llama_index_memory_ext.language.dates import dates_in, period_of
from llama_index_memory_ext.language.numbers import names_of_numbers
from llama_index_memory_ext.language.words import comparable
from llama_index_memory_ext.models.ask import context_window, tokens_left

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from datetime import datetime

    from llama_index.core.llms import LLM

    from llama_index_memory_ext.fact import RetiredBy
    from llama_index_memory_ext.text.tokens import TokenCounter

TidyKind: TypeAlias = Literal["duplicate", "contradiction", "over"]
_Group: TypeAlias = tuple[TidyKind, list[int], str]
_INSTRUCTIONS, _FORM = (files(__package__) / "tidying.txt").read_text("utf-8").strip().split("\n---\n")
# Tokens of an answer about one fact, and the most characters of a reason.
_ANSWER, _REASON = 40, 200


@dataclass(frozen=True, slots=True)
class Proposal:
    """That one fact need not be kept. Nothing has changed yet; ``str`` is what a person looks at.

    Attributes:
        kind: "duplicate": ``keep`` says all that it says; "contradiction": ``keep`` is newer, and both cannot be true;
            "over": it is a plan whose day has passed.
        retired: The fact that would be retired, as it was when it was looked at.
        keep: The fact that stays as it is, and takes its place; None for a plan that is over.
        reason: Why, in the model's words.
    """

    kind: TidyKind
    retired: Fact
    keep: Fact | None
    reason: str

    @property
    def facts(self) -> tuple[Fact, ...]:
        """The facts that it comes from: what is there before. After it there is ``keep``, or nothing."""
        return tuple(filter(None, (self.retired, self.keep)))

    def applied(self, now: datetime) -> Fact:
        """The fact as it is retired; of what has held until now it stays part of the past."""
        by: RetiredBy = "hand" if self.kind == "duplicate" else "change"
        return retire(self.retired, f"{self.kind}: {self.reason}", now, self.keep and self.keep.id, by=by)

    def __str__(self) -> str:
        after = f"+ {self.keep.content}" if self.keep else "+ (nothing)"
        return f"- {self.retired.content}\n{after}\n  {self.kind}: {self.reason}"


# The docstrings and descriptions of these two classes are sent to the model, in the schema of the tool.
class Group(BaseModel):
    """Notes of which some need not be kept."""

    kind: TidyKind
    numbers: list[int] = Field(description="The numbers of all notes of the group.")
    reason: str = Field(description="Why, in a few words.")


class Groups(BaseModel):
    """What is to tidy up."""

    groups: list[Group]


_TOOL = FunctionTool.from_defaults(fn=Groups, name="report_groups", description="Report groups.", fn_schema=Groups)


async def propose(
    facts: Sequence[Fact], token_limit: int, *, llm: LLM, counter: TokenCounter, now: datetime
) -> list[Proposal]:
    """Ask a model which facts need not be kept, and return what passes the checks; [] for none.

    It is asked about ``candidates`` alone, in batches of about ``token_limit`` tokens, or half of its window. Raises
    what the model raises, and a FactReplyError for an answer that cannot be read.
    """
    window = tokens_left(context_window(llm), counter.count(_INSTRUCTIONS))
    limit = max(min(token_limit, token_limit if window is None else window // 2), 1)
    chosen = await asyncio.to_thread(candidates, facts, now)
    lines = [f"{on_one_line(fact.content)} (known since {fact.created_at:%Y-%m-%d})\n" for fact in chosen]
    ends = accumulate(map(counter.count, lines))
    found: list[Proposal] = []
    for _, batch in groupby(zip(ends, lines, chosen, strict=True), key=lambda one: one[0] // limit):
        _, texts, shown = zip(*batch, strict=True)
        notes = "".join(f"{i}. {text}" for i, text in enumerate(texts, 1))
        request = f"<notes>\n{notes}</notes>\n\nToday is {now:%Y-%m-%d}. Report what is to tidy up."
        prompt = [ChatMessage(role="system", content=_INSTRUCTIONS), ChatMessage(role="user", content=request)]
        bounds: Any = {"answer_tokens": _ANSWER * (len(shown) + 5), "heard": []}
        groups, _ = await ask(llm, prompt, _TOOL, _FORM, lambda answers, _: _groups_in(answers), **bounds)
        found += _proposals(groups, shown, now)
    return found


def candidates(facts: Sequence[Fact], now: datetime) -> list[Fact]:
    """Return the facts that pass a check with another one, and plans that are over; those that are alike lie together.

    What else a model may report would not pass.
    """
    alike = defaultdict[object, list[Fact]](list)
    for fact in facts:
        # Every check of two facts needs the same first word.
        alike[_scope(fact), _read(fact.content)[0].partition(" ")[0]].append(fact)
    pairs = (pair for some in alike.values() for pair in permutations(some, 2) if covers(*pair) or excludes(*pair))
    ids = {fact.id for pair in pairs for fact in pair}
    found = [fact for fact in facts if fact.id in ids or is_over(fact, now)]
    return sorted(found, key=lambda fact: _read(fact.content))


def covers(keep: Fact, fact: Fact) -> bool:
    """Return whether all that one fact says is said by another, word by word but for the groups of ``same.txt``.

    >>> from llama_index_memory_ext import Fact
    >>> cat, more = Fact(content="Has a cat"), Fact(content="Owns a cat named Tom")
    >>> covers(more, cat), covers(cat, more), covers(more, Fact(content="Has no cat"))
    (True, False, False)
    """
    (longer, denies), (shorter, is_denied) = _read(keep.content), _read(fact.content)
    is_same = denies == is_denied and _scope(keep) == _scope(fact) and fact.valid_from in (None, keep.valid_from)
    # "Eats no meat" says more than "Eats no meat on Fridays".
    return is_same and (longer == shorter or (not denies and _begins(longer, shorter)))


def excludes(new: Fact, old: Fact) -> bool:
    """Return whether a newer fact denies an older one, or has another value for what a person has one of at a time.

    An older one that was confirmed or changed after the newer was learned is not excluded.

    >>> from llama_index_memory_ext import Fact
    >>> oslo, rome = Fact(content="Lives in Oslo"), Fact(content="Resides in Rome")
    >>> excludes(rome, oslo), excludes(oslo, rome)
    (True, False)
    """
    is_newer = old.updated_at < new.created_at and old.began <= new.began <= new.created_at.date()
    if not is_newer or _scope(new) != _scope(old):
        return False
    (text, denies), (old_text, is_denied) = _read(new.content), _read(old.content)
    if denies != is_denied:
        return _begins(old_text, text) if denies else _begins(text, old_text)
    one, other = (phrases("same", "one_value").subn(r"\1#", said) for said in (text, old_text))
    return one == other and one[1] > 0 and text != old_text and not denies


def is_over(fact: Fact, now: datetime) -> bool:
    """Return whether a fact is a plan, and its last valid day, or all dates in it, have passed."""
    is_plan = fact.said_as == "planned" or phrases("same", "plan").search(_read(fact.content)[0])
    if not is_plan or phrases("same", "since").search(fact.content):
        return False
    days = [day for found in dates_in(fact.content) for day in found.readings]
    ends = [fact.valid_until] if fact.valid_until else [day.year and period_of(day) for day in days]
    return bool(ends) and all(end and getattr(end, "end", end) < now.date() for end in ends)


@lru_cache(maxsize=20_000)
def _read(content: str) -> tuple[str, bool]:
    """Return what a statement says, in the words that stand for others and without denial, and whether it denies."""
    plain, denials = phrases("same", "denial").subn(" ", comparable(content).rstrip(".!").replace(",", " , "))
    lists, numbers = word_lists("same"), names_of_numbers("en")
    words = [
        f"{numbers[word]:g}" if word in numbers else word for word in plain.split() if word not in lists["fillers"][0]
    ]
    first = {other.replace("_", " "): group[0].replace("_", " ") for group in lists["groups"] for other in group}
    known = rf"(?<!\S)(?:{'|'.join(sorted(first, key=len, reverse=True))})(?!\S)"
    return pattern(known).sub(lambda found: first[found.group()], " ".join(words)), denials > 0


def _begins(text: str, part: str) -> bool:
    """Return whether a text begins with a part of it, and what follows neither limits nor alters that."""
    rest = text.removeprefix(part).split()
    lists = word_lists("same")
    is_apart = text == part or (text.startswith(f"{part} ") and rest[0] in lists["beginning"][0])
    return bool(part) and is_apart and not any(word in line for word in rest for line in lists["limiting"])


def _scope(fact: Fact) -> tuple[object, ...]:
    """Return what two facts must have in common to be compared: whose they are, about whom, and when they hold."""
    is_relative = phrases("same", "relative").search(fact.content)
    tense = fact.said_as if fact.said_as in ("planned", "past") else None
    return (
        fact.agent_id,
        fact.about or "user",
        tense,
        fact.valid_until,
        fact.expires_at,
        is_relative and fact.created_at.date(),
    )


def _groups_in(answers: Iterable[str]) -> list[_Group]:
    """Return the groups that an answer reports; a FactReplyError if there is no JSON in it."""
    values = [value for text in answers for value in json_values(text)[0]]
    if not values:
        raise FactReplyError("".join(answers), form='{"groups": []}')
    kinds = get_args(TidyKind)
    parts: Iterable[Any] = objects_in(
        values, lambda part: part.get("kind") in kinds and isinstance(part.get("numbers"), list)
    )
    return [
        (part["kind"], [*map(read_number, part["numbers"])], read_text(part.get("reason"))[:_REASON]) for part in parts
    ]


def _proposals(groups: Iterable[_Group], shown: Sequence[Fact], now: datetime) -> Iterator[Proposal]:
    """Yield what of a model's groups passes the checks, which say what stays; what stays by one is not retired."""
    gone, kept = set[str](), set[str]()
    for kind, numbers, reason in groups:
        facts = [shown[number - 1] for number in {*numbers} if 0 < number <= len(shown)]
        facts.sort(key=lambda fact: (len(_read(fact.content)[0]) * (kind == "duplicate"), fact.created_at))
        holds = covers if kind == "duplicate" else excludes
        for fact in [fact for fact in facts if not fact.pinned and fact.id not in gone | kept]:
            rest = [] if kind == "over" else [one for one in reversed(facts) if one is not fact and one.id not in gone]
            keep = next((one for one in rest if holds(one, fact)), None)
            if keep or (kind == "over" and is_over(fact, now)):
                gone.add(fact.id)
                kept |= {keep.id} if keep else set()
                yield Proposal(kind, fact, keep, reason)
