"""What is published says of itself what is true."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from pydantic import BaseModel

import llama_index_memory_ext
from llama_index_memory_ext import CondensedMemory, MemoryStore
from llama_index_memory_ext.facts.book import FactBook

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs" / "reference").rglob("*.md"))
# Extras that a program needs at run time, rather than whoever works on this one.
RUNTIME_EXTRAS = ("encryption", "cli", "inspect", "local", "mcp", "postgres", "sklearn")


@pytest.fixture(scope="module")
def pyproject() -> dict[str, Any]:
    tomllib = pytest.importorskip("tomllib", reason="Python 3.11 and later have it")
    parsed: dict[str, Any] = tomllib.loads(
        (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    )
    return parsed


def runtime_requirements(project: dict[str, Any]) -> list[Requirement]:
    extras = project["optional-dependencies"]
    named = [
        *project["dependencies"],
        *(line for extra in RUNTIME_EXTRAS for line in extras.get(extra, [])),
    ]
    # An extra may name another one of this package.
    return [one for one in map(Requirement, named) if one.name != project["name"]]


def test_every_public_name_says_what_it_is_and_is_in_the_reference() -> None:
    pages = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    shown = set(re.findall(r"^::: llama_index_memory_ext\.(\w+)$", pages, re.MULTILINE))
    assert set(llama_index_memory_ext.__all__) - shown == set()
    names = llama_index_memory_ext.__all__
    assert [
        name for name in names if not getattr(llama_index_memory_ext, name).__doc__
    ] == []


def callables_of(owner: Any, name: str) -> Iterator[tuple[str, Callable[..., Any]]]:
    """An object that can be called, and the public methods that this package gives it."""
    yield name, owner
    for attribute in dir(owner) if inspect.isclass(owner) else ():
        method = getattr(owner, attribute, None)
        if (
            callable(method)
            and not attribute.startswith("_")
            and not inspect.isclass(method)
        ):
            made_here = str(getattr(method, "__module__", "")).startswith(
                llama_index_memory_ext.__name__
            )
            if made_here:
                yield f"{name}.{attribute}", method


def test_models_are_built_before_threads_use_them() -> None:
    """Two threads that build the same model at once fail with an AttributeError before pydantic 2.13."""
    models = {
        model
        for name in llama_index_memory_ext.__all__
        if isinstance(model := getattr(llama_index_memory_ext, name), type)
        and issubclass(model, BaseModel)
    }
    assert {CondensedMemory, llama_index_memory_ext.Fact} <= models
    assert [m for m in models if m.model_config.get("defer_build")] == []


def test_each_public_call_shows_the_arguments_that_it_takes() -> None:
    """None hides behind a decorator, and only what is handed on to others has any name."""
    store = MemoryStore()
    parts = [
        (part.__class__.__name__, part.__class__)
        for part in (store.log, store.facts, store.readers)
    ]
    # The calls of a model are the host's alone.
    own = set(llama_index_memory_ext.__all__) - {"OfflineModel"}
    names = [(name, getattr(llama_index_memory_ext, name)) for name in sorted(own)]
    # Questions to blocks of others, and what the host's templates and models take. Errors and protocols have no own.
    handed_on = {"aget", "get", "format_messages"}
    hidden = []
    for name, owner in [*names, *parts, ("FactBook", FactBook)]:
        no_signature = inspect.isclass(owner) and (
            issubclass(owner, Exception | dict) or hasattr(owner, "_is_protocol")
        )
        for called, call in list(callables_of(owner, name))[no_signature:]:
            shown = inspect.signature(call).parameters.values()
            inner = {"args", "conn"} if hasattr(call, "__wrapped__") else {"args"}
            packed = [
                one.name
                for one in shown
                if one.kind == one.VAR_KEYWORD or one.name in inner
            ]
            if packed and called.split(".")[-1] not in handed_on:
                hidden.append((called, packed))
    assert hidden == []


def test_facts_are_added_and_changed_by_the_fields_of_a_fact() -> None:
    memory = CondensedMemory.from_defaults(extract_facts=False)
    for call in (
        memory.facts.aadd,
        memory.facts.add,
        memory.facts.aupdate,
        memory.facts.update,
    ):
        shown = inspect.signature(call)
        assert {"ttl", "category", "confidence", "pinned", "expires_at"} <= set(
            shown.parameters
        )
        assert shown.parameters["confidence"].annotation == "float"
        assert shown.return_annotation == "Fact"
        assert "How certain it is, 0..1." in str(inspect.getdoc(memory.facts.aadd))
    assert [*inspect.signature(memory.sql_store.forget_user).parameters] == [
        "user_id",
        "session_ids",
        "vacuum",
    ]


def test_the_changelog_begins_with_the_version_of_the_package(
    pyproject: dict[str, Any],
) -> None:
    released = re.findall(
        r"^## \[?([\d.]+)\]? - \d{4}-\d\d-\d\d$",
        (ROOT / "CHANGELOG.md").read_text(),
        re.MULTILINE,
    )
    assert (
        released[0]
        == pyproject["project"]["version"]
        == llama_index_memory_ext.__version__
    )
    assert released == sorted(released, key=Version, reverse=True)


def test_the_lowest_versions_that_are_tested_are_those_that_are_allowed(
    pyproject: dict[str, Any],
) -> None:
    """Each below which nothing is allowed, and no other."""
    lines = (ROOT / ".ci" / "lowest.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if not line.startswith("#")]
    tested = {name: Version(version) for name, version in pairs}
    allowed = {
        requirement.name: next(
            Version(bound.version)
            for bound in requirement.specifier
            if bound.operator == ">="
        )
        for requirement in runtime_requirements(pyproject["project"])
    }
    assert tested == allowed


def test_the_versions_of_python_are_all_from_the_lowest_that_is_allowed_on(
    pyproject: dict[str, Any],
) -> None:
    """Those to come are not forbidden, as LlamaIndex forbids none. The checks look for each that is named."""
    project = pyproject["project"]
    prefix = "Programming Language :: Python :: "
    named = [
        entry.removeprefix(prefix)
        for entry in project["classifiers"]
        if entry.startswith(prefix)
    ]
    allowed = SpecifierSet(project["requires-python"])
    lowest = next(minor for minor in range(30) if f"3.{minor}" in allowed)
    assert named == [f"3.{minor}" for minor in range(lowest, lowest + len(named))]
    assert "3.29" in allowed
    minors = " ".join(entry.split(".")[1] for entry in named)
    assert (
        f"minors=({minors})"
        in (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    )


def test_the_address_of_the_repository_is_set_in_one_place(
    pyproject: dict[str, Any],
) -> None:
    """As long as it is a placeholder, nothing leads to a project that does not exist."""
    urls, project = (
        pyproject["project"]["urls"],
        pyproject["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"],
    )
    source = urls["Source"]
    assert urls["Issues"] == f"{source}/issues"
    assert urls["Changelog"] == f"{source}/blob/main/CHANGELOG.md"
    replacements = [one["replacement"] for one in project["substitutions"]]
    assert replacements == [f"\\1{source}/raw/main/", f"\\1{source}/blob/main/"]
    texts = [
        path.read_text(encoding="utf-8")
        for path in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"))
    ]
    assert [
        text
        for text in texts
        if re.search(r"github\.com/llama-index-memory-ext|github\.io", text)
    ] == []


def test_the_readme_has_whole_addresses_on_the_page_of_an_index(
    pyproject: dict[str, Any],
) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    hook = pyproject["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    for one in hook["substitutions"]:
        readme = re.sub(one["pattern"], one["replacement"], readme)
    links = re.findall(r"\]\(([^)]+)\)", readme)
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
    source = pyproject["project"]["urls"]["Source"]
    assert f"({source}/raw/main/docs/one-message.svg)" in readme
    for link in links:
        _, at, path = link.partition(f"{source}/blob/main/")
        assert not at or (ROOT / path.partition("#")[0]).exists(), link


def test_what_is_published_holds_what_it_says(pyproject: dict[str, Any]) -> None:
    """The types of the package, what LlamaHub is told of, and in the source distribution what the tests need."""
    assert (Path(llama_index_memory_ext.__file__).parent / "py.typed").is_file()
    hub = pyproject["tool"]["llamahub"]
    assert hub["import_path"] == llama_index_memory_ext.__name__
    assert set(hub["class_authors"]) <= set(llama_index_memory_ext.__all__)
    included = pyproject["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    assert {
        "/llama_index_memory_ext",
        "/tests",
        "/benchmarks",
        "/notebooks",
        "/.ci",
        "/mkdocs.yml",
    } <= set(included)
    assert [
        name for name in included if not (ROOT / name.removeprefix("/")).exists()
    ] == []


def test_the_licences_of_the_package_are_those_that_the_readme_names(
    pyproject: dict[str, Any],
) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert pyproject["project"]["license"] == "MIT AND LicenseRef-WordNet"
    (named,) = re.findall(r"`(llama_index_memory_ext/\S+\.txt)`", readme)
    assert "WordNet" in (ROOT / named).read_text(encoding="utf-8")[:2_000]
