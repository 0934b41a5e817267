"""Whatever goes wrong in ranking, a question is answered with facts, and the next one is ranked again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from datetime import date
from functools import partial
from typing import Any

import pytest
from llama_index.core.embeddings import MockEmbedding

from llama_index_memory_ext import CondensedMemory, TfidfRanker
from llama_index_memory_ext.search.tfidf import Document
from tests.conversation import sent_text, user
from tests.learning.learning import Learns, shown
from tests.memories import OpenMemory

# By confidence, and by what a question about dogs asks for.
BY_CONFIDENCE, RANKED = ["Lives in Rome", "Has a dog"], ["Has a dog", "Lives in Rome"]


class Failing(TfidfRanker):
    """Fails where it is told to, as often as it is told to, also when it is made."""

    def __init__(self, fails: dict[str, int]) -> None:
        self.fails = fails
        self.may_fail("make")
        super().__init__()

    def may_fail(self, what: str) -> None:
        if self.fails.get(what, 0):
            self.fails[what] -= 1
            raise ZeroDivisionError("a secret text")

    def add(self, documents: Iterable[Document]) -> None:
        self.may_fail("add")
        super().add(documents)

    def remove(self, ids: Iterable[str]) -> None:
        self.may_fail("remove")
        super().remove(ids)

    def similarities(self, query: str) -> Any:
        self.may_fail("similarities")
        return super().similarities(query)


async def remember(memory: CondensedMemory, *contents: str) -> None:
    for place, content in enumerate(contents or BY_CONFIDENCE):
        await memory.facts.aadd(content, confidence=max(0.9 - place / 20, 0.1))


async def ask(
    memory: CondensedMemory, question: str = "Which dogs do I have?"
) -> list[str]:
    return shown(sent_text(await memory.aget(question)))


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING
    ]


@pytest.mark.parametrize("what", ["make", "add", "remove", "similarities"])
async def test_a_ranker_that_fails_once_costs_no_answer(
    open_memory: OpenMemory, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    fails: dict[str, int] = {}
    memory = open_memory(user_id="ann", ranker_factory=partial(Failing, fails))
    await remember(memory)
    fails[what] = 2
    assert await ask(memory) == BY_CONFIDENCE
    fails[what] = 0
    assert await ask(memory) == RANKED
    (line,) = warnings(caplog)
    assert "ZeroDivisionError" in line
    assert "secret" not in caplog.text


async def test_a_ranker_that_always_fails_is_told_once(
    open_memory: OpenMemory, caplog: pytest.LogCaptureFixture
) -> None:
    """Pinned facts come first then, and nothing exceeds the limit."""
    memory = open_memory(
        user_id="ann",
        ranker_factory=partial(Failing, {"similarities": 1_000_000}),
        facts_token_limit=150,
    )
    known = [
        *(
            f"Knows {name}"
            for name in ("Cleo", "Dan", "Emma", "Finn", "Gina", "Hal", "Ida", "Jo")
        ),
        "Has a dog",
    ]
    await remember(memory, *known)
    await memory.facts.aadd("Is called Ann", confidence=0.3, pinned=True)
    for number in range(3):
        found = await ask(memory, f"Which dogs do I have, number {number}?")
        assert found == ["Is called Ann", *known][: len(found)]
        assert 1 < len(found) < 10
    assert len(warnings(caplog)) == 1


@pytest.mark.parametrize("found", [None, 3, ["dog"], {"x": "high"}, {"x": None}])
async def test_a_ranker_that_answers_with_nonsense_costs_no_answer(
    open_memory: OpenMemory, found: Any
) -> None:
    class Wrong(TfidfRanker):
        def similarities(self, query: str) -> Any:
            return found

    memory = open_memory(user_id="ann", ranker_factory=Wrong)
    await remember(memory)
    assert await ask(memory) == BY_CONFIDENCE


async def test_a_question_about_the_past_is_answered_too(
    open_memory: OpenMemory,
) -> None:
    fails: dict[str, int] = {}
    memory = open_memory(user_id="ann", ranker_factory=partial(Failing, fails))
    await remember(memory)
    await memory.facts.aadd("Had a cat", confidence=0.5, valid_until=date(2020, 5, 1))
    assert await ask(memory, "dog?") == RANKED
    fails["add"] = 1
    assert sorted(await ask(memory, "Which cat did I have in 2020?")) == sorted(
        [*BY_CONFIDENCE, "Had a cat"]
    )
    assert (await ask(memory, "Which cat did I have in 2020?"))[0] == "Had a cat"


class Unexpected(MockEmbedding):
    """Fails as no model should."""

    error: Any = None
    where: str = "query"

    def _get_query_embedding(self, query: str) -> list[float]:
        if self.where == "query":
            raise self.error
        return super()._get_query_embedding(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_query_embedding(query)

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        if self.where == "text":
            raise self.error
        return [self._get_text_embedding(text) for text in texts]

    @classmethod
    def class_name(cls) -> str:
        return "unexpected"


@pytest.mark.parametrize("where", ["query", "text"])
@pytest.mark.parametrize(
    "error",
    [KeyError("dog"), asyncio.CancelledError(), StopAsyncIteration(), MemoryError()],
)
async def test_an_embedding_model_that_fails_in_a_new_way_leaves_the_words(
    open_memory: OpenMemory, where: str, error: BaseException
) -> None:
    memory = open_memory(
        user_id="ann", embed_model=Unexpected(embed_dim=4, error=error, where=where)
    )
    await remember(memory)
    assert await ask(memory) == RANKED


async def test_facts_are_learned_though_ranking_fails(learns: Learns) -> None:
    """Whatever is compared with known facts meanwhile."""
    memory = learns(ranker_factory=partial(Failing, {"similarities": 1_000_000}))[0]
    await remember(
        memory,
        *(
            f"Knows that {number} has {number} digits and not one more"
            for number in range(300)
        ),
    )
    await memory.aput(user("I like Python."))
    await memory.aflush()
    assert "Likes Python" in [fact.content for fact in await memory.facts.alist()]
    assert (await memory.astats()).set_aside == ()
