"""Defines the app, and what its commands share: options, the database, and output."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from contextlib import aclosing, nullcontext
from contextvars import ContextVar
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

import llama_index_memory_ext as ext
from llama_index_memory_ext.cli import (
    DEFAULT_TIMEOUT,
    TerminalError,
    check_timeout,
    describe_error,
    one_line,
    plain,
    version_line,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from contextlib import AbstractContextManager

    from llama_index_memory_ext.facts.book import FactBook

T = TypeVar("T")

# The chat table and the schema, from the options before the command.
_tables: ContextVar[tuple[str, str | None]] = ContextVar("_tables")


def _check_not_empty(value: str | None) -> str | None:
    if value == "":
        raise typer.BadParameter("it must not be empty.")
    return value


def _check_id(value: str | None) -> str | None:
    # Imported here: it takes a while, and the help does not need it.
    from llama_index_memory_ext.refusals import check_id

    try:
        check_id("it", value)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    return value


# What typer.Option returns is declared as Any.
def _option(name: str, metavar: str, help_: str, envvar: str | None = None) -> Any:
    return typer.Option(name, metavar=metavar, envvar=envvar, callback=_check_not_empty, help=help_, show_default=False)


def id_option(name: str, help_: str, check: Callable[[str | None], str | None] | None = _check_id) -> Any:
    """Returns the option for the id of a user, a session or an agent; without a ``check`` for any that is stored."""
    return typer.Option(name, metavar="ID", callback=check, help=help_, show_default=False)


_DB_HELP = "The database: a SQLite file, or a SQLAlchemy address. Default: a file in your own folder."
_TABLE_HELP = "The chat table; the names of the other tables begin with its name. Default: llama_index_memory."
_SCHEMA_HELP = "The schema of the tables, on PostgreSQL."
Db = Annotated[str | None, _option("--db", "DB", _DB_HELP, "LLAMA_INDEX_MEMORY_DB")]
USER_HELP = "The user. What is known about them applies in all their sessions."
SESSION_HELP = "The session: one conversation."
User = Annotated[str | None, id_option("--user", USER_HELP)]
Session = Annotated[str | None, id_option("--session", SESSION_HELP)]
Agent = Annotated[str | None, id_option("--agent", "What this agent of the user sees. Default: all agents' facts.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else; errors as JSON on stderr.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
_Table = Annotated[str, _option("--table", "NAME", _TABLE_HELP, "LLAMA_INDEX_MEMORY_TABLE")]
_Schema = Annotated[str | None, _option("--schema", "NAME", _SCHEMA_HELP, "LLAMA_INDEX_MEMORY_SCHEMA")]
# The demo leaves the user's own database alone, so it does not read the variable.
_DEMO_HELP = "The database: a SQLite file, or a SQLAlchemy address. Default: a file in a new temporary folder."
_DemoDb = Annotated[str | None, _option("--db", "DB", _DEMO_HELP)]


def _check_timeout(value: float) -> float:
    try:
        return check_timeout(value)
    except TerminalError as error:
        raise typer.BadParameter(str(error)) from None


_TIMEOUT_HELP = "Seconds that the model has for an answer. Default: 30; a local model may need some hundred."
Timeout = Annotated[
    float,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        envvar="OPENAI_TIMEOUT",
        callback=_check_timeout,
        help=_TIMEOUT_HELP,
        show_default=False,
    ),
]

# Text in brackets in a help text is not markup.
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(version_line())
        raise typer.Exit


_VERSION = typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
_Version = Annotated[bool, _VERSION]


@app.callback(help="Condensed memory for LlamaIndex agents.")
def _set_tables(*, table: _Table = "llama_index_memory", schema: _Schema = None, _version: _Version = False) -> None:
    _tables.set((table, schema))


@app.command()
def demo(*, db: _DemoDb = None, timeout: Timeout = DEFAULT_TIMEOUT) -> None:
    """Show a conversation, and what the model is shown in each turn.

    The conversation begins in one process and goes on in a second one. With OPENAI_API_KEY set a model of OpenAI's
    answers (OPENAI_MODEL, default gpt-4o-mini; OPENAI_API_BASE for another server, with a model of any name), without
    it a small offline model.
    """
    # Imported here: LlamaIndex takes seconds to start, and the help does not need it.
    from llama_index_memory_ext.cli.demo import run

    raise typer.Exit(run(db, timeout))


def default_file() -> Path:
    """Returns the file that is used without ``--db``, in the user's application folder."""
    return Path(typer.get_app_dir("llama-index-memory")) / "memory.db"


def find_store(db: str | None) -> tuple[ext.MemoryStore, Path | None]:
    """Returns the store that ``--db`` names, not yet opened, and its file (None for a server)."""
    table, schema = _tables.get()
    if db and "://" in db:
        store = ext.MemoryStore(db, table, db_schema=schema)
        if store.database.in_memory:
            raise typer.BadParameter("a database in memory is gone when the command ends. Name a file or a server.")
        return store, Path(store.database.identity[0]) if db.startswith("sqlite") and "uri=" not in db else None
    if db and "?" in db:
        raise typer.BadParameter("--db must name a file, without a question mark, or be a SQLAlchemy address.")
    file = Path(db).expanduser().absolute() if db else default_file()
    if file.is_dir():
        raise typer.BadParameter(f"--db must name a file, and {file} is a folder.")
    return ext.MemoryStore(f"sqlite+aiosqlite:///{file.as_posix()}", table, db_schema=schema), file


def is_missing(file: Path | None) -> bool:
    """Whether the database is a file that does not exist."""
    return file is not None and not file.exists()


async def check_store(store: ext.MemoryStore, file: Path | None, *, create: bool = False) -> None:
    """Raises a TerminalError that says why the store cannot be used.

    With ``create`` the first write creates what is missing; of the folders only that of the default file is created.
    """
    name = file or store.address
    try:
        version = await store.read_schema_version()
    except Exception as error:  # noqa: BLE001 - each driver has errors of its own
        reason = describe_error(error).rpartition("cannot be used: ")[2]
        raise TerminalError(f"The database at {name} cannot be used: {reason}") from None
    if create and file == default_file():
        # Only the user may read it.
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if version is not None or create:
        return
    if is_missing(file):
        raise TerminalError(
            f"There is no database at {name}. Name another one with --db or LLAMA_INDEX_MEMORY_DB; "
            "`chat`, `facts add` and `import` create one."
        )
    raise TerminalError(
        f"The database at {name} holds no memory of this package in the table {store.table_name!r}; --table "
        "before the command names another one. A table that LlamaIndex's own Memory has written is taken over "
        "when it is first written to: `chat --session ID`."
    )


async def try_writing(store: ext.MemoryStore) -> None:
    """Does what writing a row takes, and takes it back. What is missing is made, so ask only where tables exist."""
    # Imported here: LlamaIndex takes seconds to start, and the help does not need it.
    from llama_index_memory_ext.store.transaction import UnchangedError

    def write_nothing(_: object) -> None:
        raise UnchangedError

    await store.database.run(write_nothing, sessions=["doctor"])


def _why_not_writable(file: Path) -> str:
    kind, place = ("file", file) if file.exists() else ("folder", file.parent)
    if not place.exists():
        return f"there is no folder {place}: create it first."
    return "" if os.access(place, os.W_OK) else f"you may not write to the {kind}."


async def check_writable(store: ext.MemoryStore, file: Path | None) -> None:
    """Raises a TerminalError if nothing could be kept in the store, as in a file that may only be read.

    Nothing is made. A store that is only busy passes.
    """
    reason = ""
    if await store.read_schema_version() is not None:
        try:
            await try_writing(store)
        except Exception as error:  # noqa: BLE001 - each driver has errors of its own
            if not (isinstance(error, ext.StoreTimeoutError) or "locked" in str(error)):
                reason = re.split(r"cannot be used: |has refused [\w.]+: ", describe_error(error))[-1]
    elif file:
        reason = _why_not_writable(file)
    if reason:
        raise TerminalError(
            f"The database at {file or store.address} cannot be written to: {reason} Nothing of a conversation would "
            "be kept, so none begins. Name another database with --db or LLAMA_INDEX_MEMORY_DB."
        )


def run(db: str | None, work: Callable[[ext.MemoryStore], Awaitable[T]], *, create: bool = False) -> T:
    """Runs a coroutine function on the store that ``--db`` names, once ``check_store`` has found nothing wrong."""

    async def call() -> T:
        store, file = find_store(db)
        async with aclosing(store):
            await check_store(store, file, create=create)
            return await work(store)

    return asyncio.run(call())


def memory_on(
    store: ext.MemoryStore, name: str, user_id: str | None = None, agent_id: str | None = None
) -> ext.CondensedMemory:
    """Returns the memory of a session, or of a namespace of facts, that extracts nothing."""
    whose: Any = {"user_id": user_id, "agent_id": agent_id}
    return ext.CondensedMemory.from_defaults(name, chat_store=store, extract_facts=False, **whose)


def book_of(memory: ext.CondensedMemory) -> FactBook:
    """Returns the facts that the agent of a memory sees; where it has none, those of all agents of the user."""
    # Imported here: it imports LlamaIndex.
    from llama_index_memory_ext.facts.book import FactBook

    if memory.facts_block.agent_id is not None:
        return memory.facts
    known = memory.facts
    return FactBook(memory.sql_store, known.namespace, scope="all", categories=known.categories)


def one_of(user: str | None, session: str | None) -> str:
    """Returns the one of two options that is given; both or none are wrong usage."""
    if (user is None) == (session is None):
        raise typer.BadParameter("say either --user ID or --session ID.")
    return str(session) if user is None else user


def is_terminal() -> bool:
    """Whether a user can be asked and sees the answer."""
    return sys.stdin is not None and sys.stdin.isatty()


def confirm(question: str) -> None:
    """Asks before something is deleted; ends the command if the answer is no, or if no user can be asked."""
    if not is_terminal():
        raise typer.BadParameter("nobody can be asked here, so nothing was done. Say --yes if it should be.")
    # An event loop would take the first Ctrl-C for itself, and go on waiting for the answer.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        # On stderr: stdout holds the result and nothing else.
        typer.confirm(question, err=True, abort=True)
    except typer.Abort as abort:
        # An Abort has a cause after Ctrl-C and Ctrl-D, when the cursor is still on the line of the question.
        say("\nNothing was deleted." if abort.__context__ else "Nothing was deleted.", stderr=True)
        raise KeyboardInterrupt if isinstance(abort.__context__, KeyboardInterrupt) else typer.Exit(1) from None
    finally:
        signal.signal(signal.SIGINT, handler)


def waiting(text: str) -> AbstractContextManager[object]:
    """Shows a spinner until the block ends; nothing outside a terminal."""
    console = _console(stderr=True)
    return console.status(plain(text)) if console.is_terminal else nullcontext()


def text(words: str, style: str = "") -> Text:
    """Returns words as they are, never as markup, and without what could control a terminal."""
    return Text(plain(words), style)


def say(what: RenderableType, *, style: str = "", stderr: bool = False) -> None:
    """Prints a text or a table; on a terminal the lines of a text end between words."""
    console = _console(stderr=stderr)
    is_text = isinstance(what, str)
    console.print(text(what, style) if isinstance(what, str) else what, soft_wrap=is_text and not console.is_terminal)


def show(result: object, otherwise: RenderableType, *, as_json: bool) -> None:
    """Prints a result as JSON, in ASCII, which any terminal and any pipe takes; else a text or a table."""
    if as_json:
        print(json.dumps(result, indent=2, default=_as_json))
    else:
        say(otherwise)


def _as_json(value: datetime | ext.Fact) -> object:
    return value.isoformat() if isinstance(value, datetime) else value.model_dump(mode="json")


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, empty: str = "") -> RenderableType:
    """Returns rows as a table whose cells are folded to the width of the screen; without rows the text for that."""
    if not rows:
        return empty
    made = Table(*columns, box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for row in rows:
        made.add_row(*(Text(one_line(cell), overflow="fold") for cell in row))
    return made


def _console(*, stderr: bool = False) -> Console:
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False)
