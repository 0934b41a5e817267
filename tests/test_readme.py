"""The code of the README and of the guides runs as it stands there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.openai_server import Message, call, say, serve

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
GUIDES = "".join((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("prompt-caches.md", "facts.md"))
FENCED = re.findall(r"^ *```(\w*)\n(.*?)^ *```$", README, flags=re.DOTALL | re.MULTILINE)
# Text is what a model or a terminal shows: nothing in it can run.
KINDS = {"python", "bash", "json", "text"}
# Whoever runs the tests has installed the package, and is running the tests.
DONE_BEFORE = ("pip install", "python -m pip install", "python -m pytest")


def blocks(kind: str) -> list[str]:
    return [code for found, code in FENCED if found == kind]


def commands_of(block: str) -> list[str]:
    """The commands that are left to run; one that is joined to another by && is one of its own."""
    commands = re.split(r"\n| && ", block.replace("\\\n", " "))
    return [command for command in commands if command.strip() and not command.startswith(DONE_BEFORE)]


BLOCKS = [*blocks("python"), *re.findall(r"^```python\n(.*?)^```$", GUIDES, flags=re.DOTALL | re.MULTILINE)]


def model(messages: list[Message], tools: list[str]) -> Message:
    if tools == ["report_facts"]:
        return call(("call_1", "report_facts", {"new_facts": []}))
    if messages[-1]["role"] == "tool":
        return say(f"It is {messages[-1]['content']}.")
    if messages[-1]["content"].endswith("What is 3214 * 322?"):
        return call(("call_1", "multiply", {"a": 3214, "b": 322}))
    return say("By multiplying." if "multiply(" in messages[-1]["content"] else "I do not know.")


@pytest.mark.parametrize("code", BLOCKS)
def test_a_block_of_code_runs(code: str, tmp_path: Path) -> None:
    """In a process of its own, with the real client against a local server."""
    with serve(model) as server:
        environment = {**os.environ, "OPENAI_API_KEY": "sk-test", "OPENAI_API_BASE": server.api_base}
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    if 'agent.run("What' in code:
        assert done.stdout == "It is 1034908.\nBy multiplying.\n"
    assert server.refusals == []


def test_what_happens_is_printed_and_exported(tmp_path: Path) -> None:
    """By the two handlers of the README; what was said is in neither."""
    printing, exporting = [_output(code, tmp_path) for code in BLOCKS if "BaseEventHandler" in code]
    assert re.findall(r"'class_name': '(\w+)'", printing) == [
        "FactsInjectedEvent",
        "FactsInjectedEvent",
        "FactsExtractedEvent",
    ]
    assert "messages  2: 0 of the current turn, 2 shown in the record; 0 older than the record" in printing
    assert re.findall(r'"name": "(\w+)"', exporting) == ["HistoryCondensedEvent"]
    assert '"memory.messages": 2,' in exporting
    assert "pytest" not in printing
    assert "Question" not in exporting


def _output(code: str, folder: Path) -> str:
    with serve(model) as server:
        environment = {**os.environ, "OPENAI_API_KEY": "sk-test", "OPENAI_API_BASE": server.api_base}
        command = [sys.executable, "-c", code]
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True).stdout


def test_the_two_commands_are_the_first_two_blocks_of_shell_code() -> None:
    """Whoever checks the project takes them from there."""
    commands = re.findall(r"^```bash\n(.*?)\n```$", README, flags=re.DOTALL | re.MULTILINE)
    assert [command.split(" && ")[-1] for command in commands] == [
        "python -m llama_index_memory_ext demo",
        "python -m pytest",
    ]
    assert all("\n" not in command for command in commands)


@pytest.mark.parametrize("commands", [commands_of(block) for block in blocks("bash") if commands_of(block)])
def test_a_block_of_commands_runs(commands: list[str], tmp_path: Path) -> None:
    """In an empty folder, one command after the other, with nobody at the keyboard."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
    done = subprocess.run(
        ["bash", "-euc", "\n".join(commands)],  # noqa: S607 - wherever it is
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_block_of_json_can_be_read() -> None:
    for text in blocks("json"):
        json.loads(text)


def test_no_block_is_of_a_kind_that_nothing_checks() -> None:
    assert {kind for kind, _ in FENCED} <= KINDS
    assert README.count("```") == 2 * len(FENCED)


def test_every_extra_that_is_named_exists() -> None:
    declared = (ROOT / "pyproject.toml").read_text(encoding="utf-8").split("[project.optional-dependencies]")[1]
    extras = set(re.findall(r"^(\w+) = \[", declared.split("\n[")[0], flags=re.MULTILINE))
    named = re.findall(r'(?:"\.|llama-index-memory-ext)\[([\w,]+)\]', README)
    assert {extra for names in named for extra in names.split(",")} <= extras


def test_every_link_to_a_file_leads_there() -> None:
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", README)
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_every_link_within_the_page_leads_to_a_heading() -> None:
    headings = re.findall(r"^#+ (.+)$", README, flags=re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert set(re.findall(r"\]\(#([^)]+)\)", README)) <= anchors
