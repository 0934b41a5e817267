"""Says what is wrong with an entry of a model's reply."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from llama_index_memory_ext.grounding.language import is_translation
from llama_index_memory_ext.grounding.names import shares_word
from llama_index_memory_ext.grounding.negation import denies
from llama_index_memory_ext.grounding.secrets import holds_secret
from llama_index_memory_ext.grounding.statement import sentences_at, tells_change, unsaid_reason
from llama_index_memory_ext.grounding.words import keywords, shared
from llama_index_memory_ext.text.messages import escape_tags

if TYPE_CHECKING:
    from collections.abc import Iterator

    from llama_index_memory_ext.fact import Fact
    from llama_index_memory_ext.facts.evidence import Evidence, Place
    from llama_index_memory_ext.facts.reply import NewFact, Retirement

# In characters.
MAX_FACT = 500
_MAX_QUOTE, _MAX_WORD = 2_000, 50
_SIMILAR_SHARE = 0.6
# What nobody sees: tags (U+E0000 to U+E007F), and marks that turn the direction of a text.
_INVISIBLE = re.compile("[\u202a-\u202e\u2066-\u2069\U000e0000-\U000e007f]")
_NOTHING = re.compile(r"(?i)[\W_]*(?:null|none|nil|nan|n/a|undefined|unknown)?[\W_]*")
_LONG_WORD = re.compile(rf"[A-Za-z]{{{_MAX_WORD + 1}}}")
_ADDRESS_OR_TAG = re.compile(r"\w+://\S+|</?[A-Za-z][\w-]*")
_UNSAID = {
    "question": "The user only asked it.",
    "hypothesis": "The user only supposed it.",
    "quoted": "The user only quoted it.",
    "negated": "The user said the opposite.",
    "past": "The user said it of the past.",
    "other_subject": "The user said it of somebody else.",
}


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why an entry of a reply is not stored. ``detail`` may contain words of the user, so ``repr`` leaves it out."""

    reason: str
    detail: str = field(repr=False)


_SECRET = Rejection("secret", "It holds a password, a key or another secret.")


def form_reasons(new: NewFact, min_confidence: float) -> Iterator[Rejection]:
    """Yields what is wrong with a new fact by itself."""
    yield from _content_reasons(new.content)
    if len(new.quote) > _MAX_QUOTE:
        yield Rejection("too_long", f"Its quote has {len(new.quote)} characters; at most {_MAX_QUOTE} are kept.")
    if new.confidence < min_confidence:
        needed = f"at least {min_confidence:.2f} is needed"
        yield Rejection("low_confidence", f"Its confidence is {new.confidence:.2f}; {needed}.")
    if holds_secret(new.content) or holds_secret(new.quote):
        yield _SECRET
    if not new.quote.strip():
        yield Rejection("no_quote", "It names no words of the user's that say it.")


def _content_reasons(content: str) -> Iterator[Rejection]:
    if _NOTHING.fullmatch(content):
        yield Rejection("unreadable", "There is no statement in it.")
    if _INVISIBLE.search(content):
        yield Rejection("invisible", "It has characters that nobody sees.")
    if len(content) > MAX_FACT:
        yield Rejection("too_long", f"It has {len(content)} characters; a fact has at most {MAX_FACT}.")
    if _LONG_WORD.search(content):
        yield Rejection("too_long", f"It has a word of more than {_MAX_WORD} letters.")


def quote_reasons(new: NewFact, evidence: Evidence) -> Iterator[Rejection]:
    """Yields why a quote that is not in the user's words is none."""
    if not evidence.is_in_others_lines(new.quote):
        yield Rejection("quote_not_found", "Its quote is not in the conversation.")
    if any(_are_similar(new.content, fact.content) for fact in evidence.known):
        yield Rejection("echo", "Only the assistant said it, repeating what it was shown.")
    yield Rejection("not_the_users_words", "Only the assistant said it.")


def content_reasons(new: NewFact, place: Place, evidence: Evidence) -> Iterator[Rejection]:
    """Yields why a new fact does not stand on the words around its quote."""
    if holds_secret(place.quote):
        yield _SECRET
    yield from _word_reasons(new, place, evidence)
    if not place.is_translated and (reason := unsaid_reason(new.content, place.text, place.span)):
        yield Rejection(reason, _UNSAID[reason])
    if escape_tags(new.content) != new.content:
        yield Rejection("markup", "It has one of the tags between which memories are shown.")
    if missing := [found for found in _ADDRESS_OR_TAG.findall(new.content) if found not in evidence.said]:
        yield Rejection("not_said", f"Nobody said {', '.join(missing)}.")
    for reason, missing in evidence.unsaid(new.content):
        if missing:
            yield Rejection(reason, f"Nobody said {', '.join(missing)}.")


def _word_reasons(new: NewFact, place: Place, evidence: Evidence) -> Iterator[Rejection]:
    """Yields what a new fact lacks of the message that its quote is in, or of the question that this answers."""
    question = evidence.question(place)
    if question and denies(place.text) and not denies(new.content):
        yield Rejection("negated", _UNSAID["negated"])
    words = f"{place.text}\n{question}"
    if place.is_translated:
        words = f"{words}\n{new.quote}"
    elif is_translation(new.content, words):
        return
    if not evidence.says_something_of(new.content, words):
        yield Rejection("not_the_users_words", "None of its words are in the message that its quote is from.")


def retirement_reasons(fact: Fact, new: Fact | None, entry: Retirement) -> Iterator[Rejection]:
    """Yields what is wrong with a retirement, whatever was said; ``new`` is the fact that holds instead."""
    if fact.pinned:
        yield Rejection("pinned", "A pinned fact stays until somebody unpins it.")
    if new and new.id == fact.id:
        yield Rejection("replacement_rejected", "The fact that should replace it says the same.")
    if not entry.quote.strip():
        yield Rejection("no_quote", "It names no words of the user's that end it.")


def ending_reasons(
    fact: Fact, new: Fact | None, place: Place | None, evidence: Evidence, *, is_only: bool, is_asked: bool
) -> Iterator[Rejection]:
    """Yields why the user's words do not end a fact.

    They share a word with it, or the ``new`` fact that holds instead does. Else they must tell a change, and end this
    fact only (``is_only``) or have led to the new one, or be ``is_asked``: then somebody has looked at the request
    itself.
    """
    if place is None:
        yield Rejection("quote_not_found", "Its quote is not in the user's words.")
        return
    reason = unsaid_reason(fact.content, place.text, place.span, may_presuppose=False)
    if reason in ("question", "hypothesis", "quoted"):
        yield Rejection(reason, _UNSAID[reason])
    said = " ".join(sentences_at(place.text, place.span))
    words = f"{said}\n{evidence.question(place)}\n{new.content if new else ''}"
    is_told = (is_only or new is not None) and tells_change(said)
    if not (shares_word(fact.content, words) or is_told or is_asked):
        yield Rejection("not_contradicted", "The user's words say nothing of it.")


def _are_similar(one: str, other: str) -> bool:
    words, others = keywords(one), keywords(other)
    return len(shared(words, others)) >= _SIMILAR_SHARE * min(len(words), len(others)) > 0
