"""The recipes run as they stand there: scripts that convert what other programs have exported, and their commands."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from llama_index.core.base.llms.types import ChatMessage, ImageBlock, ToolCallBlock

from llama_index_memory_ext import CondensedMemory, Fact
from llama_index_memory_ext.fact import utc_now
from tests.forked import run_forked, run_shell
from tests.openai_server import Message, say, serve
from tests.pages import RECIPES, blocks

# A block of code is saved under the name that the text before it says.
SAVED = re.compile(
    r"[Ss]ave\s+(?:it|them|the\s+script)\s+as\s+`([\w.]+)`(?:(?!```).)*?^```(?:python|json)\n(.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


def save_files(text: str, folder: Path) -> None:
    """Save the files of a recipe under the names that it says."""
    files = SAVED.findall(text)
    assert len(files) == len(blocks("python", text)) + len(blocks("json", text))
    for name, content in files:
        (folder / name).write_text(content, encoding="utf-8")


@pytest.fixture(scope="module")
def cook(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Run the commands of a recipe in a new folder with its files, imports twice; return the folder."""

    @cache
    def run(page: str) -> Path:
        text, folder = RECIPES[page], tmp_path_factory.mktemp("recipe")
        save_files(text, folder)
        commands = "".join(blocks("bash", text)).splitlines()
        imports = [command for command in commands if " import " in command]
        script = "\n".join(commands + imports)
        done = run_shell(script, folder, "-o", "pipefail")
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stderr == ""
        (folder / "printed").write_text(done.stdout, encoding="utf-8")
        return folder

    return run


def memory_in(folder: Path, session_id: str = "chat-17") -> CondensedMemory:
    uri = f"sqlite+aiosqlite:///{folder}/memory.db"
    return CondensedMemory.from_defaults(
        session_id, user_id="ann", async_database_uri=uri, extract_facts=False
    )


def form_of(message: ChatMessage) -> str:
    """The role of a message and its blocks, in short."""
    parts = []
    for block in message.blocks:
        if isinstance(block, ToolCallBlock):
            arguments = json.loads(str(block.tool_kwargs))
            parts.append(f"{block.tool_name}({arguments}) as {block.tool_call_id}")
        elif isinstance(block, ImageBlock):
            parts.append("picture")
        else:
            parts.append(getattr(block, "text", ""))
    answered = message.additional_kwargs.get("tool_call_id")
    result = f" to {answered}" if answered else ""
    return f"{message.role.value}{result}: {', '.join(parts)}"


OSLO = "{'city': 'Oslo'}"


@pytest.mark.parametrize(
    ("page", "session_id", "expected"),
    [
        (
            "from-langgraph.md",
            "chat-17",
            [
                "user: How is the weather in Köln?",
                "assistant: weather({'city': 'Köln'}) as c1",
                "tool to c1: Sunny",
                "assistant: It is,  sunny.",
            ],
        ),
        (
            "from-other-agents.md",
            "agents",
            [
                "user: Weather in Oslo and in Rome?",
                f"assistant: get_weather({OSLO}) as call_a, get_weather({{'city': 'Rome'}}) as call_b",
                "tool to call_b: Sun",
                "tool to call_a: Rain",
                "assistant: Rain, and sun.",
            ],
        ),
        (
            "from-other-agents.md",
            "ui",
            [
                "user: Weather in Oslo?, picture",
                f"assistant: get_weather({OSLO}) as call_a, get_time({{}}) as call_b",
                'tool to call_a: {"sky": "Rain"}',
                "tool to call_b: Noon",
                "assistant: Rain at noon.",
            ],
        ),
        (
            "from-other-agents.md",
            "gemini",
            [
                "user: Weather in Oslo?, picture",
                f"assistant: get_weather({OSLO}) as call-1-0",
                'tool to call-1-0: {"sky": "Rain"}',
                "assistant: Rain.",
            ],
        ),
    ],
)
async def test_the_recipes_for_agents_import_messages_with_paired_calls_once(
    page: str, session_id: str, expected: list[str], cook: Callable[[str], Path]
) -> None:
    async with memory_in(cook(page), session_id) as memory:
        messages = await memory.aget_all()
    assert [form_of(message) for message in messages] == expected


async def test_the_recipe_for_chatgpt_and_claude_imports_each_conversation_once(
    tmp_path: Path,
) -> None:
    """With the times of the messages; a newer export adds only what is new."""
    text = RECIPES["from-chatgpt-and-claude.md"]
    save_files(text, tmp_path)
    commands = "".join(blocks("bash", text))

    def run() -> str:
        done = run_shell(commands, tmp_path, "-o", "pipefail")
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    assert "trip 2\nfood 2\n" in run()
    export = tmp_path / "conversations.json"
    conversations = json.loads(export.read_bytes())
    more = {
        "uuid": "m7",
        "sender": "human",
        "created_at": "2025-03-02T10:00:00Z",
        "text": "Bye.",
    }
    conversations[1]["chat_messages"].append(more)
    export.write_text(json.dumps(conversations), encoding="utf-8")
    assert "trip 0\nfood 1\n" in run()
    forms = {}
    for session_id in ("trip", "food"):
        async with memory_in(tmp_path, session_id) as memory:
            messages = await memory.aget_all()
            rows = (
                await memory.sql_store.readers.unread(session_id, "", with_active=True)
            ).rows
        times = [f"{row.said_at():%Y-%m-%d %H:%M:%S}" for row in rows]
        forms[session_id] = dict(zip(times, map(form_of, messages), strict=True))
    assert forms == {
        "trip": {
            "2024-05-01 10:00:00": "user: I live in Oslo.",
            "2024-05-01 10:00:02": "assistant: A fjord.",
        },
        "food": {
            "2025-03-01 10:00:00": "user: I like tea.",
            "2025-03-01 10:00:01": "assistant: Noted.",
            "2025-03-02 10:00:00": "user: Bye.",
        },
    }


async def test_the_recipe_of_a_second_reading_retires_what_the_model_reports_alone(
    tmp_path: Path,
) -> None:
    """The model sees each learned fact with its quote, and no fact that a person added or pinned."""
    text = RECIPES["check-facts.md"]
    save_files(text, tmp_path)
    facts = [
        Fact(content="Lives in Oslo", quote="I live in Oslo"),
        Fact(content="Is a pirate", quote="I am a pirate, haha"),
        Fact(content="Likes tea", quote="I like tea", pinned=True),
        Fact(content="Has a cat"),
    ]
    async with memory_in(tmp_path) as memory:
        for fact in facts:
            await memory.facts.aadd(fact)
    asked = []

    def report(messages: list[Message], tools: list[str]) -> Message:
        lines = [
            line for line in messages[-1]["content"].split("\n") if line[0].isdigit()
        ]
        asked.append({line.partition(". ")[2] for line in lines})
        number = next(line for line in lines if "pirate" in line).partition(".")[0]
        return say(json.dumps({"unsupported": [int(number), 99]}))

    with serve(report) as server:
        done = run_shell(
            "".join(blocks("bash", text)),
            tmp_path,
            "-o",
            "pipefail",
            OPENAI_API_KEY="sk-test",
            OPENAI_API_BASE=server.api_base,
        )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("Is a pirate: 'I am a pirate, haha'\n") == 2
    shown = {"Lives in Oslo | 'I live in Oslo'", "Is a pirate | 'I am a pirate, haha'"}
    assert asked == [shown, shown]
    async with memory_in(tmp_path) as memory:
        stored = await memory.facts.alist(state="all")
    reasons = {
        fact.content: fact.retired_reason
        for fact in stored
        if fact.state(utc_now()) != "present"
    }
    assert reasons == {"Is a pirate": "not confirmed by a second reading"}


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        (
            "from-mem0.md",
            {
                "Is allergic to nuts": ("preference", "present"),
                "Is in Rome": ("knowledge", "expired"),
                "Likes tea": ("knowledge", "retired"),
            },
        ),
        (
            "from-langgraph.md",
            {
                "Is allergic to nuts": ("preference", "present"),
                "Lives in Köln": ("knowledge", "present"),
            },
        ),
        (
            "from-zep.md",
            {
                "Ann lived in Köln": ("knowledge", "past"),
                "Ann lives in Oslo": ("knowledge", "present"),
                "Ann has a cat": ("knowledge", "past"),
            },
        ),
    ],
)
async def test_a_recipe_imports_facts_once_with_their_times(
    page: str, expected: dict[str, tuple[str, str]], cook: Callable[[str], Path]
) -> None:
    """Only those of the user who is named; a second import changes nothing."""
    async with memory_in(cook(page)) as memory:
        facts = await memory.facts.alist(state="all")
    now = utc_now()
    assert {
        fact.content: (fact.category, fact.state(now)) for fact in facts
    } == expected
    assert len(facts) == len(expected)
    assert all(fact.imported_from for fact in facts)
    assert {fact.created_at.year for fact in facts} <= {2024, now.year}


async def test_the_recipe_for_zep_imports_messages_with_names_and_times_once(
    cook: Callable[[str], Path],
) -> None:
    async with memory_in(cook("from-zep.md")) as memory:
        question, answer = await memory.aget_all()
        rows = (
            await memory.sql_store.readers.unread("chat-17", "", with_active=True)
        ).rows
    first = (question.role.value, question.additional_kwargs["name"])
    assert first == ("user", "Ann_Lee")
    assert (answer.role.value, answer.content) == ("assistant", "Noted.")
    times = [f"{row.said_at():%Y-%m-%d %H:%M:%S}" for row in rows]
    assert times == ["2024-05-01 10:00:00", "2024-05-01 10:00:05"]


def test_the_recipe_that_measures_a_model_prints_what_is_kept_and_why(
    cook: Callable[[str], Path],
) -> None:
    printed = (cook("what-a-model-learns.md") / "printed").read_text(encoding="utf-8")
    assert "kept: Lives in Oslo ('I live in Oslo')" in printed
    assert re.search(r"\d+ calls, \d+ tokens sent, \d+ received", printed)


async def test_the_recipe_that_tidies_up_retires_what_the_model_reports_and_no_pinned_fact(
    tmp_path: Path,
) -> None:
    """Numbers of no facts, of one fact twice, and of two facts that replace each other change nothing."""
    text = RECIPES["tidy-up.md"]
    save_files(text, tmp_path)
    commands = "".join(blocks("bash", text)).splitlines()
    tea = "llama-index-memory facts add TEA --pin --user ann --db memory.db"
    commands[2:2] = [tea.replace("TEA", name) for name in ("'Likes tea'", "Tea")]

    def report(messages: list[Message], tools: list[str]) -> Message:
        lines = [line.partition(". ") for line in messages[-1]["content"].split("\n")]
        number_of = {line[2][11:]: int(line[0]) for line in lines if line[0].isdigit()}
        pairs = [
            ("Lives in Oslo", "Resides in Rome"),
            ("Resides in Rome", "Lives in Oslo"),
            ("Resides in Rome", "Resides in Rome"),
            ("Tea", "Likes tea"),
        ]
        redundant = [
            {"retire": number_of.get(old, 98), "keep": number_of.get(new, 99)}
            for old, new in [*pairs, ("No fact", "Nor this")]
        ]
        return say(json.dumps({"redundant": redundant}))

    with serve(report) as server:
        done = run_shell(
            "\n".join(commands),
            tmp_path,
            "-o",
            "pipefail",
            OPENAI_API_KEY="sk-test",
            OPENAI_API_BASE=server.api_base,
        )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.count("Lives in Oslo -> Resides in Rome\n") == 2
    assert done.stdout.count("->") == 2
    async with memory_in(tmp_path) as memory:
        oslo, rome, *_ = reversed(await memory.facts.alist(state="all"))
        states = {
            fact.content: fact.state(utc_now())
            for fact in await memory.facts.alist(state="all")
        }
    assert (oslo.replaced_by, oslo.retired_reason) == (rome.id, "tidied up")
    assert states == {
        "Lives in Oslo": "past",
        "Resides in Rome": "present",
        "Likes tea": "present",
        "Tea": "present",
    }


async def test_the_recipe_of_a_spending_limit_stops_learning_and_counts_failed_calls(
    cook: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = cook("spending-limit.md")
    printed = (folder / "printed").read_text(encoding="utf-8").splitlines()
    monday, tuesday, wednesday = (int(line.split()[1]) for line in printed[:3])
    assert 0 < monday < 500 <= tuesday == wednesday
    assert printed[4] == "3 facts"
    *_, graz, failure, bern, _ = printed
    assert failure == "Facts were not extracted ConnectionError"
    assert graz.split()[1] == bern.split()[1]
    assert int(bern.split()[1]) >= 500
    code = """
import asyncio, spending_limit
from llama_index.llms.openai import OpenAI
spending_limit.llm = OpenAI(model="gpt-4o-mini", max_retries=0)
asyncio.run(spending_limit.main())
"""
    save_files(RECIPES["spending-limit.md"], tmp_path)
    with serve(lambda messages, tools: say("No facts here, sorry.")) as server:
        done = run_forked(
            code,
            folder=tmp_path,
            environment={
                "OPENAI_API_KEY": "sk-test",
                "OPENAI_API_BASE": server.api_base,
                "PYTHONPATH": str(tmp_path),
            },
        )
    assert re.search(r"^monday [1-9]\d*$", done.stdout, re.MULTILINE), done.stderr
