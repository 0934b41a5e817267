"""Defines the app, and what its commands share: options, the database, and output."""

from __future__ import annotations

import asyncio
import json
import platform
import signal
import sys
from contextlib import aclosing, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer
from rich.console import Console, RenderableType
from rich.prompt import Confirm
from rich.table import Table
from rich.text import Text

import llama_index_memory_ext as ext
from llama_index_memory_ext.cli import (
    PACKAGE,
    TerminalError,
    UsageError,
    describe_error,
    one_line,
    open_store,
    plain,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from llama_index_memory_ext.facts.book import FactBook

# The chat table and the schema, from the options before the command.
_tables: ContextVar[dict[str, str | None]] = ContextVar("_tables")


# What typer.Option returns is declared as Any.
def option(name: str, metavar: str, help_: str, **more: Any) -> Any:
    """Return an option whose help does not show its default."""
    return typer.Option(name, metavar=metavar, help=help_, show_default=False, **more)


_DB_HELP = "The database: a SQLite file, or a SQLAlchemy address. Default: a file in your own folder."
_TABLE_HELP = "The chat table; the names of the other tables begin with its name. Default: llama_index_memory."
_SCHEMA_HELP = "The schema of the tables, on PostgreSQL."
_USER_HELP = "The user. What is known about them applies in all their sessions."
_AGENT_HELP = "What this agent of the user sees. Default: all agents' facts."
_EMBED_HELP = "Find by meaning, too, with a small model on this machine (extra local). Default: by words alone."
_TIMEOUT_HELP = "Seconds that the model has for an answer. Default: 30; a local model may need some hundred."
_SECONDS: Any = {"min": 0.001, "max": 86_400, "envvar": "OPENAI_TIMEOUT"}
Db = Annotated[
    str | None, option("--db", "DB", _DB_HELP, envvar="LLAMA_INDEX_MEMORY_DB")
]
User = Annotated[str | None, option("--user", "ID", _USER_HELP)]
Session = Annotated[
    str | None, option("--session", "ID", "The session: one conversation.")
]
Agent = Annotated[str | None, option("--agent", "ID", _AGENT_HELP)]
Embed = Annotated[Literal["local"] | None, option("--embed", "local", _EMBED_HELP)]
Timeout = Annotated[float, option("--timeout", "SECONDS", _TIMEOUT_HELP, **_SECONDS)]
Json = Annotated[
    bool,
    typer.Option(
        "--json", help="Print JSON and nothing else; errors as JSON on stderr."
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
_MODEL_HELP = (
    "One of OpenAI's, or any at OPENAI_API_BASE; default: OPENAI_MODEL, or gpt-4o-mini."
)
Model = Annotated[str | None, option("--model", "NAME", _MODEL_HELP)]
_Table = Annotated[
    str, option("--table", "NAME", _TABLE_HELP, envvar="LLAMA_INDEX_MEMORY_TABLE")
]
_Schema = Annotated[
    str | None,
    option("--schema", "NAME", _SCHEMA_HELP, envvar="LLAMA_INDEX_MEMORY_SCHEMA"),
]

# Text in brackets in a help text is not markup.
app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    no_args_is_help=True,
)


@app.callback(
    help="Condensed memory for LlamaIndex agents. --version alone prints the version."
)
def _set_tables(
    *, table: _Table = "llama_index_memory", schema: _Schema = None
) -> None:
    if not table:
        raise UsageError("--table must not be empty.")
    _tables.set({"table_name": table, "db_schema": schema})


@app.command()
def demo() -> None:
    """Ask this memory and LlamaIndex's Memory about a conversation of 60 turns, and compare answers and prices.

    Both memories have the same token_limit. With OPENAI_API_KEY set a model of OpenAI's
    answers (OPENAI_MODEL, default gpt-4o-mini; OPENAI_API_BASE for another server, with
    a model of any name), without it a small offline model.
    """
    # Imported here: LlamaIndex takes seconds to start, and the help does not need it.
    from llama_index_memory_ext.cli.demo import run

    raise typer.Exit(run())


def default_file() -> Path:
    """Return the file that is used without ``--db``, in the user's application folder."""
    return Path(typer.get_app_dir("llama-index-memory")) / "memory.db"


def find_store(db: str | None) -> ext.MemoryStore:
    """Return the store that ``--db`` names, not yet opened."""
    return open_store(str(default_file()) if db is None else db, **_tables.get())


def file_of(store: ext.MemoryStore) -> Path | None:
    """Return the SQLite file of a store; None for a server, and for a file that is named by a URI."""
    url = store.database.url
    if store.database.backend == "sqlite" and "uri" not in url.query:
        return Path(str(url.database))
    return None


async def check_store(store: ext.MemoryStore, *, create: bool = False) -> None:
    """Raise an error that says why the store cannot be used.

    With ``create`` the first write creates what is missing; of the folders only that of
    the default file is created.
    """
    version = await store.read_schema_version()
    file = file_of(store)
    if create:
        if file == default_file():
            # Only the user may read it.
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    elif version is None:
        raise TerminalError(
            f"There is no memory of this package at {file or store.address} in the table {store.table_name!r}. --db or "
            "LLAMA_INDEX_MEMORY_DB names another database, --table before the command another table; `chat`, `facts "
            "add` and `import` create one. What LlamaIndex's own Memory has written is taken over by `chat --session`."
        )


async def try_writing(store: ext.MemoryStore) -> None:
    """Do what writing a row takes, and takes it back; tables that are missing are made."""
    await store.database.run(lambda conn: conn.rollback(), sessions=["doctor"])


# What a command prints: a result for JSON, and what is shown otherwise.
Output = tuple[Any, RenderableType]
_Work: TypeAlias = "Callable[[ext.MemoryStore], Awaitable[Output | None]]"


def run(
    db: str | None, work: _Work, *, create: bool = False, as_json: bool = False
) -> Any:
    """Open the store that ``--db`` names, checks it, does the work on it, and shows and returns the result."""

    async def call() -> Output | None:
        async with aclosing(find_store(db)) as store:
            await check_store(store, create=create)
            return await work(store)

    output = asyncio.run(call())
    if output is None:
        return None
    return show(output, as_json=as_json)


def show(output: Output, *, as_json: bool) -> Any:
    """Print a result as JSON, or what is shown otherwise; returns the result."""
    # Imported here: it takes a while, and the help does not need it.
    from pydantic_core import to_jsonable_python

    result, otherwise = output
    if as_json:
        # In ASCII, which any terminal and any pipe takes.
        print(json.dumps(to_jsonable_python(result), indent=2))
    else:
        say(otherwise)
    return result


@app.command()
def doctor(*, db: Db = None, as_json: Json = False) -> None:
    """Check the database and the model. Nothing is created. Exit code 1 if something is wrong.

    `pip check` tells whether the libraries have the versions that are needed.
    """
    # Imported here: it imports LlamaIndex.
    from llama_index_memory_ext.cli.demo import choose_model, describe_model

    store = find_store(db)
    checks = [
        _check(
            PACKAGE, lambda: f"{ext.__version__}, on Python {platform.python_version()}"
        ),
        _check("database", lambda: asyncio.run(_look_at(store))),
        _check("model", lambda: describe_model(choose_model())),
    ]
    is_ok = all(check["verdict"] == "ok" for check in checks)
    shown = table(
        ["checked", "result", "found"], [[*check.values()] for check in checks]
    )
    show(({"ok": is_ok, "checks": checks}, shown), as_json=as_json)
    if not is_ok:
        raise typer.Exit(1)


def _check(name: str, look: Callable[[], str]) -> dict[str, str]:
    """Return what there is, or why it cannot be used."""
    try:
        return {"name": name, "verdict": "ok", "found": look()}
    except Exception as error:  # noqa: BLE001 - whatever failed is what the doctor is to find
        return {"name": name, "verdict": "wrong", "found": describe_error(error)}


async def _look_at(store: ext.MemoryStore) -> str:
    """Return where the database is, and the version of its tables; an error says why it cannot be used."""
    file = file_of(store)
    found = "no tables of this package yet; the first conversation creates them"
    # The folder of the default file is created.
    if file and file != default_file() and not file.parent.is_dir():
        raise TerminalError(
            f"{file} needs the folder {file.parent}, which does not exist."
        )
    async with aclosing(store):
        if (schema := await store.read_schema_version()) is not None:
            await try_writing(store)
            found = f"version {schema} of the tables, and rows can be written"
    return f"{file or store.address}: {found}"


def memory_on(
    store: ext.MemoryStore,
    session: str | None,
    user: str | None,
    agent: str | None = None,
    embed: Embed = None,
) -> ext.CondensedMemory:
    """Return the memory of a session, or of a user without one, that extracts nothing."""
    options: Any = {
        "user_id": user,
        "agent_id": agent,
        "embed_model": embed,
        "extract_facts": False,
    }
    return ext.CondensedMemory.from_defaults(
        "any" if session is None else session, chat_store=store, **options
    )


def book_of(memory: ext.CondensedMemory) -> FactBook:
    """Return the facts that the agent of a memory sees; where it has none, those of all agents of the user."""
    # Imported here: it imports LlamaIndex.
    from llama_index_memory_ext.facts.book import FactBook

    seen = memory.facts
    if memory.facts_block.agent_id is not None:
        return seen
    how: Any = {"categories": seen.categories, "propose": memory.facts_block.apropose}
    return FactBook(memory.sql_store, seen.namespace, scope="all", **how)


def whose(memory: ext.CondensedMemory) -> str:
    """Return whose facts a memory keeps, as people are told: the user's, or else the session's."""
    if memory.user_id is None:
        return memory.session_id
    return memory.user_id


def one_of(user: str | None, session: str | None) -> str:
    """Return the one of two options that is given; both or none are wrong usage."""
    if (user is None) == (session is None):
        raise UsageError("say either --user ID or --session ID.")
    return str(session) if user is None else user


def is_terminal() -> bool:
    """Return whether a user can be asked and sees the answer."""
    return sys.stdin is not None and sys.stdin.isatty()


def confirm(question: str) -> None:
    """Ask before something is deleted; ends the command if the answer is no, or if no user can be asked."""
    if not is_terminal():
        raise UsageError(
            "nobody can be asked here, so nothing was done. Say --yes if it should be."
        )
    agreed = False
    # An event loop would take the first Ctrl-C for itself, and go on waiting for the
    # answer.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with suppress(EOFError):
            # On stderr: stdout holds the result and nothing else.
            agreed = Confirm.ask(
                Text(plain(question)), console=new_console(stderr=True), default=False
            )
    finally:
        signal.signal(signal.SIGINT, handler)
        if not agreed:
            say("\nNothing was deleted.", stderr=True)
    if not agreed:
        raise typer.Exit(1)


def say(what: RenderableType, *, style: str = "", stderr: bool = False) -> None:
    """Print a table, or a text as it is, never as markup; on a terminal its lines end between words."""
    console = new_console(stderr=stderr)
    if isinstance(what, str):
        console.print(Text(plain(what), style), soft_wrap=not console.is_terminal)
    else:
        console.print(what)


def table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, empty: str = ""
) -> RenderableType:
    """Return rows as a table whose cells are folded to the width of the screen; without rows the text for that."""
    if not rows:
        return empty
    made = Table(
        *columns, box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0)
    )
    for row in rows:
        made.add_row(*(Text(one_line(cell), overflow="fold") for cell in row))
    return made


def new_console(*, stderr: bool = False) -> Console:
    """Return a console that takes no text for markup."""
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False)
