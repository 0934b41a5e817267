"""The tables of a store, its statements in SQL, and the rows that they return."""

from __future__ import annotations

import logging
import re
import sqlite3
import time
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from json import loads
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import sqlalchemy as sa
from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.bridge.pydantic import ValidationError
from llama_index.core.storage.chat_store.base_db import MessageStatus
from sqlalchemy.engine import make_url

from llama_index_memory_ext.store.encryption import TOKEN, Cipher
from llama_index_memory_ext.text.messages import RESULT_ROLES, in_zone, times_in

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterable, Sequence

    from sqlalchemy.schema import SchemaItem

    from llama_index_memory_ext.text.messages import Json


logger = logging.getLogger(__name__)

# A row by the names of its columns.
Row: TypeAlias = dict[str, Any]

# How a session is open: to one user alone, to users who share it, or to no user yet.
OWN = "own"
SHARED = "shared"
OF_NOBODY = "nobody"
# Under this key the state of a cursor lists its entries about single rows.
ROWS = "rows"

# Begins the name of a cursor that stores a choice, and reads no messages.
PROFILE_READER = "profile "

ACTIVE = MessageStatus.ACTIVE.value
ARCHIVED = MessageStatus.ARCHIVED.value
# The largest id that a 64-bit column can hold.
LAST_ID = 2**63 - 1
# The last second of the year 9999, the last year of a datetime.
_LAST_SECOND = 253_402_300_799

# The parameters of statements that are no texts, by their names.
_NUMBERS = """
    after change epoch first last last_id limit newest offset position row_id row_ids seen timestamp version
"""
_TYPES: dict[str, Any] = {
    **dict.fromkeys(_NUMBERS.split(), sa.BigInteger()),
    "data": sa.JSON(),
    "state": sa.JSON(none_as_null=True),
    "vector": sa.LargeBinary(),
}


_IN_SQLITE = "IN (SELECT value FROM json_each(:{}))"


class _Encrypted(sa.types.UserDefinedType[Any]):
    """The type of a column whose values are encrypted, and decrypted when a query reads them."""

    cache_ok = True

    def __init__(self, encrypt: Any, decrypt: Any) -> None:
        self.encrypt = encrypt
        self.decrypt = decrypt

    def result_processor(self, dialect: Any, coltype: object) -> Any:
        """Return the function that reads a stored value."""
        return self.decrypt


class Tables:
    """The tables of this version of the schema.

    Each primary key begins with the key of a session or the namespace of a user, so
    that each table can be partitioned by it. The exceptions are ``rows``, LlamaIndex's
    own table, and ``schema``, which has one row. A query decrypts the columns of
    texts and vectors with the ``cipher``.
    """

    def __init__(
        self,
        name: str,
        db_schema: str | None,
        backend: str,
        cipher: Cipher | None = None,
    ) -> None:
        cipher = cipher or Cipher()
        self.cipher = cipher
        as_json = _Encrypted(cipher.encrypt, self.read_json)
        self.encrypted_columns = {
            "data": as_json,
            "state": as_json,
            "digest": _Encrypted(cipher.encrypt_digest, cipher.decrypt_digest),
            "vector": _Encrypted(cipher.encrypt_vector, cipher.decrypt_vector),
        }
        # The same statement is built once: to build it takes as long as to run it.
        self.sql = lru_cache(maxsize=None)(self._build)
        self._is_sqlite = backend == "sqlite"
        dialect: Any = make_url(f"{backend}://").get_dialect()
        self._name_of = dialect(paramstyle="named").identifier_preparer.format_table
        metadata = sa.MetaData(schema=None if self._is_sqlite else db_schema)

        def table(ending: str, *parts: SchemaItem) -> sa.Table:
            return sa.Table(f"{name}{ending}", metadata, *parts)

        # LlamaIndex's own table, but with 64-bit ids on a server, and an index that
        # finds a session's active rows. ``user_id``: the speaker in a session of
        # several users, "" if unknown; None in any other session.
        self.rows = table(
            "",
            sa.Column(
                "id",
                sa.BigInteger().with_variant(sa.Integer, "sqlite"),
                primary_key=True,
                autoincrement=True,
            ),
            _text("key", index=True),
            _number("timestamp", index=True),
            _text("role"),
            _text("status", default=ACTIVE, index=True),
            sa.Column("data", sa.JSON, nullable=False),
            sa.Column("user_id", sa.String, nullable=True),
            sa.Index(f"ix_{name}_log", "key", "status", "id"),
        )
        # The ids that programs have given their messages, each with its row.
        self.message_ids = table(
            "_message_ids",
            _key("key"),
            _key("message_id"),
            _number("row_id"),
            sa.Index(f"ix_{name}_message_ids_row", "key", "row_id"),
        )
        # A writer of a session locks its row. A deletion changes the epoch.
        self.sessions = table("_sessions", _key("key"), _number("epoch"))
        # The owners of each session. ``kind``: how the owner has opened it last.
        self.owners = table(
            "_owners",
            _key("key"),
            _key("user_id"),
            _text("kind", server_default=OWN),
            sa.Index(f"ix_{name}_owners_user", "user_id", "key"),
        )
        # The cursor of each reader. ``state``: its result for the rows before.
        self.cursors = table(
            "_cursors",
            _key("key"),
            _key("reader"),
            _number("position"),
            sa.Column("state", sa.JSON(none_as_null=True), nullable=True),
            sa.Index(f"ix_{name}_cursors_reader", "reader", "key"),
        )
        # A writer of a user's facts locks the user's row, and counts the changes there.
        # A deletion changes the epoch.
        self.users = table(
            "_users", _key("namespace"), _number("epoch"), _number("change")
        )
        # A fact as JSON, with the number of its last change. The namespace is in the
        # key, so that one user's import cannot replace another user's fact.
        # ``agent_id``: "" for a fact that all agents of the user share. ``session_id``
        # and ``said_by`` let a deletion find the facts of a user's words in any
        # namespace, even without the rows.
        self.facts = table(
            "_facts",
            _key("namespace"),
            _key("id"),
            _number("change"),
            _text("agent_id"),
            sa.Column("data", sa.JSON, nullable=False),
            sa.Column("session_id", sa.String),
            sa.Column("said_by", sa.String),
            sa.Index(f"ix_{name}_facts_change", "namespace", "change"),
            sa.Index(f"ix_{name}_facts_session_id", "session_id"),
            sa.Index(f"ix_{name}_facts_said_by", "said_by"),
        )
        # The vector of a text, with the text's digest: of the content of a fact, or of
        # a message, by the id of its first row, in a namespace of its session.
        self.embeddings = table(
            "_embeddings",
            _key("namespace"),
            _key("id"),
            _key("model"),
            _text("digest"),
            sa.Column("vector", sa.LargeBinary, nullable=False),
        )
        # ``encryption``: an encrypted value, by which a wrong key is recognised.
        self.schema = table(
            "_schema",
            sa.Column("version", sa.Integer, primary_key=True),
            sa.Column("encryption", sa.String),
        )

    def read_json(self, value: Any) -> Any:
        """Return the value of a column of JSON, which psycopg alone has parsed, decrypted if it is encrypted."""
        if isinstance(value, str):
            value = loads(value)
        if isinstance(value, dict) and TOKEN in value:
            return self.cipher.decrypt(value)
        return value

    def _build(self, statement: str) -> Any:
        """Return a statement in SQL in which ``{rows}``, ``{owners}`` and so on are the names of tables.

        ``{in_keys}`` is a condition: one of the list ``keys``, which may have any length,
        and so for other names. ``:statuses`` is a short list.
        """
        types = dict(_TYPES)

        def replace(word: re.Match[str]) -> str:
            name = word[1].removeprefix("in_")
            if name == word[1]:
                return str(self._name_of(getattr(self, name))).replace(":", r"\:")
            if self._is_sqlite:
                types[name] = sa.JSON()
                return _IN_SQLITE.format(name)
            types[name] = sa.ARRAY(_TYPES.get(name, sa.String()))
            return f"= ANY(:{name})"

        text = sa.text(re.sub(r"\{(\w+)\}", replace, statement.strip()))
        parameters: list[Any] = []
        for name in text.compile().params:
            kind = types.get(name, sa.String())
            parameters.append(
                sa.bindparam(name, type_=kind, expanding=name == "statuses")
            )
        text = text.bindparams(*parameters)
        if statement.lstrip().startswith("SELECT"):
            return text.columns(**self.encrypted_columns)
        return text


_plain_tables = lru_cache(maxsize=64)(Tables)


def tables_for(
    name: str, db_schema: str | None, backend: str, cipher: Cipher
) -> Tables:
    """Return the tables of a store. Stores without a key share them, with the statements that were built."""
    if cipher.is_set:
        return Tables(name, db_schema, backend, cipher)
    return _plain_tables(name, db_schema, backend)


def _key(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.String, primary_key=True)


def _text(name: str, **options: Any) -> sa.Column[str]:
    return sa.Column(name, sa.String, nullable=False, **options)


def _number(name: str, **options: Any) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=False, **options)


# No user_id begins with a blank.
ANONYMOUS = " session "


def namespace_of_session(key: str) -> str:
    """Return the namespace of a session without a user, which no ``user_id`` can have."""
    return f"{ANONYMOUS}{key}"


def display_name(namespace: str) -> str:
    """Return the user of a namespace, as people read it; for a session without a user, the session's id.

    >>> display_name(namespace_of_session("chat-17")), display_name("ann")
    ('chat-17', 'ann')
    """
    return namespace.removeprefix(ANONYMOUS)


def vectors_namespace(key: str) -> str:
    """Return the namespace of the embeddings of a session's messages.

    A user of the same name does no harm: a vector is found by the digest of its text,
    too, and a missing vector is made again.
    """
    return f"messages of {key}"


class SessionAccess(NamedTuple):
    """How a memory opens a session.

    ``user_id``: None for a memory without a user. ``shared``: other users may read and
    write there.
    """

    user_id: str | None = None
    shared: bool = False

    def user_in(self, key: str) -> str:
        """Return the user, or the namespace of a session without a user."""
        if self.user_id is None:
            return namespace_of_session(key)
        return self.user_id

    @property
    def kind(self) -> str:
        """How the session is open to this user from now on."""
        if self.shared:
            return SHARED
        return OF_NOBODY if self.user_id is None else OWN


@dataclass(frozen=True, slots=True)
class LogRow:
    """One message of a session, parsed at its first use.

    ``id``: grows in the order of writing. ``timestamp``: the time of writing, in
    nanoseconds since 1970; 0 if the query has not read it. ``user_id``: the speaker in
    a session of several users, "" if unknown.
    """

    id: int
    role: str
    data: Json
    timestamp: int = 0
    status: str = ARCHIVED
    user_id: str | None = None

    @classmethod
    def from_query(cls, row: Any) -> LogRow:
        """Return the row of a query that has selected all columns of the chat table but the key."""
        return cls(row.id, row.role, row.data, row.timestamp, row.status, row.user_id)

    @property
    def speaker(self) -> str:
        """The name, or else the id, of the speaker in a session of several users; "" in any other session."""
        if not self.user_id:
            return ""
        kwargs = self.data.get("additional_kwargs") or {}
        return str(kwargs.get("name") or self.user_id)

    def said_at(self, zone: tzinfo | None = None) -> datetime | None:
        """Return the time in its ``additional_kwargs``, if that is not after the time of writing.

        Otherwise the time of writing (UTC); None if neither is known. A day alone is
        in the ``zone``.
        """
        times = times_in(self.data.get("additional_kwargs") or {}, zone)
        said_at = next(iter(times.values()), None)
        written = written_at(self.timestamp)
        if said_at and (written is None or said_at <= written):
            return said_at
        return written

    @property
    def is_active(self) -> bool:
        """Whether it belongs to the current turn, and is not in the log yet."""
        return self.status == ACTIVE

    @property
    def is_result(self) -> bool:
        """Whether it is a tool's result."""
        return self.role in RESULT_ROLES

    @property
    def is_printed(self) -> bool:
        """Whether it is a tool's result that was put as a user's message, as ``as_taken`` describes."""
        return self.is_result and self.data.get("role") == MessageRole.USER.value

    @property
    def characters(self) -> int:
        """The approximate length of its text."""
        blocks = self.data.get("blocks") or ()
        return sum(len(block.get("text") or "") for block in blocks)

    @property
    def message(self) -> ChatMessage:
        """The message with the role of the row."""
        message = self.as_put
        if self.is_printed:
            return message.model_copy(update={"role": MessageRole(self.role)})
        return message

    @property
    def as_put(self) -> ChatMessage:
        """The message as it was put; a placeholder if this version of LlamaIndex cannot read it."""
        try:
            return ChatMessage.model_validate(self.data)
        except ValidationError:
            # An unreadable row must not make its whole session unreadable.
            logger.warning(
                "A stored %s message cannot be read by this version of LlamaIndex.",
                self.role,
            )
            return ChatMessage(role=self.role, content="[unreadable message]")


@dataclass(frozen=True, slots=True)
class ReadPosition:
    """The position of a reader in a session: the epoch, its cursor, and the last row that it has read."""

    epoch: int = 0
    position: int = 0
    last_id: int = 0


class CursorState(NamedTuple):
    """The position of a cursor, and the state that was stored with it."""

    position: int
    state: Json


class FactsVersion(NamedTuple):
    """The version of a namespace of facts: ``epoch`` changes with a deletion, ``change`` grows with each change."""

    epoch: int
    change: int


_NO_FACTS = FactsVersion(epoch=0, change=0)


@dataclass(frozen=True, slots=True)
class LogPage:
    """Rows for a reader, oldest first.

    ``position``: the reader's cursor, the last row that it has processed; 0 at the
    beginning. ``epoch``: changes when rows are deleted. ``fresh``: false, and the page
    is empty, if rows were deleted since ``ReadPosition``; the reader must then begin again.
    ``more``: there are older rows before the page. ``registered``: the cursor is stored,
    read by ``unread`` only. ``facts``: the version of the watched facts. ``state``: the state of the
    cursor, read by ``unread`` only.
    """

    position: int
    epoch: int
    rows: list[LogRow]
    fresh: bool = True
    more: bool = False
    registered: bool = False
    facts: FactsVersion = _NO_FACTS
    state: Json = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a session at one moment, read in one query for a prompt.

    ``position``: the cursor of the record. ``facts``: the version of the user's facts.
    ``is_empty``: the log has no row. ``is_closed``: the session holds words of another
    user. ``active``: the active rows. ``log``: the newest rows of the log. Both are
    oldest first.
    """

    epoch: int
    position: int
    facts: FactsVersion
    is_empty: bool
    is_closed: bool
    active: tuple[LogRow, ...]
    log: tuple[LogRow, ...]

    def log_behind(self, seen: ReadPosition) -> list[LogRow] | None:
        """Return the rows of the log behind the last one that was read, oldest first; None if the log must be read."""
        last_id = seen.last_id
        is_complete = self.is_empty
        if last_id:
            has_last = any(row.id == last_id for row in self.log)
            is_complete = has_last and seen.epoch == self.epoch
        if not is_complete:
            return None
        return [row for row in self.log if row.id > last_id]


def written_at(timestamp: int | None) -> datetime | None:
    """Return the time (UTC) of nanoseconds since 1970; None if it is outside the years of a ``datetime``.

    >>> written_at(1_700_000_000_000_000_000).isoformat(), written_at(0)
    ('2023-11-14T22:13:20+00:00', None)
    """
    if timestamp is None or not 0 < timestamp < _LAST_SECOND * 10**9:
        return None
    return datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(
        microseconds=timestamp // 1_000
    )


def times_of(
    rows: Iterable[LogRow], zone: tzinfo | None = None
) -> list[datetime | None]:
    """Return when the message of each row was said, in the time zone.

    Without a zone, a time has its own offset. A time in UTC has the offset of the
    message before it.
    """
    times: list[datetime | None] = []
    offset = zone
    for row in rows:
        said_at = row.said_at(zone)
        if said_at and zone is None and said_at.utcoffset():
            offset = said_at.tzinfo
        times.append(said_at and in_zone(said_at, offset))
    return times


def day_of(said_at: datetime | None) -> str:
    """Return the day of a time, as 2026-11-20; "" if the time is unknown."""
    return said_at.date().isoformat() if said_at else ""


# The only user of a session; no row for a session without a user, or that users share.
_SELECT_USER = """
SELECT MIN(user_id) FROM {owners} WHERE key = :key
GROUP BY key HAVING COUNT(*) = 1 AND MIN(kind) = 'own'
"""
# A row that is set to its own value stays locked until the transaction ends, also if it
# is new.
_LOCK_SESSION = """
INSERT INTO {sessions} AS stored (key, epoch) VALUES (:key, :epoch)
ON CONFLICT (key) DO UPDATE SET epoch = stored.epoch
"""
if sqlite3.sqlite_version_info >= (3, 35):
    # This also reads the epoch, which older versions of SQLite cannot do.
    _LOCK_SESSION += "RETURNING epoch"
_LOCK_USER = """
INSERT INTO {users} AS stored (namespace, epoch, change) VALUES (:namespace, :epoch, 0)
ON CONFLICT (namespace) DO UPDATE SET epoch = stored.epoch
"""


class Transaction:
    """A connection within ``Database.run``, for the statements of the store.

    ``epochs``: of the sessions that are locked. ``claims``: the claims of owners that
    are stored with it.
    """

    def __init__(
        self, connection: sa.Connection, tables: Tables, claims: list[Hashable]
    ) -> None:
        self.connection = connection
        self.tables = tables
        self.epochs: dict[str, int] = {}
        self.claims = claims

    def execute(
        self, statement: Any, rows: Sequence[Row] | None = None, /, **parameters: Any
    ) -> sa.CursorResult[Any]:
        """Run a statement as ``Tables.sql`` describes it, once or for each of the ``rows``.

        Texts and vectors among the parameters are encrypted if the store has a key.
        """
        if isinstance(statement, str):
            statement = self.tables.sql(statement)
        if self.tables.cipher.is_set:
            rows = [self._encrypted(row) for row in rows or ()]
            parameters = self._encrypted(parameters)
        return self.connection.execute(statement, rows or parameters)

    def _encrypted(self, row: Row) -> Row:
        """Return the parameters of a statement with encrypted texts and vectors."""
        columns = self.tables.encrypted_columns
        names = [name for name in columns if row.get(name) is not None]
        if not names:
            return row
        user = self._user_of(row) if self.tables.cipher.by_user else None
        encrypted = dict(row)
        for name in names:
            encrypted[name] = columns[name].encrypt(row[name], user)
        return encrypted

    def _user_of(self, row: Row) -> Any:
        """Return the user whose key a row gets; None for a session without a user, or that users share."""
        key = row.get("key")
        if key is not None:
            return self.execute(_SELECT_USER, key=key).scalar()
        namespace = row["namespace"]
        return None if namespace.startswith(ANONYMOUS) else namespace

    def scalars(self, statement: str, **parameters: Any) -> list[Any]:
        """Run a statement, and return the first column of its rows."""
        return list(self.execute(statement, **parameters).scalars())

    def rollback(self) -> None:
        """Undo all changes; the function of ``Database.run`` can still return a result."""
        self.connection.rollback()

    def lock(self, sessions: Collection[str], users: Collection[str]) -> None:
        """Lock sessions before users, each in order, so that no two writers wait for each other."""
        epoch = time.time_ns()
        for key in sorted(sessions):
            result = self.execute(_LOCK_SESSION, key=key, epoch=epoch)
            if result.returns_rows:
                self.epochs[key] = result.scalar_one()
        for namespace in sorted(users):
            self.execute(_LOCK_USER, namespace=namespace, epoch=epoch)
