"""Finds in a conversation what a fact stands on: the place of its quote, its words, and when it was so."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from llama_index_memory_ext.fact import Fact, retire, utc_now
from llama_index_memory_ext.language.dates import dates_in, period_of
from llama_index_memory_ext.language.detection import is_translation, language_of
from llama_index_memory_ext.language.quotes import Span, find_quote, tokens_in
from llama_index_memory_ext.language.said_dates import ages_in, missing_dates
from llama_index_memory_ext.language.tokens import keywords
from llama_index_memory_ext.language.words import visible
from llama_index_memory_ext.text.messages import Utterance, spoken

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import date

    from llama_index_memory_ext.facts.known import UserFacts
    from llama_index_memory_ext.store.tables import LogRow


# In characters.
_MAX_EXCERPT = 2_000
_MAX_TRANSLATED = 300
# A longer quote is none of a message: other pronouns, entities and left out words take
# some characters.
_STRETCH = 1.5
_SLACK = 100
# A message of at most so many words, or characters of a script without spaces, can be
# the answer to a question.
_LONGEST_ANSWER = 6
_QUESTION_MARK = re.compile("[?\uff1f]|か。?\\s*$")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a quote lies: in a line of the user's, its text and a part of it.

    ``is_translated``: the quote is in another language.
    """

    line: int
    text: str
    span: Span
    is_translated: bool = False

    @property
    def quote(self) -> str:
        """The user's own words."""
        return self.span.of(self.text)


def question_before(lines: Sequence[Utterance], i: int) -> str:
    """Return the question of the assistant that the line ``i`` answers in a few words; "" if it does not."""
    if i and not lines[i - 1].is_users:
        asked = lines[i - 1].text
    else:
        asked = ""
    is_short = len(tokens_in(lines[i].text)) <= _LONGEST_ANSWER
    if is_short and lines[i].is_users and _QUESTION_MARK.search(asked):
        return asked
    return ""


@dataclass(frozen=True)
class Source:
    """What was said: the ``lines``, those right before them as ``context``, and what tools and pages (``others``) said.

    ``said_on`` is the day, and ``known`` are facts in which names stand.
    """

    lines: Sequence[Utterance]
    context: Sequence[Utterance]
    others: str
    said_on: date
    known: Sequence[Fact]

    @cached_property
    def said(self) -> str:
        """All of it but for what others said: a user may say yes to a name or a number of the assistant's."""
        return "\n".join(line.text for line in (*self.context, *self.lines))

    @cached_property
    def keywords(self) -> frozenset[str]:
        """The keywords of what was said."""
        return frozenset().union(
            *(keywords(line.text) for line in (*self.context, *self.lines))
        )

    @cached_property
    def users_keywords(self) -> frozenset[str]:
        """The keywords of the user's lines."""
        return keywords("\n".join(line.text for line in self.lines if line.is_users))

    @cached_property
    def ages(self) -> set[float]:
        """How many years ago the years are that were said."""
        return ages_in(self.said, self.said_on)

    @cached_property
    def known_text(self) -> str:
        """The facts in which names stand, a line each."""
        return "\n".join(fact.content for fact in self.known)

    def find(self, quote: str) -> Place | None:
        """Return the place of a quote in the user's lines, of several the best and then the last.

        Else it is that of the line in another language that the quote is a translation
        of.
        """
        users = [
            (i, line.text)
            for i, line in enumerate(self.lines)
            if line.is_users and line.text
        ]
        longest = max((len(text) for _, text in users), default=0)
        if len(quote) > min(_MAX_EXCERPT, _STRETCH * longest + _SLACK):
            return None
        found = [
            (span.share, i, Place(i, text, span))
            for i, text in users
            if (span := find_quote(quote, text))
        ]
        if found:
            return max(found, key=lambda one: one[:2])[2]
        translated = [(i, text) for i, text in users if is_translation(quote, text)]
        # Who also writes in the language of the quote would be quoted in it.
        language = language_of(quote)
        if not translated or (
            language and any(language_of(text) == language for _, text in users)
        ):
            return None
        i, text = max(
            translated,
            key=lambda one: (len(keywords(quote) & keywords(one[1])), one[0]),
        )
        return Place(
            i, text, Span(0, min(len(text), _MAX_TRANSLATED), 1.0), is_translated=True
        )

    def question(self, place: Place) -> str:
        """Return the question that the line of a place answers in a few words; "" if it does not."""
        return question_before(
            [*self.context, *self.lines], len(self.context) + place.line
        )

    def day(self, written: str, side: int) -> date | None:
        """Return the first (0) or the last (1) day of a day, month or year, if that was said or follows from it."""
        found = dates_in(written)
        if len(found) == 1:
            period = period_of(found[0].readings[0])
        else:
            period = None
        if period is None or missing_dates(written, self.said, self.said_on):
            return None
        return period[side]

    def around(self, place: Place) -> tuple[list[int], str]:
        """Return the user's lines that have these very words, and their text and that of the lines around them.

        Of each line it is as much as is near the words. Turns of other users, with
        their answers, are left out.
        """
        speaker = self.lines[place.line].speaker
        own = [i for i, line in enumerate(self.lines) if line.speaker == speaker]
        users = (
            i
            for i in own
            if self.lines[i].is_users and place.quote in self.lines[i].text
        )
        found = {place.line: place.span.start} | {
            i: self.lines[i].text.index(place.quote) for i in users
        }
        nearby = range(min(found) - 1, max(found) + 2)
        return sorted(found), "\n".join(
            excerpt(self.lines[i].text, found.get(i, 0)) for i in own if i in nearby
        )


def excerpt(text: str, place: int, most: int = _MAX_EXCERPT) -> str:
    """Return as many characters of a text around a place."""
    start = max(0, min(place - most // 2, len(text) - most))
    return text[start : start + most]


_REASON = "its message was deleted"
_PAGE_ROWS = 500


async def retire_deleted(known: UserFacts, session_id: str) -> bool:
    """Retire the facts that the user has stated in messages of a session that are gone.

    A fact stays if it is pinned, if it was restored after that, or if its quote stands
    in a message that is left. Returns False if facts were deleted at the same time:
    nothing is stored then.
    """
    store = known.store
    changes = (await known.read()).changes
    facts = [
        fact
        for fact in known.facts.values()
        if fact.session_id == session_id and fact.message_ids and fact.quote
    ]
    facts = [fact for fact in facts if not (fact.retired or fact.pinned)]
    facts = [
        fact
        for fact in facts
        if all(one.retired_reason != _REASON for one in fact.past_retirements)
    ]
    # A database may give a deleted row's id to another message.
    ids = sorted({one for fact in facts for one in fact.message_ids})
    if ids:
        texts = {
            row.id: _text_of(row) for row in await store.readers.rows(session_id, ids)
        }
    else:
        texts = {}
    said = {fact.id: [texts.get(one, "") for one in fact.message_ids] for fact in facts}
    # The quote may have been cut out of a clipped text.
    facts = [
        one
        for one in facts
        if not any(
            one.quote in text or find_quote(one.quote, text) for text in said[one.id]
        )
    ]
    last = 0
    while facts:
        page = await store.readers.unread(
            session_id, "", with_active=True, after=last, limit=_PAGE_ROWS
        )
        if not page.rows:
            break
        others = "\n".join(map(_text_of, page.rows))
        last = page.rows[-1].id
        facts = [fact for fact in facts if fact.quote not in others]
    if not facts:
        return True
    now = utc_now()
    gone = [
        retire(fact, _REASON, max(now, fact.updated_at), by="hand") for fact in facts
    ]
    is_stored = await store.facts.write(known.namespace, gone, changes, view=known.view)
    await known.refresh()
    return is_stored


def _text_of(row: LogRow) -> str:
    """What the user says in a row; "" if it is not the user's."""
    if row.role == "user":
        return visible(spoken(row.message))
    return ""
