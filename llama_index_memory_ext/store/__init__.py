"""The store: messages, cursors, facts and embeddings in one SQL database."""

from __future__ import annotations

import logging
import time
from collections import Counter
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from llama_index.core.bridge.pydantic import ConfigDict, Field, model_serializer
from llama_index.core.storage.chat_store.base_db import MessageStatus
from llama_index.core.storage.chat_store.sql import (
    DEFAULT_ASYNC_DATABASE_URI,
    SQLAlchemyChatStore,
)
from sqlalchemy import Connection, func, or_, select, text

from llama_index_memory_ext.background.jobs import JobRegistry
from llama_index_memory_ext.background.loop import run
from llama_index_memory_ext.errors import SettingError, StoreError
from llama_index_memory_ext.language.loading import start_loading, wait_until_loaded
from llama_index_memory_ext.settings import shown
from llama_index_memory_ext.store.address import (
    DEFAULT_POOL_SIZE,
    DEFAULT_TIMEOUT_SECONDS,
    is_missing,
)
from llama_index_memory_ext.store.cursors import Readers
from llama_index_memory_ext.store.facts import Facts
from llama_index_memory_ext.store.log import Log
from llama_index_memory_ext.store.runner import Database, reads, writes_session
from llama_index_memory_ext.store.sessions import Users
from llama_index_memory_ext.store.tables import (
    ACTIVE,
    ARCHIVED,
    LAST_ID,
    Row,
    Tables,
    name_of,
    written_at,
)
from llama_index_memory_ext.text.tokens import TokenCounter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Sequence
    from datetime import datetime

    from llama_index.core.base.llms.types import ChatMessage
    from sqlalchemy.ext.asyncio import AsyncEngine
    from typing_extensions import Self

__all__ = ["DEFAULT_TABLE_NAME", "MemoryStore", "SessionInfo"]

DEFAULT_TABLE_NAME = "llama_index_memory"
_PAGE_ROWS = 500
# A hundred years.
_MOST_DAYS = 36_500
# A part of the store that ``__init__`` sets.
_UNSET: Any = None
# A server skips a table that one may not vacuum with no more than a notice, which
# drivers do not hand on.
_MAY_VACUUM = text(
    "SELECT pg_has_role(relowner, 'USAGE') OR (SELECT pg_has_role(datdba, 'USAGE') FROM pg_database "
    "WHERE datname = current_database()) FROM pg_class WHERE oid = to_regclass(:name)"
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """What is known of a session without reading its messages.

    ``messages`` counts all of them, active ones and the log. ``user_ids`` are the users
    who have written to it, sorted: the session's own id where a memory had no
    ``user_id``, and none where only a plain ``Memory`` has written. ``first_at`` and
    ``last_at`` are when its oldest and its newest message were written (UTC); None if
    unknown.
    """

    session_id: str
    messages: int
    user_ids: tuple[str, ...]
    first_at: datetime | None
    last_at: datetime | None


class MemoryStore(SQLAlchemyChatStore):
    """LlamaIndex's SQL chat store, with a log of each session that blocks read by cursors, and with facts.

    The chat table is the host's own, with the same columns, so an existing database
    keeps working; rows with the status ``archived`` are the log. Rows of a session are
    written, archived and read in the order of their ids.

    Args:
        async_database_uri: A SQLAlchemy address of SQLite (the default is a private
            in-memory database) or PostgreSQL, whatever driver it names. Its statements
            run in threads of this process, by sqlite3 or psycopg.
        table_name: The host's chat table; the names of all other tables begin with
            this.
        async_engine: An engine of your own instead of an address. It is used as it is
            and never closed.
        db_data: Rows of the chat table that a database in memory begins with, as
            ``model_dump`` gives them.
        db_schema: The schema of the tables, where the database has schemas.
        operation_timeout: Most seconds that a call of the store takes, over 0, with its
            wait for locks and connections: a ``StoreTimeoutError`` then. To make the
            tables may take ten minutes, ``vacuum`` an hour, and an import of facts this
            time for each 500 of them.
        pool_size: Most threads, each with a connection, of this store in the process,
            from 1; an engine of your own has its own pool, and works in the event loop
            of the caller.

    A call that is cancelled returns at once. A write that has begun ends in the
    background, and the log says whether it was stored; ``aclose`` waits for it.

    Raises:
        StoreError: The address cannot be read, names a database or a driver that cannot
            keep the log, or a number is out of its range.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    database: Database = Field(
        default=_UNSET, description="Connections and transactions."
    )
    log: Log = Field(default=_UNSET, description="Writes the messages of each session.")
    readers: Readers = Field(
        default=_UNSET, description="Reads them for readers with cursors."
    )
    users: Users = Field(
        default=_UNSET, description="Whose the sessions are; counts and deletes them."
    )
    facts: Facts = Field(
        default=_UNSET, description="The facts of each user, and their embeddings."
    )
    jobs: JobRegistry = Field(
        default_factory=JobRegistry,
        description="What runs in the background of memories here.",
    )
    operation_timeout: float = Field(
        default=DEFAULT_TIMEOUT_SECONDS, description="Most seconds of a call."
    )
    pool_size: int = Field(
        default=DEFAULT_POOL_SIZE, description="Most threads and connections."
    )
    address: str = Field(
        default="",
        description="The database's address without its password and options.",
    )

    def __init__(
        self,
        async_database_uri: str | None = DEFAULT_ASYNC_DATABASE_URI,
        table_name: str = DEFAULT_TABLE_NAME,
        async_engine: AsyncEngine | None = None,
        db_data: list[Row] | None = None,
        db_schema: str | None = None,
        *,
        operation_timeout: float = DEFAULT_TIMEOUT_SECONDS,
        pool_size: int = DEFAULT_POOL_SIZE,
    ) -> None:
        database = Database(
            async_database_uri,
            table_name,
            db_schema,
            async_engine,
            db_data,
            operation_timeout,
            pool_size,
        )
        # Only people and dumps read this address, and they need not see the password.
        super().__init__(
            table_name=table_name,
            async_database_uri=database.shown_uri,
            db_schema=db_schema,
        )
        self.operation_timeout = operation_timeout
        self.pool_size = pool_size
        self.database = database
        self.address = database.shown_uri.partition("?")[0]
        self.readers = Readers(database)
        self.facts = Facts(database, self.readers)
        self.users = Users(database, self.readers, self.facts)
        self.log = Log(database, self.readers, self.users)

    @classmethod
    def class_name(cls) -> str:
        """Return the name under which LlamaIndex serialises this store."""
        return "MemoryStore"

    def __repr_args__(self) -> list[tuple[str | None, Any]]:
        return [
            ("async_database_uri", self.async_database_uri),
            ("table_name", self.table_name),
        ]

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        # An engine cannot travel and a password must not: the copy opens its own
        # connections.
        limited = partial(
            type(self),
            operation_timeout=self.operation_timeout,
            pool_size=self.pool_size,
        )
        return limited, (
            self.async_database_uri,
            self.table_name,
            None,
            None,
            self.db_schema,
        )

    @model_serializer()
    def dump_store(self) -> dict[str, Any]:
        """Return the settings without the password, and the rows if they are kept in memory only."""
        names = (
            "table_name",
            "async_database_uri",
            "db_schema",
            "operation_timeout",
            "pool_size",
        )
        dump: dict[str, Any] = {name: getattr(self, name) for name in names}
        if self.database.in_memory:
            rows = self.database.tables.rows
            query = select(
                *rows.c["key", "timestamp", "role", "status", "data"]
            ).order_by(rows.c.id)
            read = self.database.run(
                lambda conn: [dict(row) for row in conn.execute(query).mappings()],
                writes=False,
            )
            dump["db_data"] = run(read)
        return dump

    async def read_schema_version(self) -> int | None:
        """Return the version of the tables, ``SCHEMA_VERSION`` once this store has used them; nothing is made or changed.

        A version that is too new to be opened comes back too. None if there is no
        database file, or none of the tables of this package, as in a database of the
        plain host.
        """
        return await self.database.read_version()

    async def awarm_up(self) -> None:
        """Open the database, and load what counting tokens and extracting facts need, which takes a second.

        A server calls it when it starts. Without it, the vocabulary is loaded when a
        memory is made, and the rest in a thread behind the first prompt of a memory
        that extracts facts.
        """
        start_loading()
        await TokenCounter().load()
        await self.users.knows("")
        await wait_until_loaded()

    async def aclose(self) -> None:
        """Close the engine if this store has opened it; a later call opens it again. Closing twice does no harm.

        An in-memory database is gone then, and a later call raises a StoreError.

        Background work of memories on this store, in this event loop and of synchronous
        calls, is cancelled first; the next memory of that session or user takes it up.
        Writes that are under way are waited for, at most ``operation_timeout`` seconds.
        """
        await self.jobs.stop()
        # Who closes it knows that it is the end.
        self.jobs.unread.clear()
        await self.database.aclose()

    async def get_messages(
        self,
        key: str,
        status: MessageStatus | None = MessageStatus.ACTIVE,
        limit: int | None = None,
        offset: int | None = None,
    ) -> list[ChatMessage]:
        """Return the messages of a session, in the order in which they were written."""
        most = LAST_ID if limit is None else limit
        return [
            message
            async for message in self.iter_messages(
                key, status, limit=most, offset=offset or 0
            )
        ]

    async def iter_messages(
        self,
        key: str,
        status: MessageStatus | None = None,
        *,
        limit: int = LAST_ID,
        offset: int = 0,
    ) -> AsyncIterator[ChatMessage]:
        """Return the same one after the other (``async for``), read in pages as the loop goes on; all, or with a status.

        What is written meanwhile comes, too, and what is deleted does not.
        """
        if status:
            statuses = [status.value]
        else:
            statuses = [ARCHIVED, ACTIVE]
        last = 0

        def read(
            conn: Connection, after: int, limit: int, offset: int
        ) -> tuple[list[ChatMessage], int]:
            # They are parsed where no event loop waits for them.
            rows = self.readers.find_within(
                conn, key, statuses, after, limit=limit, offset=offset
            )
            return [row.as_put for row in rows], rows[-1].id if rows else after

        while True:
            page, last = await self.database.run(
                read, last, min(limit, _PAGE_ROWS), offset, writes=False
            )
            for message in page:
                yield message
            limit = limit - len(page)
            offset = 0
            if len(page) < _PAGE_ROWS or not limit:
                return

    async def add_message(
        self,
        key: str,
        message: ChatMessage,
        status: MessageStatus = MessageStatus.ACTIVE,
    ) -> None:
        """Write one message, as ``add_messages``."""
        await self.add_messages(key, [message], status)

    @writes_session
    def add_messages(
        self,
        conn: Connection,
        key: str,
        messages: Sequence[ChatMessage],
        status: MessageStatus = MessageStatus.ACTIVE,
    ) -> None:
        """Write messages in one transaction; none is fine.

        A message with an id, ``additional_kwargs["message_id"]``, is stored once in its
        session: one whose id is known is not written again, even if it has other words,
        which a warning in the log says. So a put that was cancelled can be repeated.
        Once the message is deleted, its id is free again. A MessageError for an id that
        is neither a text of at most 255 characters nor a number.
        """
        new = self.log.unknown_within(conn, key, messages)
        if not messages:
            conn.rollback()
        self.log.insert_within(
            conn, key, new, archived=len(new) if status == MessageStatus.ARCHIVED else 0
        )

    async def set_messages(
        self,
        key: str,
        messages: Sequence[ChatMessage],
        status: MessageStatus = MessageStatus.ACTIVE,
    ) -> None:
        """Replace all messages of a session, the log's too. Those at its beginning that are the same keep their row."""
        if status == MessageStatus.ARCHIVED:
            plan = len
        else:
            plan = None
        await self.log.append(key, messages, plan, replace=True)

    @writes_session
    def delete_message(
        self, conn: Connection, key: str, idx: int
    ) -> ChatMessage | None:
        """Delete the message with this row id and return it, or None if the session has none such."""
        found = self.readers.rows_within(conn, key, [idx])
        if not found:
            conn.rollback()
            return None
        self.users.delete_within(conn, key, self.database.tables.rows.c.id == idx)
        return found[0].as_put

    @writes_session
    def delete_messages(
        self, conn: Connection, key: str, status: MessageStatus | None = None
    ) -> None:
        """Delete the messages of a session."""
        rows = self.database.tables.rows
        self.users.delete_within(
            conn, key, *([rows.c.status == status.value] if status else [])
        )

    @writes_session
    def delete_oldest_messages(
        self, conn: Connection, key: str, n: int
    ) -> list[ChatMessage]:
        """Delete the oldest n active messages and return them."""
        oldest = self.readers.find_within(conn, key, [ACTIVE], limit=n)
        rows = self.database.tables.rows
        if oldest:
            self.users.delete_within(
                conn, key, rows.c.status == ACTIVE, rows.c.id <= oldest[-1].id
            )
        return [row.as_put for row in oldest]

    @writes_session
    def archive_oldest_messages(
        self, conn: Connection, key: str, n: int
    ) -> list[ChatMessage]:
        """Move the oldest n active messages into the log and return them."""
        oldest = self.readers.find_within(conn, key, [ACTIVE], limit=n)
        if oldest:
            self.log.archive_within(conn, key, oldest[-1].id)
        return [row.as_put for row in oldest]

    async def count_messages(
        self, key: str, status: MessageStatus | None = MessageStatus.ACTIVE
    ) -> int:
        """Return the number of messages of a session with a status; None: of any."""
        return await self.users.count(key, status=status)

    @reads
    def get_keys(self, conn: Connection) -> list[str]:
        """Return the sessions that have messages."""
        return list(
            conn.execute(select(self.database.tables.rows.c.key).distinct()).scalars()
        )

    @reads
    def sessions(
        self,
        conn: Connection,
        user_id: str | None = None,
        *,
        session_ids: Collection[str] = (),
    ) -> list[SessionInfo]:
        """Return the sessions that have messages, the one that was written to last first; [] if there is none.

        With a ``user_id``, only those of this user, and those of the ``session_ids``.
        """
        rows = self.database.tables.rows
        owners = self.database.tables.owners
        first = func.min(rows.c.timestamp)
        last = func.max(rows.c.timestamp)
        sessions = (
            select(rows.c.key, func.count(), first, last)
            .group_by(rows.c.key)
            .order_by(last.desc(), rows.c.key)
        )
        owned = select(owners.c.key, owners.c.user_id).order_by(owners.c.user_id)
        if user_id is not None or session_ids:
            mine = select(owners.c.key).where(owners.c.user_id == user_id)
            sessions = sessions.where(
                or_(rows.c.key.in_(session_ids), rows.c.key.in_(mine))
            )
            owned = owned.where(
                or_(owners.c.key.in_(session_ids), owners.c.key.in_(mine))
            )
        users: dict[str, list[str]] = {}
        for key, owner in conn.execute(owned):
            users.setdefault(key, []).append(name_of(owner))
        return [
            SessionInfo(
                key,
                count,
                tuple(sorted(users.get(key, ()))),
                written_at(oldest),
                written_at(newest),
            )
            for key, count, oldest, newest in conn.execute(sessions)
        ]

    async def forget(self, key: str) -> dict[str, int]:
        """Delete a session: its messages with their embeddings, and the cursors of its readers.

        Returns the number of deleted rows of ``"messages"`` and ``"cursors"``.
        """
        counts = await self.database.run(
            self.users.forget_within, [key], (), None, sessions=[key]
        )
        return {kind: counts[kind] for kind in ("messages", "cursors")}

    async def forget_user(
        self, user_id: str, *, session_ids: Collection[str] = (), vacuum: bool = True
    ) -> dict[str, int]:
        """Delete a user: the facts of all agents, retired ones too, all sessions, and the embeddings of both.

        A session belongs to the user if a memory with the ``user_id`` has written to it
        or extracted facts from it. Of a session that others share, the turns go in
        which the user has spoken, the answers too; what the others have said stays, and
        so do their facts. Where it is not known who has said something, it goes.

        Args:
            user_id: The user. A session of the same name that has no user is another's.
            session_ids: Further sessions of the user, such as those of a plain
                ``Memory`` or without a ``user_id``.
            vacuum: Whether ``vacuum`` follows, without which deleted words may still be
                in the file.

        Returns:
            The number of deleted rows of ``"messages"``, ``"cursors"`` (of readers and
            of owners), ``"facts"`` and ``"embeddings"``; 0 each if nothing is known.

        Raises:
            StoreError: The arguments are no ids; nothing is deleted then.
        """
        if not isinstance(user_id, str) or isinstance(session_ids, str):
            raise StoreError(
                f"forget_user takes a user_id as a text, and session_ids as a list of texts; these are a "
                f"{type(user_id).__name__} and a {type(session_ids).__name__}. Nothing was deleted."
            )
        sessions = sorted({*session_ids, *await self.users.keys(user_id)})
        # A session without a user has facts of its own.
        users, forget = (
            sorted({user_id, *await self.users.own_users(sessions)}),
            self.users.forget_within,
        )
        counts = await self.database.run(
            forget, sessions, users, user_id, sessions=sessions
        )
        if vacuum:
            await self.vacuum()
        return counts

    async def aretain(
        self,
        *,
        days: float | None = None,
        messages: int | None = None,
        session_ids: Collection[str] | None = None,
        unread: bool = False,
        vacuum: bool = True,
    ) -> dict[str, int]:
        """Delete old messages for good, in whole turns, with their embeddings and a summary of them; facts stay.

        A fact loses what it has of their words: its quote, the text around it, and the
        rows; ``words_deleted_at`` says when. The turn that goes on stays, and so does
        what a memory that extracts facts has not read yet.

        Args:
            days: Turns go that have a message that was stored more than so many days
                ago; above 0, at most 36,500.
            messages: Turns go that have a message that is not one of so many newest
                ones of its session; at least 1.
            session_ids: Only these sessions; None: all.
            unread: Whether messages go, too, from which a memory has still to extract
                facts.
            vacuum: Whether ``vacuum`` follows, without which deleted words may still be
                in the file.

        Returns:
            The number of deleted ``"messages"``, of ``"facts"`` that have lost words,
            and of messages that would go but are ``"unread"``.

        Raises:
            SettingError: A number is out of its range. Nothing is deleted.
        """
        days = _MOST_DAYS if days is None else days
        messages = LAST_ID if messages is None else messages
        if not 0 < days <= _MOST_DAYS or messages < 1 or isinstance(session_ids, str):
            raise SettingError(
                f"aretain takes days above 0, at most {_MOST_DAYS}, messages of at least 1, and a list of session_ids; "
                f"saw {shown(days)}, {shown(messages)} and {shown(session_ids)}. Nothing was deleted."
            )
        since = time.time_ns() - int(days * 86_400e9)
        counts = Counter(messages=0, facts=0, unread=0)
        for info in await self.sessions():
            key = info.session_id
            has_old = info.first_at and info.first_at.timestamp() * 1e9 < since
            # A session in which nothing is due is not locked.
            if (has_old or info.messages > messages) and (
                session_ids is None or key in session_ids
            ):
                retain = self.users.retain_within
                counts.update(
                    await self.database.run(
                        retain, key, since, messages, unread=unread, sessions=[key]
                    )
                )
        if vacuum:
            await self.vacuum()
        return dict(counts)

    async def vacuum(self) -> bool:
        """Rewrite the database, so that what was deleted is not in its files any more.

        SQLite rewrites the whole file. It needs up to twice the size of the file on the
        disk, and no other program may read or write. PostgreSQL frees the space of the
        rows for new ones; its write-ahead log, replicas and backups are its operator's.
        It may take an hour. Returns False if it failed; a warning in the log says why.
        Call it again then.
        """
        if self.database.in_memory:
            return True
        if self.database.backend == "sqlite":
            work = _vacuum_file
        else:
            work = _vacuum_on_server
        try:
            return await self.database.run(
                work, self.database.tables, in_transaction=False, seconds=3600
            )
        except StoreError as error:
            logger.warning(
                "The database was not vacuumed: %s Deleted rows are gone, but their words may be in its files until "
                "`await store.vacuum()` is called while no other program uses it.",
                error,
            )
            return False


def _vacuum_file(conn: Connection, _: Tables) -> bool:
    """Rewrite the file; False, and a warning in the log, if something is left."""
    conn.exec_driver_sql("VACUUM")
    # What was deleted may still be in the write-ahead log, if there is one.
    busy = conn.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").scalar()
    if busy:
        logger.warning(
            "The write-ahead log of the database could not be emptied, because another connection is reading: what "
            "was deleted may be in it until `await store.vacuum()` is called once more, or the last connection is "
            "closed."
        )
    return not busy


def _vacuum_on_server(conn: Connection, tables: Tables) -> bool:
    """Vacuum the tables; False, and a warning in the log, if something is left."""
    names = [
        conn.dialect.identifier_preparer.format_table(table)
        for table in tables.rows.metadata.sorted_tables
    ]
    forbidden = [
        name for name in names if not conn.execute(_MAY_VACUUM, {"name": name}).scalar()
    ]
    conn.exec_driver_sql("SET statement_timeout = 0")
    try:
        # The server passes over those that are forbidden.
        conn.exec_driver_sql(f"VACUUM {', '.join(names)}")
    finally:
        # No other call may get a connection with this setting.
        conn.invalidate()
    if forbidden:
        logger.warning(
            "This database user may not vacuum %s: what was deleted stays in the files of the server until its "
            "owner or autovacuum does.",
            ", ".join(forbidden),
        )
    return not forbidden


def reader_of(store: MemoryStore) -> MemoryStore:
    """Return a store on the same database that refuses each write. Its tables must have this package's version.

    A StoreError if there is no such database yet, or it is a private one in memory.
    """
    database = store.database
    if is_missing(database.url):
        raise StoreError(
            f"Expected a database that is there, to read from it and to write nothing; {store!r} is in memory, or was "
            "not used yet. Put a message by a memory that is not temporary first."
        )
    uri = database.url.render_as_string(hide_password=False)
    limits: Any = {
        "operation_timeout": store.operation_timeout,
        "pool_size": store.pool_size,
    }
    reader = MemoryStore(uri, store.table_name, db_schema=store.db_schema, **limits)
    is_file = database.backend == "sqlite"
    if is_file:
        reader.database.set_up = "PRAGMA query_only = ON"
    else:
        reader.database.set_up = "SET default_transaction_read_only = on"
    return reader


@asynccontextmanager
async def read_only(store: MemoryStore) -> AsyncIterator[MemoryStore]:
    """Give a store as ``reader_of`` does; it is closed at the end of the block."""
    async with aclosing(reader_of(store)) as reader:
        yield reader
