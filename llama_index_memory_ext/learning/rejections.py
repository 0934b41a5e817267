"""The checks of the entries of a reply: each returns a ``Rejection`` or None.

The first rejection counts, so the cheapest checks stand first. A new fact first passes
``CHECKS``, or ``TOOL_CHECKS`` if an agent's tool reports it: its form and its quote.
Then it passes ``STATED_CHECKS``, on the words that are stored, which may be others. An
entry that ends a known fact passes ``ENDING_CHECKS``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from llama_index_memory_ext.checks.clauses import (
    is_about_stranger,
    is_small_talk,
    is_taken_back,
    speaks_to_listener,
    tells_own_change,
    unsaid_reason,
)
from llama_index_memory_ext.checks.comparison import says_more
from llama_index_memory_ext.checks.evidence import (
    NOWHERE,
    QuoteMatch,
    Source,
)
from llama_index_memory_ext.checks.secrets import holds_secret
from llama_index_memory_ext.events import Rejection
from llama_index_memory_ext.fact import MAX_FACT, Fact
from llama_index_memory_ext.text.entries import escape_tags
from llama_index_memory_ext.words import (
    is_translation,
    pattern,
    phrases,
    script_of,
)
from llama_index_memory_ext.words.tokens import keywords, shared, shares_word

if TYPE_CHECKING:
    from llama_index_memory_ext.learning.reply import NewFact

# The longest quote and word, in characters.
_MAX_QUOTE = 2_000
_MAX_WORD = 50
# Characters that people do not see: tags (U+E0000 to U+E007F), and marks that turn the
# direction of a text.
_INVISIBLE = "[\u202a-\u202e\u2066-\u2069\U000e0000-\U000e007f]"
_LONG_WORD = rf"[A-Za-z]{{{_MAX_WORD + 1}}}"
_UNSAID = {
    "asked": "The user only asked about it.",
    "supposed": "The user only supposed it.",
    "quoted": "The words are a quotation, or ironic.",
    "denied": "The user denied it.",
}


class Candidate(NamedTuple):
    """A new fact to check.

    ``source``: the conversation.
    ``reported``: the entry, as a model reports it.
    ``content``: the statement, or the user's own sentence in its place.
    ``place``: where the quote lies in the user's lines, or ``NOWHERE``.
    ``min_confidence``: the least confidence that it needs.
    ``is_users_words``: the content is the user's own sentence.
    """

    source: Source
    reported: NewFact
    content: str
    place: QuoteMatch
    min_confidence: float
    is_users_words: bool = False

    @property
    def question(self) -> str:
        """The question that the quote answers; "" for none."""
        return self.source.question(self.place)


class Ending(NamedTuple):
    """A known fact that an entry ends.

    ``source``: the conversation.
    ``fact``: the known fact.
    ``reported``: the entry, as a model reports it.
    ``place``: where the quote lies in the user's lines, or ``NOWHERE``.
    ``new``: the new fact that holds instead; None if there is none.
    ``is_only``: no other fact is ended by the same quote.
    ``is_request``: the entry comes from a tool for requests, whose model has read the
    request.
    """

    source: Source
    fact: Fact
    reported: NewFact
    place: QuoteMatch
    new: Fact | None
    is_only: bool
    is_request: bool


# A check of a ``Candidate`` or an ``Ending``.
Check = Callable[[Any], Rejection | None]


def first_rejection(
    entry: Candidate | Ending, checks: Iterable[Check]
) -> Rejection | None:
    """Return the rejection by the first check that gives one; None if all pass."""
    for check in checks:
        rejection = check(entry)
        if rejection:
            return rejection
    return None


# ---- new facts ----


def reject_unreadable(candidate: Candidate) -> Rejection | None:
    """Reject contents that no person would write, or that a model reads in another way than a person.

    Hidden characters and the tags around memories in a prompt may carry instructions. A
    very long word may be an encoded text. A content that ends with a colon only announces
    a statement.
    """
    content = candidate.content
    quote = candidate.reported.quote
    is_announcement = content.rstrip().endswith((":", "\uff1a"))
    is_empty = not any(map(str.isalnum, f"{content}{quote}"))
    if is_announcement or is_empty:
        return Rejection("unreadable", "There is no statement in it.")
    if pattern(_INVISIBLE).search(content):
        return Rejection("invisible", "It has invisible characters.")
    if escape_tags(content) != content:
        return Rejection("markup", "It has one of the tags around memories.")
    is_too_long = len(content) > MAX_FACT or len(quote) > _MAX_QUOTE
    if is_too_long or pattern(_LONG_WORD).search(content):
        return Rejection(
            "too_long",
            f"A fact has at most {MAX_FACT} characters, with words of at most {_MAX_WORD} letters, "
            f"and its quote at most {_MAX_QUOTE} characters.",
        )
    return None


def reject_unsure(candidate: Candidate) -> Rejection | None:
    """Reject a fact that the model itself is not sure of."""
    confidence = candidate.reported.confidence
    least = candidate.min_confidence
    if confidence >= least:
        return None
    return Rejection(
        "low_confidence",
        f"Its confidence is {confidence:.2f}; at least {least:.2f} is needed.",
    )


def reject_secret(candidate: Candidate) -> Rejection | None:
    """Reject passwords, keys and numbers of papers: models and exports receive stored facts."""
    texts = {candidate.content, candidate.reported.quote, candidate.place.quote}
    if any(map(holds_secret, texts)):
        return Rejection("secret", "It holds a password, a key or another secret.")
    return None


def reject_unquoted(entry: Candidate | Ending) -> Rejection | None:
    """Reject a fact or an end whose quote is not in the user's lines.

    The assistant repeats facts of the prompt, and invents some.
    """
    quote = entry.reported.quote
    if entry.place is not NOWHERE:
        return None
    if not quote.strip():
        return Rejection("no_quote", "It has no quote of the user.")
    if entry.source.is_said_by_others(quote):
        return Rejection("not_the_users_words", "Only the assistant said it.")
    return Rejection("quote_not_found", "Its quote is not in the conversation.")


def reject_assistants_words(candidate: Candidate) -> Rejection | None:
    """Reject a content that copies the assistant's words, behind a quote of the user's.

    A short answer may take over the words of its question.
    """
    if not candidate.question and candidate.source.is_the_assistants(candidate.content):
        return Rejection("not_the_users_words", "Only the assistant said it.")
    return None


def reject_small_talk(candidate: Candidate) -> Rejection | None:
    """Reject greetings, thanks and praise."""
    if is_small_talk(candidate.content):
        return Rejection("small_talk", "It says nothing about the user.")
    return None


def reject_unstated(candidate: Candidate) -> Rejection | None:
    """Reject a fact that the user's sentences only ask, suppose or quote, or that they take back."""
    content = candidate.content
    place = candidate.place
    reason = unsaid_reason(content, place.text, place.span)
    if not reason and is_taken_back(content, place.text, place.span):
        reason = "denied"
    if reason:
        return Rejection(reason, _UNSAID[reason])
    return None


def reject_others(candidate: Candidate) -> Rejection | None:
    """Reject a fact about the listener, an invented person, or a person whom the words do not name."""
    content = candidate.content
    sentences = candidate.place.sentences
    words = " ".join(sentences)
    without_calls = phrases("people", "call").sub("", words)
    is_name = shares_word(content, words) and not shares_word(content, without_calls)
    is_to_listener = is_name or all(map(speaks_to_listener, sentences))
    if is_to_listener and not candidate.question:
        return Rejection("other", "It is about the assistant, or about a text.")
    if candidate.is_users_words and is_about_stranger(sentences):
        return Rejection("other", "It is about another person, and does not say who.")
    return None


def reject_tools_words(candidate: Candidate) -> Rejection | None:
    """Reject a fact without keywords, or with a keyword that only a tool's text has.

    A web page may tell an agent what to store.
    """
    words = keywords(candidate.content)
    said = candidate.source.users_keywords | keywords(candidate.question)
    unsaid = words - shared(words, said)
    if words and not shared(unsaid, keywords(candidate.source.tool_text)):
        return None
    return Rejection("not_the_users_words", "Its words are not the user's own.")


def reject_addition(candidate: Candidate) -> Rejection | None:
    """Reject a fact of a tool that says more than the user did: its agent can try again.

    In scripts other than Latin, Chinese, Japanese and Korean, and in a translation, the
    user's sentence is stored instead.
    """
    content = candidate.content
    source = candidate.source
    words = source.words_at(candidate.place)
    if script_of(content) == "other" or is_translation(content, words):
        return None
    if not says_more(content, words, source.facts_text):
        return None
    return Rejection("not_the_users_words", "It says more than the user did.")


CHECKS = (
    reject_unreadable,
    reject_unsure,
    reject_secret,
    reject_unquoted,
    reject_assistants_words,
)
STATED_CHECKS = (
    reject_secret,
    reject_small_talk,
    reject_others,
    reject_unstated,
)
# An agent also reads the texts of tools and pages.
TOOL_CHECKS = (*CHECKS, reject_tools_words, reject_addition)


# ---- ends of known facts ----


def reject_pinned(ending: Ending) -> Rejection | None:
    """Keep pinned facts."""
    if ending.fact.pinned:
        return Rejection("pinned", "A pinned fact stays until it is unpinned.")
    return None


def reject_repetition(ending: Ending) -> Rejection | None:
    """Keep a fact whose replacement only repeats it."""
    if ending.new is not None and ending.new.id == ending.fact.id:
        return Rejection("replacement_rejected", "The new fact only repeats it.")
    return None


def reject_uncontradicted(ending: Ending) -> Rejection | None:
    """Keep a fact that the user's words do not contradict.

    Words that ask, suppose or quote contradict nothing. Other words end the fact in
    three cases:

    - These words, the question that they answer or the new fact share a word with the
      fact.
    - They tell a change that ends no other fact or comes with a new fact.
    - The entry comes from a tool for requests.
    """
    fact = ending.fact
    place = ending.place
    new = ending.new
    reason = unsaid_reason(fact.content, place.text, place.span)
    if reason:
        return Rejection(reason, _UNSAID[reason])
    sentences = " ".join(place.sentences)
    words = (
        f"{sentences}\n{ending.source.question(place)}\n{new.content if new else ''}"
    )
    is_change = (ending.is_only or new is not None) and tells_own_change(sentences)
    if shares_word(fact.content, words) or is_change or ending.is_request:
        return None
    return Rejection("not_contradicted", "The user's words do not concern it.")


ENDING_CHECKS = (
    reject_pinned,
    reject_repetition,
    reject_unquoted,
    reject_uncontradicted,
)
