"""``on_error`` of a memory: it is called once for each failure, with the failed work and the next step."""

from __future__ import annotations

from typing import Any

import pytest

from llama_index_memory_ext.blocks import LogBlock
from llama_index_memory_ext.events import MemoryFailure
from tests.conversation import assistant, user
from tests.memories import OpenMemory
from tests.memory.test_events import Learner
from tests.openai_server import fail
from tests.record.test_recall import SMALL
from tests.scripted_models import StartModel
from tests.search.test_embeddings import Meanings

TURN = [user("I like tea."), assistant("Fine.")]


async def test_a_failed_extraction_is_passed_on_and_not_logged(
    open_memory: OpenMemory,
    start_model: StartModel,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(LogBlock, "retry_seconds", 300.0)
    llm, _ = start_model(Learner(*[fail(500, "I like secrets")] * 3))
    failures: list[MemoryFailure] = []
    memory = open_memory(
        user_id="ann", llm=llm, on_error=failures.append, extract_every_turns=1
    )
    await memory.aput_messages([*TURN, user("And?")])
    await memory.facts_block.await_jobs("chat")
    assert failures == [
        MemoryFailure(
            "Facts were not extracted",
            "InternalServerError",
            "trying again in 300 s",
            "chat",
        )
    ]
    assert "Facts were not extracted" not in caplog.text
    # Another memory on the same store has no such function.
    quiet = open_memory(user_id="ann", llm=llm, chat_store=memory.sql_store)
    await quiet.aflush()
    assert len(failures) == 1
    assert "Facts were not extracted" in caplog.text


async def test_a_failed_embedding_is_passed_on(open_memory: OpenMemory) -> None:
    failures: list[MemoryFailure] = []
    memory = open_memory(
        **SMALL, embed_model=Meanings(failing=True), on_error=failures.append
    )
    await memory.facts.aadd("Has a dog")
    await memory.aput(user("Which dogs do I have?"))
    await memory.aget()
    assert failures[0].failed == "Meanings did not embed"
    assert failures[0].outcome.startswith("words alone rank until it does")


async def later(failure: MemoryFailure) -> None:
    """Nothing would await it."""


def refuse(failure: MemoryFailure) -> None:
    raise ZeroDivisionError


@pytest.mark.parametrize(
    ("function", "error"),
    [(refuse, "ZeroDivisionError"), (lambda failure: later(failure), "TypeError")],  # noqa: PLW0108 - a plain function
)
async def test_a_function_that_fails_or_is_not_awaited_costs_no_answer(
    open_memory: OpenMemory,
    caplog: pytest.LogCaptureFixture,
    function: Any,
    error: str,
) -> None:
    """The failure is logged then."""
    memory = open_memory(embed_model=Meanings(failing=True), on_error=function)
    await memory.facts.aadd("Has a dog")
    await memory.aput(user("Which dogs do I have?"))
    assert "Has a dog" in str(await memory.aget())
    assert f"on_error has failed ({error})." in caplog.text
    assert "did not embed" in caplog.text
