"""Defines the app, and what its commands share: options, the database, and output."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from contextlib import aclosing, nullcontext
from contextvars import ContextVar
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

import llama_index_memory_ext as ext
from llama_index_memory_ext.cli import (
    DEFAULT_TIMEOUT,
    PACKAGE,
    TerminalError,
    UsageError,
    check_timeout,
    one_line,
    open_store,
    plain,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from contextlib import AbstractContextManager

    from llama_index_memory_ext.facts.book import FactBook

# The chat table and the schema, from the options before the command.
_tables: ContextVar[dict[str, str | None]] = ContextVar("_tables")


def _not_empty(value: str | None) -> str | None:
    if value == "":
        raise typer.BadParameter("it must not be empty.")
    return value


def check_id(value: str | None) -> str | None:
    """Returns an id that a memory takes; for another one typer says what is wrong with it."""
    # Imported here: it takes a while, and the help does not need it.
    from llama_index_memory_ext import settings

    try:
        settings.check_id("it", value)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    return value


def _check_timeout(value: float) -> float:
    try:
        return check_timeout(value)
    except TerminalError as error:
        raise typer.BadParameter(str(error)) from None


# What typer.Option returns is declared as Any.
def option(name: str, metavar: str, help_: str, check: Callable[[Any], Any] | None, envvar: str | None = None) -> Any:
    """Returns an option whose help does not show its default, and whose values are checked."""
    return typer.Option(name, metavar=metavar, envvar=envvar, callback=check, help=help_, show_default=False)


_DB_HELP = "The database: a SQLite file, or a SQLAlchemy address. Default: a file in "
_TABLE_HELP = "The chat table; the names of the other tables begin with its name. Default: llama_index_memory."
_SCHEMA_HELP = "The schema of the tables, on PostgreSQL."
_AGENT_HELP = "What this agent of the user sees. Default: all agents' facts."
_TIMEOUT_HELP = "Seconds that the model has for an answer. Default: 30; a local model may need some hundred."
USER_HELP = "The user. What is known about them applies in all their sessions."
SESSION_HELP = "The session: one conversation."
Db = Annotated[str | None, option("--db", "DB", f"{_DB_HELP}your own folder.", _not_empty, "LLAMA_INDEX_MEMORY_DB")]
# The demo leaves the user's own database alone, so it does not read the variable.
_DemoDb = Annotated[str | None, option("--db", "DB", f"{_DB_HELP}a new temporary folder.", _not_empty)]
User = Annotated[str | None, option("--user", "ID", USER_HELP, check_id)]
Session = Annotated[str | None, option("--session", "ID", SESSION_HELP, check_id)]
Agent = Annotated[str | None, option("--agent", "ID", _AGENT_HELP, check_id)]
Timeout = Annotated[float, option("--timeout", "SECONDS", _TIMEOUT_HELP, _check_timeout, "OPENAI_TIMEOUT")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else; errors as JSON on stderr.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
_Table = Annotated[str, option("--table", "NAME", _TABLE_HELP, _not_empty, "LLAMA_INDEX_MEMORY_TABLE")]
_Schema = Annotated[str | None, option("--schema", "NAME", _SCHEMA_HELP, _not_empty, "LLAMA_INDEX_MEMORY_SCHEMA")]

# Text in brackets in a help text is not markup.
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None, no_args_is_help=True)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(PACKAGE, ext.__version__)
        raise typer.Exit


_VERSION = typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")


@app.callback(help="Condensed memory for LlamaIndex agents.")
def _set_tables(
    *, table: _Table = "llama_index_memory", schema: _Schema = None, _version: Annotated[bool, _VERSION] = False
) -> None:
    _tables.set({"table_name": table, "db_schema": schema})


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


def find_store(db: str | None) -> ext.MemoryStore:
    """Returns the store that ``--db`` names, not yet opened."""
    return open_store(db or str(default_file()), **_tables.get())


def file_of(store: ext.MemoryStore) -> Path | None:
    """Returns the SQLite file of a store; None for a server, and for a file that is named by a URI."""
    url = store.database.url
    return Path(str(url.database)) if store.database.backend == "sqlite" and "uri" not in url.query else None


async def check_store(store: ext.MemoryStore, *, create: bool = False) -> None:
    """Raises an error that says why the store cannot be used.

    With ``create`` the first write creates what is missing; of the folders only that of the default file is created.
    """
    version, file = await store.read_schema_version(), file_of(store)
    if create and file == default_file():
        # Only the user may read it.
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if version is not None or create:
        return
    if file is not None and not file.exists():
        raise TerminalError(
            f"There is no database at {file}. Name another one with --db or LLAMA_INDEX_MEMORY_DB; "
            "`chat`, `facts add` and `import` create one."
        )
    raise TerminalError(
        f"The database at {file or store.address} holds no memory of this package in the table {store.table_name!r}; "
        "--table before the command names another one. A table that LlamaIndex's own Memory has written is taken over "
        "when it is first written to: `chat --session ID`."
    )


async def try_writing(store: ext.MemoryStore) -> None:
    """Does what writing a row takes, and takes it back; tables that are missing are made."""
    await store.database.run(lambda conn: conn.rollback(), sessions=["doctor"])


# What a command prints: a result for JSON, and what is shown otherwise.
Output = tuple[Any, RenderableType]


def run(
    db: str | None,
    work: Callable[[ext.MemoryStore], Awaitable[Output | None]],
    *,
    create: bool = False,
    as_json: bool = False,
) -> Any:
    """Opens the store that ``--db`` names, checks it, does the work on it, and shows and returns the result."""

    async def call() -> Output | None:
        async with aclosing(find_store(db)) as store:
            await check_store(store, create=create)
            return await work(store)

    output = asyncio.run(call())
    return None if output is None else show(output, as_json=as_json)


def show(output: Output, *, as_json: bool) -> Any:
    """Prints a result as JSON, or what is shown otherwise; returns the result."""
    result, otherwise = output
    if as_json:
        # In ASCII, which any terminal and any pipe takes.
        print(json.dumps(result, indent=2, default=_as_json))
    else:
        say(otherwise)
    return result


def _as_json(value: datetime | ext.Fact) -> object:
    return value.isoformat() if isinstance(value, datetime) else value.model_dump(mode="json")


def write_file(path: Path, text: str) -> None:
    """Writes a file that the user has named, and says so."""
    try:
        path.expanduser().write_bytes(text.encode())
    except OSError as error:
        raise TerminalError(f"{path} cannot be written: {error.strerror}.") from None
    say(f"Written to {path}.", stderr=True)


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

    seen = memory.facts
    if memory.facts_block.agent_id is not None:
        return seen
    return FactBook(memory.sql_store, seen.namespace, scope="all", categories=seen.categories)


def one_of(user: str | None, session: str | None) -> str:
    """Returns the one of two options that is given; both or none are wrong usage."""
    if (user is None) == (session is None):
        raise UsageError("say either --user ID or --session ID.")
    return str(session) if user is None else user


def is_terminal() -> bool:
    """Whether a user can be asked and sees the answer."""
    return sys.stdin is not None and sys.stdin.isatty()


def confirm(question: str) -> None:
    """Asks before something is deleted; ends the command if the answer is no, or if no user can be asked."""
    if not is_terminal():
        raise UsageError("nobody can be asked here, so nothing was done. Say --yes if it should be.")
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
    console = new_console(stderr=True)
    return console.status(plain(text)) if console.is_terminal else nullcontext()


def say(what: RenderableType, *, style: str = "", stderr: bool = False) -> None:
    """Prints a table, or a text as it is, never as markup; on a terminal its lines end between words."""
    console = new_console(stderr=stderr)
    if isinstance(what, str):
        console.print(Text(plain(what), style), soft_wrap=not console.is_terminal)
    else:
        console.print(what)


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, empty: str = "") -> RenderableType:
    """Returns rows as a table whose cells are folded to the width of the screen; without rows the text for that."""
    if not rows:
        return empty
    made = Table(*columns, box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for row in rows:
        made.add_row(*(Text(one_line(cell), overflow="fold") for cell in row))
    return made


def new_console(*, stderr: bool = False) -> Console:
    """Returns a console that takes no text for markup."""
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False)
