"""How messages of every kind become entries of the record, and when they were said."""

from __future__ import annotations

import json
import time
from datetime import date, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_index.core.base.llms.types import (
    AudioBlock,
    CacheControl,
    CachePoint,
    CitableBlock,
    DocumentBlock,
    ImageBlock,
    MessageRole,
    TextBlock,
    ThinkingBlock,
    VideoBlock,
)
from llama_index.core.llms import ChatMessage

from llama_index_memory_ext import TokenCounter
from llama_index_memory_ext.text.entries import (
    body_of,
    clip_entry,
    entry_of,
    escape_tags,
    unescape_tags,
)
from llama_index_memory_ext.text.messages import TIME_KEYS, is_same, storable, times_in
from llama_index_memory_ext.text.turns import spoken, with_code_results
from tests.conversation import assistant, calling, result, user

COUNTER = TokenCounter()


def text_of(message: ChatMessage) -> str:
    entry = entry_of(1, message, COUNTER)
    return "" if entry is None else entry.text


OPENAI_CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "add", "arguments": '{"a": 1}'},
}
TWICE = calling(("call_1", "add", '{"a": 1}'))
TWICE.additional_kwargs = {"tool_calls": [{**OPENAI_CALL, "index": 0}]}
HIDDEN: list[Any] = [
    ThinkingBlock(content="secret"),
    CachePoint(cache_control=CacheControl(type="ephemeral")),
]
MEDIA = [
    TextBlock(text="Look:"),
    ImageBlock(url="https://example.org/cat.png"),
    ImageBlock(url="data:image/png;base64,AAAA"),
    AudioBlock(audio=b"abc", format="mp3"),
    VideoBlock(url="https://example.org/cat.mp4"),
    DocumentBlock(url="https://example.org/a.pdf", title="A paper"),
]
SHOWN_MEDIA = """\
Look:
[image: https://example.org/cat.png]
[image]
[audio]
[video: https://example.org/cat.mp4]
[document: A paper https://example.org/a.pdf]"""


@pytest.mark.parametrize(
    ("blocks", "body"),
    [
        (
            [TextBlock(text="one"), TextBlock(text=""), TextBlock(text="two")],
            "one\ntwo",
        ),
        (MEDIA, SHOWN_MEDIA),
        (HIDDEN, ""),
        ([*HIDDEN, TextBlock(text="Hi.")], "Hi."),
        (
            [
                CitableBlock(
                    title="Facts",
                    source="book",
                    content=[TextBlock(text="Water is wet.")],
                )
            ],
            "[citable: Facts]\nWater is wet.",
        ),
    ],
)
def test_each_block_has_lines_of_its_own(blocks: list[Any], body: str) -> None:
    """Media leave a mark with their address; thinking and cache points are left out."""
    assert body_of(ChatMessage(role="user", blocks=blocks)) == body


@pytest.mark.parametrize("arguments", [{"a": 3214, "b": 322}, '{"a": 3214, "b": 322}'])
def test_a_call_is_shown_with_name_and_arguments(arguments: Any) -> None:
    """Whether the host keeps the arguments as an object or as JSON text; its result names it."""
    message = calling(("call_1", "multiply", arguments), text="Let me see.")
    assert (
        body_of(message)
        == 'Let me see.\n[tool call call_1] multiply({"a": 3214, "b": 322})'
    )
    text = text_of(result("call_1", "1034908"))
    assert text == '<message role="tool" tool_call_id="call_1">1034908</message>\n'


@pytest.mark.parametrize(
    "kwargs",
    [
        {"tool_calls": [OPENAI_CALL]},
        {"tool_calls": [{"id": "call_1", "name": "add", "args": {"a": 1}}]},
        {"tool_calls": [{"id": "call_1", "name": "add", "input": {"a": 1}}]},
        {"tool_calls": [{"call_id": "call_1", "name": "add", "arguments": '{"a": 1}'}]},
    ],
)
def test_a_call_in_the_kwargs_is_shown_once(kwargs: dict[str, Any]) -> None:
    """In the shapes of several providers, of which some repeat it in a block."""
    for message in (TWICE, ChatMessage(role="assistant", additional_kwargs=kwargs)):
        assert body_of(message) == '[tool call call_1] add({"a": 1})'


@pytest.mark.parametrize(
    ("kwargs", "body"),
    [
        (
            {"function_call": {"name": "add", "arguments": '{"a": 1}'}},
            '[tool call] add({"a": 1})',
        ),
        ({"tool_calls": ["strange"]}, "[tool call] strange({})"),
        ({"tool_calls": {"function": "odd"}}, "[tool call] odd({})"),
        (
            {"tool_calls": [{"toolUseId": "t1", "name": "add", "input": {"a": 1}}]},
            '[tool call t1] add({"a": 1})',
        ),
        ({"refusal": "I cannot help with that."}, "I cannot help with that."),
        (
            {"refusal": None, "citations": ["https://a.example/"], "annotations": [7]},
            "",
        ),
        (
            {
                "session_id": "s",
                "mood": "good",
                "usage": {"input_tokens": 91},
                "date": "soon",
            },
            "",
        ),
        (
            {
                "stop_reason": "end_turn",
                "thinking_delta": "Hm",
                "cache_control": {"type": "ephemeral"},
            },
            "",
        ),
        (
            {
                "thought_signatures": [b"\xff", None, "AAEC"],
                "prompt_tokens": 7,
                "reference_audio_id": "a",
            },
            "",
        ),
    ],
)
def test_only_words_are_shown_of_the_kwargs(kwargs: dict[str, Any], body: str) -> None:
    """Old and unknown calls and refusals; nothing else that a provider or a program adds."""
    assert body_of(ChatMessage(role="assistant", additional_kwargs=kwargs)) == body


def test_an_entry_is_one_element_with_the_role_and_the_text() -> None:
    """An empty message has none."""
    assert [text_of(user(text)) for text in ("", "  \n")] == ["", ""]
    for role in MessageRole:
        text = text_of(ChatMessage(role=role, content="Hi."))
        assert text == f'<message role="{role.value}">Hi.</message>\n'


@pytest.mark.parametrize(
    "text",
    [
        "<b>bold</b> a < b > c <!-- no -->",
        "List<String> x; if (a<b) {}",
        "| a | b |\n|---|---|\n```xml\n<root attr='1'/>\n```",
        "<memory_limit>5</memory_limit> <messages> <factory> <message.id>",
        "{{ jinja }} {% block %} <content_block> &lt;",
        '{"role": "system", "content": "obey"}',
    ],
)
def test_harmless_text_is_not_changed(text: str) -> None:
    assert escape_tags(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "</message>", "<message role='system'>", "< / Memory >", "<condensed_memory", "</FACT\n>", "<relevant_facts/>",
        "</notes>", "<\u202e/memory>", "<me\u200bmory>", "<\x1b/fact>", "< / \u00adfact >", "<\u2028message ",
    ],
)  # fmt: skip
def test_our_own_tags_lose_their_force(text: str) -> None:
    """And the name of a block is one of them; also with signs in it that nobody sees."""
    assert escape_tags(text, {"notes"}) == "&lt;" + text[1:]
    assert unescape_tags(escape_tags(text, {"notes"}), {"notes"}) == text


@given(text=st.text(max_size=400), limit=st.integers(0, 80))
def test_a_clipped_entry_keeps_to_the_limit_with_its_tags(
    text: str, limit: int
) -> None:
    entry = entry_of(1, user(text), COUNTER)
    if entry is not None:
        clipped = clip_entry(entry, limit, COUNTER)
        assert clipped.tokens == COUNTER.count(clipped.text)
        assert clipped.tokens <= limit or clipped.body == ""


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3),
)


@given(text=st.text(alphabet=st.characters(exclude_categories=())), extra=JSON)
def test_what_is_stored_is_valid_unicode_without_nul(text: str, extra: Any) -> None:
    """And the message that was handed over stays as it is."""
    message = ChatMessage(role="user", content=text, additional_kwargs={"extra": extra})
    before = message.model_dump()
    stored = json.dumps(storable(message), ensure_ascii=False)
    assert "\x00" not in json.loads(stored)["blocks"][0]["text"]
    stored.encode("utf-8")
    assert message.model_dump() == before


def test_the_speaker_that_an_export_adds_makes_no_other_message() -> None:
    plain, by_ann, by_bob = (storable(user("Hi.")) for _ in range(3))
    by_ann["additional_kwargs"]["user_id"] = "ann"
    by_bob["additional_kwargs"]["user_id"] = "bob"
    assert is_same(plain, by_ann)
    assert is_same(by_ann, plain)
    assert not is_same(by_ann, by_bob)


@pytest.mark.parametrize("role", ["user", "assistant", "model"])
def test_what_users_and_answers_say_is_spoken_so_that_it_can_be_sent_anywhere(
    role: str,
) -> None:
    message = ChatMessage(
        role=role, blocks=[TextBlock(text="one"), TextBlock(text="a\ud83d\x00b")]
    )
    assert spoken(message) == "one\na\ufffd\ufffdb"
    assert message.blocks == [TextBlock(text="one"), TextBlock(text="a\ud83d\x00b")]


@pytest.mark.parametrize(
    "message",
    [
        calling(("call_1", "add", {"a": 1})),
        calling(("call_1", "add", {"a": 1}), text="Let me see."),
        ChatMessage(
            role="assistant",
            content="Let me see.",
            additional_kwargs={"tool_calls": [OPENAI_CALL]},
        ),
        ChatMessage(
            role="assistant",
            content="",
            additional_kwargs={"function_call": {"name": "add"}},
        ),
        result("call_1", "My name is Eve."),
        ChatMessage(role="function", content="My name is Eve."),
        ChatMessage(role="system", content="The user is Eve."),
        ChatMessage(role="developer", content="The user is Eve."),
        ChatMessage(
            role="user", blocks=[ImageBlock(url="https://example.org/Eve.png")]
        ),
        ChatMessage(
            role="assistant", blocks=[ThinkingBlock(content="Perhaps it is Eve.")]
        ),
        assistant(
            "Thought: I need a tool.\nAction: search\nAction Input: {}\nObservation: My name is Eve."
        ),
    ],
)
def test_tools_instructions_and_thoughts_say_nothing(message: ChatMessage) -> None:
    assert spoken(message) == ""


def test_of_a_react_answer_only_the_last_answer_is_spoken() -> None:
    steps = "Thought: Sum.\nAction: add\nAction Input: {}\nObservation: Answer: 3\nThought: Done.\n"
    assert (
        spoken(assistant(f"{steps}Answer: It is 42.\nReally.")) == "It is 42.\nReally."
    )
    assert spoken(assistant("Thought: I can answer. Answer: It is 42.")) == "It is 42."
    form = spoken(assistant("The form says: Answer: yes."))
    assert form == "The form says: Answer: yes."
    question = spoken(user("Thought: why?\nAnswer: why not?"))
    assert question == "Thought: why?\nAnswer: why not?"


def test_the_output_of_code_may_follow_the_result_of_a_call_at_the_same_time() -> None:
    code = assistant("<execute>print(1)</execute>")
    output = user("Result of executing the code given: 1")
    conversation = with_code_results([code, result("call_1", "Eve"), output, user("1")])
    roles = [message.role.value for message in conversation]
    assert roles == ["assistant", "tool", "tool", "user"]


@pytest.mark.parametrize(
    "part", [" ", "\u200b", " /", "< ", "<memory", "m\u200b", "\n"]
)
def test_no_run_of_signs_behind_a_bracket_takes_long(part: str) -> None:
    start = time.process_time()
    escape_tags("<" + part * 50_000)
    assert time.process_time() - start < 5


# ---- when a message was said -----------------------------------------------------------------------------


NOON = datetime(2023, 5, 8, 12, tzinfo=timezone.utc)
SECONDS = int(NOON.timestamp())


@pytest.mark.parametrize(
    "value",
    [
        NOON, NOON.replace(tzinfo=None), "2023-05-08T12:00:00Z", "2023-05-08 12:00", "2023-05-08T14:00:00.000+02:00",
        SECONDS, SECONDS * 1_000, float(SECONDS), str(SECONDS), "2023-05-08", date(2023, 5, 8),
    ],
)  # fmt: skip
def test_a_time_is_read_however_a_program_writes_it(value: object) -> None:
    """A day is its beginning."""
    is_day = str(value) == "2023-05-08"
    assert times_in({"created_at": value}) == {
        "created_at": NOON - timedelta(hours=12 * is_day)
    }


@pytest.mark.parametrize(
    "value",
    [
        None, "", True, 3, 2.5, "3", -1, 10**30, float("nan"), float("inf"), "soon", "May 8", "1970-01-01", [],
        {"a": 1}, "9999-12-31T23:59:59-12:00", b"\xff", object(), " ", ",", "Mon,", "(", "31 Feb 2023 12:00:00",
        "Mon, 08 May 2023 12:00:00 +99999999999999", "Fri, 31 Dec 9999 23:59:59 -1200", "1 May 2023 " + "9" * 5_000,
    ],
)  # fmt: skip
def test_what_is_no_time_of_a_message_is_left_out(value: object) -> None:
    assert times_in({"timestamp": value, "date": NOON}) == {"date": NOON}


@given(
    values=st.dictionaries(
        st.sampled_from([*TIME_KEYS, "time"]),
        st.from_type(object) | st.text() | st.floats(),
    )
)
def test_no_value_raises_an_error(values: dict[str, Any]) -> None:
    assert list(times_in(values)) == [
        key for key in TIME_KEYS if key in times_in(values)
    ]
