"""Conversations as JSON: what comes in, what goes out, and what is said of what cannot."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_index.core.base.llms.types import (
    AudioBlock,
    DocumentBlock,
    ImageBlock,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    VideoBlock,
)
from llama_index.core.llms import ChatMessage
from openai.types.chat import ChatCompletionMessage

from llama_index_memory_ext import MessageError, messages_from_json, messages_to_json
from tests.conversation import assistant, calling, result, user

ROOT = Path(__file__).parents[2]
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGNkYPjPUA8AA4YBgBaNX2oAAAAASUVORK5CYII="
PDF = base64.b64encode(b"%PDF-1.4 short").decode()


def read(*messages: Any) -> list[ChatMessage]:
    return messages_from_json(json.dumps(messages))


def text_part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def part(kind: str, value: Any) -> dict[str, Any]:
    """The content of a message with a single part."""
    return {"content": [{"type": kind, kind: value}]}


def refusal(source: Any) -> str:
    with pytest.raises(MessageError) as error:
        messages_from_json(source)
    assert error.value.__suppress_context__ or error.value.__context__ is None
    return str(error.value)


def test_a_turn_with_calls_comes_in_as_llamaindex_writes_it() -> None:
    multiply = {"name": "multiply", "arguments": '{"a": 2, "b": 3}'}
    calls = [
        {"id": "c1", "type": "function", "function": multiply},
        {"id": "c2", "type": "custom", "custom": {"name": "shell", "input": "bc"}},
    ]
    nothing = {"content": None, "audio": None, "function_call": None}
    turn = read(
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is 2 * 3?", "name": "ann"},
        {"role": "assistant", "tool_calls": calls, **nothing},
        {"role": "tool", "tool_call_id": "c1", "content": "6"},
        {"role": "tool", "tool_call_id": "c2", "content": [text_part("ok")]},
        {"role": "assistant", "content": "6."},
    )
    assert turn == [
        ChatMessage(role="system", content="Be brief."),
        ChatMessage("What is 2 * 3?", additional_kwargs={"name": "ann"}),
        calling(("c1", "multiply", '{"a": 2, "b": 3}'), ("c2", "shell", "bc")),
        result("c1", "6"),
        result("c2", "ok"),
        assistant("6."),
    ]


def test_the_older_function_calls_and_arguments_that_are_an_object_come_in_too() -> (
    None
):
    older = {"name": "now", "arguments": "{}"}
    calls = [{"function": {"name": "f", "arguments": {"a": "ü"}}}]
    called, answered, other = read(
        {"role": "assistant", "content": None, "function_call": older},
        {"role": "function", "name": "now", "content": "noon"},
        {"role": "assistant", "tool_calls": calls},
    )
    assert called.blocks == [ToolCallBlock(tool_name="now", tool_kwargs="{}")]
    about = {"name": "now"}
    assert answered == ChatMessage("noon", role="function", additional_kwargs=about)
    assert other.blocks == [ToolCallBlock(tool_name="f", tool_kwargs='{"a": "ü"}')]


def test_pictures_sounds_and_files_come_in_as_blocks() -> None:
    picture = {"url": f"data:image/png;base64,{PNG}", "detail": "low"}
    cat = "https://example.com/cat.png"
    pdf = {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{PDF}"}
    parts = [
        text_part("Look:"),
        {"type": "image_url", "image_url": picture},
        {"type": "image_url", "image_url": {"url": cat}},
        {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
        {"type": "file", "file": pdf},
    ]
    (message,) = read({"role": "user", "content": parts})
    assert message.blocks == [
        TextBlock(text="Look:"),
        ImageBlock(image=PNG.encode(), image_mimetype="image/png", detail="low"),
        ImageBlock(url=cat),
        AudioBlock(audio=b"UklGRg==", format="wav"),
        DocumentBlock(
            title="a.pdf", data=PDF.encode(), document_mimetype="application/pdf"
        ),
    ]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"content": None, "refusal": "I can't."}, "I can't."),
        ({"content": [{"type": "refusal", "refusal": "I won't."}]}, "I won't."),
        ({"content": None, "audio": {"transcript": "Hello."}}, "Hello."),
        ({"content": "Hi.", "audio": {"transcript": "Hi."}}, "Hi."),
        ({"content": ""}, ""),
        ({"content": None}, ""),
        ({"content": []}, ""),
    ],
)
def test_what_was_refused_or_said_aloud_is_text_and_so_is_nothing(
    fields: dict[str, Any], text: str
) -> None:
    assert read({"role": "assistant", **fields})[0].blocks == [TextBlock(text=text)]


def test_a_part_of_an_unknown_kind_is_named_and_quoted() -> None:
    """But for what nobody could read; and OpenAI's newer names of texts are known."""
    parts = [
        {"type": "file", "file": {"file_id": "file-abc"}},
        {"type": "tool_result", "content": "word " * 1_000},
        {"type": "video_url", "video_url": {"url": "data:" + "A" * 5_000, "fps": 2}},
        {"type": "input_text", "text": "Hello!"},
    ]
    (message,) = read({"role": "user", "content": parts})
    assert [block.text for block in message.blocks if isinstance(block, TextBlock)] == [
        '[file: {"file_id": "file-abc"}]',
        f'[tool_result: {{"content": "{"word " * 1_000}"}}]',
        '[video_url: {"url": "...", "fps": 2}]',
        "Hello!",
    ]


def test_what_a_client_of_openai_has_in_its_list_is_read_as_it_is() -> None:
    reply = ChatCompletionMessage(role="assistant", content="Hello.", annotations=[])
    messages = messages_from_json([{"role": "user", "content": "Hi."}, reply])
    assert messages == [user("Hi."), assistant("Hello.")]


def test_llamaindexes_formats_come_in_alone_and_among_others() -> None:
    call = calling(("c1", "f", {"a": 1}), text="Let me see.")
    kwargs = {"tool_calls": [{"id": "c0"}]}
    three = [{"block_type": "text", "text": "Three"}]
    mixed = [
        user("One").model_dump(mode="json"),
        {"role": "assistant", "content": "Two", "additional_kwargs": kwargs},
        {"role": "user", "content": three},
        {"role": "assistant", "content": "Four"},
        call,
    ]
    assert messages_from_json(mixed) == [
        user("One"),
        ChatMessage(role="assistant", content="Two", additional_kwargs=kwargs),
        user("Three"),
        assistant("Four"),
        call,
    ]


def test_blocks_count_where_there_is_a_content_beside_them() -> None:
    """The host would leave the picture out."""
    blocks = [
        {"block_type": "text", "text": "Look"},
        {"block_type": "image", "url": "https://example.com/a.png"},
    ]
    (message,) = read({"role": "user", "content": "Look", "blocks": blocks})
    assert [block.block_type for block in message.blocks] == ["text", "image"]


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=20)
JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda values: (
        st.lists(values, max_size=3) | st.dictionaries(TEXT, values, max_size=3)
    ),
    max_leaves=5,
)
KWARGS = st.dictionaries(
    TEXT.filter(lambda key: key != "images"), JSON_VALUES, max_size=3
)
BLOCKS = st.one_of(
    TEXT.map(lambda text: TextBlock(text=text)),
    st.builds(
        ToolCallBlock,
        tool_call_id=st.none() | TEXT,
        tool_name=TEXT,
        tool_kwargs=KWARGS | TEXT,
    ),
    st.binary(min_size=1, max_size=20).map(lambda image: ImageBlock(image=image)),
    st.binary(min_size=1, max_size=20).map(
        lambda sound: AudioBlock(audio=sound, format="wav")
    ),
    st.binary(min_size=1, max_size=20).map(lambda film: VideoBlock(video=film)),
    st.builds(
        lambda data, title: DocumentBlock(data=data, title=title),
        st.binary(min_size=1, max_size=20),
        TEXT,
    ),
    st.builds(
        ThinkingBlock,
        content=st.none() | TEXT,
        num_tokens=st.none() | st.integers(0, 99),
    ),
)
ROLES = st.sampled_from(
    ["system", "developer", "user", "assistant", "tool", "function", "chatbot", "model"]
)
MESSAGES = st.builds(
    lambda role, blocks, kwargs: ChatMessage(
        role=role, blocks=blocks, additional_kwargs=kwargs
    ),
    ROLES,
    st.lists(BLOCKS, max_size=4),
    KWARGS,
)


@given(st.lists(MESSAGES, max_size=4), st.sampled_from([None, 0, 2]))
def test_what_goes_out_in_llamaindexes_layout_comes_back_the_same(
    messages: list[ChatMessage], indent: int | None
) -> None:
    before = [message.model_copy(deep=True) for message in messages]
    written = messages_to_json(messages, indent=indent)
    assert messages_from_json(written) == messages == before


def test_what_no_database_takes_is_replaced_on_both_ways() -> None:
    source = '[{"role": "user", "content": "a\\ud83d \\u0000 \\ud83d\\ude00"}]'
    assert messages_from_json(source) == [user("a� � 😀")]
    assert "a�" in messages_to_json([user("a\ud83d")]).encode().decode()


def test_what_cannot_go_out_is_refused() -> None:
    message = ChatMessage("x", additional_kwargs={"a": object()})
    with pytest.raises(MessageError, match="another value"):
        messages_to_json([message])
    with pytest.raises(MessageError, match="got str"):
        messages_to_json("[]")  # type: ignore[arg-type]


HELLO = '{"role": "user", "content": "Hello!"}'


@pytest.mark.parametrize(
    "source",
    [
        f"[{HELLO}]",
        f"\ufeff[{HELLO}]",
        f"[{HELLO}]".encode(),
        f"[{HELLO}]".encode("utf-16"),
        f'{{"id": "x", "title": "A talk", "messages": [{HELLO}]}}',
        HELLO,
        f"\n{HELLO}\n\n",
        json.loads(HELLO),
        (json.loads(HELLO),),
        iter([json.loads(HELLO)]),
        {"messages": [json.loads(HELLO)]},
    ],
)
def test_messages_come_in_whatever_json_stands_around_them(source: Any) -> None:
    assert messages_from_json(source) == [user("Hello!")]


def test_each_line_may_hold_a_message() -> None:
    second = '{"role": "assistant", "content": "A line\\u2028of two."}'
    messages = messages_from_json(f"{HELLO}\r\n\n{second}\n")
    assert messages == [user("Hello!"), assistant("A line\u2028of two.")]


@pytest.mark.parametrize("source", ["[]", [], '{"messages": []}'])
def test_an_empty_list_has_no_messages(source: Any) -> None:
    assert messages_from_json(source) == []
    assert messages_to_json([]) == "[]"


LAYOUT = "an object with a 'role' in the layout of LlamaIndex or OpenAI; got "
CONTENT = "'content' or another of tool_calls, function_call, refusal, audio; got an"


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("", "got 0 other characters"),
        ("history.json", "To read a file, pass its bytes"),
        (Path("history.json"), "got a Python PosixPath. To read a file, pass its bytes"),
        (None, "got null"),
        ('"text"', "got a text"),
        ("{}", "got an empty object"),
        ({"role": "user"}, CONTENT),
        ('{"chat": []}', f"{LAYOUT}an object with the keys 'chat'. docs/migrate.md"),
        ('{"messages": "none"}', "got a text"),
        (f"[{HELLO}, 7]", f"messages[1]: Expected {LAYOUT}a number"),
        (f"{HELLO}\n{HELLO[:-1]}", "expecting ',' delimiter at line 2, column 37"),
        (b"\xff\xfe\xfa", "byte 2 is not utf-16-le"),
        ("[" * 100_000, "cannot be read (RecursionError)"),
    ],
)  # fmt: skip
def test_what_is_no_json_of_messages_is_told_apart(source: Any, complaint: str) -> None:
    assert complaint in refusal(source)


NAMELESS = "objects that name a function in 'tool_calls' and 'function_call'; got "


SECRET = "the secret word"  # noqa: S105 - of a message
PNG_ADDRESS = f"data:image/png;base64,{PNG}"


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"role": None}, "an object with a 'role' in the layout of"),
        ({"parts": []}, "docs/migrate.md has scripts"),
        ({"role": "human"}, "one of system, developer, user, assistant, function, tool, chatbot, model; got 'human'"),
        ({"role": SECRET}, "model; got a text"),
        ({"role": ["user"]}, "model; got a list"),
        ({"content": {"parts": [SECRET]}}, "null or a list of parts in 'content'; got an object"),
        ({"content": [SECRET]}, "'content'[0] to have a text as 'type'; got a text"),
        ({"content": [{"text": SECRET}]}, "to have a text as 'type'; got an object with the keys 'text'"),
        (part("text", None), "'content'[0] to have a text as 'text'; got an object with the keys 'type', 'text'"),
        (part("image_url", {}), "'image_url' of 'content'[0] to have a text as 'url'"),
        (part("image_url", SECRET), "LlamaIndex's ImageBlock; got wrong values in url (url_parsing)"),
        (part("image_url", "data:image/png;base64,secret!"), "got 7 other characters"),
        (part("image_url", {"url": "https://a.b", "detail": {"a": SECRET}}), "in detail (string_type)"),
        (part("image_url", {"url": PNG_ADDRESS, "detail": {}}), "in detail (string_type)"),
        (part("input_audio", {"data": "UklGRg=="}), "to have a text as 'format'"),
        (part("file", {"file_data": SECRET}), "Expected base64 in 'file_data'"),
        ({"tool_calls": SECRET}, f"{NAMELESS}a text"),
        ({"tool_calls": [SECRET]}, f"{NAMELESS}a text"),
        ({"tool_calls": [{"id": "c1"}]}, f"{NAMELESS}an object with the keys 'id'"),
        ({"function_call": SECRET}, f"{NAMELESS}a text"),
        ({"tool_call_id": 7}, "to have a text as 'tool_call_id'; got a number"),
        ({"name": {"secret": 1}}, "to have a text as 'name'; got an object with the keys 'secret'"),
        ({"content": 1e400}, "got NaN, or a number that is too large"),
        ({"blocks": [{"block_type": "secret", "a": SECRET}]}, "blocks.0 (union_tag_invalid)"),
        ({"blocks": [{"block_type": "text", "text": [SECRET]}]}, "blocks.0.text.text (string_type)"),
        ({"additional_kwargs": {"images": [{"a": SECRET}]}}, "its 'additional_kwargs' cannot be read"),
        ({"additional_kwargs": {"a": json.loads("[" * 200 + "]" * 200)}}, "at most 100 levels"),
        ({"blocks": [], "tool_calls": [{"id": "c1"}]}, "got 'tool_calls' of OpenAI's in an object"),
    ],
)  # fmt: skip
def test_what_is_no_message_is_named_without_its_words(
    fields: dict[str, Any], complaint: str
) -> None:
    message = {"role": "user", "content": SECRET, **fields}
    told = refusal([json.loads(HELLO), message])
    assert told.startswith("messages[1]: ")
    assert complaint in told
    assert SECRET not in told


def test_a_bar_is_shown_only_on_request(capfd: pytest.CaptureFixture[str]) -> None:
    source = [json.loads(HELLO)] * 3
    messages_from_json(source)
    assert capfd.readouterr() == ("", "")
    messages_from_json(source, show_progress=True)
    assert "3/3" in capfd.readouterr().err
