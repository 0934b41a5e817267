"""A reply of any length is read, or refused, without holding up the event loop."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import pytest
from llama_index.core.base.llms.types import ChatMessage, ChatResponse, ToolCallBlock

from llama_index_memory_ext import CondensedMemory, OfflineModel
from llama_index_memory_ext.checks.evidence import Source
from llama_index_memory_ext.errors import FactReplyError
from llama_index_memory_ext.text.messages import MOST_CHARACTERS, is_longer
from llama_index_memory_ext.text.turns import Utterance
from tests.learning.learning import ask_model
from tests.ticks import ticking

LENGTH = 40_000_000
NOW = datetime(2025, 11, 20, 12, tzinfo=timezone.utc)
SAID = (Utterance(1, "user", "I like green tea."),)
FACT = {"content": "Likes green tea", "quote": "I like green tea", "confidence": 0.9}


class Answering(OfflineModel):
    """A model with one answer."""

    answer: ChatMessage

    async def achat(self, messages: Any, **_: Any) -> ChatResponse:
        return ChatResponse(message=self.answer)


def answered(text: str) -> ChatMessage:
    return ChatMessage(role="assistant", content=text)


def called(arguments: Any) -> ChatMessage:
    return ChatMessage(
        blocks=[ToolCallBlock(tool_name="report_facts", tool_kwargs=arguments)],
        role="assistant",
    )


LONG: dict[str, Callable[[], ChatMessage]] = {
    "quotes": lambda: answered(
        json.dumps({"new_facts": [{**FACT, "quote": "tea " * 250_000}] * 40})
    ),
    "a content": lambda: answered(
        json.dumps({"new_facts": [{**FACT, "content": "w" * LENGTH}]})
    ),
    "nesting": lambda: answered('{"a":' * (LENGTH // 5)),
    "a number": lambda: answered('{"confirmed": [' + "9" * LENGTH),
    "arguments": lambda: called({"confirmed": [1] * (LENGTH // 8)}),
    "entries": lambda: called({"new_facts": [{**FACT} for _ in range(100_000)]}),
}


@pytest.mark.parametrize("kind", LONG)
async def test_the_event_loop_goes_on_while_a_reply_of_40_mb_is_refused(
    kind: str,
) -> None:
    model = Answering(answer=LONG[kind]())
    async with CondensedMemory.from_defaults("s", user_id="ann", llm=model) as memory:
        await memory.aput_messages(
            [ChatMessage("I like green tea."), answered("Nice.")]
        )
        async with ticking() as ticks:
            await memory.aflush()
        assert not await memory.facts.alist()
    # What is measured alone takes less than a tenth of this; other processes run beside the tests.
    assert ticks.longest < 1


async def test_a_reply_that_is_too_long_is_told_apart() -> None:
    text = json.dumps({"new_facts": [FACT]}) + "x" * MOST_CHARACTERS
    with pytest.raises(FactReplyError, match="more than 400,000 characters"):
        await ask_model(Answering(answer=answered(text)), [ChatMessage("?")])
    thoughts = (
        f"<think>{'Hm. ' * MOST_CHARACTERS}</think>{json.dumps({'new_facts': [FACT]})}"
    )
    reply = await ask_model(Answering(answer=answered(thoughts)), [ChatMessage("?")])
    assert [fact.content for fact in reply] == ["Likes green tea"]


async def test_arguments_too_deep_for_json_cannot_be_read() -> None:
    deep: dict[str, Any] = {}
    for _ in range(100_000):
        deep = {"a": deep}
    with pytest.raises(FactReplyError):
        await ask_model(Answering(answer=called(deep)), [ChatMessage("?")])


def test_a_value_is_counted_with_all_that_is_in_it() -> None:
    assert is_longer([["ab"], {"c": "d"}], 7)
    assert not is_longer([["ab"], {"c": "d"}], 8)


@pytest.mark.parametrize(
    "quote",
    ["I like green tea " * 120, "I like green tea, " + "as my mother does " * 8],
)
def test_a_quote_that_is_longer_than_the_messages_is_not_found(quote: str) -> None:
    assert Source(SAID, (), "", ()).find(quote) is None


def test_a_quote_in_the_third_person_may_be_longer_than_its_message() -> None:
    assert Source(SAID, (), "", ()).find("They like green tea.")
