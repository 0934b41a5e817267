"""What ``CondensedMemory.from_defaults`` takes: all that the host's takes, and each setting of the blocks by name."""

from __future__ import annotations

import inspect
import pydoc
import traceback
from typing import Any, get_type_hints

import pytest
from llama_index.core.memory import (
    BaseMemoryBlock,
    InsertMethod,
    Memory,
    StaticMemoryBlock,
)
from llama_index.llms.openai import OpenAI
from sqlalchemy.ext.asyncio import create_async_engine

from llama_index_memory_ext import (
    CondensedMemory,
    CondensedMemoryBlock,
    CondensedOptions,
    FactsOptions,
    MemoryBlocksTemplate,
    MemoryExtError,
    MemoryOptions,
    MemoryStore,
    RelevantFactsBlock,
    SettingError,
)
from llama_index_memory_ext.search.tfidf import TfidfRanker
from tests.conversation import user

PARAMETERS = inspect.signature(CondensedMemory.from_defaults).parameters
KEY = "sk-secret-key"


def test_the_host_has_no_argument_that_is_not_taken_in_the_same_place() -> None:
    """One that a new version of the host brings along fails here."""
    theirs = list(inspect.signature(Memory.from_defaults).parameters.values())
    ours = list(PARAMETERS.values())[: len(theirs)]
    assert [(one.name, one.kind) for one in ours] == [
        (one.name, one.kind) for one in theirs
    ]


async def test_a_call_of_the_host_works_as_it_is() -> None:
    """With every argument, by name and in its place."""
    template = MemoryBlocksTemplate()
    arguments: list[Any] = [
        "chat",
        [user("Hello")],
        40_000,
        [],
        str.split,
        0.7,
        300,
        template,
        InsertMethod.SYSTEM,
    ]
    arguments += [100, 200, 300, None, "my_table", None, None, None]
    names = [*inspect.signature(Memory.from_defaults).parameters]
    # The next version of the host has one more.
    arguments += [1][: len(names) - len(arguments)]
    in_place = CondensedMemory.from_defaults(*arguments)
    by_name = CondensedMemory.from_defaults(**dict(zip(names, arguments, strict=True)))
    for memory in (in_place, by_name):
        assert memory.session_id == "chat"
        assert memory.token_limit == 40_000
        assert memory.chat_history_token_ratio == 0.7
        assert memory.insert_method == InsertMethod.SYSTEM
        assert memory.memory_blocks_template == template
        assert memory.image_token_size_estimate == 100
        assert memory.video_token_size_estimate == 300
        assert memory.sql_store.table_name == "my_table"
        assert memory.tokenizer_fn.count("one two") == 2
        assert [message.content for message in await memory.aget_all()] == ["Hello"]
        await memory.aclose()


async def test_the_last_argument_of_the_next_host_is_taken_in_its_place() -> None:
    """Also where the host does not have it yet."""
    place = list(PARAMETERS).index("memory_blocks_concurrency")
    assert place == list(PARAMETERS).index("db_schema") + 1
    assert PARAMETERS["memory_blocks_concurrency"].kind.name == "POSITIONAL_OR_KEYWORD"
    await CondensedMemory.from_defaults(memory_blocks_concurrency=1).aclose()
    memory = CondensedMemory.from_defaults(memory_blocks_concurrency=3)
    await memory.aput(user("Hello"))
    assert "Hello" in str(await memory.aget())
    await memory.aclose()


def test_each_setting_of_the_blocks_can_be_given_and_is_shown_with_its_default() -> (
    None
):
    """But for those that the memory has for both of them, which are settings of the memory."""
    fields = {**RelevantFactsBlock.model_fields, **CondensedMemoryBlock.model_fields}
    for name in ("name", "token_limit", "tokenizer_fn", "store", "llm", "embed_model"):
        del fields[name]
    for name in BaseMemoryBlock.model_fields:
        fields.pop(name, None)
    for name in CondensedMemory.model_fields.keys() - Memory.model_fields.keys():
        fields[name] = CondensedMemory.model_fields[name]
    defaults = {name: field.default for name, field in fields.items()}
    options = MemoryOptions.__annotations__
    assert {name: PARAMETERS[name].default for name in options} == defaults
    assert not any(one.kind == one.VAR_KEYWORD for one in PARAMETERS.values())


def test_a_program_can_read_the_types_of_the_settings() -> None:
    assert get_type_hints(MemoryOptions).keys() == MemoryOptions.__annotations__.keys()


def test_help_says_what_each_argument_is_and_in_which_range() -> None:
    shown = " ".join(
        pydoc.plain(pydoc.render_doc(CondensedMemory.from_defaults)).split()
    )
    assert [name for name in PARAMETERS if f" {name}: " not in shown] == []
    assert (
        "keep_ratio: Share of the limit that remains after a cut; 1: the record is cut in each turn. Above 0, at "
        "most 1." in shown
    )


def test_a_setting_reaches_its_block() -> None:
    record: CondensedOptions = {
        "keep_ratio": 0.7,
        "max_messages": 9,
        "include_system": True,
        "keep_tool_results": 3,
    }
    facts: FactsOptions = {
        "max_facts": 50,
        "min_confidence": 0.1,
        "context_turns": 5,
    }
    facts |= {
        "min_similarity": 0.5,
        "ranker_factory": TfidfRanker,
        "categories": ("diet",),
    }
    memory = CondensedMemory.from_defaults(**record, **facts, time_zone="Asia/Tokyo")
    assert {name: getattr(memory.condensed_block, name) for name in record} == record
    assert {name: getattr(memory.facts_block, name) for name in facts} == facts
    for block in (memory.condensed_block, memory.facts_block):
        assert str(block.time_zone) == "Asia/Tokyo"


# As of a request whose header was missing, or was read with its white space.
NO_IDS: list[Any] = ["", " ", "\t\n", "\u3000", " ann", "ann\n", 7, ["ann"]]
MISTAKES: list[dict[str, Any]] = [
    {"token_limit": "40k"}, {"token_limit": -5}, {"token_limit": True}, {"token_limit": 40_000.5},
    {"condensed_token_limit": "1"}, {"facts_token_limit": -1}, {"context_window": "8k"}, {"context_window": 0},
    {"keep_ratio": 2}, {"keep_ratio": "half"}, {"max_messages": 0},
    {"keep_messages": 3}, {"start_on": "user"}, {"allow_partial": True}, {"media_turns": -1},
    {"recall_token_limit": -1}, {"recall_token_limit": 10**6}, {"sticky_token_limit": -1},
    {"sticky_token_limit": "many"}, {"sticky_token_limit": 10**6}, {"profile_token_limit": -1},
    {"profile_token_limit": "many"}, {"profile_token_limit": 10**6}, {"summarize": "perhaps"}, {"shared": "yes"},
    {"max_facts": 0}, {"min_confidence": 2}, {"context_turns": 0}, {"ranker_factory": 3},
    {"categories": "diet"}, {"categories": []}, {"extraction_prompt": " "}, {"extract_every_turns": 0},
    {"insert_method": "nowhere"}, {"chat_history_token_ratio": 2}, {"chat_history_token_ratio": -0.1},
    {"image_token_size_estimate": -1}, {"audio_token_size_estimate": "x"}, {"memory_blocks_template": "{{ x }}"},
    {"tokenizer_fn": 5}, {"tokenizer_fn": len}, {"cache_points": "1h"},
    {"memory_blocks": 3}, {"memory_blocks": [3]}, {"memory_blocks": [CondensedMemoryBlock()]},
    {"memory_blocks": [StaticMemoryBlock(name="user_profile", static_content=[])]},
    {"llm": KEY}, {"embed_model": KEY}, {"chat_store": KEY}, {"async_engine": 3}, {"table_name": 3}, {"db_schema": 3},
    {"async_database_uri": 3}, {"chat_history": 3}, {"chat_history": ["Hello"]}, {"max_message": 3}, {"memory": 3},
    {"token_limit": 10}, {"context_window": 100}, {"condensed_token_limit": 20}, {"async_database_uri": ""},
    {"extract_facts": "no"}, {"summarize": "yes"}, {"allow_partial": 0},
    {"include_system": 1}, {"cache_points": "yes"}, {"languages": "xx"}, {"languages": ["xx"]}, {"shared": True},
    *({name: value} for name in ("session_id", "user_id", "agent_id") for value in NO_IDS),
]  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES, ids=str)
def test_a_mistake_is_refused_with_its_name_in_one_line(
    mistake: dict[str, Any],
) -> None:
    """By an error of this package, without the key."""
    llm = OpenAI(model="gpt-4o-mini", api_key=KEY)
    with pytest.raises(MemoryExtError) as refused:
        CondensedMemory.from_defaults(**{"llm": llm, **mistake})
    said, told = str(refused.value), "".join(traceback.format_exception(refused.value))
    assert isinstance(refused.value, ValueError | TypeError)
    assert next(iter(mistake)) in said or "list of ChatMessage objects" in said
    assert "\n" not in said
    assert KEY not in f"{refused.value!r} {vars(refused.value)} {told}"
    assert "." in said


@pytest.mark.parametrize(
    "name",
    sorted(
        set(PARAMETERS)
        - {"token_flush_size", "memory_blocks_concurrency", "session_id"}
    ),
)
def test_no_argument_takes_just_anything(name: str) -> None:
    anything: dict[str, Any] = {name: object()}
    with pytest.raises(MemoryExtError, match=f"{name}|list of ChatMessage objects"):
        CondensedMemory.from_defaults(**anything)


@pytest.mark.parametrize(
    ("kind", "mistake", "said"),
    [
        (
            CondensedMemoryBlock,
            {"keep_ratio": 2},
            r"keep_ratio must be .* 1; got 2\. It is: \"Share of .* for 0\.4\.",
        ),
        (
            CondensedMemoryBlock,
            {"token_limit": "8k"},
            r"token_limit must be a valid integer.*; got '8k'\.",
        ),
        (
            CondensedMemoryBlock,
            {"llm": KEY},
            r"llm must be an instance of LLM; got a str\.",
        ),
        (
            CondensedMemoryBlock,
            {"max_message": 3},
            r"'max_message'\. Did you mean 'max_messages'",
        ),
        (
            RelevantFactsBlock,
            {"min_confidence": 2},
            r"min_confidence must be .* 1; got 2\.",
        ),
        (RelevantFactsBlock, {"categories": {}}, "categories: expected 1 to 50 names"),
        (
            RelevantFactsBlock,
            {"review": "yes"},
            r"review must be a valid boolean; got 'yes'\..* for False\.",
        ),
        (
            RelevantFactsBlock,
            {"user_id": ""},
            r"user_id must be a str that is not empty, .*; got ''\.",
        ),
        (
            CondensedMemoryBlock,
            {"languages": ["xx"]},
            "^languages: expected one or more languages: .*; got 'xx'",
        ),
        (
            CondensedMemory,
            {},
            r"needs a CondensedMemoryBlock .* CondensedMemory\.from_defaults",
        ),
        (
            CondensedMemory,
            {"token_limit": KEY},
            r"needs a CondensedMemoryBlock .* CondensedMemory\.from_defaults",
        ),
    ],
)
def test_a_block_refuses_mistakes_as_the_memory_does(
    kind: Any, mistake: dict[str, Any], said: str
) -> None:
    with pytest.raises(SettingError, match=said) as refused:
        kind(**mistake)
    assert refused.value.__cause__ is refused.value.__context__ is None


@pytest.mark.parametrize(
    "name", ["async_database_uri", "async_engine", "table_name", "db_schema"]
)
async def test_a_store_of_ones_own_has_its_place(name: str, database_uri: str) -> None:
    """Another one beside it would be ignored."""
    engine = create_async_engine(database_uri)
    place: dict[str, Any] = {name: engine if name == "async_engine" else database_uri}
    with pytest.raises(
        SettingError,
        match="chat_store already has a database",
    ):
        CondensedMemory.from_defaults("chat", chat_store=MemoryStore(), **place)
    await engine.dispose()
