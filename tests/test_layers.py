"""Each file imports only from files below its own, and CONTRIBUTING.md shows the same picture."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import llama_index_memory_ext

PACKAGE = Path(llama_index_memory_ext.__file__).parent
ROOT = Path(__file__).parents[1]
# A file imports from the levels below its own, and from files behind a ">" in its own folder; from no neighbour.
# "." is the package itself, and "---" divides the levels. A line that ends with ">" goes on in the next one.
PICTURE = """\
.           __main__                                                      # the command, also without the extra
---
cli         chat sessions > facts files forget inspect mcp > app > demo answers > __init__ other_model        # words
---
inspector   report server > deeds pages > access views > prompt           # pages about a database, for a browser
---
.           __init__                                                      # the public names
---
agents      mcp tools > changes > requests retriever > contexts           # memory as an agent's tools
.           caching_openai offline_model                                  # OpenAI's with breakpoints; a model of rules
---
memory      condensed_memory > search turns > flushing limits options preset stats > prompt_caches template  # preset
---
record      block > summary > recall summary_checks window > message_index selection > entry  # within the limit
facts       backfill > block > extractor > learning > sources verification > cache explanation prompt validation >
            batches book categories checks offering options recovery talk > evidence foreign ranking reply >
            matches scoring fields history > period
---
grounding   sentences statement > names negation > dates > numbers quotes secrets > words numerals > language  # words
.           log_block                                                     # what both blocks share: they read one log
---
store       read_only > __init__ > log > deletion > sessions > facts vectors > cursors > rows runner >
            address tables threads > transaction                          # the tables, threads, connections
search      concern embeddings > tfidf vectors > forms postings > languages > stems > tokenization >
            days function_words                                           # how similar two texts are
formats     __init__ > foreign > openai                                   # messages of other programs, as JSON
---
.           agent_view fact                                               # a fact; which facts an agent sees
asking      options > failures shield window                              # what a model can read and takes; failures
---
text        trim responses > cutting loose_json > messages > identity times > tokens tool_calls visible  # as text
---
background  jobs > locks loop                                             # work that no answer waits for
---
.           refusals > errors events signatures                                   # what all of it uses
"""
FILES = {str(path.relative_to(PACKAGE)): path for path in PACKAGE.rglob("*.py")}
MODULES = {
    ".".join(("llama_index_memory_ext", *Path(name).with_suffix("").parts)).removesuffix(".__init__"): name
    for name in FILES
}
DOORS: dict[str, set[str]] = {
    "sqlalchemy": {"store"},
    "psycopg": {"store"},
    "tiktoken": {"text"},
    "sklearn": set(),
    "snowballstemmer": {"search"},
    "dateparser": {"grounding"},
    "num2words": {"grounding"},
    "py3langid": {"grounding"},
    "typer": {"cli"},
    "rich": {"cli"},
    "starlette": {"inspector"},
    "uvicorn": {"inspector"},
    "jinja2": {"inspector"},
    "mcp": {"agents"},
}


def places() -> dict[str, tuple[int, str, int]]:
    """Of each file the level, counted from the top, the folder, and the place in the folder."""
    found = {}
    for level, rooms in enumerate(re.sub(r">\n +", "> ", PICTURE).split("---\n")):
        for line in rooms.splitlines():
            folder, _, groups = line.split("#")[0].partition(" ")
            for place, names in enumerate(groups.split(">")):
                found.update({str(Path(folder, f"{name}.py")): (level, folder, place) for name in names.split()})
    return found


def imported_modules(path: Path, *, for_types: bool = True) -> set[str]:
    """The names of all modules that a file imports at any place; those for type checking alone can be left out."""
    found: set[str] = set()
    nodes: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING" and not for_types:
            continue
        nodes += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module, f"{path}: expected absolute imports"
            found.update({f"{node.module}.{alias.name}" for alias in node.names} & set(MODULES) or {node.module})
    return found


def test_every_file_with_code_has_a_place() -> None:
    with_code = {name for name, path in FILES.items() if len(ast.parse(path.read_text(encoding="utf-8")).body) > 1}
    assert set(places()) == with_code


def test_contributors_see_the_same_picture() -> None:
    assert f"```text\n{PICTURE}```\n" in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_imports_point_down() -> None:
    place_of, wrong = places(), []
    for name, path in FILES.items():
        for other in {MODULES[module] for module in imported_modules(path) & set(MODULES)} & set(place_of):
            (level, folder, place), (other_level, other_folder, other_place) = place_of[name], place_of[other]
            if not (other_level > level or (folder == other_folder and other_place > place)):
                wrong.append(f"{name} imports {other}")
    assert wrong == []


def test_each_library_has_one_door() -> None:
    passed_by = {
        (name, library)
        for name, path in FILES.items()
        for library in {module.split(".")[0] for module in imported_modules(path, for_types=False)} & set(DOORS)
        if Path(name).parts[0] not in DOORS[library]
    }
    assert passed_by == set()


def test_the_public_names_are_sorted_and_exist() -> None:
    names = llama_index_memory_ext.__all__
    assert names == sorted(names)
    assert all(hasattr(llama_index_memory_ext, name) for name in names)


def test_importing_the_package_alone_does_not_start_llamaindex() -> None:
    """The help of the command line must not wait for it; each public name is loaded when it is first used."""
    code = (
        "import sys, llama_index_memory_ext; "
        "assert not [name for name in sys.modules if name.startswith('llama_index.')]; "
        "from llama_index_memory_ext import CondensedMemory; assert 'CondensedMemory' in dir(llama_index_memory_ext)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr == ""


def test_a_name_that_does_not_exist_is_told_as_python_does() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Memroy'"):
        _ = llama_index_memory_ext.Memroy  # type: ignore[attr-defined]
