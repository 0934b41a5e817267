"""Makes true facts of LoCoMo false, and labels them as a model may: truly, always as stated, or a tenth wrongly."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from benchmarks.honesty_cases import Case, said_in

LABELS = ("stated", "asked", "supposed", "denied", "quoted")
SHARE_OF_WRONG_LABELS = 0.1
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
# What a model tells of a falsehood that labels truly: how it was said, and whom it is about.
Falsehood = tuple[Case, str, str]
# Returns None where there is nothing in a case to make false. The second case is one of another turn.
Maker = Callable[[Case, Case], Falsehood | None]


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
    """The case as if the user had said the quoted turn in these words; ``{}`` stands for it."""
    quote = quote_of(case)
    lines = tuple(
        line._replace(text=line.text.replace(quote, frame.format(quote)))
        if line.is_users
        else line
        for line in case.lines
    )
    return replace(case, lines=lines)


def quote_of(case: Case) -> str:
    """The quote of the first new fact."""
    return str(case.reply["new_facts"][0]["quote"])


def content_of(case: Case) -> str:
    """The statement of the first new fact."""
    return str(case.reply["new_facts"][0]["content"])


def _of_content(kind: str, replaced: Callable[[re.Match[str]], str]) -> Maker:
    def make(case: Case, _: Case) -> Falsehood | None:
        content = re.sub(kind, replaced, content_of(case), count=1)
        return (
            None
            if content == content_of(case)
            else (with_content(case, content), "stated", "user")
        )

    return make


def _of_words(frame: str, said_as: str, about: str = "user") -> Maker:
    return lambda case, _: (with_words(case, frame), said_as, about)


def _negated(case: Case, _: Case) -> Falsehood | None:
    name, _space, rest = content_of(case).partition(" ")
    return with_content(case, f"{name} never {rest}"), "denied", "user"


def _assistants(case: Case, _: Case) -> Falsehood | None:
    answers = [line.text for line in case.lines if not line.is_users]
    return (
        (with_content(case, said_in(answers[0])), "quoted", "user") if answers else None
    )


def _of_another_turn(case: Case, other: Case) -> Falsehood | None:
    return with_content(case, content_of(other)), "stated", "user"


def _swapped(case: Case, _: Case) -> Falsehood | None:
    content = content_of(case)
    first, others = content.split(" ", 1)[0], re.findall(_NAME, content)
    if not others or others[0] == first:
        return None
    names = {first: others[0], others[0]: first}
    swapped = re.sub(
        rf"\b(?:{first}|{others[0]})\b", lambda match: names[match.group()], content
    )
    return with_content(case, swapped), "stated", "other"


FALSEHOODS: dict[str, Maker] = {
    "a number changed": _of_content(_NUMBER, lambda match: str(int(match.group()) + 3)),
    "a unit changed": _of_content(
        rf"(?<=\d )(?:{'|'.join(_UNITS)})\b", lambda match: _UNITS[match.group()]
    ),
    "a name changed": _of_content(
        _NAME, lambda match: _NAMES[len(match.group()) % len(_NAMES)]
    ),
    "the statement negated": _negated,
    '"if"': _of_words("If {}", "supposed"),
    '"do you think"': _of_words("Do you think that {}?", "asked"),
    "of a brother": _of_words("My brother says of himself that {}", "stated", "other"),
    '"it is not true that"': _of_words("It is not true that {}", "denied"),
    "pasted with quotation marks": _of_words('Please shorten this: "{}"', "quoted"),
    "pasted without quotation marks": _of_words("Please shorten this:\n{}", "quoted"),
    "the assistant's words": _assistants,
    "a statement of another turn": _of_another_turn,
    "two names swapped": _swapped,
}


def falsehoods_of(
    cases: Sequence[Case], make: Maker, labels: str, random: Random
) -> list[Case]:
    """The cases that can be made false in this way, labelled "truly", "always stated" or "a tenth wrongly"."""
    half, found = len(cases) // 2, []
    for case, other in zip(cases, [*cases[half:], *cases[:half]], strict=True):
        made = make(case, other)
        if made is None:
            continue
        false, said_as, about = made
        if labels == "always stated":
            said_as, about = "stated", "user"
        elif labels == "a tenth wrongly" and random.random() < SHARE_OF_WRONG_LABELS:
            said_as = random.choice([one for one in LABELS if one != said_as])
            about = "user" if about == "other" else about
        found.append(labelled(false, said_as, about))
    return found


def labelled(case: Case, said_as: str, about: str) -> Case:
    """The case with the labels of a model on all that it reports."""
    told: dict[str, Any] = {"said_as": said_as, "about": about}
    facts = [
        {**fact, **told} if isinstance(fact, dict) else fact
        for fact in case.reply["new_facts"]
    ]
    retired = [
        {**entry, "said_as": said_as} if isinstance(entry, dict) else entry
        for entry in case.reply["retired"]
    ]
    return replace(case, reply={**case.reply, "new_facts": facts, "retired": retired})
