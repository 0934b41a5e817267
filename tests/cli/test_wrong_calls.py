"""Wrong calls of the command line and of the MCP server: each is answered with an example of a right one."""

from __future__ import annotations

import json
import shlex
import socket
from pathlib import Path
from typing import Any

import pytest
import typer

from llama_index_memory_ext.__main__ import load_app
from tests.cli.terminal import Here
from tests.cli.test_mcp import call, client, refusal
from tests.forked import run_shell

MESSAGES = '[{"role": "user", "content": "I like rain."}]'
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
    ("mcp --user ann --http 99999", "such as 8000; got '99999'"),
    ("facts search tea --user ann --embed openai", "--embed local"),
    ("retain --days 90", "llama-index-memory retain --days 90 --yes"),
    ("forget --user ann", "llama-index-memory forget --user ann --yes"),
    ("facts forget --all --user ann", "facts forget 3f2a91bc --user ann --yes"),
    ("mcp --user ann --http 8000", "&& llama-index-memory mcp --user ann --http 8000"),
    ("dance", FACTS_LIST),
]
TOOLS: list[tuple[str, dict[str, Any], str]] = [
    ("search_memory", {}, 'search_memory(query="allergies food")'),
    ("search_memory", {"query": ""}, 'search_memory(query="allergies food")'),
    ("search_memory", {"q": "tea"}, 'search_memory(query="allergies food")'),
    ("search_memory", {"query": "tea", "since": "yesterday"}, "such as 2026-11-20"),
    (
        "search_memory",
        {"query": "tea", "tags": "diet"},
        "tags: there is no such argument. It takes: query, since, until, category, tag.",
    ),
    ("list_memories", {"limit": 0}, "list_memories(limit=20"),
    ("list_memories", {"until": "soon"}, "such as 2026-11-20"),
    ("list_memories", {"after": "00000000"}, "list_memories(limit=20)"),
    (
        "list_memories",
        {"limt": 5},
        "limt: there is no such argument. It takes: limit, ",
    ),
    ("remember", {"content": "Likes tea"}, "remember(content="),
    ("remember", {"content": "Likes tea", "quote": 7}, "remember(content="),
    ("forget", {"facts": [], "quote": "Forget it."}, 'forget(facts=["3f2a91bc"]'),
    (
        "forget",
        {"fact": "3f2a91bc", "quote": "Forget it."},
        "fact: there is no such argument. It takes: facts, quote.",
    ),
    ("forget_all", {}, "search_memory, list_memories, remember, forget"),
]


@pytest.mark.parametrize(("line", "example"), COMMANDS)
def test_a_wrong_command_line_gets_an_example_of_a_right_one(
    command: Here, database: Path, line: str, example: str
) -> None:
    cli = command.on(database)
    cli("facts", "add", "Likes rain", "--user", "ann")
    done = cli(*shlex.split(line))
    assert (done.returncode, done.stdout) == (2, "")
    assert example in done.stderr.splitlines()[-1]
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
        if not line.startswith(("demo", "inspect", "mcp"))
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


@pytest.mark.parametrize(
    "line", ["retain --days 90", "forget --user ann", "forget --session s"]
)
def test_the_example_of_a_call_without_a_terminal_does_not_fail_again(
    command: Here, database: Path, line: str
) -> None:
    cli = command.on(database)
    cli("facts", "add", "Likes rain", "--user", "ann")
    cli("import", "-", "--session", "s", "--user", "ann", stdin=MESSAGES)
    refused = cli(*shlex.split(line)).stderr
    _, _, example = refused.partition("Example: llama-index-memory ")
    done = cli(*shlex.split(example))
    assert (done.returncode, "Error" in done.stderr) == (0, False)


def test_the_example_of_a_server_sets_a_token_that_is_taken(
    database: Path, tmp_path: Path
) -> None:
    """Only the port is taken already, so that the server ends."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        environment = {"LLAMA_INDEX_MEMORY_DB": str(database)}
        call = f"mcp --user ann --http {port}"
        refused = run_shell(f"llama-index-memory {call}", tmp_path, **environment)
        _, _, example = refused.stderr.partition("Example: ")
        again = example.replace("--http 8000", f"--http {port}")
        done = run_shell(again, tmp_path, **environment)
    assert "needs a token of" in refused.stderr
    assert f"Port {port} cannot be used" in done.stderr


@pytest.mark.parametrize("arguments", ["--json facts list", "--table t --json doctor"])
def test_json_is_taken_before_the_command_and_behind_it(
    command: Here, database: Path, arguments: str
) -> None:
    cli = command.on(database)
    before = shlex.split(arguments) + ["--user", "ann"] * ("facts" in arguments)
    behind = [*(word for word in before if word != "--json"), "--json"]
    cli(*before[: before.index("--json")], "facts", "add", "Likes tea", "--user", "ann")
    done = cli(*before)
    assert json.loads(done.stdout) == json.loads(cli(*behind).stdout)
    # It holds for one call.
    behind.remove("--json")
    assert not cli(*behind).stdout.startswith(("[", "{"))
    failed = cli("--json", "facts", "list")
    assert "pass --user ID" in json.loads(failed.stderr)["error"]


@pytest.mark.parametrize(
    ("stored", "count"), [((), "0 facts"), (("Likes tea",), "1 fact")]
)
def test_an_unknown_fact_is_answered_with_its_user_and_the_number_of_facts(
    command: Here, database: Path, stored: tuple[str, ...], count: str
) -> None:
    cli = command.on(database)
    cli("facts", "add", "Likes rain", "--user", "bob")
    for text in stored:
        cli("facts", "add", text, "--user", "ann")
    for line in ("retire nope", "restore nope", "edit nope --pin", "forget nope --yes"):
        done = cli("facts", *shlex.split(line), "--user", "ann")
        assert (done.returncode, done.stdout) == (1, "")
        assert f"'ann' has no fact 'nope' ({count})" in done.stderr


async def test_an_unknown_fact_of_a_tool_is_answered_with_its_user_and_the_number(
    database: Path,
) -> None:
    async with client(database) as session:
        arguments = {"facts": ["nope", "</fact>"], "quote": "Forget it."}
        text = await refusal(session, "forget", **arguments)
        assert "Nothing was forgotten: 'ann' has no fact 'nope' (0 facts)." in text
        assert "</fact>" not in text
        await call(
            session, "remember", content="Likes tea", quote="I like tea, please."
        )
        text = await refusal(session, "forget", **arguments)
        assert "'ann' has no fact 'nope' (1 facts)" in text
