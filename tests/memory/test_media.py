"""Pictures, sounds and documents of the last turns are sent again, behind the record and within the limit."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import (
    AudioBlock,
    CachePoint,
    ChatMessage,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    TextBlock,
    VideoBlock,
)
from llama_index.core.storage.chat_store.base_db import MessageStatus

from llama_index_memory_ext import CondensedMemory, MemoryStore, TokenCounter
from tests.conversation import assistant, calling, record, sent_text, user
from tests.memories import OpenMemory
from tests.openai_complaints import why_pictures_refused
from tests.openai_server import say
from tests.record.test_limits import PIXEL
from tests.scripted_models import StartModel

COUNTER = TokenCounter()
# What LlamaIndex counts for a picture whose bytes it has.
PICTURE = 2_125
SENT_PIXEL = f"data:image/png;base64,{base64.b64encode(PIXEL).decode()}"
LAST, BEFORE_LAST = (
    "[image of the user's message, 1 turn ago]\n",
    "[image of the user's message, 2 turns ago]\n",
)


def showing(*blocks: ContentBlock, text: str = "Look!") -> ChatMessage:
    return ChatMessage(
        role="user",
        blocks=[TextBlock(text=text), *(blocks or [ImageBlock(image=PIXEL)])],
    )


def by_tool(picture: bytes = PIXEL, call_id: str = "c") -> ChatMessage:
    return ChatMessage(
        role="tool",
        blocks=[ImageBlock(image=picture)],
        additional_kwargs={"tool_call_id": call_id},
    )


def said(content: Any) -> str:
    """The texts of a message that was sent."""
    return (
        content
        if isinstance(content, str)
        else "".join(part.get("text", "") for part in content)
    )


def media(messages: Sequence[ChatMessage]) -> list[ContentBlock]:
    return [
        one
        for message in messages
        for one in message.blocks
        if not isinstance(one, TextBlock | CachePoint)
    ]


def labels(messages: Sequence[ChatMessage]) -> list[str]:
    return [
        one for one in texts(messages) if " of the " in one and one.endswith(" ago]\n")
    ]


def texts(messages: Sequence[ChatMessage]) -> list[str]:
    return [
        one.text
        for message in messages
        for one in message.blocks
        if isinstance(one, TextBlock)
    ]


async def told(
    memory: CondensedMemory, *turns: ChatMessage, answer: str = "I see."
) -> None:
    """Puts these turns, each with an answer, and a question."""
    for message in turns:
        await memory.aput_messages([message, assistant(answer)])
    await memory.aput(user("And?"))


async def test_a_picture_is_sent_for_two_more_turns_and_then_leaves_a_mark(
    open_memory: OpenMemory, start_model: StartModel
) -> None:
    """Also behind a restart; it stands in the one message, with a line that says whose it is."""
    llm, server = start_model(lambda messages, tools: say("A dot."))
    for question in (
        showing(text="What is it?"),
        "What colour has it?",
        "Is it round?",
        "Is it large?",
    ):
        async with open_memory() as memory:
            await FunctionAgent(llm=llm).run(question, memory=memory)
    assert server.refusals == []
    contents = [request[-1]["content"] for request in server.requests]
    assert [len(request) for request in server.requests] == [1, 1, 1, 1]
    assert [str(content).count("'image_url':") for content in contents] == [1, 1, 1, 0]
    assert [contents[i][-3]["text"] for i in (1, 2)] == [LAST, BEFORE_LAST]
    assert all(contents[i][-2]["image_url"]["url"] == SENT_PIXEL for i in (1, 2))
    assert contents[2][-1]["text"] == "Is it round?"
    assert all(
        record(said(content))[0] == ("user", "What is it?\n[image]")
        for content in contents[1:]
    )


async def test_a_number_of_turns_can_be_chosen(open_memory: OpenMemory) -> None:
    """None is as if there were no media; the current turn, whose media are in its message, is not counted."""
    await told(open_memory(), *[showing(text=f"Picture {i}") for i in range(4)])
    for turns in (0, 1, 2, 3, 9):
        shown = await open_memory(media_turns=turns).aget()
        assert len(media(shown)) == len(labels(shown)) == min(turns, 4)
        assert turns or "</memory>\n\nAnd?" in sent_text(shown)


async def test_media_of_every_kind_and_of_every_role_are_sent_in_their_order(
    open_memory: OpenMemory,
) -> None:
    """A tool's picture too, which most models are shown in a user's message only."""
    memory = open_memory()
    sound, film = (
        AudioBlock(audio=b"abc", format="mp3"),
        VideoBlock(video=b"abc", video_mimetype="video/mp4"),
    )
    paper = DocumentBlock(data=b"%PDF-1.7", title="A paper")
    asked = showing(ImageBlock(image=PIXEL), sound)
    await memory.aput_messages(
        [asked, calling(("c", "look", {})), by_tool(), assistant("I see.")]
    )
    await memory.aput_messages(
        [showing(paper, film), ChatMessage(role="assistant", blocks=[sound])]
    )
    await memory.aput(user("And?"))
    (shown,) = await memory.aget()
    assert [block.block_type for block in media([shown])] == [
        "image",
        "audio",
        "image",
        "document",
        "video",
        "audio",
    ]
    assert labels([shown]) == [
        BEFORE_LAST,
        "[audio of the user's message, 2 turns ago]\n",
        "[image of the tool's message, 2 turns ago]\n",
        "[document of the user's message, 1 turn ago]\n",
        "[video of the user's message, 1 turn ago]\n",
        "[audio of the assistant's message, 1 turn ago]\n",
    ]


async def test_media_that_no_model_has_answered_to_are_not_sent_again(
    open_memory: OpenMemory,
) -> None:
    """Where a model has refused them, the next question would be refused, too; nor are bytes that are no picture.

    What a model has called a tool for it has seen, though the turn was cut short.
    """
    memory, other = open_memory(), open_memory("other")
    await memory.aput_messages(
        [user("Look there!"), calling(("c", "look", {})), by_tool(b"no picture")]
    )
    await memory.aput_messages(
        [assistant("Nothing."), showing(), user("Are you there?")]
    )
    shown = await memory.aget()
    assert media(shown) == []
    assert record(sent_text(shown))[-1] == ("user", "Look!\n[image]")
    await memory.aput_messages([assistant("Yes."), user("And now?")])
    assert media(await memory.aget()) == []
    await other.aput_messages(
        [showing(), calling(("c", "look", {})), by_tool(), user("And?")]
    )
    assert labels(await other.aget()) == [LAST]


@pytest.mark.parametrize("ratio", [0.0001, 0.7])
async def test_a_model_that_reads_text_alone_refuses_one_turn_after_a_picture(
    open_memory: OpenMemory, start_model: StartModel, ratio: float
) -> None:
    """Nothing is sent again behind a turn without an answer, which may be the model's refusal."""
    seeing, _ = start_model(lambda messages, tools: say("A dot."))
    reading, server = start_model(lambda messages, tools: say("Hello."))
    server.complain = why_pictures_refused
    memory = open_memory(chat_history_token_ratio=ratio)
    await FunctionAgent(llm=seeing).run(showing(), memory=memory)
    await memory.aflush()
    with pytest.raises(openai.BadRequestError, match="image_url"):
        await FunctionAgent(llm=reading).run("Are you there?", memory=memory)
    for question in ("Are you there?", "And now?"):
        if ratio > 0.5:
            # The picture is in a message of its own until its turn is condensed.
            await memory.aflush()
        answer = await FunctionAgent(llm=reading).run(question, memory=memory)
        assert str(answer) == "Hello."
    assert len(server.refusals) == 1


async def test_bytes_are_sent_again_and_addresses_are_not(
    open_memory: OpenMemory,
) -> None:
    """Of every kind; an address that is the data itself counts as bytes."""
    address = "https://127.0.0.1:1/a"
    memory = open_memory(media_turns=9)
    for block in (
        ImageBlock(url=address),
        ImageBlock(url=address, image=PIXEL),
        AudioBlock(url=address, format="mp3"),
        VideoBlock(url=address),
        DocumentBlock(url=address, title="A paper"),
        ImageBlock(url=SENT_PIXEL),
    ):
        await memory.aput_messages([showing(block), assistant("I see.")])
    await memory.aput(user("And?"))
    (shown,) = media(await memory.aget())
    assert isinstance(shown, ImageBlock)
    assert str(shown.url) == SENT_PIXEL


async def test_a_file_that_is_gone_is_left_out(
    open_memory: OpenMemory, tmp_path: Path
) -> None:
    paper = tmp_path / "paper.pdf"
    paper.write_bytes(b"%PDF-1.7")
    memory = open_memory()
    await told(memory, showing(DocumentBlock(path=paper)))
    assert [one.block_type for one in media(await memory.aget())] == ["document"]
    paper.unlink()
    assert media(await memory.aget()) == []


async def test_turns_that_are_shown_as_messages_of_their_own_keep_theirs(
    open_memory: OpenMemory,
) -> None:
    """No picture is sent twice, and they are among the turns that are counted."""
    memory = open_memory(chat_history_token_ratio=0.7)
    await told(memory, *[showing(text=f"Picture {i}") for i in range(2)])
    assert (len(media(await memory.aget())), labels(await memory.aget())) == (2, [])
    await memory.aflush()
    await told(memory, showing(text="Picture 2"))
    shown = await memory.aget()
    # One of the two turns is among the messages, and "And?" was not answered.
    assert (len(media(shown)), labels(shown)) == (1, [])


@pytest.mark.parametrize("cache_points", [True, False])
async def test_media_change_nothing_of_what_stands_before_them(
    open_memory: OpenMemory, *, cache_points: bool
) -> None:
    """The record and its marks; what is sent besides is the media and their lines."""
    memory = open_memory(condensed_token_limit=2_000, cache_points=cache_points)
    await memory.facts.aadd("Likes tea")
    await told(
        memory,
        *(user(f"This is the question number {i}.") for i in range(12)),
        showing(),
    )
    (without,) = await open_memory(
        condensed_token_limit=2_000, cache_points=cache_points, media_turns=0
    ).aget()
    (shown,) = await memory.aget()
    place = next(
        i for i, block in enumerate(shown.blocks) if isinstance(block, ImageBlock)
    )
    before = len(without.blocks) - 2
    assert shown.blocks[:before] == without.blocks[:before]
    marks = [i for i, block in enumerate(shown.blocks) if isinstance(block, CachePoint)]
    # The first stands behind the profile.
    assert len(marks) == (3 if cache_points else 0)
    assert all(mark < before for mark in marks)
    assert sent_text([shown]).replace(LAST, "") == sent_text([without])
    assert sent_text(
        [ChatMessage(role="user", blocks=shown.blocks[: place - 1])]
    ).endswith("</memory>\n\n")


async def test_in_a_system_message_there_are_no_media(
    open_memory: OpenMemory, start_model: StartModel
) -> None:
    """LlamaIndex's OpenAI would leave them out there; so they stand in front of the question."""
    llm, server = start_model(lambda messages, tools: say("I see."))
    memory = open_memory(insert_method="system")
    for question in (showing(), "And?"):
        await FunctionAgent(llm=llm).run(question, memory=memory)
    # Chat engines get the record before a question to come.
    (shown, answer) = await memory.aget(input="And what else?")
    assert (shown.role.value, media([shown, answer])) == ("user", [])
    system, asked = server.requests[-1]
    assert record(said(system["content"]))[0] == ("user", "Look!\n[image]")
    assert [part["type"] for part in asked["content"]] == ["text", "image_url", "text"]
    assert said(asked["content"]) == f"{LAST}And?"


def tokens_of(messages: Sequence[ChatMessage]) -> int:
    """A picture as LlamaIndex estimates it; the text exactly."""
    pictures = [one for one in media(messages) if isinstance(one, ImageBlock)]
    return COUNTER.count(sent_text(messages)) + PICTURE * len(pictures)


async def test_the_oldest_media_are_left_out_where_there_is_no_room(
    open_memory: OpenMemory,
) -> None:
    """Before anything of the record is, and however small the room."""
    record_limits: dict[str, Any] = {
        "condensed_token_limit": 800,
        "facts_token_limit": 0,
    }
    memory = open_memory(**record_limits)
    await told(memory, *[showing(text="word " * 190) for _ in range(2)])
    whole = sent_text(await open_memory(media_turns=0, **record_limits).aget())
    for limit, kept in (
        (900, []),
        (2_000, []),
        (3_200, [LAST]),
        (4_500, [LAST]),
        (6_000, [BEFORE_LAST, LAST]),
    ):
        shown = await open_memory(token_limit=limit, **record_limits).aget()
        assert labels(shown) == kept
        assert tokens_of(shown) <= limit
        assert sent_text(shown).replace(LAST, "").replace(BEFORE_LAST, "") == whole


pictures = st.sampled_from(
    [ImageBlock(image=PIXEL), ImageBlock(url="https://127.0.0.1:1/cat.png")]
)
turns = st.lists(
    st.tuples(st.integers(1, 400), st.lists(pictures, max_size=3)),
    min_size=1,
    max_size=6,
)


@settings(max_examples=60)
@given(
    turns=turns,
    limit=st.integers(500, 9_000),
    share=st.floats(0.1, 1),
    media_turns=st.integers(0, 4),
    ratio=st.sampled_from([0.0001, 0.7]),
)
async def test_no_prompt_exceeds_the_limit_by_what_is_added_to_the_turn(
    turns: list[tuple[int, list[ImageBlock]]],
    limit: int,
    share: float,
    media_turns: int,
    ratio: float,
) -> None:
    memory = CondensedMemory.from_defaults(
        token_limit=limit,
        condensed_token_limit=int(limit * share),
        facts_token_limit=0,
        extract_facts=False,
        media_turns=media_turns,
        chat_history_token_ratio=ratio,
    )
    for length, shown in turns:
        question = (
            showing(*shown, text="word " * length) if shown else user("word " * length)
        )
        await memory.aput(question)
        assert tokens_of(await memory.aget()) <= max(limit, tokens_of([question]) + 20)
        await memory.aput(assistant("I see."))
    await memory.aclose()


async def test_media_go_with_their_messages(lasting_database_uri: str) -> None:
    """Also where another process deletes them."""
    store = MemoryStore(lasting_database_uri)
    options: dict[str, Any] = {"chat_store": store, "extract_facts": False}
    here, there = (CondensedMemory.from_defaults("chat", **options) for _ in range(2))
    await told(here, showing())
    assert len(media(await here.aget())) == len(media(await there.aget())) == 1
    await there.aset([user("Hello"), assistant("Hello!"), user("And?")])
    assert media(await here.aget()) == []
    await there.aset([showing(), assistant("I see."), user("And?")])
    assert len(media(await here.aget())) == 1
    await there.areset(MessageStatus.ARCHIVED)
    assert media(await here.aget()) == []
    await store.aclose()
