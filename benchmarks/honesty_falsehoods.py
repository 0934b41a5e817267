"""Makes true facts of LoCoMo false: their statements, or the words of the user around them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from benchmarks.honesty_cases import (
    Case,
    closest_sentence,
    content_of,
    said_in,
)
from llama_index_memory_ext.text.turns import Utterance

_NAMES = ("Bartholomew", "Guadalupe", "Thorvald", "Oyelaran")
_UNITS = {
    "years": "months",
    "year": "month",
    "months": "weeks",
    "weeks": "days",
    "week": "day",
    "days": "hours",
    "hours": "minutes",
    "miles": "feet",
    "dollars": "euros",
}
_NAME, _NUMBER = r"(?<=\s)[A-Z][a-z]{2,}\b", r"\b\d+\b"
# Returns None where there is nothing in a case to make false. The second case is one of another turn.
Maker = Callable[[Case, Case], Case | None]


def with_content(case: Case, content: str) -> Case:
    """The case with another statement."""
    return replace(
        case,
        reply={
            **case.reply,
            "new_facts": [{**case.reply["new_facts"][0], "content": content}],
        },
    )


def with_words(case: Case, frame: str) -> Case:
    """The case as if the user had said only the sentence of the fact, in these words; ``{}`` stands for it.

    The name of the speaker, which the fact has, is in a message of the assistant.
    """
    said = frame.format(closest_sentence(case).rstrip(".!?"))
    speaker = case.lines[0].text.partition(": ")[0]
    lines = (
        Utterance(1, "assistant", f"Hello, {speaker}."),
        Utterance(2, "user", said),
    )
    return replace(case.quoting(said), lines=lines)


def _of_content(kind: str, replaced: Callable[[re.Match[str]], str]) -> Maker:
    def make(case: Case, _: Case) -> Case | None:
        content = re.sub(kind, replaced, content_of(case), count=1)
        return None if content == content_of(case) else with_content(case, content)

    return make


def _of_words(frame: str) -> Maker:
    return lambda case, _: with_words(case, frame)


def _negated(case: Case, _: Case) -> Case:
    name, _space, rest = content_of(case).partition(" ")
    return with_content(case, f"{name} never {rest}")


def _assistants(case: Case, _: Case) -> Case | None:
    answers = [line.text for line in case.lines if not line.is_users]
    return with_content(case, said_in(answers[0])) if answers else None


def _of_another_turn(case: Case, other: Case) -> Case:
    return with_content(case, content_of(other))


def _swapped(case: Case, _: Case) -> Case | None:
    content = content_of(case)
    first, others = content.split(" ", 1)[0], re.findall(_NAME, content)
    if not others or others[0] == first:
        return None
    names = {first: others[0], others[0]: first}
    swapped = re.sub(
        rf"\b(?:{first}|{others[0]})\b", lambda match: names[match.group()], content
    )
    return with_content(case, swapped)


FALSEHOODS: dict[str, Maker] = {
    "a number changed": _of_content(_NUMBER, lambda match: str(int(match.group()) + 3)),
    "a unit changed": _of_content(
        rf"(?<=\d )(?:{'|'.join(_UNITS)})\b", lambda match: _UNITS[match.group()]
    ),
    "a name changed": _of_content(
        _NAME, lambda match: _NAMES[len(match.group()) % len(_NAMES)]
    ),
    "the statement negated": _negated,
    '"if"': _of_words("If {}"),
    '"do you think"': _of_words("Do you think that {}?"),
    "of a brother": _of_words("My brother says of himself that {}"),
    '"it is not true that"': _of_words("It is not true that {}"),
    "pasted with quotation marks": _of_words('Please shorten this: "{}"'),
    "pasted without quotation marks": _of_words("Please shorten this:\n{}"),
    "the assistant's words": _assistants,
    "a statement of another turn": _of_another_turn,
    "two names swapped": _swapped,
}


def falsehoods_of(cases: Sequence[Case], make: Maker) -> list[Case]:
    """The cases that can be made false in this way."""
    half = len(cases) // 2
    pairs = zip(cases, [*cases[half:], *cases[:half]], strict=True)
    made = [make(case, other) for case, other in pairs]
    return [case for case in made if case]
