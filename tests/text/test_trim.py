"""The newest messages that fit, and nothing that a model's API would refuse."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_index.core.base.llms.types import ImageBlock, TextBlock, ToolCallBlock
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai.utils import to_openai_message_dicts

from llama_index_memory_ext import MessageError, TokenCounter, trim
from llama_index_memory_ext.text.entries import message_tokens
from llama_index_memory_ext.text.messages import (
    RESULT_ROLES,
    calls_of,
    tool_call_groups,
)
from llama_index_memory_ext.text.tokens import as_counter
from tests.conversation import assistant, calling, result, user
from tests.openai_server import why_refused
from tests.record.test_limits import PIXEL, messages
from tests.text.trimming_cases import CASES, Case

COUNTER = TokenCounter()
ROLES = {"u": "user", "a": "assistant", "s": "system", "d": "developer", "t": "tool"}


# ---- a table of cases ----------------------------------------------------------------------------------


def read(line: str) -> ChatMessage:
    head, _, text = line.partition(":")
    role, *calls = head.split("+")
    blocks: list[Any] = [
        TextBlock(text=part) for part in text.removeprefix(" ").split(" / ") if part
    ]
    blocks += [
        ToolCallBlock(tool_call_id=call, tool_name="f", tool_kwargs={})
        for call in calls
    ]
    kwargs = {"tool_call_id": role[1:]} if role.startswith("t") else {}
    return ChatMessage(role=ROLES[role[0]], blocks=blocks, additional_kwargs=kwargs)


def write(message: ChatMessage) -> str:
    head = message.role.value[0] + message.additional_kwargs.get("tool_call_id", "")
    calls = "".join(f"+{call.id}" for call in calls_of(message))
    texts = [
        " ".join(block.text.split())
        for block in message.blocks
        if isinstance(block, TextBlock)
    ]
    return f"{head}{calls}: {' / '.join(texts)}".strip()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule)
def test_a_case_of_the_table_gives_what_it_says(case: Case) -> None:
    trimmed = trim(
        list(map(read, case.messages)), tokenizer_fn=str.split, **case.options
    )
    assert list(map(write, trimmed)) == case.gives


def listed_calls(call_ids: list[str]) -> list[dict[str, Any]]:
    """Calls as OpenAI's messages list them."""
    function = {"name": "f", "arguments": "{}"}
    return [{"id": i, "type": "function", "function": function} for i in call_ids]


# ---- what the table does not show ----------------------------------------------------------------------


def test_a_call_with_more_results_than_messages_are_left_stays_whole() -> None:
    """It may pass the number of messages, never the number of tokens."""
    chat = [
        user("one"),
        calling(("1", "f", {}), ("2", "f", {})),
        result("1", "a"),
        result("2", "b"),
    ]
    assert trim(chat, max_messages=2) == chat[1:]


def test_the_results_of_several_calls_share_the_room() -> None:
    """A short one stays whole; the calls stay as they are, and what is said beside them shares the room, too."""
    chat = [
        calling(("1", "f", {}), ("2", "f", {}), ("3", "f", {})),
        *(result(str(i), "w " * i * 40) for i in (1, 2, 3)),
    ]
    chat[1] = result("1", "short")
    trimmed = trim(chat, token_limit=100)
    assert trimmed[:2] == chat[:2]
    assert all("tokens left out" in str(message.content) for message in trimmed[2:])
    assert 90 <= sum(message_tokens(message, COUNTER) for message in trimmed) <= 100
    chat = [calling(("1", "f", {"x": 1}), text="w " * 200), result("1", "w " * 200)]
    assert [calls_of(message) for message in trim(chat, token_limit=80)] == [
        calls_of(message) for message in chat
    ]


def test_a_message_that_is_too_large_loses_its_media() -> None:
    picture = ImageBlock(image=PIXEL)
    message = ChatMessage(
        role="user", blocks=[picture, TextBlock(text="What is this?"), picture]
    )
    (trimmed,) = trim([message], token_limit=300)
    assert [block.block_type for block in trimmed.blocks] == ["text"]
    assert trim([message], token_limit=4_300) == [message]
    alone = [ChatMessage(role="user", blocks=[picture])]
    assert trim(alone, token_limit=100) == []
    assert [block.block_type for block in message.blocks] == ["image", "text", "image"]


def test_calls_of_every_kind_are_left_out_where_they_are_not_answered() -> None:
    """OpenAI's messages hold each call twice, and old ones hold one function call."""
    twice = calling(("1", "f", {}), ("2", "f", {}), text="look")
    twice.additional_kwargs.update(tool_calls=listed_calls(["1", "2"]))
    answers = [result("1", "a"), result("2", "b")]
    assert trim([twice]) == trim([twice, answers[0]]) == []
    assert trim([twice, *answers]) == [twice, *answers]

    old = ChatMessage(
        role="assistant",
        additional_kwargs={"function_call": {"name": "f", "arguments": "{}"}},
    )
    found = ChatMessage(
        role="function", content="found", additional_kwargs={"name": "f"}
    )
    assert trim([old, found]) == [old, found]
    assert trim([old]) == []


# ---- what holds for all messages -----------------------------------------------------------------------

ids = st.sampled_from(["1", "2", "3", "", None])
calls = st.builds(
    ToolCallBlock,
    tool_call_id=ids,
    tool_name=st.sampled_from("fg"),
    tool_kwargs=st.just({"x": "a b"}),
)
listed = st.fixed_dictionaries(
    {"id": ids, "function": st.just({"name": "f", "arguments": "{}"})}
)
callers = st.builds(
    ChatMessage,
    role=st.just("assistant"),
    blocks=st.lists(
        st.one_of(
            calls, st.builds(TextBlock, text=st.sampled_from(["", "ok", "word " * 40]))
        ),
        max_size=4,
    ),
    additional_kwargs=st.one_of(
        st.just({}),
        st.just({"function_call": {"name": "f", "arguments": "{}"}}),
        st.fixed_dictionaries({"tool_calls": st.lists(listed, max_size=3)}),
    ),
)
results = st.builds(
    ChatMessage,
    role=st.sampled_from(["tool", "tool", "function"]),
    content=st.sampled_from(["found", "", "word " * 40, "日本語 " * 20]),
    additional_kwargs=st.one_of(
        st.just({}), st.fixed_dictionaries({"tool_call_id": ids})
    ),
)
conversations = st.lists(st.one_of(messages, callers, results, results), max_size=8)
options_with_limits = st.fixed_dictionaries(
    {},
    optional={
        "token_limit": st.integers(1, 400),
        "max_messages": st.integers(2, 6),
        "include_system": st.booleans(),
        "tokenizer_fn": st.sampled_from(
            [None, str.split, lambda text: ["begin", *text]]
        ),
    },
)


def is_whole(trimmed: list[ChatMessage]) -> bool:
    """Whether each call has one result behind it, and each result a call."""
    for caller, *answers in tool_call_groups(trimmed):
        wanted = sorted(call.id for call in calls_of(caller))
        given = sorted(
            str(answer.additional_kwargs.get("tool_call_id") or "")
            for answer in answers
        )
        if caller.role in RESULT_ROLES or len(wanted) != len(given):
            return False
        if all(wanted) and all(given) and wanted != given:
            return False
    return True


def places(trimmed: list[ChatMessage], chat: list[ChatMessage]) -> list[int]:
    at = {id(message): i for i, message in enumerate(chat)}
    return [at[id(message)] for message in trimmed if id(message) in at]


@settings(max_examples=200)
@given(chat=conversations, options=options_with_limits)
def test_what_comes_back_is_within_the_limits_and_whole(
    chat: list[ChatMessage], options: dict[str, Any]
) -> None:
    """In order, with no call or result alone; a second time nothing changes; the caller's messages never do."""
    before = copy.deepcopy(chat)
    trimmed = trim(chat, **options)
    counter = as_counter(options.get("tokenizer_fn") or COUNTER)
    assert sum(message_tokens(message, counter) for message in trimmed) <= options.get(
        "token_limit", 1_000_000
    )
    assert is_whole(trimmed)
    assert places(trimmed, chat) == sorted(places(trimmed, chat))
    again = trim(trimmed, **options)
    assert [id(message) for message in again] == [id(message) for message in trimmed]
    assert chat == before


openai_calls = st.lists(
    st.sampled_from(["1", "2", "3"]), min_size=1, max_size=3, unique=True
)


def openai_caller(call_ids: list[str], text: str, kind: str) -> ChatMessage:
    """A message with its calls in blocks, in the older place, or in both."""
    message = calling(*((call_id, "f", {"x": 1}) for call_id in call_ids), text=text)
    if kind != "blocks":
        message.additional_kwargs["tool_calls"] = listed_calls(call_ids)
    if kind == "kwargs":
        message.blocks = [
            block for block in message.blocks if isinstance(block, TextBlock)
        ]
    return message


spoken_texts = st.sampled_from(["", "yes", "word " * 30, "日本語 " * 30])
openai_messages = st.one_of(
    st.builds(user, spoken_texts),
    st.builds(assistant, spoken_texts),
    st.builds(
        openai_caller,
        openai_calls,
        spoken_texts,
        st.sampled_from(["blocks", "kwargs", "both"]),
    ),
    st.builds(result, st.sampled_from(["1", "2", "3"]), spoken_texts),
    st.builds(result, st.sampled_from(["1", "2", "3"]), spoken_texts),
)


@settings(max_examples=150)
@given(
    chat=st.lists(openai_messages, max_size=10), limit=st.none() | st.integers(1, 150)
)
def test_openai_refuses_nothing_of_it(
    chat: list[ChatMessage], limit: int | None
) -> None:
    trimmed = trim(chat, token_limit=limit)
    if trimmed:
        assert why_refused(to_openai_message_dicts(trimmed)) is None


@pytest.mark.parametrize(
    "messages", [None, user("one"), "one", [user("one"), "two"], [{"role": "user"}], 3]
)
def test_what_is_no_list_of_messages_is_refused(messages: Any) -> None:
    with pytest.raises(
        MessageError, match=r"^Expected (a list of )?ChatMessage objects; got "
    ):
        trim(messages)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"token_limit": 0}, "token_limit must be a whole number of at least 1"),
        (
            {"token_limit": "10"},
            "token_limit must be a whole number of at least 1; got '10'",
        ),
        ({"token_limit": True}, "token_limit must be a whole number"),
        ({"max_messages": 2.5}, "max_messages must be a whole number"),
        (
            {"max_messages": 1, "include_system": True},
            "needs max_messages of at least 2",
        ),
        (
            {"tokenizer_fn": len},
            "tokenizer_fn must be a function from a text to the list of its tokens; got a function that returns",
        ),
        (
            {"tokenizer_fn": "gpt-4o"},
            "tokenizer_fn must be a function .* got a value of type str",
        ),
    ],
)
def test_arguments_of_other_kinds_are_refused_with_the_way_out(
    options: dict[str, Any], says: str
) -> None:
    with pytest.raises((ValueError, TypeError), match=says):
        trim([user("one")], **options)
