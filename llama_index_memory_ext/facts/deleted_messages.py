"""The facts of deleted messages, which are retired."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llama_index_memory_ext.checks.evidence import find_quote
from llama_index_memory_ext.fact import Fact, retire, utc_now
from llama_index_memory_ext.text.messages import spoken
from llama_index_memory_ext.words import visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from llama_index_memory_ext.facts.known import UserFacts
    from llama_index_memory_ext.store.tables import LogRow


_REASON = "its message was deleted"
_PAGE_ROWS = 500


async def retire_deleted(user_facts: UserFacts, session_id: str) -> bool:
    """Retire the facts that the user has stated in deleted messages of a session.

    A pinned or edited fact stays, and so does a fact that was restored after such a
    retirement. A fact also stays if another message has its quote. Return False if
    facts were deleted at the same time: then nothing is stored.
    """
    store = user_facts.store
    changes = (await user_facts.read()).changes
    facts = _facts_of(session_id, user_facts.facts.values())
    facts = await _without_own_message(user_facts, session_id, facts)
    facts = await _without_any_message(user_facts, session_id, facts)
    if not facts:
        return True
    now = utc_now()
    retired = [
        retire(fact, _REASON, max(now, fact.updated_at), by="hand") for fact in facts
    ]
    is_stored = await store.facts.write(
        user_facts.namespace, retired, changes, view=user_facts.view
    )
    await user_facts.refresh()
    return is_stored


def _facts_of(session_id: str, facts: Iterable[Fact]) -> list[Fact]:
    """Return the facts that a session states and that may be retired with it."""
    stated = []
    for fact in facts:
        has_source = fact.session_id == session_id and fact.message_ids and fact.quote
        was_restored = any(
            past.retired_reason == _REASON for past in fact.past_retirements
        )
        stays = fact.pinned or fact.edited or was_restored
        if has_source and not (fact.retired or stays):
            stated.append(fact)
    return stated


async def _without_own_message(
    user_facts: UserFacts, session_id: str, facts: Sequence[Fact]
) -> list[Fact]:
    """Return the facts of which none of their messages has the quote.

    A database may give the id of a deleted row to another message.
    """
    ids = sorted(set[int]().union(*(fact.message_ids for fact in facts)))
    texts = {}
    if ids:
        for row in await user_facts.store.readers.rows(session_id, ids):
            texts[row.id] = _text_of(row)
    return [fact for fact in facts if not _is_quoted(fact, texts)]


def _is_quoted(fact: Fact, texts: Mapping[int, str]) -> bool:
    for row_id in fact.message_ids:
        text = texts.get(row_id, "")
        # A clipped text may have lost characters within the quote.
        if fact.quote in text or find_quote(fact.quote, text):
            return True
    return False


async def _without_any_message(
    user_facts: UserFacts, session_id: str, facts: list[Fact]
) -> list[Fact]:
    """Return the facts whose quote no message of the session has."""
    last_id = 0
    while facts:
        page = await user_facts.store.readers.unread(
            session_id, "", with_active=True, after=last_id, limit=_PAGE_ROWS
        )
        if not page.rows:
            break
        texts = "\n".join(map(_text_of, page.rows))
        last_id = page.rows[-1].id
        facts = [fact for fact in facts if fact.quote not in texts]
    return facts


def _text_of(row: LogRow) -> str:
    """Return the text of a row of the user's; "" for any other row."""
    if row.role == "user":
        return visible(spoken(row.message))
    return ""
