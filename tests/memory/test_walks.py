"""Three ways through the package are short, and no call comes back into the file that it came from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from llama_index.core.llms import ChatMessage, ChatResponse, MockLLM

from tests.conversation import assistant, user
from tests.memories import OpenMemory
from tests.memory.walks import walking

# Those of an extraction besides language, a library of plain functions on texts.
LONGEST_AGET, LONGEST_EXTRACTION, LONGEST_FORGETTING = 20, 25, 8


class Reporter(MockLLM):
    """Reports one fact."""

    async def achat(self, messages: Any, **options: Any) -> ChatResponse:
        fact = {"label": "n1", "content": "Likes tea", "confidence": 0.9, "quote": "I like tea"}
        return ChatResponse(message=ChatMessage(role="assistant", content=json.dumps({"new_facts": [fact]})))


async def test_reading_the_prompt_of_a_new_turn(open_memory: OpenMemory) -> None:
    async with open_memory(user_id="ann") as memory:
        await memory.facts.aadd("Likes tea in the morning")
        for i in range(2):
            await memory.aput(user(f"Do I like tea {i}?"))
            await memory.aget()
            await memory.aput(assistant("Yes."))
        await memory.aput(user("And in the morning?"))
        with walking() as walk:
            await memory.aget()
    assert len(walk.files) <= LONGEST_AGET, "\n".join(sorted(walk.files))
    assert not walk.returns, "\n".join(sorted(walk.returns))


async def test_extracting_facts(open_memory: OpenMemory) -> None:
    async with open_memory(llm=Reporter(max_tokens=None)) as memory:
        await memory.sql_store.log.append("chat", [user("I like tea."), assistant("Fine.")], len)
        block = memory.facts_block
        with walking() as walk:
            await block.aflush("chat")
        assert [fact.content for fact in await memory.facts.alist()] == ["Likes tea"]
    files = sorted(name for name in walk.files if Path(name).parts[0] != "language")
    assert len(files) <= LONGEST_EXTRACTION, "\n".join(files)
    assert not walk.returns, "\n".join(sorted(walk.returns))


async def test_forgetting_a_person(open_memory: OpenMemory) -> None:
    async with open_memory(llm=Reporter(max_tokens=None)) as memory:
        await memory.aput_messages([user("I like tea."), assistant("Fine.")])
        await memory.aflush()
        with walking() as walk:
            counts = await memory.aforget()
    assert counts["facts"] == 1
    assert len(walk.files) <= LONGEST_FORGETTING, "\n".join(sorted(walk.files))
    assert not walk.returns, "\n".join(sorted(walk.returns))
