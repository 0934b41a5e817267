"""The store: messages, cursors, facts and embeddings in one SQL database."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama_index.core.bridge.pydantic import ConfigDict, Field, model_serializer
from llama_index.core.storage.chat_store.base_db import MessageStatus
from llama_index.core.storage.chat_store.sql import (
    DEFAULT_ASYNC_DATABASE_URI,
    SQLAlchemyChatStore,
)

from llama_index_memory_ext.background.loop import run
from llama_index_memory_ext.background.registry import JobRegistry
from llama_index_memory_ext.errors import EncryptionError, SettingError, StoreError
from llama_index_memory_ext.settings import (
    build_checked,
    check_limit,
    describe_value,
)
from llama_index_memory_ext.store.address import (
    DEFAULT_POOL_SIZE,
    DEFAULT_TIMEOUT_SECONDS,
    READ_ONLY,
    Address,
    Settings,
    is_missing,
)
from llama_index_memory_ext.store.cache import StoreCache
from llama_index_memory_ext.store.database import Database, read_data
from llama_index_memory_ext.store.deletion import forget_session, forget_user
from llama_index_memory_ext.store.encryption import Cipher, EncryptionKey, TextFunction
from llama_index_memory_ext.store.facts import Facts
from llama_index_memory_ext.store.log import Log
from llama_index_memory_ext.store.marks import SELECT_PLACES, encrypt_within, mark
from llama_index_memory_ext.store.readers import Readers
from llama_index_memory_ext.store.retention import SELECT_DUE, retain_messages
from llama_index_memory_ext.store.rows import ALL_STATUSES, LogRow, messages_of
from llama_index_memory_ext.store.sessions import SessionInfo, read_keys, read_sessions
from llama_index_memory_ext.store.tables import LAST_ID, Row
from llama_index_memory_ext.store.vacuum import vacuum
from llama_index_memory_ext.text.tokens import TokenCounter
from llama_index_memory_ext.words import language_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Sequence

    from llama_index.core.base.llms.types import ChatMessage
    from sqlalchemy.ext.asyncio import AsyncEngine
    from typing_extensions import Self

    from llama_index_memory_ext.text.messages import Plan

__all__ = ["DEFAULT_TABLE_NAME", "MemoryStore", "SessionInfo"]

DEFAULT_TABLE_NAME = "llama_index_memory"
# So few that no event loop waits while their messages are parsed.
_PAGE_ROWS = 100
# A hundred years.
_MOST_DAYS = 36_500
_DAY_NANOSECONDS = 86_400e9
_REWRITE_SECONDS = 3600
# A part of the store that ``__init__`` sets.
_UNSET: Any = None

logger = logging.getLogger(__name__)


class MemoryStore(SQLAlchemyChatStore):
    """LlamaIndex's SQL chat store, with facts, and with a log of each session, which memory blocks read by cursors.

    The chat table is LlamaIndex's own, with the same columns, so an existing database
    keeps working; rows with the status ``archived`` are the log. Rows of a session are
    written, archived and read in the order of their ids.

    Args:
        async_database_uri: A SQLAlchemy address of SQLite (the default is a private
            in-memory database) or PostgreSQL, or the ``Path`` of a SQLite file. Its
            statements run in threads of this process, by sqlite3 or psycopg, whose
            options it takes.
        table_name: LlamaIndex's chat table; the names of all other tables begin with
            this name.
        async_engine: An engine of your own instead of an address. It is used as it is
            and never closed.
        db_data: Rows of the chat table with which a database in memory begins, as in
            ``model_dump``.
        db_schema: The schema of the tables, where the database has schemas.
        operation_timeout: The longest time of a call in seconds, above 0, including waits
            for locks and connections; then it raises a ``StoreTimeoutError``. Creating
            the tables may take ten minutes, ``vacuum`` an hour, and an import of facts
            this time for each 500 facts.
        pool_size: The largest number of threads, each with a connection, of this store
            in the process; at least 1. An engine of your own uses its pool instead, in
            the event loop of the caller.
        encryption_key: A key with which texts and vectors are stored encrypted, 32
            random bytes as URL-safe Base64; or a list of keys. The first one encrypts,
            and all of them decrypt. Needs the extra ``encryption``.
        encrypt: A function from a text to the text that is stored, instead of
            ``encryption_key``.
        decrypt: The reverse function.

    ``database``, ``log``, ``readers`` and ``facts`` are its parts. All
    memories on the store share its background ``jobs``, and the ``cache`` of what they
    have read. ``address`` is the database's address without its password and options.

    A call that is cancelled returns at once. A write that has begun ends in the
    background, and a logged line says whether it was stored; ``aclose`` waits for it.

    Raises:
        StoreError: The address cannot be read, names a database or a driver that cannot
            keep the log, or a number is out of its range. An ``EncryptionError``:
            ``encryption_key`` is not a key.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    database: Database = _UNSET
    log: Log = _UNSET
    readers: Readers = _UNSET
    facts: Facts = _UNSET
    jobs: JobRegistry = Field(default_factory=JobRegistry)
    cache: StoreCache = Field(default_factory=StoreCache)
    operation_timeout: float = DEFAULT_TIMEOUT_SECONDS
    pool_size: int = DEFAULT_POOL_SIZE
    address: str = ""

    def __init__(
        self,
        async_database_uri: Address = DEFAULT_ASYNC_DATABASE_URI,
        table_name: str = DEFAULT_TABLE_NAME,
        async_engine: AsyncEngine | None = None,
        db_data: list[Row] | None = None,
        db_schema: str | None = None,
        *,
        operation_timeout: float = DEFAULT_TIMEOUT_SECONDS,
        pool_size: int = DEFAULT_POOL_SIZE,
        encryption_key: EncryptionKey = None,
        encrypt: TextFunction = None,
        decrypt: TextFunction = None,
    ) -> None:
        settings = build_checked(
            Settings,
            Settings,
            StoreError,
            table_name=table_name,
            db_schema=db_schema,
            async_engine=async_engine,
            operation_timeout=operation_timeout,
            pool_size=pool_size,
        )
        cipher = Cipher(encryption_key, encrypt, decrypt)
        database = Database(settings, async_database_uri, db_data, cipher)
        # Only people and dumps read this address, which needs no password.
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
        self.facts = Facts(database)
        self.log = Log(database)

    @classmethod
    def class_name(cls) -> str:
        """Return the name under which LlamaIndex serialises this store."""
        return "MemoryStore"

    @property
    def _settings(self) -> dict[str, Any]:
        """The arguments by which a copy opens the same database, without the password."""
        return {
            "table_name": self.table_name,
            "async_database_uri": self.async_database_uri,
            "db_schema": self.db_schema,
            "operation_timeout": self.operation_timeout,
            "pool_size": self.pool_size,
        }

    def __repr_args__(self) -> list[tuple[str | None, Any]]:
        return [
            ("async_database_uri", self.async_database_uri),
            ("table_name", self.table_name),
        ]

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        # An engine cannot be pickled and a password must not, so the copy opens its own
        # connections.
        return partial(type(self), **self._settings), ()

    @model_serializer()
    def dump_store(self) -> dict[str, Any]:
        """Return the settings without the password, and the rows if they are kept in memory only."""
        dump = self._settings
        if self.database.in_memory:
            dump["db_data"] = run(self.database.run(read_data, writes=False))
        return dump

    async def read_schema_version(self) -> int | None:
        """Return the version of the tables, even if it is too new to be opened; nothing is created or changed.

        It is ``SCHEMA_VERSION`` once this store has used them. None if there is no
        database file, or no table of this package, as in a database of LlamaIndex's own.
        """
        return await self.database.read_version()

    async def awarm_up(self) -> None:
        """Open the database, and load the data to count tokens and to extract facts, which takes a second.

        A server calls it when it starts. Without it, the vocabulary is loaded at the
        first prompt, and the other data at the first extraction, in a thread.
        """
        await TokenCounter().load()
        await self.readers.has_session("")
        await asyncio.to_thread(language_of, "The language of this is detected.")

    async def aclose(self) -> None:
        """Close the engine if this store has opened it; a later call opens it again. Closing twice does no harm.

        An in-memory database is gone then, and a later call raises a StoreError.

        First, background jobs of memories on this store are cancelled, in this event
        loop and of synchronous calls; the next memory of that session or user continues
        them. Pending writes are awaited, at most ``operation_timeout`` seconds.
        """
        await self.jobs.stop()
        # A program that closes the store needs no warning about unread turns.
        self.jobs.unread.clear()
        self.cache.clear()
        await self.database.aclose()

    async def get_messages(
        self,
        key: str,
        status: MessageStatus | None = MessageStatus.ACTIVE,
        limit: int | None = None,
        offset: int | None = None,
    ) -> list[ChatMessage]:
        """Return the messages of a session, in the order in which they were written.

        A message that cannot be decrypted is left out; a logged warning names its row, which
        ``delete_message`` deletes. A message that this version of LlamaIndex cannot read is
        a placeholder.
        """
        messages = self.iter_messages(
            key, status, limit=LAST_ID if limit is None else limit, offset=offset or 0
        )
        return [message async for message in messages]

    async def iter_messages(
        self,
        key: str,
        status: MessageStatus | None = None,
        *,
        limit: int = LAST_ID,
        offset: int = 0,
    ) -> AsyncIterator[ChatMessage]:
        """Yield messages as ``get_messages`` returns them, reading one page at a time; without a status, all.

        Messages that are written meanwhile are included; deleted messages are not.
        """
        statuses = _statuses_of(status)
        last_id = 0
        while limit:
            rows = await self.readers.find(
                key, statuses, last_id, limit=min(limit, _PAGE_ROWS), offset=offset
            )
            for message in messages_of(rows):
                yield message
            if len(rows) < _PAGE_ROWS:
                return
            last_id = rows[-1].id
            limit -= len(rows)
            offset = 0

    async def add_message(
        self,
        key: str,
        message: ChatMessage,
        status: MessageStatus = MessageStatus.ACTIVE,
    ) -> None:
        """Write one message, as ``add_messages``."""
        await self.add_messages(key, [message], status)

    async def add_messages(
        self,
        key: str,
        messages: Sequence[ChatMessage],
        status: MessageStatus = MessageStatus.ACTIVE,
    ) -> None:
        """Write messages in one transaction; an empty list does nothing.

        Archived messages move the active messages before them into the log, too.

        A message with an id, ``additional_kwargs["message_id"]``, is stored once in its
        session, so that a cancelled put can be repeated. If a later one has other
        words, a warning is logged. Once it is deleted, its id is free again.

        Raises:
            MessageError: An id is neither a text of at most 255 characters nor a
                number.
        """
        await self.log.append(key, messages, _plan_of(status))

    async def set_messages(
        self,
        key: str,
        messages: Sequence[ChatMessage],
        status: MessageStatus = MessageStatus.ACTIVE,
    ) -> None:
        """Replace all messages of a session, including the log; equal messages at the beginning keep their rows."""
        await self.log.append(key, messages, _plan_of(status), replace=True)

    async def delete_message(self, key: str, idx: int) -> ChatMessage | None:
        """Delete the message with this row id and return it; None if the session has no such message.

        Facts lose the words of the message. For a message that cannot be read, a
        placeholder is returned.
        """
        row = await self.log.delete_row(key, idx)
        self.cache.drop([key])
        return row and row.as_put

    async def delete_messages(
        self, key: str, status: MessageStatus | None = None
    ) -> None:
        """Delete the messages of a session, and their words in facts, which stay."""
        await self.log.delete_all(key, _statuses_of(status))
        if status is None:
            self.jobs.unread.discard(key)
        self.cache.drop([key])

    async def delete_oldest_messages(self, key: str, n: int) -> list[ChatMessage]:
        """Delete the oldest n active messages and return them."""
        return messages_of(await self.log.delete_oldest(key, n))

    async def archive_oldest_messages(self, key: str, n: int) -> list[ChatMessage]:
        """Move the oldest n active messages into the log and return them."""
        appended = await self.log.append(key, [], lambda _: n)
        return list(appended.flushed)

    async def count_messages(
        self, key: str, status: MessageStatus | None = MessageStatus.ACTIVE
    ) -> int:
        """Return the number of messages of a session with a status; None: of any."""
        return await self.readers.count_messages(key, statuses=_statuses_of(status))

    async def get_keys(self) -> list[str]:
        """Return the sessions that have messages."""
        return await self.database.run(read_keys, writes=False)

    async def sessions(
        self, user_id: str | None = None, *, session_ids: Collection[str] = ()
    ) -> list[SessionInfo]:
        """Return the sessions that have messages, newest write first; [] if there is none.

        With a ``user_id`` or ``session_ids``, only the sessions of this user and these sessions.
        """
        return await self.database.run(
            read_sessions, user_id, session_ids, writes=False
        )

    async def rows(
        self,
        session_id: str,
        *,
        ids: Sequence[int] | None = None,
        limit: int = LAST_ID,
        offset: int = 0,
    ) -> list[LogRow]:
        """Return messages of a session with their rows, oldest first, including active messages; [] if there are none.

        ``ids``: only the rows with these ids, such as ``Fact.message_ids``, without
        ``limit`` and ``offset``. A row that cannot be decrypted is marked as damaged.
        """
        if ids is not None:
            return await self.readers.rows_by_id(session_id, ids)
        return await self.readers.find(session_id, limit=limit, offset=offset)

    async def count_facts(self) -> dict[str, int]:
        """Return the number of facts, including retired facts, of each namespace that has facts."""
        return await self.facts.count_by_user()

    async def check_writes(self) -> None:
        """Raise a StoreError if no row can be written; missing tables are created, and nothing else is stored."""
        await self.database.run(lambda tx: tx.rollback(), sessions=["check_writes"])

    @property
    def is_in_memory(self) -> bool:
        """Whether the database is lost when the store is closed."""
        return self.database.in_memory

    @property
    def file(self) -> Path | None:
        """The SQLite file; None for a server or a database in memory."""
        if self.is_in_memory or self.database.backend != "sqlite":
            return None
        return Path(str(self.database.url.database))

    def read_only(self) -> MemoryStore:
        """Return a store on the same database that refuses each write; its tables must have this package's version.

        Raises:
            StoreError: There is no such database yet, or it is a private one in memory.
        """
        database = self.database
        if is_missing(database.url):
            raise StoreError(
                f"A read-only store needs the address of an existing database; {self!r} is in memory, or was not used "
                "yet. Pass async_database_uri, or put a message into a memory that is not temporary first."
            )
        uri = database.url.render_as_string(hide_password=False)
        reader = MemoryStore(**{**self._settings, "async_database_uri": uri})
        # With the keys.
        reader.database.tables = database.tables
        reader.database.set_up = READ_ONLY[database.backend]
        return reader

    async def forget(self, key: str) -> dict[str, int]:
        """Delete a session with its embeddings, cursors and owners; facts stay, and lose its words.

        Call ``vacuum`` to clear the words from the file. Return the numbers of
        ``"messages"`` and ``"cursors"``; the owners count as cursors.
        """
        counts = await self.database.run(forget_session, key, sessions=[key])
        self.jobs.unread.discard(key)
        self.cache.drop([key])
        return counts

    async def forget_user(
        self, user_id: str, *, session_ids: Collection[str] = (), vacuum: bool = True
    ) -> dict[str, int]:
        """Delete a user: the facts of all agents, including retired facts, all sessions, and the embeddings of both.

        A session belongs to the user if a memory with the ``user_id`` has written to it
        or extracted facts from it. In a session that other users share, the turns in
        which the user has spoken are deleted, with their answers. Turns and facts of the
        other users stay. Words of an unknown speaker are deleted. Jobs of these
        sessions in this process are cancelled.

        Args:
            user_id: The user. A session of the same name without a user is not deleted.
            session_ids: Further sessions of the user, such as sessions of a plain
                ``Memory`` or without a ``user_id``.
            vacuum: Whether ``vacuum`` follows, which clears deleted words from the file.

        Returns:
            The number of deleted rows of ``"messages"``, ``"cursors"`` (of readers and
            of owners), ``"facts"`` and ``"embeddings"``; 0 each if nothing is stored.

        Raises:
            StoreError: The arguments are not ids; nothing is deleted then.
        """
        if not isinstance(user_id, str) or isinstance(session_ids, str):
            raise StoreError(
                f"Expected user_id to be a str, and session_ids a list of str; got {type(user_id).__name__} and "
                f"{type(session_ids).__name__}. Nothing was deleted."
            )
        forgotten = await self.database.run(forget_user, user_id, session_ids)
        await self.jobs.stop({user_id, *forgotten.sessions})
        self.jobs.unread.difference_update(forgotten.sessions)
        self.cache.drop(forgotten.sessions | forgotten.namespaces)
        if vacuum:
            await self.vacuum()
        return forgotten.counts

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

        A fact loses the deleted words: its quote, the text around it, and the rows;
        ``words_deleted_at`` is the time. The current turn stays until it is answered
        and older than ``days``. Messages stay from which a memory has yet to extract
        facts.

        Args:
            days: The greatest age of a message in days, above 0 and at most 36,500. A
                turn with an older message is deleted.
            messages: The number of newest messages of a session to keep, at least 1. A
                turn with an earlier message is deleted.
            session_ids: Only these sessions; None: all.
            unread: Whether to delete even messages from which a memory has yet to
                extract facts.
            vacuum: Whether ``vacuum`` follows, which clears deleted words from the file.

        Returns:
            The number of deleted ``"messages"``, of ``"facts"`` that have lost words,
            and of due messages that stay because they are ``"unread"``.

        Raises:
            SettingError: Neither days nor messages are given, or one of them is no number of
                its range. Nothing is deleted.
        """
        _check_retention(days, messages, session_ids)
        since = time.time_ns() - int((days or _MOST_DAYS) * _DAY_NANOSECONDS)
        most = messages or LAST_ID
        counts = Counter(messages=0, facts=0, unread=0)
        due = await self.database.run(
            lambda tx: tx.scalars(SELECT_DUE, last=since, limit=most), writes=False
        )
        for key in due:
            if session_ids is None or key in session_ids:
                deleted = await self.database.run(
                    retain_messages, key, since, most, unread=unread, sessions=[key]
                )
                counts.update(deleted)
                self.cache.drop([key])
        if vacuum:
            await self.vacuum()
        return dict(counts)

    async def aencrypt(self, *, vacuum: bool = True) -> dict[str, int]:
        """Encrypt all rows with the newest key: plain rows, and rows with an older key.

        First give the new key to all programs that use the database; afterwards, they
        need no older key. Rows that cannot be read stay as they are.

        Args:
            vacuum: Whether ``vacuum`` follows, which clears plain words from the file.

        Returns:
            ``"encrypted"``: the number of sessions, and of users with facts, that have
            the newest key now. ``"unreadable"``: the number of rows that stay, because
            no key reads them; the log names them. ``"vacuumed"``: whether ``vacuum``
            has succeeded.

        Raises:
            EncryptionError: The store has no key, or a wrong one. Nothing is changed.
        """
        if not self.database.tables.cipher.is_set:
            raise EncryptionError(
                "aencrypt needs a key, and this store has none; nothing was changed. Pass encryption_key, "
                "or set LLAMA_INDEX_MEMORY_KEY for the command line."
            )
        unreadable = 0
        places = await self.database.run(
            lambda tx: tx.execute(SELECT_PLACES).mappings().all(), writes=False
        )
        for place in places:
            unreadable += await self.database.run(
                encrypt_within, place, seconds=_REWRITE_SECONDS
            )
        await self.database.run(mark)
        return {
            "encrypted": len(places),
            "unreadable": unreadable,
            "vacuumed": vacuum and await self.vacuum(),
        }

    async def vacuum(self) -> bool:
        """Rewrite the database, so that its files hold no deleted words.

        SQLite rewrites the whole file. It needs up to twice the size of the file on the
        disk, and no other program may read or write. PostgreSQL frees the space of the
        rows for new rows. Its write-ahead log, replicas and backups are the operator's
        concern. It may take an hour. Return False if it failed; a warning in the log
        says why. Then call it again.
        """
        if self.database.in_memory:
            return True
        try:
            return await self.database.run(vacuum, seconds=_REWRITE_SECONDS)
        except StoreError as error:
            logger.warning(
                "The database was not vacuumed: %s Deleted rows are gone, but their words may be in its files until "
                "`await store.vacuum()` is called while no other program uses it.",
                error,
            )
            return False


def _statuses_of(status: MessageStatus | None) -> Sequence[str]:
    """Return a status as a list of statuses; all of them for None."""
    return ALL_STATUSES if status is None else [MessageStatus(status).value]


def _plan_of(status: MessageStatus) -> Plan | None:
    """Return which messages a write moves into the log: all, or none for new active messages."""
    return len if MessageStatus(status) is MessageStatus.ARCHIVED else None


def _check_retention(days: object, messages: object, session_ids: object) -> None:
    """Raise a SettingError for arguments of ``aretain`` that are wrong or limit nothing."""
    check_limit("messages", messages)
    is_usable = messages is not None
    if days is not None:
        is_usable = isinstance(days, int | float) and 0 < days <= _MOST_DAYS
    if not is_usable or isinstance(session_ids, str):
        raise SettingError(
            f"aretain takes days above 0, at most {_MOST_DAYS}, messages, or both, and a list of session_ids; got "
            f"{describe_value(days)}, {describe_value(messages)} and {describe_value(session_ids)}. "
            "Nothing was deleted."
        )
