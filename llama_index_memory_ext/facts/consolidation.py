"""Tidying up: checks propose facts to retire, and a model confirms the proposals.

No fact is written anew. The checks compare facts word by word, so that no answer of a
model can retire a fact that says something else.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.tools import FunctionTool

from llama_index_memory_ext.errors import FactReplyError
from llama_index_memory_ext.fact import Fact, retire
from llama_index_memory_ext.learning.prompt import Request, on_one_line
from llama_index_memory_ext.learning.reply import json_values, objects_in, read_number
from llama_index_memory_ext.models.ask import context_window, tokens_left
from llama_index_memory_ext.words import comparable, pattern, phrases, word_lists
from llama_index_memory_ext.words.dates import DateMention, dates_in, period_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import date, datetime

    from llama_index.core.llms import LLM

    from llama_index_memory_ext.text.tokens import TokenCounter

TidyKind: TypeAlias = Literal["duplicate", "contradiction", "over"]
_INSTRUCTIONS, _FORM = (
    (files(__package__) / "tidying.txt").read_text("utf-8").strip().split("\n---\n")
)


@dataclass(frozen=True, slots=True)
class Proposal:
    """A proposal to retire a fact. Nothing has changed yet; ``str`` shows it before and after.

    Attributes:
        kind: "duplicate": ``keep`` says everything that the fact says; "contradiction":
            ``keep`` is newer, and both cannot be true; "over": the fact is a plan whose
            day has passed.
        retired: The fact that would be retired, as it was when it was compared.
        keep: The fact that stays as it is, and takes its place; None for a plan that is
            over.
    """

    kind: TidyKind
    retired: Fact
    keep: Fact | None

    @property
    def facts(self) -> tuple[Fact, ...]:
        """The fact that would be retired, and the fact that stays, if there is one."""
        return tuple(filter(None, (self.retired, self.keep)))

    def applied(self, now: datetime) -> Fact:
        """Return the retired fact; one that held until now stays part of the past."""
        return retire(
            self.retired,
            f"tidied up: {self.kind}",
            now,
            self.keep.id if self.keep else None,
            by="hand" if self.kind == "duplicate" else "change",
        )

    def __str__(self) -> str:
        texts = [
            f"{on_one_line(fact.content)} (known since {fact.created_at:%Y-%m-%d})"
            for fact in self.facts
        ]
        if self.keep is None:
            texts.append("nothing")
        return f"{self.kind}: {' -> '.join(texts)}"


# The model reads the name, the docstring and the argument of this function.
def report_numbers(numbers: list[int]) -> None:
    """Report the numbers of the lines that are right."""


async def confirmed(
    proposed: Sequence[Proposal],
    limit: int,
    llm: LLM,
    counter: TokenCounter,
    today: date,
) -> list[Proposal]:
    """Return the proposals that a model confirms; [] if there are none.

    A request has about ``limit`` tokens of proposals, or half of the model's window.
    Raises the errors of the model, and a FactReplyError for an answer that cannot be
    read.
    """
    tool = FunctionTool.from_defaults(report_numbers)
    window = tokens_left(context_window(llm), counter.count(_INSTRUCTIONS))
    if window is not None:
        limit = min(limit, window // 2)
    batches = defaultdict[int, list[Proposal]](list)
    total = 0
    for proposal in proposed:
        total += counter.count(str(proposal))
        batches[total // max(limit, 1)].append(proposal)
    right = []
    for batch in batches.values():
        lines = "".join(f"{i}. {proposal}\n" for i, proposal in enumerate(batch, 1))
        text = f"<lines>\n{lines}</lines>\n\nToday is {today}. Report the numbers of the right ones."
        # A number has few tokens, and the form around the numbers has some.
        request = Request(llm, tool, _FORM, 10 * len(batch) + 100, [])
        numbers, _ = await request.ask(
            [ChatMessage(_INSTRUCTIONS, role="system"), ChatMessage(text)],
            lambda answers, _: _numbers_in(answers),
        )
        right += [proposal for i, proposal in enumerate(batch, 1) if i in numbers]
    return right


def proposals(facts: Iterable[Fact], now: datetime) -> list[Proposal]:
    """Return the proposals to retire facts, by the checks below; [] if there are none.

    No pinned fact is retired, and no fact that another proposal keeps.
    """
    groups = defaultdict[object, list[Fact]](list)
    for fact in sorted(facts, key=lambda fact: fact.created_at):
        # Every check needs facts with the same first words, but for a number.
        first = pattern(r"\d+").sub("#", _read(fact.content).text).split()[:2]
        groups[(_scope(fact), *first)].append(fact)
    proposed = {}
    kept_ids = set()
    for group in groups.values():
        for fact in group:
            if fact.pinned or fact.id in kept_ids:
                continue
            rest = [candidate for candidate in group if candidate.id not in proposed]
            proposal = _proposal(fact, rest, now)
            if proposal is None:
                continue
            proposed[fact.id] = proposal
            if proposal.keep:
                kept_ids.add(proposal.keep.id)
    return list(proposed.values())


def _proposal(fact: Fact, rest: Sequence[Fact], now: datetime) -> Proposal | None:
    """Return the proposal to retire a fact, by itself or for another of the rest."""
    if is_over(fact, now):
        return Proposal("over", fact, None)
    covering = [keep for keep in rest if keep is not fact and covers(keep, fact)]
    if covering:
        longest = max(covering, key=lambda keep: len(keep.content))
        return Proposal("duplicate", fact, longest)
    newer = [keep for keep in rest if excludes(keep, fact)]
    if newer:
        return Proposal("contradiction", fact, newer[-1])
    return None


def covers(keep: Fact, fact: Fact) -> bool:
    """Return whether ``keep`` says everything that ``fact`` says.

    Words are compared as they are, but for the groups of ``same.txt``.

    >>> from llama_index_memory_ext import Fact
    >>> cat, more = Fact(content="Has a cat"), Fact(content="Owns a cat named Tom")
    >>> covers(more, cat), covers(cat, more), covers(more, Fact(content="Has no cat"))
    (True, False, False)
    """
    longer = _read(keep.content)
    shorter = _read(fact.content)
    # "Eats no meat" says more than "Eats no meat on Fridays".
    is_covered = longer.text == shorter.text or (
        not longer.denies and _begins(longer.text, shorter.text)
    )
    # There are many pairs of facts, so the cheapest comparison stands first.
    return (
        is_covered
        and longer.denies == shorter.denies
        and fact.valid_from in (None, keep.valid_from)
        and _scope(keep) == _scope(fact)
    )


def excludes(new: Fact, old: Fact) -> bool:
    """Return whether a newer fact and an older one cannot both be true.

    The newer one denies the older one, or names another value where a person has one at
    a time. An older fact that was confirmed or changed after the newer one was learned
    is not excluded.

    >>> from llama_index_memory_ext import Fact
    >>> oslo, rome = Fact(content="Lives in Oslo"), Fact(content="Resides in Rome")
    >>> excludes(rome, oslo), excludes(oslo, rome)
    (True, False)
    """
    is_newer = (
        old.updated_at < new.created_at
        and old.began <= new.began <= new.created_at.date()
    )
    statement = _read(new.content)
    old_statement = _read(old.content)
    has_other_value = (
        bool(statement.frame)
        and statement.frame == old_statement.frame
        and statement.text != old_statement.text
        and not (statement.denies or old_statement.denies)
    )
    is_excluded = has_other_value or _flips(statement, old_statement)
    return is_newer and is_excluded and _scope(new) == _scope(old)


def _flips(new: Statement, old: Statement) -> bool:
    """Return whether a statement denies the other."""
    if new.denies == old.denies:
        return False
    if new.denies:
        return _begins(old.text, new.text)
    return _begins(new.text, old.text)


def is_over(fact: Fact, now: datetime) -> bool:
    """Return whether a fact is a plan whose last valid day, or whose dates, have passed."""
    is_plan = fact.said_as == "planned" or phrases("same", "plan").search(
        _read(fact.content).text
    )
    if not is_plan or phrases("same", "since").search(fact.content):
        return False
    last_days = _last_days(fact)
    return bool(last_days) and all(day and day < now.date() for day in last_days)


def _last_days(fact: Fact) -> list[date | None]:
    """Return the last day of a fact, or the end of each date in it.

    A date without a year has no known end: None.
    """
    if fact.valid_until:
        return [fact.valid_until]
    last_days = []
    for match in dates_in(fact.content):
        if _is_date(fact.content, match):
            for day in match.readings:
                period = period_of(day) if day.year else None
                last_days.append(period.end if period else None)
    return last_days


def _is_date(text: str, match: DateMention) -> bool:
    """Return whether digits that may be a year are one.

    "in 2024" is a year; "2000 bricks" and "a 2010s party" are none.
    """
    day = match.readings[0]
    written = text[match.start : match.end]
    if day.month is None and written.endswith(("s", "er", "年代")):
        return False
    if day.day or not written[-4:].isdecimal():
        return True
    years = phrases("same", "year").finditer(text)
    return any(year.end() == match.end for year in years)


class Statement(NamedTuple):
    """A statement in the words by which facts are compared.

    Attributes:
        text: The statement without denial and fillers, in the first words of the
            groups of ``same.txt``.
        denies: Whether it has a denial.
        frame: The text without its value, where a person has one at a time: "lives in
            #"; "" for any other text.
    """

    text: str
    denies: bool
    frame: str


@lru_cache(maxsize=20_000)
def _read(content: str) -> Statement:
    plain, denials = phrases("same", "denial").subn(
        " ", comparable(content).rstrip(".!").replace(",", " , ")
    )
    fillers = word_lists("same")["fillers"][0]
    numbers = {}
    for number, names in enumerate(word_lists("calendar")["numbers"], 1):
        numbers[names[0]] = number
    words = [word for word in plain.split() if word not in fillers]
    for i, word in enumerate(words):
        if word in numbers:
            words[i] = f"{numbers[word]:g}"
    first_words = _first_words()
    alternatives = "|".join(sorted(first_words, key=len, reverse=True))
    text = pattern(rf"(?<!\S)(?:{alternatives})(?!\S)").sub(
        lambda match: first_words[match.group()], " ".join(words)
    )
    frame, values = phrases("same", "one_value").subn(r"\1#", text)
    return Statement(text, denials > 0, frame if values else "")


@cache
def _first_words() -> dict[str, str]:
    """Return the first words of the group of each word or phrase that has one."""
    first_words = {}
    for group in word_lists("same")["groups"]:
        for words in group:
            first_words[words.replace("_", " ")] = group[0].replace("_", " ")
    return first_words


def _begins(text: str, part: str) -> bool:
    """Return whether a text begins with a part, and the rest neither limits nor alters that."""
    if not part:
        return False
    if text == part:
        return True
    if not text.startswith(f"{part} "):
        return False
    rest = text.removeprefix(part).strip()
    return phrases("same", "more").search(f"{part} | {rest}") is not None


def _scope(fact: Fact) -> tuple[object, ...]:
    """Return the values that two comparable facts share.

    They tell the owner, the person whom the fact is about, and when it holds.
    """
    is_relative = phrases("same", "relative").search(fact.content)
    tense = fact.said_as if fact.said_as in ("planned", "past") else None
    return (
        fact.agent_id,
        fact.about or "user",
        tense,
        fact.valid_until,
        fact.expires_at,
        fact.created_at.date() if is_relative else None,
    )


def _numbers_in(answers: Iterable[str]) -> set[int]:
    """Return the numbers that an answer reports; a FactReplyError if it reports nothing."""
    values = []
    for text in answers:
        values += json_values(text).values
    reports = list(
        objects_in(values, lambda part: isinstance(part.get("numbers"), list))
    )
    if not reports:
        raise FactReplyError("".join(answers), form='{"numbers": []}')
    numbers = set[int]()
    for report in reports:
        numbers.update(map(read_number, report["numbers"]))
    return numbers
