"""Reads what a model may answer about a part of a conversation, and has the package check it."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from benchmarks.locomo import Conversation
from llama_index_memory_ext import Fact
from llama_index_memory_ext.learning.categories import read_category
from llama_index_memory_ext.learning.reply import NewFact
from llama_index_memory_ext.learning.validation import ValidatedReply, validate_reply
from llama_index_memory_ext.text.turns import Utterance

# When the cases of the folder were said; those of LoCoMo have their days.
SAID_AT = datetime(2025, 11, 20, 12, tzinfo=timezone.utc)
NOTHING = "nothing to store"
# What joins signs of some scripts, and emoji.
_JOINERS = "\u200c\u200d"
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class Case:
    """A reply of a model, with what was said and what was known. ``need`` tells whether words alone can judge it."""

    kind: str
    lines: tuple[Utterance, ...]
    reply: dict[str, Any]
    known: tuple[Fact, ...] = ()
    need: str = ""
    now: datetime = SAID_AT
    conversation: int = 0

    def quoting(self, quote: str) -> Case:
        """The same with another quote."""
        return replace(
            self,
            reply={
                **self.reply,
                "new_facts": [{**self.reply["new_facts"][0], "quote": quote}],
            },
        )


@dataclass(frozen=True)
class Outcome:
    """What became of a case. ``reason`` is that of the first rejection."""

    case: Case
    valid: ValidatedReply

    @property
    def is_lost(self) -> bool:
        """Whether a fact was neither stored nor known already."""
        return not (self.valid.accepted or self.reason == "duplicate")

    @property
    def statements(self) -> list[Fact]:
        """The stored facts in the model's words; the user's own sentences and answers are left out."""
        return [
            fact
            for fact in self.valid.accepted
            if not (fact.is_users_words or fact.content.startswith('Asked "'))
        ]

    @property
    def is_changed(self) -> bool:
        """Whether a fact was retired if that is what the reply wants, else whether a statement was stored."""
        return bool(
            self.valid.retired if self.case.reply["retired"] else self.statements
        )

    @property
    def reason(self) -> str:
        return self.valid.rejected[0].reason if self.valid.rejected else NOTHING

    @property
    def invisible(self) -> int:
        """How many of the stored facts have characters that nobody sees."""
        return sum(has_invisible(fact.content) for fact in self.valid.accepted)


def check(case: Case, active: Sequence[Fact] = ()) -> Outcome:
    """What the package makes of a case, as its extractor asks for it."""
    reply = entries_of(case.reply)
    facts = [*case.known, *active]
    valid = validate_reply(reply, case.lines, case.known, now=case.now, active=facts)
    return Outcome(case, valid)


def entries_of(reply: dict[str, Any]) -> list[NewFact]:
    """The entries of a reply: a known fact ends with the new one that replaces it, or alone."""
    entries = [dict(fact) for fact in reply["new_facts"]]
    for ended in reply["retired"]:
        quote = ended.get("quote", "")
        entry = {"quote": quote}
        for fact in entries:
            is_named = fact.get("label") == ended.get("replaced_by")
            if is_named and fact["quote"] == quote and "ends" not in fact:
                entry = fact
        entry["ends"] = ended["number"]
        if entry not in entries:
            entries.append(entry)
    for entry in entries:
        entry["category"] = read_category(entry.get("category"))
    return [NewFact.model_validate(entry) for entry in entries]


def has_invisible(text: str) -> bool:
    """Whether a text has controls, marks of direction, tags, or other characters without a shape."""
    return any(
        unicodedata.category(sign) in ("Cc", "Cf", "Co", "Cs") and sign not in _JOINERS
        for sign in text
    )


def load(folder: Path, name: str) -> Any:
    """What is in a file of the folder."""
    return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))


def cases_of(folder: Path, name: str) -> list[Case]:
    """The cases of a file."""
    return [
        Case(
            one["cls"],
            _lines(one["lines"]),
            one["reply"],
            _facts(one["known"]),
            one.get("need", ""),
        )
        for one in load(folder, name)
    ]


def corrections_of(folder: Path) -> Iterator[Case]:
    """Users who correct what is known: with the new fact that holds instead, or without."""
    read = load(folder, "corrections")
    pairs = [(said, old, "") for said, old in read["pairs"]]
    for said, old, new in [*read["corrections"], *pairs]:
        fact = {
            "label": "n1",
            "content": new,
            "quote": said,
            "confidence": 0.9,
            "category": "correction",
        }
        retired = {
            "number": 1,
            "reason": "It has changed.",
            "replaced_by": "n1" if new else "",
            "quote": said,
        }
        reply = {"new_facts": [fact] if new else [], "retired": [retired]}
        yield Case("correction", _lines([("user", said)]), reply, _facts([old]))


def locomo_cases(conversations: Sequence[Conversation]) -> Iterator[Case]:
    """The observations of each conversation as facts: each with the turns that it is about, and their answers."""
    for number, conversation in enumerate(conversations):
        # The facts name the speakers, so that their names must have been said.
        turns = [
            {**turn, "text": f"{turn['speaker']}: {turn['text']}"}
            for turn in conversation["pools"]["turns"]
        ]
        places = {turn["id"]: i for i, turn in enumerate(turns)}
        for observation in conversation["pools"]["observations"]:
            sources = [places[name] for name in observation["source"] if name in places]
            if not sources:
                continue
            first = turns[sources[0]]
            fact = {
                "label": "n1",
                "content": observation["text"],
                "quote": said_in(first["text"]),
                "confidence": 0.9,
            }
            lines = [line for i in sources for line in _turn(turns, i)]
            now = datetime.strptime(first["time"], "%d %B, %Y").replace(
                tzinfo=timezone.utc
            )
            reply = {"new_facts": [fact], "retired": []}
            yield Case("LoCoMo", _lines(lines), reply, now=now, conversation=number)


def quote_of(case: Case) -> str:
    """The quote of the first new fact."""
    return str(case.reply["new_facts"][0]["quote"])


def content_of(case: Case) -> str:
    """The statement of the first new fact."""
    return str(case.reply["new_facts"][0]["content"])


def closest_sentence(case: Case) -> str:
    """The sentence of the quote that has most words of the fact, of several the first."""
    words = set(_WORD.findall(content_of(case).casefold()))
    return max(
        _SENTENCE_END.split(quote_of(case)),
        key=lambda part: len(words & set(_WORD.findall(part.casefold()))),
    )


def said_in(turn: str) -> str:
    """A turn of LoCoMo without the name of its speaker."""
    return turn.split(": ", 1)[1]


def _turn(turns: Sequence[dict[str, Any]], i: int) -> Iterator[tuple[str, str]]:
    yield "user", turns[i]["text"]
    if i + 1 < len(turns) and turns[i + 1]["speaker"] != turns[i]["speaker"]:
        yield "assistant", turns[i + 1]["text"]


def _lines(lines: Sequence[Sequence[str]]) -> tuple[Utterance, ...]:
    return tuple(Utterance(i, role, text) for i, (role, text) in enumerate(lines, 1))


def _facts(contents: Sequence[str]) -> tuple[Fact, ...]:
    return tuple(
        Fact(content=content, namespace="user", created_at=SAID_AT)
        for content in contents
    )
