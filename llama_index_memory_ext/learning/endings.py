"""Asks a model without tools, a fact at a time, whether known facts still hold after the user's new words."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from llama_index.core.base.llms.types import ChatMessage, ChatResponse

from llama_index_memory_ext.checks.clauses import (
    closest_clause,
    states_something,
    tells_own_change,
)
from llama_index_memory_ext.learning.prompt import on_one_line
from llama_index_memory_ext.learning.reply import NewFact, without_thoughts
from llama_index_memory_ext.models.ask import ask_with
from llama_index_memory_ext.words import relations_in, sentences_in
from llama_index_memory_ext.words.tokens import shares_word

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index_memory_ext.fact import Fact
    from llama_index_memory_ext.text.turns import Utterance


# The most questions for a batch.
_MOST_DOUBTS = 5
_WORD_TOKENS = 8


class Doubt(NamedTuple):
    """A known fact, by its number from 1, and a sentence of the user that may end it."""

    number: int
    words: str


def doubted_facts(lines: Sequence[Utterance], facts: Sequence[Fact]) -> list[Doubt]:
    """Return at most five known facts to ask about, each with the user's last sentence that may end it.

    A sentence may end a fact if it shares a word with it or tells a change; a fact with
    both comes first.
    """
    ranks = dict[Doubt, int]()
    for number, fact in enumerate(facts, 1):
        for words in _statements(lines):
            rank = shares_word(fact.content, words) + tells_own_change(words)
            if rank and not _is_about_other(words, fact):
                ranks[Doubt(number, words)] = rank
    doubts = dict[int, Doubt]()
    for doubt in sorted(ranks, key=ranks.__getitem__, reverse=True):
        doubts.setdefault(doubt.number, doubt)
    return list(doubts.values())[:_MOST_DOUBTS]


def _is_about_other(words: str, fact: Fact) -> bool:
    """Return whether words are about another person, and the fact is about the user."""
    person = closest_clause(fact.content, [words]).person
    return person == "other" and not relations_in(fact.content)


def _statements(lines: Sequence[Utterance]) -> list[str]:
    """Return the user's sentences that state something, newest first."""
    sentences = list[str]()
    for line in lines:
        if line.is_users:
            sentences += map(str.strip, sentences_in(line.text))
    return list(filter(states_something, reversed(sentences)))


def ending_prompt(fact: Fact, words: str) -> list[ChatMessage]:
    """Return the message that asks whether a known fact still holds."""
    question = (
        f'Known about the user: "{on_one_line(fact.content)}"\n'
        f'Now the user says: "{on_one_line(words)}"\n'
        "Is the known statement still true of the user? Answer with one word, yes or no."
    )
    return [ChatMessage(role="user", content=question)]


async def ask_whether_over(
    llm: Any, prompt: Sequence[ChatMessage], responses: list[ChatResponse]
) -> bool:
    """Return whether a model answers "no" to an ``ending_prompt``. Its response is added to ``responses``."""
    chat = partial(llm.achat, list(prompt))
    response = await ask_with(llm, chat, _WORD_TOKENS, responses)
    answer = without_thoughts(response.message.content or "")
    return answer.strip(' "*').casefold().startswith("no")


def with_ending(entries: Sequence[NewFact], doubt: Doubt) -> list[NewFact]:
    """Return the entries with the end of a known fact: in the first entry of the same words, or in a further one.

    An entry has one end. An entry that ends another fact is copied, and the copy has the
    new end.
    """
    for i, entry in enumerate(entries):
        quote = entry.quote
        if quote and (doubt.words in quote or quote in doubt.words):
            ending = entry.model_copy(update={"ends": doubt.number})
            following = entries[i:] if entry.ends else entries[i + 1 :]
            return [*entries[:i], ending, *following]
    return [*entries, NewFact(content="", quote=doubt.words, ends=doubt.number)]
