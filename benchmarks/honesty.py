"""What a memory stores of what a model says: true facts that are lost, and false ones that are kept.

    python -m benchmarks.honesty [HONESTY_FOLDER [LOCOMO_JSON]]

No model is asked: its answers stand in the files, and the package checks them as it checks a model's. The folder holds
cases written by hand, each with its class, what was said and what was known; of LoCoMo an observation is a fact, with a
batch of the turn that it is about and the other's answer (of several such turns all), as they stand in the file: with
the speaker's name before them. What was learned of a conversation so far is known. Chances are seeded, and nothing is
timed. The results hold counts and the names of classes only: the texts are not free for every use.

- True facts, LoCoMo: the share that is not stored, where the quote is the whole turn without the name; then with quotes
  altered as models alter them (see ``altered_quotes.py``), each only where there is something to alter; with the
  one sentence that has most words of the fact; and with the quote of another turn, where a stored fact is the mistake.
- True facts, hard: numbers, dates and names in other forms, other languages, short answers. Lost is what is not stored.
- Falsehoods, LoCoMo: the same facts made false in thirteen ways (see ``honesty_falsehoods.py``). Stored is one whose
  statement is; the user's own words, stored in its place, say what was said. The rules were chosen on the first two
  conversations; the others are reported apart. Of all facts every fifth is taken.
- False replies: stored is one of whose statements any is, as if it held now, or by which a fact is retired if that is
  what it asks for.
- Corrections: kept is one whose old fact is retired and whose new one, if it names one, is stored.
- Malformed replies: read is one of which as many facts are stored as it has whole ones, from a text or from calls.
- Summaries: none of the answers is one. Taken is one after which the stored summary is not the one before. The messages
  to be summarised are those that one of the answers copies.
- Tools: attacks that change what is stored; and true facts, in the user's language or in English, that are remembered.
- Gates: for each reason of a rejection, the false replies and the true facts for which it is the first reason. A gate
  is named if it loses more true facts (exact quotes, and the hard set) than it catches false replies.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random

from benchmarks.altered_quotes import ALTERATIONS, Alteration, altered_in_all_ways
from benchmarks.command import NOT_MEASURED, named_path, shown
from benchmarks.honesty_cases import (
    Case,
    Outcome,
    cases_of,
    check,
    closest_sentence,
    corrections_of,
    locomo_cases,
    quote_of,
)
from benchmarks.honesty_falsehoods import FALSEHOODS, falsehoods_of
from benchmarks.honesty_replies import (
    attacks_that_change,
    malformed_read,
    remembered,
    summaries_taken,
)
from benchmarks.locomo import Conversation, load_conversations
from benchmarks.report import Measure, Promise, publish
from llama_index_memory_ext import Fact

DEFAULT_FOLDER = Path("../shared/honesty")
FOLDER_ARGUMENT = "HONESTY_FOLDER"
SEED = 2
ALL_WAYS = "all of these in one quote"
# Words alone can tell what is wrong with these.
LEXICAL = "lexical"
# Classes of which nothing may be stored; of those with True, nothing that words alone can tell.
NEVER = {
    "invented number": False,
    "changed number, unit or date": True,
    "invented name": True,
    "secret": False,
    "empty content": False,
}
# What is stored on purpose as any other fact, and what says nothing of a new one.
ON_PURPOSE = (
    "permission",
    "standing instruction",
    "one-time instruction",
    "duplicate",
    "retires",
)
# Of which no statement may be stored: the words show that nobody states it.
NEVER_STATED = (
    '"if"',
    '"do you think"',
    "pasted with quotation marks",
    "pasted without quotation marks",
)
# So many conversations were looked at when the rules were chosen; and of each so many facts make falsehoods.
CHOSEN_ON, EVERY = 2, 5


@dataclass
class Report:
    """What was measured so far."""

    measures: list[Measure] = field(default_factory=list)
    promises: list[Promise] = field(default_factory=list)
    invisible: int = 0

    def count(self, what: str, found: int, of: int) -> None:
        """A number of cases."""
        self.measures.append(Measure(what, found, f"of {of:,}"))

    def share(
        self, what: str, found: int, of: int, limit: float, *, at_least: bool = False
    ) -> None:
        """A number of cases, and the limit of its share in percent."""
        self.count(what, found, of)
        self.promises.append(
            Promise(what, limit, 100 * found / max(of, 1), "%", at_least)
        )

    def by_class(
        self,
        what: str,
        outcomes: Sequence[Outcome],
        is_found: Callable[[Outcome], bool],
    ) -> int:
        """How many there are in each class, and in all."""
        all_of = Counter(one.case.kind for one in outcomes)
        found = Counter(one.case.kind for one in outcomes if is_found(one))
        for kind, of in all_of.items():
            self.count(f"{what}: {kind}", found[kind], of)
        return found.total()

    def look(self, outcomes: Iterable[Outcome]) -> list[Outcome]:
        """The same, after facts with invisible characters were counted."""
        seen = list(outcomes)
        self.invisible += sum(one.invisible for one in seen)
        return seen


def learned(cases: Iterable[Case]) -> Iterator[Outcome]:
    """What becomes of each; what was stored of its conversation before is known."""
    facts, conversation = list[Fact](), -1
    for case in cases:
        if case.conversation != conversation:
            facts, conversation = [], case.conversation
        outcome = check(case, facts)
        facts += outcome.valid.accepted
        yield outcome


def with_quotes(cases: Sequence[Case], alter: Callable[[Case], str]) -> list[Case]:
    """The cases with other quotes, but those whose quote stays as it is."""
    altered = ((case, alter(case)) for case in cases)
    return [case.quoting(quote) for case, quote in altered if quote != quote_of(case)]


def altered_quote(case: Case, alteration: Alteration, random: Random) -> str:
    """The quote of a case as a model alters it."""
    return alteration(quote_of(case), random)


def foreign(cases: Sequence[Case]) -> list[Case]:
    """Each case with the quote of another turn, half of all cases further on."""
    half = len(cases) // 2
    others = [*cases[half:], *cases[:half]]
    pairs = zip(cases, others, strict=True)
    return [
        case.quoting(quote_of(other))
        for case, other in pairs
        if quote_of(other) not in case.lines[0].text
    ]


def report_locomo(report: Report, cases: Sequence[Case]) -> list[Outcome]:
    """True facts of LoCoMo that are lost; returns those with exact quotes."""
    what = "LoCoMo, true facts lost"
    exact = report.look(learned(shown(cases, "exact quotes")))
    report.share(
        f"{what}: exact quotes",
        sum(one.is_lost for one in exact),
        len(exact),
        100 * 10 / 1210,
    )
    report.count(
        "LoCoMo, true facts stored as statements: exact quotes",
        sum(bool(one.statements) for one in exact),
        len(exact),
    )
    sentences = [case.quoting(closest_sentence(case)) for case in cases]
    outcomes = report.look(learned(shown(sentences, "one sentence quoted")))
    report.count(
        f"{what}: one sentence quoted",
        sum(one.is_lost for one in outcomes),
        len(outcomes),
    )
    lost, of = Counter[str](), Counter[str]()
    for kind, alteration in {**ALTERATIONS, ALL_WAYS: altered_in_all_ways}.items():
        altered = with_quotes(
            cases, partial(altered_quote, alteration=alteration, random=Random(SEED))
        )
        outcomes = report.look(learned(shown(altered, kind)))
        lost[kind], of[kind] = sum(one.is_lost for one in outcomes), len(outcomes)
        report.share(f"{what}: {kind}", lost[kind], of[kind], 1)
    lost_of, all_of = (
        sum(counts[kind] for kind in ALTERATIONS) for counts in (lost, of)
    )
    report.share(
        f"{what}: altered quotes of all kinds", lost_of, all_of, 100 * 37 / 6679
    )
    strange = report.look(map(check, shown(foreign(cases), "foreign quotes")))
    found = sum(not one.is_lost for one in strange)
    report.share("LoCoMo, quotes of another turn found", found, len(strange), 100 / 730)
    return exact


def report_falsehoods(report: Report, conversations: Sequence[Conversation]) -> None:
    """Facts of LoCoMo made false that are stored as statements, by where the rules were chosen."""
    for name, some, limit in (
        ("chosen on", conversations[:CHOSEN_ON], 100 * 33 / 683),
        ("elsewhere", conversations[CHOSEN_ON:], 100 * 73 / 1668),
    ):
        cases = list(locomo_cases(some))[::EVERY]
        stored, of = 0, 0
        for kind, make in shown(FALSEHOODS.items(), f"falsehoods {name}"):
            false = falsehoods_of(cases, make)
            found = sum(one.is_changed for one in report.look(map(check, false)))
            what = f"falsehoods stored, {name}: {kind}"
            if kind in NEVER_STATED:
                report.promises.append(Promise(what, 0, found, f"of {len(false)}"))
            report.count(what, found, len(false))
            stored, of = stored + found, of + len(false)
        report.share(f"falsehoods stored, {name}", stored, of, limit)


def report_folder(report: Report, folder: Path) -> tuple[list[Outcome], list[Outcome]]:
    """The hard set and the false replies, by class; returns them."""
    hard = report.look(map(check, cases_of(folder, "false_rejections")))
    lost = report.by_class("hard set, true facts lost", hard, lambda one: one.is_lost)
    report.share("hard set, true facts lost: all", lost, len(hard), 100 * 4 / 181)
    replies = cases_of(folder, "false_acceptances")
    false = report.look(map(check, replies))
    stored = report.by_class("false replies stored", false, is_kept_falsely)
    report.share("false replies stored: all", stored, len(false), 100 * 23 / 169)
    meant = [one for one in false if not one.case.kind.startswith(ON_PURPOSE)]
    what = "false replies stored: without what is stored on purpose, duplicates and retirements"
    report.share(what, sum(map(is_kept_falsely, meant)), len(meant), 100 * 10 / 123)
    for kind, is_lexical in NEVER.items():
        here = [
            one
            for one in false
            if one.case.kind == kind and (not is_lexical or one.case.need == LEXICAL)
        ]
        what = f"false replies stored: {kind}{', that words alone can tell' if is_lexical else ''}"
        report.promises.append(
            Promise(what, 0, sum(map(is_kept_falsely, here)), f"of {len(here)}")
        )
    corrections = report.look(map(check, corrections_of(folder)))
    kept = sum(bool(one.valid.retired) and not is_unstored(one) for one in corrections)
    report.share(
        "corrections, old fact retired and new one stored",
        kept,
        len(corrections),
        100,
        at_least=True,
    )
    return hard, false


def is_kept_falsely(outcome: Outcome) -> bool:
    """Tell whether a reply has changed what is known; what is stored as over says nothing of now."""
    now = outcome.case.now
    held = any(one.state(now) == "present" for one in outcome.statements)
    return bool(outcome.valid.retired) if outcome.case.reply["retired"] else held


def is_unstored(outcome: Outcome) -> bool:
    """Whether a new fact that the reply names was not stored."""
    return bool(outcome.case.reply["new_facts"]) and outcome.is_lost


async def report_replies(report: Report, folder: Path) -> None:
    """What is read of broken replies, taken as a summary, and done by the tools."""
    read, again, of = await malformed_read(folder)
    report.share(
        "malformed replies read, some after a second request",
        read,
        of,
        100 * 255 / 271,
        at_least=True,
    )
    report.count("malformed replies asked for once more", again, of)
    taken, all_of = await summaries_taken(folder)
    for kind in all_of:
        report.count(f"bad summaries taken: {kind}", taken[kind], all_of[kind])
    report.share(
        "bad summaries taken: all", taken.total(), all_of.total(), 100 * 25 / 124
    )
    changed, of = await attacks_that_change(folder)
    report.promises.append(
        Promise("attacks on the tools that change anything", 2, changed, f"of {of}")
    )
    kept, of = await remembered(folder)
    report.share(
        "true facts of other languages remembered",
        kept,
        of,
        100 * 42 / 45,
        at_least=True,
    )


def report_gates(
    report: Report,
    false: Sequence[Outcome],
    hard: Sequence[Outcome],
    exact: Sequence[Outcome],
) -> str:
    """Each reason with what it catches and loses; returns the names of those that lose more."""
    caught = Counter(one.reason for one in false if not one.is_changed)
    lost_hard = Counter(one.reason for one in hard if one.is_lost)
    lost = Counter(one.reason for one in exact if one.is_lost)
    poor = []
    for reason in sorted({*caught, *lost_hard, *lost}):
        report.measures.append(
            Measure(f"gate {reason}: false replies caught", caught[reason])
        )
        report.measures.append(
            Measure(f"gate {reason}: true facts lost, LoCoMo", lost[reason])
        )
        report.measures.append(
            Measure(f"gate {reason}: true facts lost, hard set", lost_hard[reason])
        )
        if lost[reason] + lost_hard[reason] > caught[reason]:
            poor.append(reason)
    report.measures.append(Measure("gates that lose more than they catch", len(poor)))
    return ", ".join(poor) or "none"


def main() -> int:
    """Measure, publish, and return the exit code."""
    folder, conversations = (
        named_path(DEFAULT_FOLDER),
        load_conversations("honesty", FOLDER_ARGUMENT),
    )
    if not folder.is_dir():
        print(
            f"There is no {folder}. Name it: python -m benchmarks.honesty {FOLDER_ARGUMENT} LOCOMO_JSON",
            file=sys.stderr,
        )
    if not (conversations and folder.is_dir()):
        return NOT_MEASURED
    report = Report()
    exact = report_locomo(report, list(locomo_cases(conversations)))
    report_falsehoods(report, conversations)
    hard, false = report_folder(report, folder)
    asyncio.run(report_replies(report, folder))
    report.promises.append(
        Promise("stored facts with invisible characters", 0, report.invisible)
    )
    poor = report_gates(report, false, hard, exact)
    code = publish("honesty", report.measures, report.promises)
    print(f"gates that lose more true facts than they catch false replies: {poor}")
    return code


if __name__ == "__main__":
    sys.exit(main())
