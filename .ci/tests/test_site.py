"""The pages of the site break names in tables where a reader can read on, and options of commands nowhere."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def hook() -> dict[str, Any]:
    """The names of the hook that MkDocs calls."""
    pytest.importorskip("mkdocs")
    return runpy.run_path(str(Path(__file__).parents[1] / "docs_hook.py"))


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("session_id", "session_<wbr>id"),
        ("facts_token_limit=0", "facts_<wbr>token_<wbr>limit=<wbr>0"),
        ("MemoryBlocksTemplate", "Memory<wbr>Blocks<wbr>Template"),
        ("benchmarks.ipynb", "benchmarks.<wbr>ipynb"),
        ("None", "None"),
        ("a &lt; b", "a &lt; b"),
    ],
)
def test_a_name_in_a_table_breaks_between_its_words(
    hook: dict[str, Any], name: str, broken: str
) -> None:
    cell = "<td>\n<code>{}</code> {}</td><p><code>{}</code></p>"
    page = hook["on_post_page"](cell.format(name, name, name))
    assert page == cell.format(broken, name, name)


@pytest.fixture(scope="module")
def package() -> Any:
    """The package as the reference shows it."""
    griffe = pytest.importorskip("griffe")
    extension = str(Path(__file__).parents[1] / "docs_fields.py")
    return griffe.load(
        "llama_index_memory_ext", extensions=griffe.load_extensions(extension)
    )


@pytest.mark.parametrize("method", ["alist", "asearch", "aadd", "aupdate"])
def test_the_reference_lists_each_option_of_a_method(package: Any, method: str) -> None:
    shown = package["facts.book.FactBook"][method]
    assert "tags" in [part.name for part in shown.parameters]
    assert "tags: " in shown.docstring.value


def test_the_reference_describes_each_field_by_itself(package: Any) -> None:
    """Also a field whose description names other fields at the beginning of a line."""
    session = package["store.sessions.SessionInfo"]
    assert session["user_ids"].docstring.value.startswith("The users who have written")
    assert "``" not in session.docstring.value
    found = package["memory.search.MemorySearchResult"]["messages"].docstring.value
    assert found.endswith("the program.")
    ended = package["fact.Fact"]["valid_until"]
    assert str(ended.value) == "None"
    assert ended.docstring.value.startswith("The last day")


def test_an_option_of_a_command_is_never_broken(hook: dict[str, Any]) -> None:
    page = "<p><code>--token-limit</code> <code>--user ann</code></p>"
    option = '<p><code class="option">--token-limit</code> <code>--user ann</code></p>'
    assert hook["on_post_page"](page) == option
