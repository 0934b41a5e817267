"""Wrong calls of the command line and of the MCP server: each is answered with what is wrong and what is right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer

from llama_index_memory_ext.__main__ import load_app
from tests.cli.terminal import Here
from tests.cli.test_mcp import client, refusal

FACTS_LIST = "llama-index-memory facts list"
COMMANDS = [
    # The call, words of the problem, and of the right call that the answer shows.
    ("facts list --user ann --since yesterday", "'yesterday'", "--since 2026-11-01"),
    ("facts list --user ann --category food", "'preference', 'knowledge'", FACTS_LIST),
    ("facts list --user ann --time-zone Europa/Paris", "Europa/Paris", FACTS_LIST),
    ("facts list --usr ann", "--usr", FACTS_LIST),
    ("facts lst --user ann", "'lst'", FACTS_LIST),
    ("facts add --user ann", "Missing argument 'TEXT'", 'facts add "Likes tea"'),
    ("facts add tea --user ann --confidence 90", "--confidence", 'facts add "Likes tea"'),
    ("facts edit 1 --user ann --content ' '", "expected text that is not blank", "facts edit 3f2a"),
    ("retain --days old", "--days", "retain --days 90"),
    ("inspect --token-limit 4k", "--token-limit", "inspect --db memory.db"),
    ("mcp --user ann --http 1", "--http", "mcp --user ann"),
    ("dance", "No such command 'dance'", FACTS_LIST),
]  # fmt: skip
TOOLS: list[tuple[str, dict[str, Any], str]] = [
    ("search_memory", {}, "query: Field required. It takes: query."),
    ("search_memory", {"query": ""}, 'search_memory(query="allergies food")'),
    ("search_memory", {"query": "tea", "tags": "a"}, "Unknown arguments: tags. It"),
    ("list_memories", {"limit": 0}, "limit: Input should be greater than or equal to 1"),
    ("remember", {"content": "Likes tea"}, "quote: Field required. It takes: content"),
    ("search_memory", {"query": 3_000 * "tea "}, "have 12,000 characters; send at most 10,000"),
    ("forget", {"facts": 2_999 * ["tea"], "quote": "Forget it."}, "send at most"),
    ("forget", {"facts": [], "quote": "Forget it."}, "facts is empty"),
    ("forget_all", {}, "Unknown tool: forget_all"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "problem", "example"), COMMANDS)
def test_a_wrong_command_line_gets_an_example_of_a_right_one(
    command: Here, database: Path, line: str, problem: str, example: str
) -> None:
    done = command.on(database)(line)
    assert (done.returncode, done.stdout) == (2, "")
    last = done.stderr.splitlines()[-1]
    assert problem in last
    assert example in last.partition("Example: ")[2]
    assert not database.exists()


@pytest.mark.parametrize(("tool", "arguments", "problem"), TOOLS)
async def test_a_wrong_call_of_a_tool_names_what_is_wrong_and_the_arguments(
    database: Path, tool: str, arguments: dict[str, Any], problem: str
) -> None:
    async with client(database) as session:
        text = await refusal(session, tool, **arguments)
    assert problem in text
    assert "\n" not in text
    # The values may be words of the user.
    assert "tea" not in text


def examples_in(command: Any) -> list[str]:
    """The example of a command, and of the commands below it."""
    below = getattr(command, "commands", {}).values()
    lines = [command.epilog.removeprefix("Example: llama-index-memory ")]
    for inner in below:
        lines += examples_in(inner)
    return lines


# Without the commands that answer until they are ended.
EXAMPLES = [
    line
    for line in examples_in(typer.main.get_command(load_app()))
    if not line.startswith(("demo", "inspect", "mcp"))
]


@pytest.mark.parametrize("line", EXAMPLES)
def test_each_example_is_a_right_call(
    command: Here,
    database: Path,
    tmp_path: Path,
    line: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "chat-17.json").write_text("[]")
    if line.startswith(("forget", "retain", "facts forget")):
        line += " --yes"
    cli = command.on(database)
    cli("facts add 'Likes rain' --user ann")
    assert cli(line).returncode in (0, 1)


@pytest.mark.parametrize(
    ("stored", "count"), [((), "0 facts"), (("Likes tea",), "1 fact")]
)
def test_an_unknown_fact_is_answered_with_its_user_and_the_number_of_facts(
    command: Here, database: Path, stored: tuple[str, ...], count: str
) -> None:
    cli = command.on(database)
    cli("facts add 'Likes rain' --user bob")
    for text in stored:
        cli("facts add --user ann", text)
    for line in ("retire nope", "restore nope", "edit nope --pin", "forget nope --yes"):
        done = cli(f"facts {line} --user ann")
        assert (done.returncode, done.stdout) == (1, "")
        assert f"'ann' has no fact 'nope' ({count})" in done.stderr


@pytest.mark.parametrize("key", ["none", "k"])
def test_a_key_that_is_no_secret_leaves_errors_as_they_are(
    command: Here, tmp_path: Path, key: str
) -> None:
    call = ("sessions", "list", "--db", str(tmp_path / "none-like-this.db"))
    assert command(*call, OPENAI_API_KEY=key).stderr == command(*call).stderr
