"""The README's code runs as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.openai_server import Message, call, say, serve

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", README, flags=re.DOTALL | re.MULTILINE)


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
    assert "messages  2: 0 active, 2 in the record as they are, 0 have left it" in printing
    assert re.findall(r'"name": "(\w+)"', exporting) == ["HistoryCondensedEvent"]
    assert '"memory.messages": 3,' in exporting
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
