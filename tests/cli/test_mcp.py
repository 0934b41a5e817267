"""The MCP server as the official client sees it: in this process, and in one of its own, over stdin and stdout."""

from __future__ import annotations

import json
import re
import signal
import sqlite3
import subprocess
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.types import CallToolResult, TextContent

from llama_index_memory_ext import CondensedMemory, Fact, MemoryStore
from llama_index_memory_ext.apps.mcp import memory_server
from tests.cli.terminal import PATIENCE_SECONDS, clean_environment, package_command
from tests.conversation import assistant, user

GREEN_TEA: dict[str, Any] = {
    "content": "Loves green tea",
    "quote": "Please remember that I love green tea.",
    "category": "preference",
}


@asynccontextmanager
async def opened(
    database: Path, name: str = "s", user_id: str = "ann"
) -> AsyncIterator[CondensedMemory]:
    """A memory on the file, as another program opens it."""
    async with aclosing(MemoryStore(f"sqlite+aiosqlite:///{database}")) as store:
        yield CondensedMemory.from_defaults(
            name, user_id=user_id, chat_store=store, extract_facts=False
        )


@asynccontextmanager
async def client(
    database: Path,
    user_id: str = "ann",
    session: str | None = None,
    *,
    read_only: bool = False,
) -> AsyncIterator[Client]:
    """The official client, connected to a server in this process."""
    async with (
        opened(database, session or user_id, user_id) as memory,
        Client(
            memory_server(memory, in_session=session is not None, read_only=read_only)
        ) as connected,
    ):
        yield connected


async def call(
    session: Client | ClientSession,
    name: str,
    *,
    refused: bool = False,
    **arguments: Any,
) -> str:
    """The text of a call that went well, or of one that was refused."""
    result = await session.call_tool(name, arguments)
    assert isinstance(result, CallToolResult)
    text = "".join(
        part.text for part in result.content if isinstance(part, TextContent)
    )
    assert bool(result.is_error) == refused, text
    return text


async def refusal(session: Client | ClientSession, name: str, **arguments: Any) -> str:
    return await call(session, name, refused=True, **arguments)


def contents_in(text: str) -> list[str]:
    """The facts that an answer shows."""
    return re.findall(r"<fact [^>]*>(.*?)</fact>\n", text)


async def facts_of(database: Path, user_id: str) -> dict[str, Fact]:
    """What another program finds in the same file."""
    async with opened(database, "other", user_id) as memory:
        return {fact.content: fact for fact in await memory.facts.alist(state="all")}


async def add_rain(database: Path) -> None:
    async with opened(database) as memory:
        await memory.facts.aadd("Likes rain")


async def test_a_client_remembers_lists_searches_and_forgets(database: Path) -> None:
    """The words of the user come from the client, and stand in no session; a forgotten fact is kept, for undo."""
    python, *command = package_command("mcp", "--db", str(database), "--user", "ann")
    environment = clean_environment()
    server = StdioServerParameters(command=python, args=command, env=environment)
    with database.with_name("errors").open("a+", encoding="utf-8") as stderr:
        async with (
            stdio_client(server, errlog=stderr) as streams,
            ClientSession(*streams) as session,
        ):
            await session.initialize()
            await remember_list_search_and_forget(session)
    stored = (await facts_of(database, "ann"))["Loves green tea"]
    assert (stored.namespace, stored.session_id) == ("ann", None)
    assert (stored.message_ids, stored.quote) == ((), GREEN_TEA["quote"])
    assert stored.retired_by == "request"
    assert database.with_name("errors").read_text() == ""


async def remember_list_search_and_forget(session: ClientSession) -> None:
    tools = {tool.name: tool for tool in (await session.list_tools()).tools}
    hints = {
        name: (tool.annotations.read_only_hint, tool.annotations.destructive_hint)
        for name, tool in tools.items()
        if tool.annotations
    }
    # By these, a client decides which calls it makes without asking its user.
    writing = {"remember": (False, False), "forget": (False, True)}
    reading = {"search_memory": (True, False), "list_memories": (True, False)}
    assert hints == {**reading, **writing}
    assert all(tool.description for tool in tools.values())
    arguments = tools["remember"].input_schema["properties"]
    assert sorted(arguments) == ["category", "content", "quote"]
    assert await call(session, "list_memories") == "0 facts in all."
    new = await call(session, "remember", **GREEN_TEA)
    fact_id, content = re.fullmatch(r"Remembered: \[(\w{8})\] (.+)", new).groups()  # type: ignore[union-attr]
    assert content == "Loves green tea"
    found = await call(session, "search_memory", query="tea")
    fact = rf'<fact id="{fact_id}" date="[\d-]+" category="preference">Loves green tea</fact>\n'
    assert re.fullmatch(fact, found)
    nothing = await call(session, "search_memory", query="a zebra")
    assert nothing.startswith("Nothing found")
    again = await call(session, "remember", **GREEN_TEA)
    assert again == "Known already; it is surer now."
    assert await call(session, "list_memories", limit=1) == f"{found}1 facts in all."
    forget: dict[str, Any] = {
        "facts": ["green tea", "</fact>"],
        "quote": "Forget that I love green tea.",
    }
    gone = await call(session, "forget", **forget)
    assert gone == (
        f"Forgotten: [{fact_id}] Loves green tea (it can be restored)\n"
        "Nothing was forgotten: 'ann' has no fact '&lt;/fact>' (1 facts). search_memory shows the ids of facts."
    )
    assert await call(session, "list_memories") == "0 facts in all."


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("remember", {"content": "Likes Bolivia", "quote": "I like tea"}, "It says more than the user did."),
    ("remember", {"content": "x" * 5_000, "quote": "I like tea"}, "Not remembered: "),
    ("remember", {"content": 7, "quote": "I like tea"}, "valid string"),
    ("forget", {"facts": ["rain"], "quote": "I like rain."}, "Not forgotten: "),
    ("forget", {"facts": ["a zebra"], "quote": "Forget the zebra."}, "has no fact"),
    ("list_memories", {"limit": "all"}, "valid integer"),
]  # fmt: skip


async def test_what_an_agent_may_not_do_a_client_may_not_do_either(
    database: Path,
) -> None:
    """It is told why, nothing changes, and the server goes on."""
    await add_rain(database)
    async with client(database) as session:
        for name, arguments, why in REFUSED:
            assert why in await refusal(session, name, **arguments)
        listed = await call(session, "list_memories")
        assert contents_in(listed) == ["Likes rain"]
        assert listed.endswith("\n1 facts in all.")


async def test_no_argument_reaches_another_user(database: Path) -> None:
    async with client(database) as hers, client(database, "bob") as his:
        await call(hers, "remember", **GREEN_TEA)
        fact_id = (await facts_of(database, "ann"))["Loves green tea"].id
        assert await call(his, "list_memories") == "0 facts in all."
        everything = {"facts": [fact_id], "quote": "Forget everything."}
        assert "has no fact" in await refusal(his, "forget", **everything)
        for extra in ("user", "user_id", "namespace", "session_id"):
            query = {"query": "tea", extra: "ann"}
            assert "green" not in str(await his.call_tool("search_memory", query))
        assert contents_in(await call(hers, "list_memories")) == ["Loves green tea"]


async def test_with_a_session_quotes_must_be_in_it_and_its_messages_are_found(
    database: Path,
) -> None:
    async with opened(database) as memory:
        await memory.aput_messages([user("I love green tea."), assistant("Noted.")])
    async with client(database, session="s") as session:
        found = await call(session, "search_memory", query="green tea")
        message = r'<message role="user" date="[\d-]+">I love green tea.</message>\n'
        assert re.match(message, found)
        made_up = {"content": "Likes rain", "quote": "I like rain."}
        refused = await refusal(session, "remember", **made_up)
        assert "Its quote is not in the conversation." in refused
        quote = "I love green tea"
        await call(session, "remember", content="Loves green tea", quote=quote)
    stored = (await facts_of(database, "ann"))["Loves green tea"]
    assert (stored.session_id, len(stored.message_ids)) == ("s", 1)


async def test_everything_goes_only_where_the_session_shows_that_the_user_has_said_yes(
    database: Path,
) -> None:
    """Without a session nobody can see it, so that facts must be named."""
    await add_rain(database)
    everything = {"facts": ["Likes rain"], "quote": "Forget everything about me."}
    async with client(database) as session:
        refused = await refusal(session, "forget", **everything)
        assert "the server cannot see that the user agrees to everything" in refused
    async with opened(database) as memory, client(database, session="s") as session:
        await memory.aput(user("Forget everything about me."))
        refused = await refusal(session, "forget", **everything)
        assert "Likes rain: show the user all" in refused
        turn = [assistant("That you like rain, too?"), user("Yes, please.")]
        await memory.aput_messages(turn)
        gone = await call(session, "forget", facts=["Likes rain"], quote="Yes, please.")
        forgotten = r"Forgotten: \[\w{8}\] Likes rain \(it can be restored\)"
        assert re.fullmatch(forgotten, gone)


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
async def test_what_was_remembered_outlives_a_server_that_is_ended(
    database: Path, end: signal.Signals
) -> None:
    """At once, while its stdin is still open."""
    command = package_command("mcp", "--db", str(database), "--user", "ann")
    pipe: Any = subprocess.PIPE
    pipes = {"stdin": pipe, "stdout": pipe, "text": True, "encoding": "utf-8"}
    about = {"name": "test", "version": "1"}
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": about}
    remember = {"name": "remember", "arguments": GREEN_TEA}
    requests: list[dict[str, Any]] = [
        {"id": 1, "method": "initialize", "params": hello},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": remember},
    ]
    with subprocess.Popen(command, env=clean_environment(), **pipes) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for request in requests:
            process.stdin.write(json.dumps({"jsonrpc": "2.0", **request}) + "\n")
            process.stdin.flush()
            if "id" in request:
                assert json.loads(process.stdout.readline())["id"] == request["id"]
        process.send_signal(end)
        assert process.wait(PATIENCE_SECONDS) == -end
    async with client(database) as session:
        assert contents_in(await call(session, "list_memories")) == ["Loves green tea"]


async def test_a_server_that_only_reads_has_no_tools_that_write(database: Path) -> None:
    await add_rain(database)
    async with opened(database) as memory:
        await memory.facts.aadd("Likes green tea")
    async with client(database, read_only=True) as session:
        names = sorted(tool.name for tool in (await session.list_tools()).tools)
        assert names == ["list_memories", "search_memory"]
        newest = await call(session, "list_memories", limit=1)
        assert contents_in(newest) == ["Likes green tea"]
        assert newest.endswith("2 facts in all.")


async def test_a_database_that_breaks_is_told_and_not_taken_for_an_empty_one(
    database: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with client(database) as session:
        await call(session, "remember", **GREEN_TEA)
        with closing(sqlite3.connect(database)) as connection:
            for ending in ("_users", "_facts", "_sessions"):
                table = f"llama_index_memory{ending}"
                connection.execute(f"ALTER TABLE {table} RENAME TO lost{ending}")
        for name, arguments in (
            ("list_memories", {}),
            ("search_memory", {"query": "tea"}),
            ("remember", GREEN_TEA),
        ):
            refused = await refusal(session, name, **arguments)
            assert "That does not mean that nothing is known" in refused
    assert "green" not in caplog.text
