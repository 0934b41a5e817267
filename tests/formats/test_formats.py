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

from llama_index_memory_ext import (
    MessageError,
    messages_from_json,
    messages_to_json,
)
from tests.conversation import assistant, calling, result, user

ROOT = Path(__file__).parents[2]
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGNkYPjPUA8AA4YBgBaNX2oAAAAASUVORK5CYII="
PDF = base64.b64encode(b"%PDF-1.4 short").decode()


def read(*messages: Any) -> list[ChatMessage]:
    return messages_from_json(json.dumps(messages))


def refusal(source: Any) -> str:
    with pytest.raises(MessageError) as error:
        messages_from_json(source)
    assert error.value.__suppress_context__ or error.value.__context__ is None
    return str(error.value)


def test_a_turn_with_calls_comes_in_as_llamaindex_writes_it() -> None:
    calls = [
        {
            "id": "c1",
            "type": "function",
            "function": {"name": "multiply", "arguments": '{"a": 2, "b": 3}'},
        },
        {"id": "c2", "type": "custom", "custom": {"name": "shell", "input": "bc"}},
    ]
    turn = read(
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is 2 * 3?", "name": "ann"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": calls,
            "audio": None,
            "function_call": None,
        },
        {"role": "tool", "tool_call_id": "c1", "content": "6"},
        {
            "role": "tool",
            "tool_call_id": "c2",
            "content": [{"type": "text", "text": "ok"}],
        },
        {"role": "assistant", "content": "6."},
    )
    assert turn == [
        ChatMessage(role="system", content="Be brief."),
        ChatMessage(
            role="user", content="What is 2 * 3?", additional_kwargs={"name": "ann"}
        ),
        calling(("c1", "multiply", '{"a": 2, "b": 3}'), ("c2", "shell", "bc")),
        result("c1", "6"),
        result("c2", "ok"),
        assistant("6."),
    ]


def test_the_older_function_calls_and_arguments_that_are_an_object_come_in_too() -> (
    None
):
    called, answered, other = read(
        {
            "role": "assistant",
            "content": None,
            "function_call": {"name": "now", "arguments": "{}"},
        },
        {"role": "function", "name": "now", "content": "noon"},
        {
            "role": "assistant",
            "tool_calls": [{"function": {"name": "f", "arguments": {"a": "ü"}}}],
        },
    )
    assert called.blocks == [ToolCallBlock(tool_name="now", tool_kwargs="{}")]
    assert (answered.role.value, answered.content, answered.additional_kwargs) == (
        "function",
        "noon",
        {"name": "now"},
    )
    assert other.blocks == [ToolCallBlock(tool_name="f", tool_kwargs='{"a": "ü"}')]


def test_pictures_sounds_and_files_come_in_as_blocks() -> None:
    parts = [
        {"type": "text", "text": "Look:"},
        {
            "type": "image_url",
            "image_url": {"url": f"data:image/png;base64,{PNG}", "detail": "low"},
        },
        {"type": "image_url", "image_url": {"url": "https://example.com/cat.png"}},
        {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
        {
            "type": "file",
            "file": {
                "filename": "a.pdf",
                "file_data": f"data:application/pdf;base64,{PDF}",
            },
        },
    ]
    (message,) = read({"role": "user", "content": parts})
    assert message.blocks == [
        TextBlock(text="Look:"),
        ImageBlock(image=PNG.encode(), image_mimetype="image/png", detail="low"),
        ImageBlock(url="https://example.com/cat.png"),
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
        (
            {"content": None, "audio": {"id": "audio_1", "transcript": "Hello."}},
            "Hello.",
        ),
        ({"content": "Hi.", "audio": {"id": "audio_1", "transcript": "Hi."}}, "Hi."),
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
    assert messages_from_json([{"role": "user", "content": "Hi."}, reply]) == [
        user("Hi."),
        assistant("Hello."),
    ]


def test_llamaindexes_formats_come_in_alone_and_among_others() -> None:
    call = calling(("c1", "f", {"a": 1}), text="Let me see.")
    mixed = [
        user("One").model_dump(mode="json"),
        {
            "role": "assistant",
            "content": "Two",
            "additional_kwargs": {"tool_calls": [{"id": "c0"}]},
        },
        {"role": "user", "content": [{"block_type": "text", "text": "Three"}]},
        {"role": "assistant", "content": "Four"},
        call,
    ]
    one, two, three, four, five = messages_from_json(mixed)
    assert (one, three, four, five) == (
        user("One"),
        user("Three"),
        assistant("Four"),
        call,
    )
    assert two == ChatMessage(
        role="assistant",
        content="Two",
        additional_kwargs={"tool_calls": [{"id": "c0"}]},
    )


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
    assert (
        messages_from_json(messages_to_json(messages, indent=indent))
        == messages
        == before
    )


def test_what_no_database_takes_is_replaced_on_both_ways() -> None:
    assert messages_from_json(
        '[{"role": "user", "content": "a\\ud83d \\u0000 \\ud83d\\ude00"}]'
    ) == [user("a� � 😀")]
    assert "a�" in messages_to_json([user("a\ud83d")]).encode().decode()


def test_what_cannot_go_out_is_refused() -> None:
    with pytest.raises(MessageError, match="another value"):
        messages_to_json(
            [ChatMessage(role="user", content="x", additional_kwargs={"a": object()})]
        )
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
        {"messages": [json.loads(HELLO)]},
    ],
)
def test_messages_come_in_whatever_json_stands_around_them(source: Any) -> None:
    assert (
        messages_from_json(source)
        == messages_from_json(iter([json.loads(HELLO)]))
        == [user("Hello!")]
    )


def test_each_line_may_hold_a_message_and_an_empty_list_is_none() -> None:
    lines = (
        f"{HELLO}\r\n\n" + '{"role": "assistant", "content": "A line\\u2028of two."}\n'
    )
    assert messages_from_json(lines) == [
        user("Hello!"),
        assistant("A line\u2028of two."),
    ]
    assert (
        messages_from_json("[]")
        == messages_from_json([])
        == messages_from_json('{"messages": []}')
        == []
    )
    assert messages_to_json([]) == "[]"


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("", "got 0 other characters"),
        ("history.json", "To read a file, pass its bytes"),
        (
            Path("history.json"),
            "got a Python PosixPath. To read a file, pass its bytes",
        ),
        (None, "got null"),
        ('"text"', "got a text"),
        ("{}", "got an empty object"),
        (
            {"role": "user"},
            "'content' or another of tool_calls, function_call, refusal, audio; got an",
        ),
        (
            '{"chat": []}',
            "in the layout of LlamaIndex or OpenAI; got an object with the keys 'chat'. docs/migrate.md",
        ),
        ('{"messages": "none"}', "got a text"),
        (
            f"[{HELLO}, 7]",
            r"messages[1]: Expected an object with a 'role' in the layout of LlamaIndex or OpenAI; got a number",
        ),
        (f"{HELLO}\n{HELLO[:-1]}", "expecting ',' delimiter at line 2, column 37"),
        (b"\xff\xfe\xfa", "byte 2 is not utf-16-le"),
        ("[" * 100_000, "cannot be read (RecursionError)"),
    ],
)
def test_what_is_no_json_of_messages_is_told_apart(source: Any, complaint: str) -> None:
    assert complaint in refusal(source)


def part(kind: str, value: Any) -> dict[str, Any]:
    return {"content": [{"type": kind, kind: value}]}


NAMELESS = "objects that name a function in 'tool_calls' and 'function_call'; got "


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"role": None}, "an object with a 'role' in the layout of"),
        ({"parts": []}, "docs/migrate.md has scripts"),
        (
            {"role": "human"},
            "one of system, developer, user, assistant, function, tool, chatbot, model; got 'human'",
        ),
        ({"role": "the secret word"}, "model; got a text"),
        ({"role": ["user"]}, "model; got a list"),
        (
            {"content": {"parts": ["the secret word"]}},
            "null or a list of parts in 'content'; got an object",
        ),
        (
            {"content": ["the secret word"]},
            "'content'[0] to have a text as 'type'; got a text",
        ),
        (
            {"content": [{"text": "the secret word"}]},
            "to have a text as 'type'; got an object with the keys 'text'",
        ),
        (
            part("text", None),
            "'content'[0] to have a text as 'text'; got an object with the keys 'type', 'text'",
        ),
        (part("image_url", {}), "'image_url' of 'content'[0] to have a text as 'url'"),
        (
            part("image_url", "the secret word"),
            "LlamaIndex's ImageBlock; got wrong values in url (url_parsing)",
        ),
        (part("image_url", "data:image/png;base64,secret!"), "got 7 other characters"),
        (
            part(
                "image_url", {"url": "https://a.b", "detail": {"a": "the secret word"}}
            ),
            "in detail (string_type)",
        ),
        (
            part("image_url", {"url": f"data:image/png;base64,{PNG}", "detail": {}}),
            "in detail (string_type)",
        ),
        (part("input_audio", {"data": "UklGRg=="}), "to have a text as 'format'"),
        (
            part("file", {"file_data": "the secret word"}),
            "Expected base64 in 'file_data'",
        ),
        ({"tool_calls": "the secret word"}, f"{NAMELESS}a text"),
        ({"tool_calls": ["the secret word"]}, f"{NAMELESS}a text"),
        ({"tool_calls": [{"id": "c1"}]}, f"{NAMELESS}an object with the keys 'id'"),
        ({"function_call": "the secret word"}, f"{NAMELESS}a text"),
        ({"tool_call_id": 7}, "to have a text as 'tool_call_id'; got a number"),
        (
            {"name": {"secret": 1}},
            "to have a text as 'name'; got an object with the keys 'secret'",
        ),
        ({"content": 1e400}, "got NaN, or a number that is too large"),
        (
            {"blocks": [{"block_type": "secret", "a": "the secret word"}]},
            "blocks.0 (union_tag_invalid)",
        ),
        (
            {"blocks": [{"block_type": "text", "text": ["the secret word"]}]},
            "blocks.0.text.text (string_type)",
        ),
        (
            {"additional_kwargs": {"images": [{"a": "the secret word"}]}},
            "its 'additional_kwargs' cannot be read",
        ),
        (
            {"additional_kwargs": {"a": json.loads("[" * 200 + "]" * 200)}},
            "at most 100 levels",
        ),
        (
            {"blocks": [], "tool_calls": [{"id": "c1"}]},
            "got 'tool_calls' of OpenAI's in an object",
        ),
    ],
)
def test_what_is_no_message_is_named_without_its_words(
    fields: dict[str, Any], complaint: str
) -> None:
    told = refusal(
        [json.loads(HELLO), {"role": "user", "content": "the secret word", **fields}]
    )
    assert told.startswith("messages[1]: ")
    assert complaint in told
    assert "the secret word" not in told


def test_a_bar_is_shown_only_on_request(capfd: pytest.CaptureFixture[str]) -> None:
    source = [json.loads(HELLO)] * 3
    messages_from_json(source)
    assert capfd.readouterr() == ("", "")
    messages_from_json(source, show_progress=True)
    assert "3/3" in capfd.readouterr().err
