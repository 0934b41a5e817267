"""How a write, an extraction or a deletion changes stored facts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llama_index_memory_ext.fact import (
    ONLY_ENDS,
    Fact,
    duplicate_key,
    mark_edited,
    retire,
    utc_now,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence


def is_copy(
    fact_id: str, facts: Mapping[str, Fact], contents: Mapping[str, str | None]
) -> bool:
    """Return whether a fact has the id and the content of a fact of ``contents``.

    A content that cannot be read counts as the same.
    """
    if fact_id not in facts:
        return fact_id in contents
    return contents.get(fact_id, "") in (None, facts[fact_id].content)


def mark_edited_facts(facts: Sequence[Fact], stored: Mapping[str, Fact]) -> list[Fact]:
    """Return the facts; a fact whose content differs from the stored fact is marked as edited."""
    return [mark_edited(fact, stored.get(fact.id, fact)) for fact in facts]


def without_words(fact: Fact, session_id: str, remaining: Collection[int]) -> Fact:
    """Return a fact with its remaining messages, and without the words around its quote."""
    ids = tuple(row_id for row_id in fact.message_ids if row_id in remaining)
    return fact.model_copy(
        update={
            "quote": fact.quote if ids == fact.message_ids else "",
            "source": "",
            "words_deleted_at": utc_now(),
            "message_ids": ids,
            "session_id": session_id if ids else None,
        }
    )


def without_deleted_source(fact: Fact, text: str | None) -> Fact:
    """Return a fact without its ``source`` if that has a line that the text of its session has not; None: no text."""
    lines = fact.source.splitlines()
    if text is None or all(line in text for line in lines):
        return fact
    return fact.model_copy(update={"source": "", "words_deleted_at": utc_now()})


def only_ending(facts: Mapping[str, Fact], deleted: Collection[str]) -> set[str]:
    """Return the facts that only end one of the deleted facts: each repeats the content of the fact that it ends."""
    contents = tuple(
        fact.content for fact_id, fact in facts.items() if fact_id in deleted
    )
    ending = set()
    for fact in facts.values():
        if fact.said_as == ONLY_ENDS and fact.content.endswith(contents):
            ending.add(fact.id)
    return ending


def merge_facts(facts: Sequence[Fact], newer: Mapping[str, Fact]) -> list[Fact]:
    """Return the extracted facts to store beside the ``newer`` facts, stored since the extraction began.

    A fact with the content of a newer fact is not stored again.
    """
    ids_by_content = {
        duplicate_key(fact.content): fact.id
        for fact in newer.values()
        if not fact.retired
    }
    stored_ids = {
        fact.id: ids_by_content.get(duplicate_key(fact.content), fact.id)
        for fact in facts
    }
    merged = []
    for fact in facts:
        stored = newer.get(fact.id)
        replaced_by = stored_ids.get(fact.replaced_by or "", fact.replaced_by)
        if stored is None:
            if stored_ids[fact.id] == fact.id:
                merged.append(fact.model_copy(update={"replaced_by": replaced_by}))
        elif retires(fact, stored):
            merged.append(
                retire(
                    stored,
                    fact.retired_reason or "",
                    fact.updated_at,
                    replaced_by,
                    by=fact.retired_by,
                )
            )
    return merged


def retires(fact: Fact, stored: Fact) -> bool:
    """Return whether an extracted fact retires its stored version; the user's own request always does."""
    if stored.pinned or not fact.retired:
        return False
    return not stored.retired or fact.retired_by == "request"
