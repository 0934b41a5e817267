"""The recipes run as they stand there: scripts that convert what other programs have exported, and their commands."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from llama_index.core.base.llms.types import ToolCallBlock

from llama_index_memory_ext import CondensedMemory
from llama_index_memory_ext.fact import utc_now
from tests.forked import run_shell
from tests.openai_server import Message, say, serve
from tests.test_docs import RECIPES, blocks

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


def memory_in(folder: Path) -> CondensedMemory:
    uri = f"sqlite+aiosqlite:///{folder}/memory.db"
    return CondensedMemory.from_defaults(
        "chat-17", user_id="ann", async_database_uri=uri, extract_facts=False
    )


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


async def test_the_recipe_for_langchain_imports_messages_with_calls_once(
    cook: Callable[[str], Path],
) -> None:
    async with memory_in(cook("from-langgraph.md")) as memory:
        question, call, result, answer = await memory.aget_all()
    assert (question.role.value, question.content) == (
        "user",
        "How is the weather in Köln?",
    )
    calls = [block for block in call.blocks if isinstance(block, ToolCallBlock)]
    assert [(block.tool_name, block.tool_call_id) for block in calls] == [
        ("weather", "c1")
    ]
    assert (
        result.role.value,
        result.content,
        result.additional_kwargs["tool_call_id"],
    ) == ("tool", "Sunny", "c1")
    assert "".join(block.text for block in answer.blocks) == "It is sunny."  # type: ignore[union-attr]


async def test_the_recipe_for_zep_imports_messages_with_names_and_times_once(
    cook: Callable[[str], Path],
) -> None:
    async with memory_in(cook("from-zep.md")) as memory:
        question, answer = await memory.aget_all()
        rows = (
            await memory.sql_store.readers.unread("chat-17", "", with_active=True)
        ).rows
    assert (question.role.value, question.additional_kwargs["name"]) == (
        "user",
        "Ann_Lee",
    )
    assert (answer.role.value, answer.content) == ("assistant", "Noted.")
    assert [f"{row.said_at():%Y-%m-%d %H:%M:%S}" for row in rows] == [
        "2024-05-01 10:00:00",
        "2024-05-01 10:00:05",
    ]


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
        superfluous = [
            {"retire": number_of.get(old, 98), "keep": number_of.get(new, 99)}
            for old, new in [*pairs, ("No fact", "Nor this")]
        ]
        return say(json.dumps({"superfluous": superfluous}))

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
