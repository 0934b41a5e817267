"""What LlamaIndex does and this package relies on; a new version that changes it fails here."""

from __future__ import annotations

from typing import Any

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import TextBlock
from llama_index.core.llms import ChatMessage
from llama_index.core.memory import BaseMemoryBlock, InsertMethod, Memory
from llama_index.core.storage.chat_store.base_db import MessageStatus
from llama_index.llms.openai.utils import to_openai_message_dict

from tests.conversation import assistant, user
from tests.memories import OpenPlainMemory
from tests.openai_server import Message, call, say
from tests.scripted_models import StartModel


class Listener(BaseMemoryBlock[str]):
    """Writes down how the host calls it."""

    name: str = "listener"
    gets: list[Any]
    puts: list[Any]
    truncations: list[Any]
    shown: str = ""

    async def _aget(self, messages: list[ChatMessage] | None = None, **block_kwargs: Any) -> str:
        self.gets.append(([message.content for message in messages or []], block_kwargs))
        return self.shown

    async def aput(
        self, messages: list[ChatMessage], from_short_term_memory: bool = False, session_id: str | None = None
    ) -> None:
        self.puts.append(([message.content for message in messages], from_short_term_memory, session_id))

    async def _aput(self, messages: list[ChatMessage]) -> None:
        raise AssertionError

    async def atruncate(self, content: str, tokens_to_truncate: int) -> str | None:
        self.truncations.append((self.name, content))
        return None


def listener(name: str = "listener", **options: Any) -> Listener:
    return Listener(name=name, gets=[], puts=[], truncations=[], **options)


async def test_blocks_are_asked_with_the_session_and_the_short_term_messages(
    open_plain_memory: OpenPlainMemory,
) -> None:
    """A question that comes as text is put behind them, so that it stands there twice."""
    block = listener()
    memory = open_plain_memory(block)
    await memory.aput(user("Q"))
    await memory.aget()
    await memory.aget(input="Q")
    await memory.aget(input=user("Q"))
    assert block.gets == [
        (["Q"], {"session_id": "chat"}),
        (["Q", "Q"], {"session_id": "chat"}),
        (["Q"], {"session_id": "chat"}),
    ]


async def test_an_agent_asks_before_each_call_and_once_after_the_answer(
    open_plain_memory: OpenPlainMemory, start_model: StartModel
) -> None:
    """And writes calls and results only when the turn is over."""

    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    def model(messages: list[Message], tools: list[str]) -> Message:
        rounds = sum(message["role"] == "tool" for message in messages)
        return say("A") if rounds == 2 else call((f"call_{rounds}", "add", {"a": 1, "b": rounds}))

    llm, _ = start_model(model)
    block = listener()
    memory = open_plain_memory(block)
    await FunctionAgent(llm=llm, tools=[add], streaming=False).run("Q", memory=memory)
    assert [messages for messages, _ in block.gets] == [["Q"], ["Q", "Q"], ["Q", "Q"], ["Q", None, "1", None, "2", "A"]]


async def test_a_turn_is_flushed_when_the_next_question_comes(open_plain_memory: OpenPlainMemory) -> None:
    """It stays in the table, archived, and nothing in the host reads it again."""
    block = listener()
    memory = open_plain_memory(block)
    await memory.aput(user("The first question."))
    await memory.aput(assistant("The first answer."))
    assert block.puts == []
    await memory.aput(user("The second question."))
    assert block.puts == [(["The first question.", "The first answer."], True, "chat")]
    assert len(await memory.aget_all(MessageStatus.ARCHIVED)) == 2
    await memory.aset([user("new")])
    assert len(await memory.aget_all()) == 1


async def test_the_most_important_block_is_truncated_first(open_plain_memory: OpenPlainMemory) -> None:
    """And a block that returned nothing is asked with a list."""
    first, second = listener("first", priority=1, shown="word " * 50), listener("second", priority=2)
    memory = open_plain_memory(first, second, token_limit=20)
    await memory.aput(user("word " * 30))
    await memory.aget()
    assert first.truncations == [("first", "word " * 50)]
    assert second.truncations == [("second", [])]


def test_text_blocks_are_joined_without_a_separator() -> None:
    message = ChatMessage(role="user", blocks=[TextBlock(text="</memory>"), TextBlock(text="What is 2+2?")])
    assert to_openai_message_dict(message)["content"] == "</memory>What is 2+2?"


def test_memory_has_the_doors_that_the_preset_overrides() -> None:
    """Private ones too: without them the preset would be silently passed by."""
    doors = ["_format_memory_blocks", "_insert_memory_content", "aget", "aput", "aset"]
    assert all(callable(getattr(Memory, door)) for door in doors)
    assert InsertMethod("user") is InsertMethod.USER
