"""The code of the README and of the guides runs as it stands there, and their links lead somewhere."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path

import pytest

from llama_index_memory_ext import CondensedMemory, MemoryStore
from tests.forked import run_forked, run_shell
from tests.memory.test_network import watching
from tests.openai_server import Message, OpenAIServer, call, say, serve
from tests.pages import PAGES, RECIPES, ROOT, blocks

README = PAGES["README.md"]
ALL_PAGES = PAGES | RECIPES
# Text is what a model or a terminal shows; the statements of partitioning.md run with a PostgreSQL, and the browser's
# client by tests/agents/test_web.py.
KINDS = {"python", "bash", "json", "text", "sql", "javascript"}
# Whoever runs the tests has installed the package, and is running the tests, which run the demo elsewhere.
DONE_BEFORE = ("pip install", "python -m pip install", "python -m pytest")
DEMO = ("python -m llama_index_memory_ext demo", "llama-index-memory demo")


def commands_of(block: str) -> list[str]:
    """The commands that are left to run; one that is joined to another by && is one of its own."""
    commands = re.split(r"\n| && ", block.replace("\\\n", " "))
    return [
        command
        for command in commands
        if command.strip() and not command.startswith(DONE_BEFORE + DEMO)
    ]


BLOCKS = blocks("python")


def model(messages: list[Message], tools: list[str]) -> Message:
    if tools == ["report_facts"]:
        return call(("call_1", "report_facts", {"new_facts": []}))
    if messages[-1]["role"] == "tool":
        return say(f"It is {messages[-1]['content']}.")
    if messages[-1]["content"].endswith("What is 3214 * 322?"):
        return call(("call_1", "multiply", {"a": 3214, "b": 322}))
    return say(
        "By multiplying."
        if "multiply(" in messages[-1]["content"]
        else "I do not know."
    )


def keys_of(server: OpenAIServer) -> dict[str, str]:
    return {"OPENAI_API_KEY": "sk-test", "OPENAI_API_BASE": server.api_base}


@pytest.mark.parametrize(
    "code",
    [
        pytest.param(code, id=f"{name}-{i}")
        for name in PAGES
        for i, code in enumerate(blocks("python", PAGES[name]), 1)
    ],
)
def test_a_block_of_code_runs(code: str, tmp_path: Path) -> None:
    """In a process of its own, with the real client against a local server."""
    with serve(model) as server:
        done = run_forked(
            code,
            folder=tmp_path,
            environment=keys_of(server),
            typed="Do you know?\nWhat else?\n" if "stdin" in code else "",
        )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    if 'agent.run("What is 3214' in code:
        assert done.stdout == "It is 1034908.\nBy multiplying.\n"
    if "stdin.readline" in code:
        assert done.stdout == "I do not know.\nI do not know.\n"
        prompts = [str(request) for request in server.requests]
        assert any("Do you know?" in p and "What else?" in p for p in prompts)
    if "What am I allergic to?" in code and "OfflineModel()" in code:
        assert done.stdout == "You are allergic to nuts.\n"
    if "What is my name?" in code and "OfflineModel()" in code:
        assert done.stdout == "Noted: your name is Logan.\nYour name is Logan.\n"
    if "BaseEventHandler" in code:
        kinds = re.findall(r"(?:'class_name': '|\"name\": \")(\w+)", done.stdout)
        assert kinds in (
            ["HistoryCondensedEvent", "MessagesRecalledEvent"],
            [*["FactsInjectedEvent"] * 2, "FactsExtractedEvent"],
        )
        assert (
            '"memory.messages": 2,' in done.stdout
            or "messages       2\n" in done.stdout
        )
        # What was said is in neither.
        assert not re.search("pytest|Question", done.stdout)
    assert server.refusals == []


def test_no_two_blocks_use_the_same_database() -> None:
    files = [
        name
        for code in BLOCKS
        for name in set(re.findall(r"sqlite\+aiosqlite:///([\w-]+\.db)", code))
    ]
    assert sorted(files) == sorted(set(files))


def test_the_two_commands_are_the_first_two_blocks_of_shell_code() -> None:
    commands = [command.strip() for command in blocks("bash", README)]
    endings = ["python -m llama_index_memory_ext demo", "python -m pytest"]
    assert [command.split(" && ")[-1] for command in commands] == endings
    assert "\n" not in "".join(commands)


@pytest.mark.parametrize(
    "commands", [commands_of(block) for block in blocks("bash") if commands_of(block)]
)
def test_a_block_of_commands_runs(
    commands: list[str], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """In an empty folder, one command after the other, without a key, input or a connection to another machine."""
    paths = watching(tmp_path_factory.mktemp("path"))
    done = run_shell("\n".join(commands), tmp_path, PYTHONPATH=paths)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "CONNECTS TO" not in done.stderr


@pytest.mark.parametrize("page", ALL_PAGES)
def test_no_block_is_of_a_kind_that_nothing_checks(page: str) -> None:
    fences = re.findall(r"^ *```(\w*)$", ALL_PAGES[page], flags=re.MULTILINE)
    assert {kind for kind in fences if kind} <= KINDS
    assert len(fences) == 2 * len([kind for kind in fences if kind])
    for text in blocks("json", ALL_PAGES[page]):
        json.loads(text)


def test_every_extra_that_is_named_exists() -> None:
    declared = (
        (ROOT / "pyproject.toml")
        .read_text(encoding="utf-8")
        .split("[project.optional-dependencies]")[1]
    )
    extras = set(
        re.findall(r"^(\w+) = \[", declared.split("\n[")[0], flags=re.MULTILINE)
    )
    named = re.findall(
        r'(?:"\.|llama-index-memory-ext)\[([\w,]+)\]', "\n".join(PAGES.values())
    )
    assert {extra for names in named for extra in names.split(",")} <= extras


@pytest.mark.parametrize("page", ALL_PAGES)
def test_every_link_leads_to_a_file_and_a_heading(page: str) -> None:
    folder = ROOT if page == "README.md" else ROOT / "docs"
    if page in RECIPES:
        folder /= "recipes"
    lost = []
    for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", ALL_PAGES[page]):
        text = ALL_PAGES[Path(target).name if target else page] if anchor else ""
        headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
        anchors = {
            re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
            for heading in headings
        }
        if not (folder / target).exists() or (anchor and anchor not in anchors):
            lost.append(f"{target}#{anchor}")
    assert lost == []


def test_the_readme_is_short_and_names_the_page_that_names_every_page() -> None:
    assert README.count("\n") <= 110
    assert "docs/all-pages.md" in README
    named = set(re.findall(r"\((?:recipes/)?([\w-]+\.md)\)", PAGES["all-pages.md"]))
    assert PAGES.keys() - named == {"README.md", "all-pages.md"}


def test_every_recipe_is_named_in_a_guide_and_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    guides = "\n".join(PAGES.values())
    assert [
        name
        for name in RECIPES
        if f"(recipes/{name}" not in guides or f"recipes/{name}" not in navigation
    ] == []


def test_every_setting_is_on_its_page() -> None:
    named = set(re.findall(r"`(\w+)`", PAGES["settings.md"]))
    assert [
        name
        for name in inspect.signature(CondensedMemory.from_defaults).parameters
        if name not in named
    ] == []
    assert [
        name for name in inspect.signature(MemoryStore).parameters if name not in named
    ] == []


def test_a_guide_that_the_package_names_is_the_title_of_a_page() -> None:
    titles = set()
    for page in (ROOT / "docs").rglob("*.md"):
        heading = page.read_text(encoding="utf-8").partition("\n")[0]
        # A title may go on behind a colon.
        titles.add(heading.removeprefix("# ").partition(":")[0])
    names = set[str]()
    for file in (ROOT / "llama_index_memory_ext").rglob("*.py"):
        text = " ".join(file.read_text(encoding="utf-8").split())
        names.update(re.findall(r'\bguide "([^"]+)"', text))
    assert names
    assert names <= titles
