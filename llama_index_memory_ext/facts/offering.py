"""Chooses the known facts that are shown to a model that extracts new ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from llama_index_memory_ext.fact import Fact
    from llama_index_memory_ext.search.tfidf import Similar
    from llama_index_memory_ext.text.messages import Utterance
    from llama_index_memory_ext.text.tokens import TokenCounter

# The share of the room for facts with words in common with what was said. What the user corrects need not have any.
_MATCHING_SHARE = 0.5
# Of a batch of more messages, the newest decide.
_MOST_TEXTS = 24


def texts_in(lines: Sequence[Utterance]) -> list[str]:
    """What facts are compared with: the user's messages, the newest first, and then those that they answer."""
    users = [i for i, line in enumerate(lines) if line.is_users][:-_MOST_TEXTS:-1]
    answered = [lines[i - 1].text for i in users if i and not lines[i - 1].is_users]
    return [*(lines[i].text for i in users), *answered]


def offered(
    facts: Sequence[Fact], texts: Sequence[str], ranker: Similar, counter: TokenCounter, limit: int
) -> list[Fact]:
    """The facts that have room in about ``limit`` tokens: half of it for the most similar ones, then the shortest.

    "I moved to Rome" has no word in common with "Lives in Oslo", but what a person can change is said in few words,
    and the shorter the facts, the more of them have room. Of two that are alike the newer one comes first.
    """
    shortest = sorted(facts, key=lambda fact: (len(fact.content), -fact.created_at.timestamp()))
    chosen: dict[str, Fact] = {}
    total = 0

    def take(some: Iterable[Fact], room: float) -> None:
        nonlocal total
        for fact in some:
            if fact.id not in chosen:
                tokens = counter.count(f"{len(facts)}. {' '.join(fact.content.split())}\n")
                if total + tokens > room:
                    return
                chosen[fact.id] = fact
                total += tokens

    take(_best_of_each(facts, texts, ranker), _MATCHING_SHARE * limit)
    take(shortest, limit)
    return list(chosen.values())


def most_similar(text: str, facts: Mapping[str, Fact], ranker: Similar) -> list[Fact]:
    """The facts, of these by their ids, that have something in common with a text: the most similar one first."""
    similar = [(value, fact_id) for fact_id, value in ranker.similarities(text).items() if fact_id in facts]
    return [facts[fact_id] for _, fact_id in sorted(similar, reverse=True)]


def _best_of_each(facts: Sequence[Fact], texts: Sequence[str], ranker: Similar) -> Iterator[Fact]:
    """The facts that have something in common with one of the texts: the best one of each, then the second ones, ..."""
    by_id = {fact.id: fact for fact in facts}
    rankings = [most_similar(text, by_id, ranker) for text in texts]
    for place in range(max(map(len, rankings), default=0)):
        yield from (ranking[place] for ranking in rankings if place < len(ranking))
