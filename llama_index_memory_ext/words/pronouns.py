"""Whose messages a question asks for: the user's or the assistant's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llama_index_memory_ext.words import ends_of, phrases, plain_words, word_lists

if TYPE_CHECKING:
    from collections.abc import Sequence

USER = "user"
ASSISTANT = "assistant"


def speaker_asked_for(question: str, codes: Sequence[str] = ()) -> str:
    """Return "user" for a question with "I", "assistant" for one with "you", and "" for both or neither.

    ``codes`` are the languages that the question may have; none stands for English.
    Phrases that only address the assistant do not count.

    >>> speaker_asked_for("Can you tell me where I live?"), speaker_asked_for("What did you tell me?")
    ('user', 'assistant')
    """
    text = ends_of(question).lower()
    text = phrases("pronouns", "addressing").sub(" ", text)
    words = set(plain_words(text))
    lists = word_lists("pronouns")
    speakers = set()
    for place, speaker in enumerate((USER, ASSISTANT)):
        in_characters = phrases("pronouns", f"{speaker}_in_characters").search(text)
        pronouns = {word for code in codes or ("en",) for word in lists[code][place]}
        if in_characters or not words.isdisjoint(pronouns):
            speakers.add(speaker)
    return speakers.pop() if len(speakers) == 1 else ""
