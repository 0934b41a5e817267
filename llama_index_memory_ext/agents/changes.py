"""Remembers and forgets facts for an agent, by the user's own words only."""

from __future__ import annotations

import asyncio
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from llama_index_memory_ext.agents.requests import asks_to_forget
from llama_index_memory_ext.agents.retriever import store_errors
from llama_index_memory_ext.fact import Fact, normalised, utc_now
from llama_index_memory_ext.facts.reply import ExtractionReply
from llama_index_memory_ext.text.messages import Utterance, escape_tags

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index_memory_ext.facts.extractor import Extractor
    from llama_index_memory_ext.memory.condensed_memory import CondensedMemory

# The confidence of a fact that the user has asked to remember.
_CONFIDENCE = 0.9
SHORT_ID_CHARACTERS = 8
# Older messages do not ask for anything any more.
_ASKING_LINES = 6
_HOW_TO_QUOTE = "Copy the user's own words from one of their messages; what the user did not say cannot be remembered."
_HOW_TO_FORGET = "the user's last words must ask you to forget it, and name it. Ask the user what to forget."
_HOW_TO_CONFIRM = "show the user all that would go, and ask. Call this again when their next message says yes."
_HOW_TO_NAME = "without a session (--session) nobody sees that the user agrees to everything, so they must name it."
_QUOTES = frozenset({"echo", "no_quote", "not_the_users_words", "quote_not_found"})
_FULL = "there are as many facts as there may be, and all of them are surer."
NO_QUOTE = f"Nothing was forgotten: it needs a quote. {_HOW_TO_QUOTE}"


class Remembered(NamedTuple):
    """The fact that was stored; None, and why not, if it was not. ``is_known``: it was known, and is surer now."""

    fact: Fact | None = None
    is_known: bool = False
    refusal: str = ""


class Forgotten(NamedTuple):
    """The facts that were retired; those that were not, each with the reason; the facts that words may mean.

    ``is_all_known``: something was wanted, and there are facts for all of it.
    """

    facts: tuple[Fact, ...] = ()
    kept: tuple[tuple[Fact, str], ...] = ()
    unclear: tuple[list[Fact], ...] = ()
    is_all_known: bool = True


def said_by_user(text: str) -> list[Utterance]:
    """Returns words of the user's that stand in no log, as what was said last."""
    return [Utterance(0, "user", text)]


async def remember(
    memory: CondensedMemory, content: str, quote: str, category: str, said: Sequence[Utterance] | None = None
) -> Remembered:
    """Stores a fact if the user's words say it: those of the session, or what was ``said`` elsewhere.

    Raises a StoreError if the database fails.
    """
    block = memory.facts_block
    fact = {"content": content, "quote": quote, "category": category}
    confidence = max(_CONFIDENCE, block.min_confidence)
    reply = ExtractionReply.model_validate({"new_facts": [{**fact, "confidence": confidence}]})
    with store_errors("Nothing was remembered", memory.session_id):
        await memory.acheck_session()
        extractor = block.extractor(memory.session_id)
        lines, results = await _said(extractor, said)
        valid, changed = await extractor.apply(reply, lines, others="\n".join(one.text for one in results))
    if valid.accepted:
        new = valid.accepted[0]
        is_over = any(entry.id == new.id and entry.retired for entry in changed)
        return Remembered(refusal=_FULL) if is_over else Remembered(new)
    if valid.confirmed:
        return Remembered(valid.confirmed[0], is_known=True)
    rejection = valid.rejected[0]
    hint = f" {_HOW_TO_QUOTE}" if rejection.reason in _QUOTES else ""
    return Remembered(refusal=f"{escape_tags(rejection.detail)}{hint}")


async def forget(
    memory: CondensedMemory, wanted: Sequence[str], quote: str, said: Sequence[Utterance] | None = None
) -> Forgotten:
    """Retires the facts with these ids or words if the user's last words ask for it; see ``remember``."""
    with store_errors("Nothing was forgotten", memory.session_id):
        await memory.acheck_session()
        meant = await _meant(memory, wanted)
        extractor = memory.facts_block.extractor(memory.session_id)
        chosen = list({found[0].id: found[0] for found in meant if len(found) == 1}.values())
        gone, kept = await _retire(extractor, chosen, quote, said) if chosen else ((), ())
    unclear = tuple(found for found in meant if len(found) > 1)
    return Forgotten(gone, kept, unclear, is_all_known=bool(meant) and all(meant))


async def _said(extractor: Extractor, said: Sequence[Utterance] | None) -> tuple[Sequence[Utterance], ...]:
    return await extractor.recent() if said is None else (said, ())


async def _meant(memory: CondensedMemory, wanted: Sequence[str]) -> list[list[Fact]]:
    """Returns for each id, or words of a fact, the facts that it may mean, best first."""
    facts, now = await memory.facts.alist(with_retired=True), utc_now()
    known = [(normalised(fact.content), fact) for fact in facts if fact.state(now) != "retired"]
    meant = []
    for words in map(str, wanted):
        found = _named_by(words, known)
        if not found:
            ranked = await memory.facts_block.asearch(words, session_id=memory.session_id)
            found = [entry.fact for entry in ranked]
        meant.append(found)
    return meant


async def _retire(
    extractor: Extractor, chosen: Sequence[Fact], quote: str, said: Sequence[Utterance] | None
) -> tuple[tuple[Fact, ...], tuple[tuple[Fact, str], ...]]:
    """Retires facts if the quote allows it; returns those that were retired, and the others with the reason."""
    lines, results = await _said(extractor, said)
    lines, contents = lines[-_ASKING_LINES:], [fact.content for fact in chosen]
    # The first comparison of words loads what tells languages apart.
    asked, is_for_all = await asyncio.to_thread(asks_to_forget, quote, lines, results, contents)
    how = (_HOW_TO_CONFIRM if said is None else _HOW_TO_NAME) if is_for_all else _HOW_TO_FORGET
    entries = [
        {"number": i, "reason": "The user asked to forget it.", "quote": quote}
        for i, is_asked in enumerate(asked, 1)
        if is_asked
    ]
    reply = ExtractionReply.model_validate({"retired": entries})
    valid, _ = await extractor.apply(reply, lines, chosen, retired_by="request")
    ids = {fact.id for fact in valid.retired}
    why = " ".join(dict.fromkeys(map(attrgetter("detail"), valid.rejected)))
    kept = tuple((fact, why if ok else how) for fact, ok in zip(chosen, asked, strict=True) if fact.id not in ids)
    return tuple(fact for fact in chosen if fact.id in ids), kept


def _named_by(words: str, known: Sequence[tuple[str, Fact]]) -> list[Fact]:
    """Returns the fact with this id, or those whose ids begin so, or those with this normalised content."""
    wanted, content = words.strip(" []\"'#"), normalised(words)
    is_prefix = len(wanted) >= SHORT_ID_CHARACTERS
    by_id = [fact for _, fact in known if fact.id == wanted]
    by_prefix = [fact for _, fact in known if is_prefix and fact.id.startswith(wanted)]
    return by_id or by_prefix or [fact for text, fact in known if text == content]
