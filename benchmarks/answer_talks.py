"""Makes conversations that tell things about a user, leave them behind in small talk, and ask for them.

``answers.json`` has the sentences in three languages. A conversation tells things of ten kinds about the user, some of
which change later, two about other people, and one that a tool returned. Small talk follows until all of it is as many
tokens away as wanted. Of the questions, some ask for what was told, one for what was told by others or a tool, one for
something that stands nowhere, and one needs no memory. The same seed makes the same conversation.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from llama_index.core.base.llms.types import ChatMessage, MessageRole

from benchmarks.recipe import o200k

SENTENCES = Path(__file__).with_name("answers.json")
LANGUAGES = ("en", "de", "es")
KINDS_TOLD, KINDS_CHANGED, KINDS_ASKED = 10, 3, 4
FACT, CHANGED, OTHER, TOOL, UNKNOWN, CONTROL = (
    "fact",
    "changed fact",
    "other person",
    "tool result",
    "unknown",
    "control",
)

Turn = list[ChatMessage]


@dataclass(frozen=True)
class Question:
    """A question, what kind it is of, and how its answer is judged.

    - ``gold``: words of which a right answer has at least one; of an unknown thing, ways to say that it is not known.
    - ``outdated``: words of which a right answer has none.
    """

    kind: str
    text: str
    gold: tuple[str, ...]
    outdated: tuple[str, ...] = ()

    def is_right(self, answer: str) -> bool:
        """Return whether an answer is right."""
        return has_word(answer, self.gold) and not has_word(answer, self.outdated)


@dataclass(frozen=True)
class Talk:
    """A conversation, with its turns, oldest first.

    - ``told``: the sentences of the user that are still true at the end.
    """

    language: str
    seed: int
    turns: list[Turn]
    told: list[str]
    questions: list[Question]


@dataclass(frozen=True)
class Told:
    """A turn that tells something, and the question about it."""

    turn: Turn
    question: Question


def has_word(answer: str, words: tuple[str, ...]) -> bool:
    """Return whether a text has one of these words or phrases; a word may have an ending."""
    text = answer.casefold().replace("’", "'")  # noqa: RUF001 - an apostrophe of models
    return any(
        re.search(rf"(?<!\w){re.escape(word.casefold())}", text) for word in words
    )


@cache
def unknown_words() -> tuple[str, ...]:
    """The ways to say that something is not known, of all languages: a model may answer in another language."""
    words = []
    for language in LANGUAGES:
        words += sentences_in(language)["unknown_words"]
    return tuple(words)


def says_unknown(answer: str) -> bool:
    """Return whether an answer says that something is not known."""
    return has_word(answer, unknown_words())


@cache
def sentences_in(language: str) -> Any:
    """The sentences of a language."""
    return json.loads(SENTENCES.read_text(encoding="utf-8"))[language]


def make_talk(
    seed: int, language: str, tokens_behind: int, *, all_asked: bool = False
) -> Talk:
    """Make a conversation with at least so many tokens of small talk behind what was told."""
    random = Random(f"{language} {seed}")
    sentences = sentences_in(language)
    small_talk = _endless_small_talk(sentences["small_talk"], random)
    kinds = random.sample(sentences["kinds"], KINDS_TOLD)
    told, changes = _things_of_the_user(kinds, sentences["replies"], random)
    others = _things_of_others(sentences, random) + _tool_results(sentences, random)
    first = told + others
    random.shuffle(first)
    turns = []
    for thing in [*first, *changes.values()]:
        turns.append(thing.turn)
        if random.random() < 1 / 4:
            turns.append(next(small_talk))
    behind = 0
    while behind < tokens_behind:
        turn = next(small_talk)
        turns.append(turn)
        behind += sum(tokens_in(str(message.content)) for message in turn)
    current = [
        changes.get(kind["kind"], thing)
        for kind, thing in zip(kinds, told, strict=True)
    ]
    asked = [*random.sample(current, KINDS_ASKED), random.choice(others)]
    if all_asked:
        asked = [*current, *others]
    questions = [thing.question for thing in asked]
    questions += _unknown(sentences, random) + _control(sentences, random)
    random.shuffle(questions)
    sentences_told = [str(thing.turn[0].content) for thing in current]
    return Talk(language, seed, turns, sentences_told, questions)


def tokens_in(text: str) -> int:
    """The tokens of a text."""
    return len(o200k().encode_ordinary(text))


def _turn(user: str, assistant: str) -> Turn:
    return [
        ChatMessage(user),
        ChatMessage(assistant, role=MessageRole.ASSISTANT),
    ]


def _endless_small_talk(pairs: list[list[str]], random: Random) -> Any:
    while True:
        for user, assistant in random.sample(pairs, len(pairs)):
            yield _turn(user, assistant)


def _things_of_the_user(
    kinds: list[Any], replies: list[str], random: Random
) -> tuple[list[Told], dict[str, Told]]:
    """What is told of each kind, and by kind what replaces it later."""
    told, changes = [], dict[str, Told]()
    for kind in kinds:
        value, new_value = random.sample(kind["values"], 2)
        said = random.choice(kind["said"]).format(value=value)
        question = Question(FACT, kind["question"], (value,))
        told.append(Told(_turn(said, random.choice(replies)), question))
        if "change" in kind and len(changes) < KINDS_CHANGED:
            said = kind["change"].format(value=new_value)
            question = Question(CHANGED, kind["question"], (new_value,), (value,))
            turn = _turn(said, random.choice(replies))
            changes[kind["kind"]] = Told(turn, question)
    return told, changes


def _things_of_others(sentences: Any, random: Random) -> list[Told]:
    things = []
    names = random.sample(sentences["names"], 2)
    for name, (said, question, values) in zip(
        names, random.sample(sentences["others"], 2), strict=True
    ):
        value = random.choice(values)
        turn = _turn(
            said.format(name=name, value=value), random.choice(sentences["replies"])
        )
        words = tuple(word for word in value.split() if len(word) > len("the"))
        things.append(
            Told(turn, Question(OTHER, question.format(name=name), words[-1:]))
        )
    return things


def _tool_results(sentences: Any, random: Random) -> list[Told]:
    asked, name, result, answer, question, values = random.choice(sentences["tool"])
    value = random.choice(values)
    call = {
        "id": f"call_{random.randrange(10**6)}",
        "type": "function",
        "function": {"name": name, "arguments": "{}"},
    }
    turn = [
        ChatMessage(asked),
        ChatMessage(
            role=MessageRole.ASSISTANT,
            content=None,
            additional_kwargs={"tool_calls": [call]},
        ),
        ChatMessage(
            result.format(value=value),
            role=MessageRole.TOOL,
            additional_kwargs={"tool_call_id": call["id"], "name": name},
        ),
        ChatMessage(answer, role=MessageRole.ASSISTANT),
    ]
    return [Told(turn, Question(TOOL, question, (value,)))]


def _unknown(sentences: Any, random: Random) -> list[Question]:
    _, question = random.choice(sentences["unknown"])
    return [Question(UNKNOWN, question, unknown_words())]


def _control(sentences: Any, random: Random) -> list[Question]:
    question, gold = random.choice(sentences["controls"])
    return [Question(CONTROL, question, tuple(gold.split("|")))]
