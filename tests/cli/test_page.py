"""The page about the command line names each command, and only options that exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command

from llama_index_memory_ext.__main__ import load_app

PAGE = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text(
    encoding="utf-8"
)
APP: Any = get_command(load_app())


def options_of(command: Any) -> Iterator[str]:
    for parameter in command.params:
        yield from [*parameter.opts, *parameter.secondary_opts]
    for subcommand in getattr(command, "commands", {}).values():
        yield from options_of(subcommand)


def test_each_command_has_a_section() -> None:
    headings = re.findall(r"^## (.+?): ", PAGE, re.MULTILINE)
    named = {name for heading in headings for name in heading.split(" and ")}
    assert set(APP.commands) - named == set()


def test_each_command_for_facts_is_in_the_table() -> None:
    section = PAGE.split("\n## facts: ")[1].split("\n## ")[0]
    first_cells = re.findall(r"^\| (`.+?) \|", section, re.MULTILINE)
    named = set(re.findall(r"`(\w+)`", " ".join(first_cells)))
    assert named == set(APP.commands["facts"].commands)


def test_each_option_on_the_page_exists() -> None:
    text = PAGE.split("\n## Which options do all commands have?\n")[1]
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text))
    assert named - set(options_of(APP)) - {"--help"} == set()


def test_each_option_for_facts_is_on_the_page() -> None:
    named = set(re.findall(r"--[a-z][a-z-]*", PAGE))
    long_options = {
        name for name in options_of(APP.commands["facts"]) if name.startswith("--")
    }
    assert long_options - named == set()
