"""What the guides show and no block of code can run alone: notebooks, moves to a server, other programs' files."""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import shlex
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

import llama_index_memory_ext
from llama_index_memory_ext import CondensedMemory, MemoryStore, OfflineModel
from llama_index_memory_ext.fact import utc_now
from tests.cli.terminal import clean_environment, run
from tests.conversation import assistant, user
from tests.databases import database_uri, postgres_server, postgres_uri
from tests.forked import python_command
from tests.pages import PAGES, blocks

__all__ = ["database_uri", "postgres_server", "postgres_uri"]

CELLS = blocks("text", PAGES["jupyter.md"])
LOCAL = [
    block for block in blocks("text", PAGES["local-models.md"]) if "import" in block
]
APPS = PAGES["desktop-apps.md"]


async def test_the_cells_of_a_notebook_run_in_a_running_loop_and_with_the_synchronous_twins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As IPython runs them; again after the kernel was restarted."""
    monkeypatch.chdir(tmp_path)

    async def run_cells(cells: list[str], names: dict[str, Any]) -> dict[str, Any]:
        for cell in cells:
            code = compile(cell, "cell", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            result = eval(code, names)  # noqa: S307 - it is our own
            if inspect.iscoroutine(result):
                await result
        return names

    await run_cells(CELLS, {})
    assert (
        capsys.readouterr().out == "Noted: your name is Logan.\n['Is called Logan']\n"
    )
    again = await run_cells(CELLS[:1], {})
    memory = again["memory"]
    assert len(memory.get_all()) == 2
    assert memory.stats().messages == (await memory.astats()).messages == 2
    assert len(memory.facts.list()) == 1
    await memory.aclose()


def served(text: str) -> Iterator[tuple[str, list[str]]]:
    """The command and the arguments by which each program starts the server."""
    for block in blocks("json", text):
        values = json.loads(block)
        for server in (values.get("mcpServers") or values["servers"]).values():
            yield server["command"], server["args"]
    for line in "".join(blocks("text", text)).splitlines():
        if line.startswith("claude mcp add"):
            command, *args = shlex.split(line.partition(" -- ")[2])
            yield command, args


@pytest.mark.parametrize(("command", "args"), served(APPS))
async def test_the_server_starts_as_other_programs_are_told_to_start_it(
    command: str, args: list[str], tmp_path: Path
) -> None:
    if command == "uvx":
        source = args[:3]
        assert source == ["--from", "/path/to/clone[mcp]", "llama-index-memory"]
        args = args[3:]
    else:
        assert Path(command).name == "llama-index-memory"
        assert Path(command).is_absolute()
    database = args[args.index("--db") + 1]
    assert Path(database).is_absolute()
    args = [str(tmp_path / "memory.db") if one == database else one for one in args]
    if "--read-only" in args:
        added = f"facts add tea --user ann --db {tmp_path}/memory.db"
        assert run(*added.split()).returncode == 0
    python, *options = python_command()
    server = StdioServerParameters(
        command=python,
        args=[*options, "-m", "llama_index_memory_ext", *args],
        env=clean_environment(),
        cwd=tmp_path,
    )
    async with stdio_client(server) as streams, ClientSession(*streams) as session:
        await session.initialize()
        tools = {tool.name for tool in (await session.list_tools()).tools}
    reading = {"search_memory", "list_memories"}
    assert tools == (
        reading if "--read-only" in args else reading | {"remember", "forget"}
    )


def test_there_is_a_way_for_each_program() -> None:
    assert len([*served(APPS)]) == 5


@pytest.mark.parametrize("code", LOCAL)
def test_the_programs_for_local_models_use_what_there_is_of_this_package(
    code: str,
) -> None:
    """A server is needed to run them."""
    parsed = ast.walk(ast.parse(code))
    calls = {}
    for node in parsed:
        if isinstance(node, ast.ImportFrom) and node.module == "llama_index_memory_ext":
            assert {name.name for name in node.names} <= set(
                llama_index_memory_ext.__all__
            )
        if (
            isinstance(node, ast.Call)
            and ast.unparse(node.func) == "CondensedMemory.from_defaults"
        ):
            calls = {keyword.arg: keyword.value for keyword in node.keywords}
    assert calls
    values = {
        name: ast.literal_eval(value)
        for name, value in calls.items()
        if name and name != "llm"
    }
    assert CondensedMemory.from_defaults(
        "chat-17", llm=OfflineModel(), **{**values, "async_database_uri": None}
    )


@pytest.mark.parametrize("code", blocks("python", PAGES["testing.md"]))
def test_the_tests_of_the_guide_pass(code: str) -> None:
    names: dict[str, Any] = {}
    exec(code, names)  # noqa: S102 - it is our own
    tests = [value for name, value in names.items() if name.startswith("test_")]
    assert tests
    for test in tests:
        test()


def function_of(page: str, name: str) -> Any:
    """A function that a page shows."""
    (code,) = (code for code in blocks("python", PAGES[page]) if f"def {name}(" in code)
    names: dict[str, Any] = {}
    exec(code, names)  # noqa: S102 - it is our own
    return names[name]


async def test_a_renamed_session_keeps_its_facts_as_they_are() -> None:
    """A deleted fact is not learned again, and an edited fact stays edited."""
    rename = function_of("branching.md", "rename")
    store = MemoryStore()
    memory, renamed = (
        CondensedMemory.from_defaults(
            name, user_id="ann", llm=OfflineModel(), chat_store=store
        )
        for name in ("chat-17", "renamed")
    )
    await memory.aput_messages([user("I live in Rome."), assistant("Noted.")])
    await memory.aput_messages([user("I like tea."), assistant("Noted.")])
    await memory.aflush()
    facts = {fact.content: fact.id for fact in await memory.facts.alist()}
    await memory.facts.aupdate(facts["Lives in Rome"], content="Lives in Bern")
    await memory.facts.aforget(facts["Likes tea"])
    await rename(memory, "renamed")
    await renamed.aflush()
    (fact,) = await renamed.facts.alist(state="all")
    assert (fact.content, fact.session_id) == ("Lives in Bern", "renamed")
    (session,) = await store.sessions()
    assert (session.session_id, session.messages) == ("renamed", 4)
    await store.aclose()


async def test_a_copy_of_a_user_has_all_sessions_and_the_facts_of_all_agents() -> None:
    """A shared session is whole, and another user's facts are left out."""
    copy_of = function_of("deleting-a-person.md", "copy_of")
    store = MemoryStore()
    for session_id, user_id, shared in (
        ("team", "ann", True),
        ("team", "bob", True),
        ("chat-17", "ann", False),
    ):
        memory = CondensedMemory.from_defaults(
            session_id,
            user_id=user_id,
            shared=shared,
            agent_id=None if shared else "travel",
            chat_store=store,
            extract_facts=False,
        )
        await memory.aput_messages([user(f"I am {user_id}."), assistant("Noted.")])
        await memory.facts.aadd(f"{user_id} in {session_id}")
    sessions, facts = await copy_of(store, "ann")
    counts = {name: len(json.loads(text)) for name, text in sessions.items()}
    assert counts == {"team": 4, "chat-17": 2}
    contents = {json.loads(line).get("content") for line in facts.splitlines()}
    assert contents == {None, "ann in team", "ann in chat-17"}
    await store.aclose()


async def test_old_facts_of_all_agents_are_deleted() -> None:
    forget_old_facts = function_of("store-less.md", "forget_old_facts")
    store = MemoryStore()
    for agent_id in (None, "travel"):
        memory = CondensedMemory.from_defaults(
            user_id="ann", agent_id=agent_id, chat_store=store, extract_facts=False
        )
        for days in (400, 300):
            known = utc_now() - timedelta(days=days)
            await memory.facts.aadd(f"Knows {days}", created_at=known)
    assert await store.count_facts() == {"ann": 4}
    await forget_old_facts(store, "ann", 365)
    assert await store.count_facts() == {"ann": 2}
    await store.aclose()


async def test_a_file_moves_to_a_server_with_all_that_was_read_and_learned(
    database_uri: str, postgres_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And goes on there; a second try copies it anew."""
    (code,) = (
        block for block in blocks("python", PAGES["upgrading.md"]) if "TARGET" in block
    )
    settings: dict[str, Any] = {
        "user_id": "logan",
        "llm": OfflineModel(),
        "max_messages": 2,
        "keep_messages": 1,
    }

    async def told(uri: str, *questions: str) -> tuple[list[Any], list[Any], list[Any]]:
        async with CondensedMemory.from_defaults(
            "chat", async_database_uri=uri, **settings
        ) as memory:
            for question in questions:
                await memory.aput(user(question))
                await memory.aput(assistant("Noted."))
                await memory.aflush()
            shown = [message.content for message in await memory.aget()]
            facts = [
                fact.model_dump() for fact in await memory.facts.alist(state="all")
            ]
            return (
                shown,
                facts,
                [(one.content, one.role) for one in await memory.aget_all()],
            )

    before = await told(database_uri, "My name is Logan.", "I see.", "And so on.")
    assert before[1]
    monkeypatch.setenv("SOURCE", database_uri.replace("+aiosqlite", ""))
    monkeypatch.setenv("TARGET", postgres_uri.replace("+asyncpg", "+psycopg"))
    for _ in range(2):
        await asyncio.to_thread(exec, code, {})
    assert await told(postgres_uri) == before
    after = await told(postgres_uri, "Good.")
    assert len(after[2]) == len(before[2]) + 2
    store = MemoryStore(postgres_uri)
    assert [one.messages for one in await store.sessions("logan")] == [8]
    await store.aclose()
