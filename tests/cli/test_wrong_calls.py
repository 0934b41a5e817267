"""Wrong calls of the command line and of the MCP server: each is answered with an example of a right one."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from llama_index_memory_ext.__main__ import load_app
from tests.cli.terminal import Here
from tests.cli.test_mcp import client, refusal

FACTS_LIST = "llama-index-memory facts list"
COMMANDS = [
    # The call, and the right value or call that the answer shows.
    (
        "facts list --user ann --since yesterday",
        "a day such as 2026-11-20; got 'yesterday'",
    ),
    (
        "facts list --user ann --until=20.11.2026",
        "a day such as 2026-11-20; got '20.11.2026'",
    ),
    (
        "facts list --user ann --since 2026-11-20 --until 2026-11-01",
        "--since 2026-11-01 --until 2026-11-20",
    ),
    ("facts list --user ann --limit many", "such as 20; got 'many'"),
    ("facts list --user ann --limit 0", "such as 20; got '0'"),
    ("facts list --user ann --category food", "preference, knowledge"),
    ("facts list --user ann --state gone", "present, past, retired"),
    (
        "facts list --user ann --time-zone Europa/Paris",
        "such as Europe/Paris (on a machine without a zone database: pip install tzdata); got 'Europa/Paris'",
    ),
    ("inspect --time-zone CEST", "such as Europe/Paris"),
    ("facts list --user ann --tag ' '", "a tag of 1 to 100 characters such as diet"),
    ("facts list --user ' ann'", FACTS_LIST),
    ("facts list --usr ann", FACTS_LIST),
    ("facts list", FACTS_LIST),
    ("facts lst --user ann", FACTS_LIST),
    ("facts add --user ann", 'facts add "Likes tea"'),
    ("facts add '' --user ann", 'facts add "Likes tea"'),
    ("facts add 'Likes tea' --user ann --confidence high", "such as 0.9; got 'high'"),
    ("facts add 'Likes tea' --user ann --confidence 90", "such as 0.9; got '90'"),
    ("facts add 'Likes tea' --user ann --ttl soon", "such as 30; got 'soon'"),
    ("facts edit --user ann", "facts edit 3f2a91bc"),
    ("facts edit 3f2a91bc --user ann", "--confidence 0.9"),
    ("facts edit 3f2a91bc --user ann --content ' '", 'such as "Likes tea"'),
    ("facts search --user ann", 'facts search "Where do I live?"'),
    ("facts forget --user ann", "facts forget 3f2a91bc"),
    ("sessions list --sort size", "used, messages or name"),
    ("sessions list --limit -3", "such as 20; got '-3'"),
    ("export", "export --user ann"),
    ("export --session chat-17 --format xml", "such as --format openai"),
    ("import chat-17.json", "import chat-17.json --session chat-17"),
    ("retain", "retain --days 90"),
    ("retain --days old", "such as 30; got 'old'"),
    ("forget --user ann --session chat-17", "forget --user ann"),
    ("inspect --port http", "such as 8000; got 'http'"),
    ("inspect --token-limit 4k", "such as 4000; got '4k'"),
    ("mcp", "mcp --user ann"),
    ("mcp --user ann --print-config emacs", "claude-desktop, claude-code"),
    ("mcp --user ann --http 99999", "such as 8000; got '99999'"),
    ("facts search tea --user ann --embed openai", "--embed local"),
    ("dance", FACTS_LIST),
]
TOOLS: list[tuple[str, dict[str, Any], str]] = [
    ("search_memory", {}, 'search_memory(query="allergies food")'),
    ("search_memory", {"query": ""}, 'search_memory(query="allergies food")'),
    ("search_memory", {"q": "tea"}, 'search_memory(query="allergies food")'),
    ("search_memory", {"query": "tea", "since": "yesterday"}, "such as 2026-11-20"),
    ("search_memory", {"query": "tea", "tags": "diet"}, "did you mean tag?"),
    ("list_memories", {"limit": 0}, "list_memories(limit=20"),
    ("list_memories", {"until": "soon"}, "such as 2026-11-20"),
    ("list_memories", {"after": "00000000"}, "list_memories(limit=20)"),
    ("list_memories", {"limt": 5}, "did you mean limit?"),
    ("remember", {"content": "Likes tea"}, "remember(content="),
    ("remember", {"content": "Likes tea", "quote": 7}, "remember(content="),
    ("forget", {"facts": [], "quote": "Forget it."}, 'forget(facts=["3f2a91bc"]'),
    ("forget", {"fact": "3f2a91bc", "quote": "Forget it."}, "did you mean facts?"),
    ("forget_all", {}, "search_memory, list_memories, remember, forget"),
]


@pytest.mark.parametrize(("line", "example"), COMMANDS)
def test_a_wrong_command_line_gets_an_example_of_a_right_one(
    command: Here, database: Path, line: str, example: str
) -> None:
    cli = command.on(database)
    cli("facts", "add", "Likes rain", "--user", "ann")
    done = cli(*shlex.split(line))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert example in done.stderr
    assert "Likes rain" in cli("facts", "list", "--user", "ann").stdout


@pytest.mark.parametrize(("tool", "arguments", "example"), TOOLS)
async def test_a_wrong_call_of_a_tool_gets_an_example_of_a_right_one(
    database: Path, tool: str, arguments: dict[str, Any], example: str
) -> None:
    async with client(database) as session:
        text = await refusal(session, tool, **arguments)
    assert example in text
    assert "\n" not in text


def examples_in(command: Any) -> list[str]:
    """The example of a command, and of the commands below it."""
    below = getattr(command, "commands", {}).values()
    lines = [command.epilog.removeprefix("Example: llama-index-memory ")]
    for inner in below:
        lines += examples_in(inner)
    return lines


@pytest.mark.parametrize(
    "line",
    [
        line
        for line in examples_in(typer.main.get_command(load_app()))
        # These answer until they are ended.
        if not line.startswith(("demo", "inspect"))
    ],
)
def test_each_example_is_a_right_call(
    command: Here,
    database: Path,
    tmp_path: Path,
    line: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = shlex.split(line)
    if arguments[0] in ("forget", "retain"):
        arguments.append("--yes")
    if arguments[:2] == ["facts", "forget"]:
        arguments.append("--yes")
    cli = command.on(database)
    cli("facts", "add", "Likes rain", "--user", "ann")
    assert cli(*arguments).returncode in (0, 1)
