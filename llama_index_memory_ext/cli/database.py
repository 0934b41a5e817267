"""Finds the database that a command works on, and opens it; what only reads never creates one."""

from __future__ import annotations

from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from llama_index_memory_ext.cli.options import DATABASE_VARIABLE
from llama_index_memory_ext.cli.reasons import TerminalError, reason_of
from llama_index_memory_ext.errors import MemoryExtError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from llama_index_memory_ext.store import MemoryStore

_FOLDER = "llama-index-memory"

# What comes before the command is read before it.
_tables: ContextVar[tuple[str, str | None]] = ContextVar("_tables")


@dataclass(frozen=True)
class Place:
    """Where a memory is: a database, and tables in it.

    ``file`` is None for a server; ``name`` is what may be shown of the database, without a password.
    """

    address: str
    name: str
    file: Path | None
    table: str
    schema: str | None
    is_default: bool = False

    @property
    def is_missing(self) -> bool:
        """Whether it is a file that does not exist."""
        return self.file is not None and not self.file.exists()


def use_tables(table: str, schema: str | None) -> None:
    """Say which tables the command works on."""
    if not table or schema == "":
        raise typer.BadParameter("--table and --schema must not be empty.")
    _tables.set((table, schema))


def place_of(db: str | None) -> Place:
    """The place that ``--db`` or the environment variable names; by default a file in the user's own folder."""
    if db is not None and "://" in db:
        return _place_of_address(db)
    if db is not None and (not db or "?" in db):
        raise typer.BadParameter("--db must name a file, without a question mark, or be a SQLAlchemy address.")
    file = Path(db).expanduser().absolute() if db else Path(typer.get_app_dir(_FOLDER)) / "memory.db"
    if file.is_dir():
        raise typer.BadParameter(f"--db must name a file, and {file} is a folder.")
    return Place(f"sqlite+aiosqlite:///{file.as_posix()}", str(file), file, *_tables.get(), is_default=db is None)


def _place_of_address(address: str) -> Place:
    # Imported here: it starts LlamaIndex.
    from llama_index_memory_ext.store import MemoryStore

    store = MemoryStore(address)
    # What stands behind the question mark of an address may be a password too.
    name = store.identity[0].partition("?")[0]
    if store.is_in_memory:
        raise typer.BadParameter("a database in memory is gone when the command ends. Name a file or a server.")
    has_file = address.startswith("sqlite") and "uri=" not in address
    return Place(address, name, Path(name) if has_file else None, *_tables.get())


@asynccontextmanager
async def existing(place: Place) -> AsyncIterator[MemoryStore]:
    """A store on a database that is there already, for as long as the block lasts."""
    if place.is_missing:
        raise TerminalError(
            f"There is no database at {place.name}. Name another one with --db or {DATABASE_VARIABLE}; "
            "`chat`, `facts add` and `import` create one."
        )
    async with opened(place) as (store, version):
        if version is None:
            raise TerminalError(
                f"The database at {place.name} holds no memory of this package in the table {place.table!r}; --table "
                "before the command names another one. A table that LlamaIndex's own Memory has written is taken over "
                "when it is first written to: `chat --session ID`."
            )
        yield store


@asynccontextmanager
async def existing_or_new(place: Place) -> AsyncIterator[MemoryStore]:
    """A store on a database that may have to be created first; of its folders only that of the default file is."""
    if place.is_default and place.file is not None:
        # For its owner alone.
        place.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    async with opened(place) as (store, _):
        yield store


@asynccontextmanager
async def opened(place: Place) -> AsyncIterator[tuple[MemoryStore, int | None]]:
    """A store, and the schema version of its database: None if that holds no memory. Nothing is created.

    Raises:
        TerminalError: The database cannot be reached.
    """
    # Imported here: it starts LlamaIndex.
    from llama_index_memory_ext.store import MemoryStore

    store = MemoryStore(place.address, table_name=place.table, db_schema=place.schema)
    try:
        yield store, await _version_in(store, place)
    finally:
        await store.aclose()


async def _version_in(store: MemoryStore, place: Place) -> int | None:
    if place.is_missing:
        return None
    try:
        return await store.read_schema_version()
    except MemoryExtError:
        raise
    except ModuleNotFoundError as error:
        raise TerminalError(
            f'The database needs {error.name}: pip install "llama-index-memory-ext[postgres]"'
        ) from None
    except Exception as error:  # noqa: BLE001 - each driver has errors of its own
        reason = reason_of(error).removeprefix("the database cannot be used: ")
        raise TerminalError(f"The database at {place.name} cannot be used: {reason}") from None
