"""The app, and the options, the database and the output that its commands share."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import signal
import sys
from contextlib import aclosing
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import typer
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

import llama_index_memory_ext as ext
from llama_index_memory_ext.apps.cli import (
    PACKAGE,
    TerminalError,
    UsageError,
    one_line,
    plain,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

# From the options before the command: the chat table and the schema.
_tables: ContextVar[dict[str, Any]] = ContextVar("_tables")


# What typer.Option returns is declared as Any.
def option(declaration: str, help_: str, **more: Any) -> Any:
    """Return an option, declared as in "--output -o FILE", whose help does not show its default."""
    *names, metavar = declaration.split()
    return typer.Option(*names, metavar=metavar, help=help_, show_default=False, **more)


def example(call: str) -> str:
    """Return the line of a help, and of an error of Typer, that shows a right call."""
    return f"Example: llama-index-memory {call}"


def without_none(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that the user has passed."""
    return {name: value for name, value in options.items() if value is not None}


def time_zone_of(name: str) -> ZoneInfo:
    """Return a time zone by its name; raise a ValueError, which Typer reports, if there is none."""
    try:
        return ZoneInfo(name)
    # A name may also be a folder of the database.
    except (ZoneInfoNotFoundError, OSError) as error:
        raise ValueError(str(error)) from None


Db = Annotated[
    str | None,
    option(
        "--db DB",
        "A SQLite file or a SQLAlchemy address.",
        envvar="LLAMA_INDEX_MEMORY_DB",
    ),
]
User = Annotated[str | None, option("--user ID", "The user.")]
Session = Annotated[str | None, option("--session ID", "The session.")]
Agent = Annotated[str | None, option("--agent ID", "An agent with separate facts.")]
Embed = Annotated[
    Literal["local"] | None,
    option("--embed local", "Also find by meaning, with a local model."),
]
TimeZone = Annotated[
    Any,
    option(
        "--time-zone ZONE",
        "The zone of days, such as Europe/Paris.",
        envvar="LLAMA_INDEX_MEMORY_TIME_ZONE",
        parser=time_zone_of,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, including errors.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
NoVacuum = Annotated[
    bool,
    typer.Option(
        "--no-vacuum", help="Do not rewrite the file now; `vacuum` does it later."
    ),
]

# Text in brackets in a help text is not markup.
app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    no_args_is_help=True,
)


@app.callback(
    help="Condensed memory for LlamaIndex agents. --version alone prints the version.",
    epilog=example("facts list --user ann"),
)
def _set_tables(
    *,
    table: Annotated[
        str,
        option(
            "--table NAME",
            "The chat table. Default: llama_index_memory.",
            envvar="LLAMA_INDEX_MEMORY_TABLE",
        ),
    ] = "llama_index_memory",
    schema: Annotated[
        str | None,
        option(
            "--schema NAME",
            "The schema of the tables, on PostgreSQL.",
            envvar="LLAMA_INDEX_MEMORY_SCHEMA",
        ),
    ] = None,
) -> None:
    if not table:
        raise UsageError("--table must not be empty.")
    _tables.set({"table_name": table, "db_schema": schema})


@app.command(epilog=example("demo"))
def demo(
    *,
    with_all: Annotated[
        bool, typer.Option("--all", help="Print each answer, too.")
    ] = False,
) -> None:
    """Compare this memory with LlamaIndex's.

    The memories have the same token_limit. They are asked after 54 turns, and in a new
    session after their process was killed. With OPENAI_API_KEY set, an OpenAI model
    answers: OPENAI_MODEL, or gpt-4o-mini. OPENAI_API_BASE names another server, whose
    model may have any name. Without the key, an offline model answers by rules.
    """
    # Imported here: LlamaIndex takes seconds to start, and the help does not need it.
    from llama_index_memory_ext.apps.demo import run

    run(with_all=with_all)


def default_file() -> Path:
    """Return the file that is used without ``--db``, in the user's application folder."""
    return Path(typer.get_app_dir("llama-index-memory")) / "memory.db"


def find_store(db: str | None) -> ext.MemoryStore:
    """Return the store that ``--db`` names: a SQLite file or a SQLAlchemy address; it connects at its first use."""
    if db is None:
        db = str(default_file())
    if "://" not in db:
        file = Path(db).expanduser().absolute()
        if "?" in db:
            raise UsageError(
                "--db must be a SQLAlchemy address, or the name of a file without a question mark."
            )
        db = f"sqlite+aiosqlite:///{file.as_posix()}"
    # Arguments of a command can be seen by all users of the machine, variables cannot.
    keys = os.environ.get("LLAMA_INDEX_MEMORY_KEY", "").split()
    store = ext.MemoryStore(db, encryption_key=keys or None, **_tables.get())
    if store.is_in_memory:
        raise UsageError(
            "a database in memory is gone when the command ends. Pass a file or a server to --db."
        )
    return store


async def check_store(store: ext.MemoryStore, *, create: bool) -> None:
    """Raise a TerminalError if the store has no tables of this package.

    With ``create``, missing tables are no error, because the first write creates them.
    Then the folder of the default file is created too, but no other folder.
    """
    version = await store.read_schema_version()
    file = store.file
    if create:
        if file == default_file():
            # Only the user may read it.
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    elif version is None:
        raise TerminalError(
            f"There is no memory of this package at {file or store.address} in the table {store.table_name!r}. Pass "
            "another database with --db or LLAMA_INDEX_MEMORY_DB, or another table with --table before the command. "
            "`facts add` and `import` create a memory. The messages of LlamaIndex's own Memory are taken over by a "
            "program that opens the database with CondensedMemory."
        )


class Output(NamedTuple):
    """The output of a command: the ``result`` for --json, and the ``text`` without --json."""

    result: Any
    text: RenderableType


_Work: TypeAlias = "Callable[[ext.MemoryStore], Awaitable[Output | None]]"


def run(
    db: str | None, work: _Work, *, create: bool = False, as_json: bool = False
) -> Any:
    """Do the work on the store that ``--db`` names, print the output, and return the result; None without an output."""

    async def call() -> Output | None:
        async with aclosing(find_store(db)) as store:
            await check_store(store, create=create)
            return await work(store)

    output = asyncio.run(call())
    if output is None:
        return None
    if as_json:
        # Imported here: it takes a while, and the help does not need it.
        from pydantic_core import to_jsonable_python

        # In ASCII, which any terminal and any pipe can print.
        print(json.dumps(to_jsonable_python(output.result), indent=2))
    else:
        say(output.text)
    return output.result


@app.command(epilog=example("doctor --db memory.db"))
def doctor(*, db: Db = None) -> None:
    """Check the database, and name the demo's model.

    Nothing is created, and no model is asked.
    `pip check` checks the versions of the libraries.
    """
    # Imported here: it imports LlamaIndex.
    from llama_index_memory_ext.apps.demo import choose_model, describe_model

    database = asyncio.run(_check_database(find_store(db)))
    say(
        f"{PACKAGE}: {ext.__version__}, on Python {platform.python_version()}\n"
        f"database: {database}\n"
        f"model: {describe_model(choose_model())}"
    )


async def _check_database(store: ext.MemoryStore) -> str:
    """Return the place of the database and the version of its tables; raise an error if it cannot be used."""
    file = store.file
    tables = "no tables of this package yet; the first conversation creates them"
    # The folder of the default file is created with the file.
    if file and file != default_file() and not file.parent.is_dir():
        raise TerminalError(
            f"{file} needs the folder {file.parent}, which does not exist. Create it first."
        )
    async with aclosing(store):
        schema = await store.read_schema_version()
        if schema is not None:
            await store.check_writes()
            tables = f"version {schema} of the tables, and rows can be written"
    return f"{file or store.address}: {tables}"


# A command without --session has a memory of this session.
NO_SESSION = "(none)"


def memory_on(
    store: ext.MemoryStore,
    session: str | None,
    user: str | None,
    *,
    extract_facts: bool = False,
    **settings: Any,
) -> ext.CondensedMemory:
    """Return the memory of a session, or of a user without a session.

    ``settings``: further arguments of ``CondensedMemory.from_defaults``.
    """
    return ext.CondensedMemory.from_defaults(
        NO_SESSION if session is None else session,
        chat_store=store,
        user_id=user,
        extract_facts=extract_facts,
        **settings,
    )


def book_of(memory: ext.CondensedMemory) -> ext.FactBook:
    """Return the facts that the memory's agent sees; for a memory without an agent, the facts of all agents."""
    book = memory.facts
    if memory.facts_block.agent_id is not None:
        return book
    return ext.FactBook(
        memory.sql_store,
        book.namespace,
        scope="all",
        categories=book.categories,
        time_zone=memory.facts_block.zone,
    )


def whose(memory: ext.CondensedMemory) -> str:
    """Return the name of the owner of the memory's facts: the user, or else the session."""
    return ext.display_name(memory.facts.namespace)


def one_of(user: str | None, session: str | None) -> str:
    """Return the user or the session; raise a UsageError for both or neither."""
    if (user is None) == (session is None):
        raise UsageError("pass either --user ID or --session ID.")
    return str(session) if user is None else user


def is_terminal() -> bool:
    """Return whether a person can type answers."""
    return sys.stdin is not None and sys.stdin.isatty()


def confirm(question: str) -> None:
    """Ask before a change; raise an error if the answer is no, or if there is no terminal."""
    if not is_terminal():
        raise UsageError(
            "No terminal to confirm on; nothing was changed. Pass --yes to confirm."
        )
    # On stderr: stdout holds the result alone.
    say(f"{question} [y/n]", stderr=True)
    # An event loop would handle the first Ctrl-C itself, and go on waiting for the
    # answer.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if sys.stdin.readline().strip().casefold() not in ("y", "yes"):
        raise TerminalError("Nothing was deleted.")


def say(output: RenderableType, *, stderr: bool = False) -> None:
    """Print a table, or a text without markup; on a terminal, long lines are wrapped between words."""
    console = Console(stderr=stderr, highlight=False, markup=False, emoji=False)
    if isinstance(output, str):
        console.print(Text(plain(output)), soft_wrap=not console.is_terminal)
    else:
        console.print(output)


def table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, empty: str
) -> RenderableType:
    """Return rows as a table as wide as the screen; without rows, return the text ``empty``."""
    if not rows:
        return empty
    grid = Table(
        *columns, box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0)
    )
    for row in rows:
        grid.add_row(*(Text(one_line(cell), overflow="fold") for cell in row))
    return grid
