"""What LlamaIndex's own tests expect of ``Memory`` holds for ``CondensedMemory``, too; and where it differs, and why.

Each expectation is tried on both classes, so that one that LlamaIndex changes fails here.

Where they differ:

- What is condensed stands in the message that asks, not in messages of their own: ``aget`` gives fewer messages, with
  the same texts. ``aget_all`` gives the messages as they were put.
- A limit cuts whole turns from the record, and nothing is cut by ``token_flush_size``.
- A block that fails does not end the turn where it is one of this package; a block of others does, as in ``Memory``.
- ``chat_store`` takes this package's ``MemoryStore`` only: another store knows no cursors of readers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from llama_index.core.base.llms.types import (
    ChatMessage,
    ContentBlock,
    MessageRole,
    TextBlock,
    ToolCallBlock,
    VideoBlock,
)
from llama_index.core.memory import (
    BaseMemoryBlock,
    InsertMethod,
    Memory,
    StaticMemoryBlock,
)

from llama_index_memory_ext import CondensedMemory, TokenCounter
from tests.conversation import assistant, user
from tests.memories import close_plain_memory

Open = Callable[..., Memory]
LOREM = "one two three four five six seven eight nine ten "


@pytest.fixture(params=[Memory, CondensedMemory], ids=["llama-index", "condensed"])
async def open_either(request: pytest.FixtureRequest) -> AsyncIterator[Open]:
    """Opens a memory of either class, and closes it at the end."""
    async with AsyncExitStack() as stack:

        def open_one(session_id: str = "chat", **options: Any) -> Memory:
            if request.param is CondensedMemory:
                options |= {"extract_facts": False}
                condensed = CondensedMemory.from_defaults(session_id, **options)
                stack.push_async_callback(condensed.sql_store.aclose)
                return condensed
            memory = Memory.from_defaults(session_id, **options)
            stack.push_async_callback(close_plain_memory, memory)
            return memory

        yield open_one


class Echo(BaseMemoryBlock[str]):
    """Says what it was asked with."""

    async def _aget(
        self, messages: list[ChatMessage] | None = None, **options: Any
    ) -> str:
        return f"{[message.content for message in messages or []]} {sorted(options)}"

    async def _aput(self, messages: list[ChatMessage]) -> None:
        """Keeps nothing."""


class Failing(Echo):
    """Cannot be read."""

    async def _aget(
        self, messages: list[ChatMessage] | None = None, **options: Any
    ) -> str:
        raise RuntimeError("read failed")


class Media(BaseMemoryBlock[list[ContentBlock]]):
    """Gives a text and a video."""

    async def _aget(
        self, messages: list[ChatMessage] | None = None, **options: Any
    ) -> list[ContentBlock]:
        return [
            TextBlock(text="Media context"),
            VideoBlock(url="https://example.com/video.mp4"),
        ]

    async def _aput(self, messages: list[ChatMessage]) -> None:
        """Keeps nothing."""


class Historical(BaseMemoryBlock[list[ChatMessage]]):
    """Gives messages."""

    async def _aget(
        self, messages: list[ChatMessage] | None = None, **options: Any
    ) -> list[ChatMessage]:
        return [user("Historical question"), assistant("Historical answer")]

    async def _aput(self, messages: list[ChatMessage]) -> None:
        """Keeps nothing."""


class Unshortened(Echo):
    """Is long, and gives back as much as it was asked to shorten."""

    async def _aget(
        self, messages: list[ChatMessage] | None = None, **options: Any
    ) -> str:
        return f"Disposable. {LOREM * 30}"

    async def atruncate(self, content: str, tokens_to_truncate: int) -> str:
        return content


class Reworded(Unshortened):
    """Is given back in other words that are as long."""

    async def atruncate(self, content: str, tokens_to_truncate: int) -> str:
        return content.swapcase()


def static(name: str, text: str, priority: int = 0) -> BaseMemoryBlock[Any]:
    return StaticMemoryBlock(
        name=name, static_content=[TextBlock(text=text)], priority=priority
    )


def text_of(messages: list[ChatMessage]) -> str:
    return "\n".join(
        block.text
        for message in messages
        for block in message.blocks
        if isinstance(block, TextBlock)
    )


def roles_of(messages: list[ChatMessage]) -> list[str]:
    return [message.role.value for message in messages]


async def test_what_is_put_comes_back(open_either: Open) -> None:
    memory = open_either()
    await memory.aput(user("New message"))
    assert [message.content for message in await memory.aget()] == ["New message"]


async def test_within_the_limit_every_message_is_shown(open_either: Open) -> None:
    memory = open_either(token_limit=1000, chat_history_token_ratio=0.9)
    await memory.aput_messages([user("Message 1"), assistant("Response 1")])
    assert [message.content for message in await memory.aget()] == [
        "Message 1",
        "Response 1",
    ]


async def test_over_the_limit_the_newest_message_is_shown_within_it(
    open_either: Open,
) -> None:
    memory = open_either(token_limit=1000, chat_history_token_ratio=0.9)
    await memory.aput_messages(
        [user("x " * 900), assistant("y " * 900), user("z " * 500)]
    )
    (shown,) = await memory.aget()
    assert "z " * 500 in text_of([shown])
    assert TokenCounter().count(text_of([shown])) <= 1000


@pytest.mark.parametrize(
    "messages",
    [
        [user("x " * 100), assistant("ok")],
        [user("a " * 50), assistant("b " * 50), user("c " * 50), assistant("d " * 50)],
        [
            user("a " * 40),
            assistant("b " * 20),
            ChatMessage(role="tool", content="c " * 20),
            assistant("d " * 20),
        ],
        [
            user("x " * 50),
            assistant("call"),
            ChatMessage(role="tool", content="result"),
        ],
    ],
    ids=["long question", "two turns", "tool", "tool at the end"],
)
async def test_what_is_shown_begins_with_the_user_and_a_tool_follows_an_assistant(
    open_either: Open, messages: list[ChatMessage]
) -> None:
    memory = open_either(token_limit=400, chat_history_token_ratio=0.2)
    await memory.aput_messages(messages)
    roles = roles_of(await memory.aget())
    assert roles[:1] == ["user"]
    assert all(
        roles[i - 1] in {"assistant", "tool"}
        for i, role in enumerate(roles)
        if role == "tool"
    )


async def test_calls_of_tools_leave_the_queue(open_either: Open) -> None:
    memory = open_either(
        token_limit=2000, chat_history_token_ratio=0.1, tokenizer_fn=str.split
    )
    for i in range(10):
        call = ToolCallBlock(
            tool_call_id=f"c{i}", tool_name="search", tool_kwargs={"query": LOREM * 4}
        )
        await memory.aput_messages(
            [user(LOREM * 3), ChatMessage(role="assistant", blocks=[call])]
        )
        await memory.aput_messages(
            [
                ChatMessage(
                    role="tool",
                    content=LOREM,
                    additional_kwargs={"tool_call_id": f"c{i}"},
                ),
                assistant("Done."),
            ]
        )
    shown = await memory.aget()
    assert len([message for message in shown if message.role == MessageRole.USER]) < 10


@pytest.mark.parametrize(
    ("insert_method", "role"),
    [(InsertMethod.USER, "user"), (InsertMethod.SYSTEM, "system"), ("user", "user")],
)
async def test_blocks_stand_where_insert_method_says(
    open_either: Open, insert_method: Any, role: str
) -> None:
    memory = open_either(
        insert_method=insert_method, memory_blocks=[static("static", "Be brief.")]
    )
    await memory.aput(user("Test message!"))
    shown = await memory.aget()
    assert "Be brief." in text_of(
        [message for message in shown if message.role == role]
    )
    assert text_of([message for message in shown if message.role == "user"]).endswith(
        "Test message!"
    )


async def test_blocks_of_each_kind_are_shown_without_a_message(
    open_either: Open,
) -> None:
    blocks = [
        Media(name="media", priority=1),
        Historical(name="historical", priority=2),
    ]
    shown = await open_either(memory_blocks=blocks).aget()
    assert "Media context" in text_of(shown)
    assert "Historical question" in text_of(shown)
    assert [
        block
        for message in shown
        for block in message.blocks
        if isinstance(block, VideoBlock)
    ]


async def test_a_block_sees_the_messages_the_question_and_what_aget_was_given(
    open_either: Open,
) -> None:
    memory = open_either(memory_blocks=[Echo(name="echo")])
    await memory.aput(user("Prev"))
    assert "['Prev', 'New'] ['context', 'session_id']" in text_of(
        await memory.aget(input="New", context="value")
    )


async def test_a_block_that_fails_ends_the_turn(open_either: Open) -> None:
    memory = open_either(memory_blocks=[Failing(name="failing")])
    with pytest.raises(RuntimeError, match="read failed"):
        await memory.aget()


async def test_blocks_over_the_limit_go_by_priority() -> None:
    """``Memory`` up to 0.14.25 leaves out the wrong one, or both."""
    blocks = [
        static("kept", f"Critical. {LOREM}", 1),
        static("gone", f"Disposable. {LOREM * 30}", 2),
    ]
    async with CondensedMemory.from_defaults(
        token_limit=300, extract_facts=False, memory_blocks=blocks
    ) as memory:
        text = text_of(await memory.aget())
    assert ("Critical" in text, "Disposable" in text) == (True, False)


@pytest.mark.parametrize("kind", [Unshortened, Reworded])
async def test_a_block_that_does_not_become_shorter_is_left_out(
    open_either: Open, kind: type[Unshortened]
) -> None:
    memory = open_either(token_limit=300, memory_blocks=[kind(name="long", priority=1)])
    await memory.aput(user("Hello"))
    assert text_of(await memory.aget()).strip() == "Hello"


async def test_the_schema_of_the_database_stays(open_either: Open) -> None:
    memory = open_either(table_name="my_memory", db_schema="my_schema")
    await memory.aput(user("Before"))
    await memory.areset()
    store: Any = memory.sql_store
    assert (store.table_name, store.db_schema) == ("my_memory", "my_schema")
    assert await memory.aget_all() == []
