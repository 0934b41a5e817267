"""Facts ranked by an embedding model together with their words, and nothing embedded twice."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.bridge.pydantic import Field

from llama_index_memory_ext import CondensedMemory
from llama_index_memory_ext.blocks.facts import RelevantFactsBlock
from llama_index_memory_ext.fact import Fact
from llama_index_memory_ext.facts.ranking import document_of
from llama_index_memory_ext.search.embeddings import EmbeddingRanker, model_key
from llama_index_memory_ext.search.tfidf import Document, TfidfRanker
from llama_index_memory_ext.store import MemoryStore
from llama_index_memory_ext.store.vectors import KeptVectors
from tests.facts.ranked import rank

MEANINGS = {"doggo": "dog", "wauwau": "dog", "motorwagen": "car", "medicus": "doctor"}


class Meanings(BaseEmbedding):
    """Stands in for a model: adds up a fixed vector for each word, and knows some words that mean the same.

    No dictionary of English has these words, or words alone would find them.
    """

    model_name: str = "meanings"
    size: int = 64
    failing: bool = False
    refused: str = "no text"
    asked: list[str] = Field(default_factory=list)
    in_thread: list[bool] = Field(default_factory=list)

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_query_embedding(text)

    def _get_query_embedding(self, query: str) -> list[float]:
        self.asked.append(query)
        self.in_thread.append(not in_event_loop())
        if self.failing or self.refused in query:
            raise ConnectionError(f"cannot embed {query}")
        words = query.lower().strip("?").split()
        vectors = [
            vector_of_word(MEANINGS.get(word, word), self.size) for word in words
        ]
        return [float(number) for number in np.sum(vectors, axis=0)]

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_query_embedding(query)


class Awaited(Meanings):
    """The same over a network: its answers come when they come."""

    gate: Any = None

    async def _aget_query_embedding(self, query: str) -> list[float]:
        if self.gate is not None:
            await self.gate.wait()
        return self._get_query_embedding(query)

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        if self.gate is not None:
            await self.gate.wait()
        return [self._get_query_embedding(text) for text in texts]


def in_event_loop() -> bool:
    try:
        return asyncio.get_running_loop() is not None
    except RuntimeError:
        return False


@lru_cache(maxsize=10_000)
def vector_of_word(word: str, size: int) -> np.ndarray[Any, Any]:
    seed = int.from_bytes(hashlib.blake2b(word.encode(), digest_size=4).digest(), "big")
    return np.random.default_rng(seed).normal(size=size)


def vector_of(text: str) -> np.ndarray[Any, Any]:
    """The vector of a text, of length 1."""
    vector = np.array(Meanings().get_query_embedding(text), dtype=np.float64)
    return np.asarray(vector / np.linalg.norm(vector))


FACTS = [
    Fact(content=content, confidence=0.8)
    for content in ("Has a small dog", "Drives a red car", "Plays the old piano")
]


def ranker_of(
    model: BaseEmbedding, facts: list[Fact] = FACTS, **options: Any
) -> EmbeddingRanker:
    ranker = EmbeddingRanker(model, **options)
    ranker.add(map(document_of, facts))
    return ranker


def first(facts: list[Fact], question: str, ranker: EmbeddingRanker) -> str:
    return rank(facts, question, ranker=ranker)[0].fact.content


async def test_similarities_are_the_sum_of_both_each_divided_by_its_best() -> None:
    ranker, words = ranker_of(Meanings()), TfidfRanker()
    words.add(map(document_of, FACTS))
    question = "doggo and piano"
    await ranker.aprepare([question])
    asked = vector_of(question)
    cosines = {fact.id: float(vector_of(fact.content) @ asked) for fact in FACTS}
    everywhere = max(min(cosines.values()), 0) * len(FACTS) / (len(FACTS) + 2)
    cosines = {name: max(cosine - everywhere, 0) for name, cosine in cosines.items()}
    lexical = words.similarities(question)
    expected = {
        fact.id: (
            cosines[fact.id] / max(cosines.values())
            + lexical.get(fact.id, 0) / max(lexical.values())
        )
        / 2
        for fact in FACTS
    }
    found = ranker.similarities(question)
    assert {fact.id: found.get(fact.id, 0.0) for fact in FACTS} == pytest.approx(
        expected, abs=1e-5
    )
    assert all(0 < value <= 1 for value in found.values())


async def test_a_document_that_is_not_embedded_yet_is_ranked_by_its_words() -> None:
    """Behind the others it would be, if its missing vector counted as one of something else."""
    ranker = ranker_of(Meanings(), FACTS[:1])
    await ranker.aprepare(["old piano"])
    ranker.add([document_of(FACTS[2])])
    assert ranker.similarities("old piano")[FACTS[2].id] == 1
    assert first(FACTS, "old piano", ranker) == "Plays the old piano"


@pytest.mark.parametrize("question", ["", "?", "😀", "What is it that you do?", "猫"])
async def test_a_question_with_nothing_to_go_by_is_not_embedded(question: str) -> None:
    ranker = ranker_of(model := Meanings(asked=[]))
    assert await ranker.aprepare([question])
    assert question not in model.asked
    assert not ranker.similarities(question)


@given(
    steps=st.lists(
        st.tuples(st.booleans(), st.integers(0, 9), st.integers(0, 3)), max_size=30
    )
)
@settings(max_examples=30)
async def test_a_ranker_answers_for_the_documents_that_are_left(
    steps: list[tuple[bool, int, int]],
) -> None:
    model, texts, left = (
        Meanings(),
        ("a wauwau", "a motorwagen", "a medicus", "old wauwau"),
        dict[str, Document](),
    )
    ranker = EmbeddingRanker(model)
    for adding, number, place in steps:
        if adding:
            document = Document(str(number), texts[place])
            left[document.id] = document
            ranker.add([document])
            assert await ranker.aprepare(["old doggo", "car"])
        else:
            left.pop(str(number), None)
            ranker.remove([str(number), "unknown"])
    assert ranker.is_complete
    new = EmbeddingRanker(model)
    new.add(left.values())
    await new.aprepare(["old doggo", "car"])
    for question in ("old doggo", "car"):
        assert dict(ranker.similarities(question)) == pytest.approx(
            dict(new.similarities(question)), abs=1e-5
        )


# ---- a model that is slow or fails -----------------------------------------------------------------------


async def test_a_model_that_fails_costs_no_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Words alone decide then; one line is logged, without any text, and after a pause it is tried again."""
    patient = ranker_of(model := Meanings(failing=True, asked=[]), retry_seconds=3600)
    assert [await patient.aprepare([one]) for one in ("doggo", "car")] == [False, False]
    assert model.asked == ["doggo"]
    caplog.clear()
    ranker = ranker_of(model, retry_seconds=1e-9)
    with caplog.at_level(logging.DEBUG, "llama_index_memory_ext"):
        assert not await ranker.aprepare(["red doggo"])
        assert dict(ranker.similarities("red doggo")).keys() == {FACTS[1].id}
    (line,) = (record.getMessage() for record in caplog.records)
    assert "ConnectionError" in line
    assert "doggo" not in line
    model.failing = False
    assert await ranker.aprepare(["red doggo"])
    assert dict(ranker.similarities("red doggo")).keys() >= {FACTS[0].id, FACTS[1].id}


async def test_a_slow_model_is_not_waited_for_but_its_answer_is_used_later() -> None:
    model = Awaited(gate=asyncio.Event(), asked=[])
    ranker = ranker_of(model, wait_seconds=0.01, retry_seconds=1e-9)
    assert not await ranker.aprepare(["doggo"])
    assert not ranker.similarities("doggo")
    model.gate.set()
    await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})
    assert await ranker.aprepare(["doggo"])
    assert first(FACTS, "doggo", ranker) == "Has a small dog"
    assert sorted(model.asked) == sorted([*(fact.content for fact in FACTS), "doggo"])


async def test_documents_are_embedded_while_another_question_waits_for_the_model() -> (
    None
):
    asked = asyncio.Event()

    class SlowQueries(Awaited):
        async def _aget_query_embedding(self, query: str) -> list[float]:
            asked.set()
            return await super()._aget_query_embedding(query)

        async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
            return [self._get_query_embedding(text) for text in texts]

    model = SlowQueries(gate=asyncio.Event())
    ranker = ranker_of(model, wait_seconds=60)
    waiting = asyncio.create_task(ranker.aprepare(["doggo"]))
    await asked.wait()
    assert await ranker.aprepare()
    model.gate.set()
    assert await waiting


async def test_forgetting_a_user_cancels_no_embedding_of_another_user(
    database_uri: str,
) -> None:
    async with aclosing(MemoryStore(database_uri)) as store:
        ranker = ranker_of(
            Awaited(gate=asyncio.Event()),
            wait_seconds=0.01,
            keeper=KeptVectors(store.database, "bob", "a model"),
        )
        store.jobs.watch(ranker)
        await ranker.aprepare()
        running = asyncio.all_tasks()
        ann = CondensedMemory.from_defaults(
            "of ann", user_id="ann", chat_store=store, extract_facts=False
        )
        await ann.aforget(vacuum=False)
        assert asyncio.all_tasks() >= running
        await store.jobs.stop({"bob"})
        assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_one_text_that_the_model_refuses_does_not_keep_the_others_from_being_embedded() -> (
    None
):
    facts = [Fact(content=f"number{i} of many") for i in range(40)] + FACTS
    model = Meanings(refused="number3 ", asked=[], embed_batch_size=8)
    ranker = ranker_of(model, facts, retry_seconds=1e-9)
    for _ in range(20):
        assert not await ranker.aprepare(["doggo"])
    assert first(facts, "doggo", ranker) == "Has a small dog"
    model.asked.clear()
    model.refused = "no text"
    assert await ranker.aprepare(["doggo"])
    assert model.asked == ["number3 of many"]


@pytest.mark.parametrize(
    ("model", "in_thread"),
    [(Meanings(in_thread=[]), True), (Awaited(in_thread=[]), False)],
)
async def test_a_model_that_computes_does_so_in_a_thread(
    model: Meanings, in_thread: bool
) -> None:
    """One that awaits a network is awaited."""
    await ranker_of(model).aprepare(["doggo"])
    assert set(model.in_thread) == {in_thread}


@pytest.mark.parametrize(
    "vectors",
    [
        [[1.0] * i for i in (1, 2, 3)],
        [[]] * 3,
        [[float("nan")]] * 3,
        [[1.0]] * 2,
        [[[1.0]]] * 3,
    ],
)
async def test_what_are_no_vectors_is_no_answer(vectors: Any) -> None:
    """Of different lengths, empty, no numbers, or too few."""

    class Wrong(Meanings):
        def get_text_embedding_batch(self, texts: list[str], **_: Any) -> Any:
            return vectors

    ranker = ranker_of(Wrong())
    assert not await ranker.aprepare(["red car"])
    assert ranker.similarities("red car").keys() == {FACTS[1].id}


async def test_a_text_is_embedded_as_a_client_could_send_it() -> None:
    """Half of a surrogate pair as a question mark, and a long text by its beginning and its end."""
    ranker = ranker_of(model := Meanings(asked=[]), [])
    assert await ranker.aprepare([f"a dog \ud83d {'x' * 100_000} ends"])
    (asked,) = model.asked
    assert len(asked) < 5_000
    assert asked.startswith("a dog ? xx")
    assert asked.endswith("xx ends")


# ---- kept in the store -----------------------------------------------------------------------------------

OpenBlock = Callable[..., RelevantFactsBlock]


@pytest.fixture
async def open_block(any_database_uri: str | None) -> AsyncIterator[OpenBlock]:
    """Opens blocks for Ann on one database, each as a new process would."""
    async with AsyncExitStack() as stack:

        def open_one(**options: Any) -> RelevantFactsBlock:
            store = MemoryStore(any_database_uri)
            stack.push_async_callback(store.aclose)
            return RelevantFactsBlock(
                store=store, user_id="ann", extract_facts=False, **options
            )

        yield open_one


async def with_facts(
    block: RelevantFactsBlock, facts: Sequence[Fact] = FACTS
) -> RelevantFactsBlock:
    for fact in facts:
        await block.book().aadd(fact)
    return block


async def ask(block: RelevantFactsBlock, question: str) -> list[str]:
    lines = await block.aget([ChatMessage(content=question)], session_id="chat")
    return [
        fact.content
        for line in lines.splitlines()
        for fact in FACTS
        if fact.content in line
    ]


async def stored(block: RelevantFactsBlock) -> int:
    assert block.store is not None
    query = "SELECT count(*) FROM {embeddings}"
    return await block.store.database.run(
        lambda conn: int(conn.execute(query).scalar_one()), writes=False
    )


async def test_no_fact_is_embedded_twice(open_block: OpenBlock) -> None:
    """Not by another process either, and not by four blocks of one process at the same time."""
    model = Meanings(asked=[])
    block = await with_facts(open_block(embed_model=model))
    blocks = [open_block(embed_model=model) for _ in range(3)]
    await asyncio.gather(*(ask(one, "Which doggo?") for one in [block, *blocks]))
    for question in ("Which doggo?", "Which motorwagen?"):
        await ask(block, question)
    assert sorted(model.asked) == sorted(
        [*(fact.content for fact in FACTS), "Which doggo?", "Which motorwagen?"]
    )
    again = Meanings(asked=[])
    assert (await ask(open_block(embed_model=again), "Which doggo?"))[
        0
    ] == "Has a small dog"
    assert again.asked == ["Which doggo?"]


async def test_a_fact_is_embedded_again_if_its_content_has_changed_but_not_if_its_confidence_has(
    open_block: OpenBlock,
) -> None:
    model = Meanings(asked=[])
    block = await with_facts(open_block(embed_model=model))
    await ask(block, "Which doggo?")
    model.asked.clear()
    await block.book().aupdate(FACTS[0].id, confidence=0.95)
    await block.book().aretire(FACTS[2].id)
    await block.book().arestore(FACTS[2].id)
    await ask(block, "Which wauwau?")
    assert model.asked == ["Which wauwau?"]
    await block.book().aupdate(FACTS[0].id, content="Has a small cat")
    await ask(block, "Which wauwau?")
    assert model.asked == ["Which wauwau?", "Has a small cat"]
    await ask(open_block(embed_model=model), "Which cat?")
    assert model.asked == ["Which wauwau?", "Has a small cat", "Which cat?"]
    assert await stored(block) == 3


async def test_each_model_has_vectors_of_its_own(open_block: OpenBlock) -> None:
    await (block := open_block(embed_model=Meanings())).book().aadd(FACTS[0])
    await ask(block, "Which doggo?")
    other = Meanings(model_name="another", size=16, asked=[])
    assert await ask(open_block(embed_model=other), "Which doggo?") == [
        FACTS[0].content
    ]
    assert other.asked == ["Which doggo?", FACTS[0].content]
    assert await stored(block) == 2
    assert model_key(other) != model_key(Meanings())


async def test_a_vector_of_another_length_is_made_again(open_block: OpenBlock) -> None:
    """The model goes by the same name but is another one since."""
    await (block := open_block(embed_model=Meanings())).book().aadd(FACTS[0])
    await ask(block, "Which doggo?")
    for asked in (["Which doggo?", FACTS[0].content], ["Which doggo?"]):
        model = Meanings(size=16, asked=[])
        await ask(open_block(embed_model=model), "Which doggo?")
        assert model.asked == asked


async def test_a_fact_is_forgotten_with_its_vector(open_block: OpenBlock) -> None:
    block = await with_facts(open_block(embed_model=Meanings()))
    await ask(block, "Which doggo?")
    await block.book().aforget(FACTS[0].id)
    assert await stored(block) == 2
    await block.book().aforget()
    assert await stored(block) == 0


async def test_a_vector_that_comes_after_its_fact_was_forgotten_is_not_kept(
    open_block: OpenBlock,
) -> None:
    block = open_block(embed_model=Meanings())
    await block.book().aadd(FACTS[0])
    assert block.store is not None
    await KeptVectors(block.store.database, "ann", "a model").write(
        {FACTS[0].id: ("", b"1"), FACTS[1].id: ("", b"2")}
    )
    kept = await KeptVectors(block.store.database, "ann", "a model").read(
        [FACTS[0].id, FACTS[1].id]
    )
    assert kept == {FACTS[0].id: ("", b"1")}
    assert (
        await KeptVectors(block.store.database, "bob", "a model").read([FACTS[0].id])
        == {}
    )


@pytest.mark.parametrize("any_database_uri", [None])
async def test_what_was_shown_while_the_model_failed_is_not_what_is_shown_for_ever(
    open_block: OpenBlock,
) -> None:
    model = Meanings(failing=True)
    block = open_block(
        ranker_factory=lambda: EmbeddingRanker(model, retry_seconds=1e-9)
    )
    await with_facts(block, [*FACTS, Fact(content="Never fails", confidence=0.81)])
    shown = await block.aget([ChatMessage(content="Which doggo?")], session_id="chat")
    assert "Never fails" in shown.splitlines()[0]
    model.failing = False
    assert (await ask(block, "Which doggo?"))[0] == "Has a small dog"


async def test_many_facts_are_read_and_written_in_pages(open_block: OpenBlock) -> None:
    block = open_block(embed_model=Meanings(embed_batch_size=700))
    assert block.store is not None
    await block.store.facts.write(
        "ann", [Fact(content=f"number{i} of many") for i in range(1_201)]
    )
    await ask(block, "number7")
    assert await stored(block) == 1_201
    again = Meanings(asked=[])
    await ask(open_block(embed_model=again), "number7")
    assert again.asked == ["number7"]
