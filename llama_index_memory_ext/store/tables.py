"""The tables of a store: their statements in SQL, transactions, rows, and the readers of the log with their cursors."""

from __future__ import annotations

import logging
import re
import sqlite3
import time
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone, tzinfo
from functools import lru_cache, wraps
from json import loads
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    NamedTuple,
    ParamSpec,
    TypeAlias,
    TypeVar,
    cast,
)

import sqlalchemy as sa
from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.bridge.pydantic import ValidationError
from llama_index.core.storage.chat_store.base_db import MessageStatus
from sqlalchemy.engine import make_url

from llama_index_memory_ext.errors import EncryptionError, StoreError
from llama_index_memory_ext.settings import without_second
from llama_index_memory_ext.store.encryption import TOKEN, Cipher
from llama_index_memory_ext.text.messages import (
    RESULT_ROLES,
    SPEAKER_KEY,
    Json,
    MovedMessage,
    in_zone,
    spoken,
    times_in,
    tool_call_groups,
)
from llama_index_memory_ext.words import visible

if TYPE_CHECKING:
    from collections.abc import (
        Callable,
        Collection,
        Coroutine,
        Hashable,
        Iterable,
        Sequence,
    )

    from sqlalchemy.schema import SchemaItem


logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")
Part = TypeVar("Part")

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

# The parameters of statements that are numbers, and the types of parameters that are no
# texts, by name.
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
    """The type of a column whose values are encrypted, and decrypted when a query reads them.

    A query returns the error of a value that cannot be read, so that it reads the other
    rows. ``Transaction.read`` handles the error.
    """

    cache_ok = True

    def __init__(self, encrypt: Any, decrypt: Any) -> None:
        self.encrypt = encrypt
        self.decrypt = decrypt

    def result_processor(self, dialect: Any, coltype: object) -> Any:
        """Return the function that reads a stored value."""

        def read(value: Any) -> Any:
            try:
                return None if value is None else self.decrypt(value)
            except EncryptionError as error:
                return error
            except (ValueError, KeyError) as error:
                # An error of the parser would quote the text.
                return EncryptionError(f"Expected JSON; saw a {type(error).__name__}.")

        return read


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

        # LlamaIndex's own table, but with 64-bit ids on a server, and another choice of
        # indexes: no statement looks for a time or a status in all sessions.
        # ``user_id``: the speaker in a session of
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
            _number("timestamp"),
            _text("role"),
            _text("status", default=ACTIVE),
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
            sa.Index(f"ix_{name}_facts_id", "id"),
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
            value = self.cipher.decrypt(value)
        if not isinstance(value, dict):
            raise EncryptionError(
                f"Expected a JSON object; saw {type(value).__name__}."
            )
        return value

    def _build(self, statement: str) -> Any:
        """Return a statement in SQL in which ``{rows}``, ``{owners}`` and so on are the names of tables.

        ``{in_keys}`` becomes a condition: the value is in the list ``keys``, which may
        have any length. Other names work alike. Only ``:statuses`` is a short list.
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
        parameters = []
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


# The beginning of a namespace without a user: no user_id begins with a blank.
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


# ---- transactions ----

_SELECT_MARK = "SELECT encryption FROM {schema}"
# A row that is set to its own value stays locked until the transaction ends, also if it
# is new.
_LOCK_SESSION = """
INSERT INTO {sessions} AS stored (key, epoch) VALUES (:key, :epoch)
ON CONFLICT (key) DO UPDATE SET epoch = stored.epoch
"""
if sqlite3.sqlite_version_info >= (3, 35):
    # This also reads the epoch and the mark, which older versions of SQLite cannot do.
    _LOCK_SESSION += "RETURNING epoch, (SELECT encryption FROM {schema}) AS mark"
_LOCK_USER = """
INSERT INTO {users} AS stored (namespace, epoch, change) VALUES (:namespace, :epoch, 0)
ON CONFLICT (namespace) DO UPDATE SET epoch = stored.epoch
"""


class Transaction:
    """A connection within ``Database.run``, for the statements of the store.

    ``epochs``: the epochs of the sessions that are locked.
    ``claims``: the claims of owners that are stored with the transaction.
    """

    def __init__(
        self, connection: sa.Connection, tables: Tables, claims: list[Hashable]
    ) -> None:
        self.connection = connection
        self.tables = tables
        self.epochs: dict[str, int] = {}
        self.claims = claims
        self._results: list[sa.CursorResult[Any]] = []

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
        result = self.connection.execute(statement, rows or parameters)
        self._results.append(result)
        return result

    def close(self) -> None:
        """Close the results that an error has left open: SQLite vacuums no file that a statement is reading."""
        for result in self._results:
            result.close()

    def check_key(self) -> bool:
        """Return whether the database is marked as encrypted; an EncryptionError for another key, or for no key."""
        mark = self.execute(_SELECT_MARK).scalar()
        self.tables.cipher.check_mark(mark)
        return mark is not None

    def read(self, value: Any, place: str) -> Any:
        """Return a value of a query; None if it cannot be read, and a warning that names its place.

        Raises:
            EncryptionError: The store has not the key of the database.
        """
        if not isinstance(value, EncryptionError):
            return value
        self.check_key()
        logger.warning("%s cannot be read, and is left out: %s", place, value)
        return None

    def _encrypted(self, row: Row) -> Row:
        """Return the parameters of a statement with encrypted texts and vectors."""
        columns = self.tables.encrypted_columns
        names = [name for name in columns if row.get(name) is not None]
        if not names:
            return row
        encrypted = dict(row)
        for name in names:
            encrypted[name] = columns[name].encrypt(row[name])
        return encrypted

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
                row = result.one()
                self.tables.cipher.check_mark(row.mark)
                self.epochs[key] = row.epoch
        for namespace in sorted(users):
            self.execute(_LOCK_USER, namespace=namespace, epoch=epoch)


def _run_by(
    locks: str,
) -> Callable[
    [Callable[Concatenate[Part, Transaction, P], T]],
    Callable[Concatenate[Part, P], Coroutine[Any, Any, T]],
]:
    """Return a decorator for methods that take a transaction: the database of the object runs them.

    ``locks``: "sessions" or "users", to which the method writes; "" if it only reads.
    """

    def decorate(
        method: Callable[Concatenate[Part, Transaction, P], T],
    ) -> Callable[Concatenate[Part, P], Coroutine[Any, Any, T]]:
        signature = without_second(method)

        @wraps(method)
        async def run(part: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
            access: Any = {"writes": False}
            if locks:
                name = args[0] if args else kwargs[[*signature.parameters][1]]
                access = {locks: [name]}
            bound = cast("Any", method).__get__(part)
            result = await part.database.run(bound, *args, **access, **kwargs)
            return cast("T", result)

        vars(run)["__signature__"] = signature
        return run

    return decorate


# For a method that reads.
reads = _run_by("")
# For methods that write to the session or the user that is their first argument.
writes_session = _run_by("sessions")
writes_user = _run_by("users")


# ---- rows ----

ALL_STATUSES = (ARCHIVED, ACTIVE)
# The last second of the year 9999, the last year of a datetime.
_LAST_SECOND = 253_402_300_799


class SessionAccess(NamedTuple):
    """How a memory opens a session.

    ``user_id``: None for a memory without a user.
    ``shared``: whether other users may read and write in the session.
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


class LogRow(NamedTuple):
    """One message of a session, which ``message`` parses.

    A row that cannot be read is an empty message.

    ``id``: grows in the order of writing.
    ``role``: the role in which readers take it; see ``is_code_output``.
    ``data``: the message as JSON.
    ``timestamp``: the time of writing, in nanoseconds since 1970; 0 if not read.
    ``user_id``: the speaker in a session of several users, "" if unknown.
    ``is_damaged``: whether it cannot be read.
    """

    id: int
    role: str
    data: Json
    timestamp: int = 0
    status: str = ARCHIVED
    user_id: str | None = None
    is_damaged: bool = False

    @classmethod
    def from_query(cls, tx: Transaction, key: str, row: Any) -> LogRow:
        """Return the row of a query that has selected all columns of the chat table but the key."""
        data = tx.read(row.data, f"Row {row.id} of session {key!r}")
        is_damaged = data is None and row.data is not None
        if is_damaged:
            data = {"role": row.role, "blocks": []}
        return cls(
            row.id, row.role, data, row.timestamp, row.status, row.user_id, is_damaged
        )

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
    def is_code_output(self) -> bool:
        """Whether it is a tool's result that was put as a user's message, as ``with_code_results`` describes."""
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
        if self.is_code_output:
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

    @property
    def moved(self) -> ChatMessage:
        """The message as it was put, with its time of writing and its speaker if they are known."""
        message = self.as_put
        if self.user_id:
            message.additional_kwargs.setdefault(SPEAKER_KEY, self.user_id)
        for written in times_in({"date": written_at(self.timestamp)}).values():
            return MovedMessage(**dict(message), stored_at=written)
        return message


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

    ``position``: the reader's cursor; 0 at the beginning.
    ``epoch``: changes when rows are deleted.
    ``fresh``: false, and the page is empty, if rows were deleted since the
    ``ReadPosition``; the reader must then begin again.
    ``more``: whether there are older rows before the page.
    ``registered``: whether the cursor is stored; only ``unread`` reads it.
    ``facts``: the version of the watched facts.
    ``state``: the state of the cursor; only ``unread`` reads it.
    """

    position: int
    epoch: int
    rows: list[LogRow]
    fresh: bool = True
    more: bool = False
    registered: bool = False
    facts: FactsVersion = _NO_FACTS
    state: Json = None


class Snapshot(NamedTuple):
    """The state of a session at one moment, read in one query for a prompt.

    ``position``: the cursor of the record.
    ``facts``: the version of the user's facts.
    ``is_empty``: whether the log has no row.
    ``is_closed``: whether another user owns the session, and not both users share it.
    ``active``: the active rows that can be read, oldest first; of a call and its
    results, all or none.
    ``log``: the newest rows of the log, oldest first.
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


def messages_of(rows: Iterable[LogRow]) -> list[ChatMessage]:
    """Return the messages of the rows that can be read, as they were put."""
    return [row.as_put for row in rows if not row.is_damaged]


def _readable(rows: Iterable[LogRow]) -> list[LogRow]:
    """Return the rows without damaged ones; a provider refuses a call without its results, and results without it."""
    readable = []
    for group in tool_call_groups(rows):
        if not any(row.is_damaged for row in group):
            readable += group
    return readable


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
    rows: Iterable[LogRow], zone: tzinfo | None = None, offset: tzinfo | None = None
) -> list[datetime | None]:
    """Return when the message of each row was said, in the time zone.

    Without a zone, a time has its own offset. A time in UTC has the offset of the
    message before it; ``offset`` is that of the message before the first.
    """
    times = []
    offset = zone or offset
    for row in rows:
        said_at = row.said_at(zone)
        if said_at and zone is None and said_at.utcoffset():
            offset = said_at.tzinfo
        times.append(said_at and in_zone(said_at, offset))
    return times


def day_of(said_at: datetime | None) -> str:
    """Return the day of a time, as 2026-11-20; "" if the time is unknown."""
    return said_at.date().isoformat() if said_at else ""


# ---- readers ----

_SELECT_ROWS = """
SELECT id, role, data, timestamp, status, user_id FROM {rows}
WHERE key = :key AND status IN :statuses AND id > :after
ORDER BY id LIMIT :limit OFFSET :offset
"""
_SELECT_ROWS_BY_ID = """
SELECT COALESCE(sessions.epoch, 0) AS epoch,
       message.id, message.role, message.data, message.timestamp, message.status, message.user_id
FROM (SELECT 1 AS always) AS always
LEFT JOIN {sessions} AS sessions ON sessions.key = :key
LEFT JOIN {rows} AS message ON message.key = :key AND message.id {in_row_ids}
ORDER BY message.id
"""
_SELECT_CURSOR = """
SELECT COALESCE(sessions.epoch, 0) AS epoch, cursors.position, cursors.state
FROM (SELECT 1 AS always) AS always
LEFT JOIN {sessions} AS sessions ON sessions.key = :key
LEFT JOIN {cursors} AS cursors ON cursors.key = :key AND cursors.reader = :reader
"""
# The newest rows of the log behind a cursor, or one row with the cursor alone. LlamaIndex
# without this package deletes rows, and the epoch stays. So the query also returns the
# row that the reader has read last, without its message, if that row still exists.
# ``id`` has a single lower bound: for two, SQLite may walk through all rows of a status.
_SELECT_PAGE = """
SELECT COALESCE(sessions.epoch, 0) AS epoch, COALESCE(cursors.position, 0) AS position,
       COALESCE(users.epoch, 0) AS facts_epoch, COALESCE(users.change, 0) AS facts_change,
       message.id, message.role, message.data, message.timestamp, message.status, message.user_id
FROM (SELECT 1 AS always) AS always
LEFT JOIN {sessions} AS sessions ON sessions.key = :key
LEFT JOIN {cursors} AS cursors ON cursors.key = :key AND cursors.reader = :reader
LEFT JOIN {users} AS users ON users.namespace = :watch
LEFT JOIN (
    SELECT id, role, timestamp, status, user_id, CASE WHEN id <> :last_id THEN data END AS data
    FROM {rows}
    WHERE key = :key AND status = 'archived' AND id <= :newest AND id >= (
        SELECT MAX(first_id) FROM (
            SELECT :last_id AS first_id
            UNION ALL SELECT position + 1 FROM {cursors} WHERE key = :key AND reader = :reader
        ) AS bounds
    )
    ORDER BY id DESC LIMIT :limit
) AS message ON 1 = 1
ORDER BY message.id
"""
# A prompt reads at most 40 rows of the log in one query. For more rows, a reader asks
# for pages that fit its limit. The active rows and the log are two queries, each along
# the index: SQLite reads the whole session for one with an OR. ``other_owners``: how
# many other users close the session. A session is open to two users if both share it.
_SELECT_SNAPSHOT = """
SELECT COALESCE(sessions.epoch, 0) AS epoch, COALESCE(cursors.position, 0) AS position,
       COALESCE(users.epoch, 0) AS facts_epoch, COALESCE(users.change, 0) AS facts_change,
       (SELECT MAX(id) FROM {rows} WHERE key = :key AND status = 'archived') AS newest,
       (SELECT COUNT(*) FROM {owners}
        WHERE key = :key AND user_id <> :user_id AND kind IN ('own', :closed)) AS other_owners,
       message.id, message.role, message.data, message.timestamp, message.status, message.user_id
FROM (SELECT 1 AS always) AS always
LEFT JOIN {sessions} AS sessions ON sessions.key = :key
LEFT JOIN {cursors} AS cursors ON cursors.key = :key AND cursors.reader = :reader
LEFT JOIN {users} AS users ON users.namespace = :watch
LEFT JOIN (
    SELECT id, role, data, timestamp, status, user_id FROM {rows}
    WHERE key = :key AND status = 'active'
    UNION ALL
    SELECT id, role, CASE WHEN id <> :last_id THEN data END AS data, timestamp, status, user_id
    FROM {rows}
    WHERE key = :key AND status = 'archived' AND id >= :last_id AND id > COALESCE((
        SELECT id FROM {rows} WHERE key = :key AND status = 'archived'
        ORDER BY id DESC LIMIT 1 OFFSET 40
    ), 0)
) AS message ON 1 = 1
ORDER BY message.id
"""
_SELECT_READERS = "SELECT reader FROM {cursors} WHERE key = :key ORDER BY reader"
_SELECT_SESSIONS = "SELECT key FROM {owners} WHERE user_id = :user_id"
_SELECT_SESSIONS_OF_READER = "SELECT key FROM {cursors} WHERE reader = :reader"
_SELECT_UNREAD_SESSIONS_OF_READER = """
SELECT key FROM {cursors} AS cursors
WHERE reader = :reader
  AND EXISTS (SELECT 1 FROM {rows} AS rows WHERE rows.key = cursors.key AND rows.id > cursors.position)
"""
# A session of several owners is left out: its words may be another user's.
_SELECT_UNREAD_ELSEWHERE = """
SELECT rows.id, rows.role, rows.data, rows.timestamp, rows.status, rows.user_id
FROM {cursors} AS cursors JOIN {rows} AS rows ON rows.key = cursors.key AND rows.id > cursors.position
WHERE cursors.reader = :reader AND cursors.key <> :key AND rows.role = 'user'
  AND NOT EXISTS (
    SELECT 1 FROM {owners} AS owners WHERE owners.key = cursors.key AND owners.user_id <> :user_id
  )
ORDER BY rows.id DESC LIMIT :limit
"""
_MOST_UNREAD_ELSEWHERE = 200
_COUNT_UNREAD = """
SELECT COUNT(*) AS messages FROM {rows}
WHERE key = :key AND status IN :statuses AND id > :after AND id <= :last
  AND id > COALESCE((SELECT position FROM {cursors} WHERE key = :key AND reader = :reader), 0)
"""
_HAS_SESSION = """
SELECT EXISTS (SELECT 1 FROM {sessions} WHERE key = :key) OR EXISTS (SELECT 1 FROM {rows} WHERE key = :key)
"""
_PUT_CURSOR = """
INSERT INTO {cursors} (key, reader, position, state) VALUES (:key, :reader, :position, :state)
ON CONFLICT (key, reader) DO UPDATE SET position = excluded.position, state = excluded.state
"""
_REGISTER_READER = """
INSERT INTO {cursors} (key, reader, position) VALUES (:key, :reader, 0)
ON CONFLICT (key, reader) DO NOTHING
"""
_RENEW_SESSION = "UPDATE {sessions} SET epoch = :epoch WHERE key = :key"


class Readers:
    """Reads the rows of sessions for the readers of a store, and keeps their cursors.

    The log of a session is its rows with the status ``archived``: they have left
    short-term memory. A reader of any name begins at the first row. Methods named
    ``..._within`` work in a transaction that has locked the session.
    """

    def __init__(self, database: Any) -> None:
        self.database = database

    # ---- rows ----

    def find_within(
        self,
        tx: Transaction,
        key: str,
        statuses: Sequence[str] = ALL_STATUSES,
        after: int = 0,
        *,
        limit: int = LAST_ID,
        offset: int = 0,
    ) -> list[LogRow]:
        """Return the oldest rows of a session with these statuses, oldest first."""
        result = tx.execute(
            _SELECT_ROWS,
            key=key,
            statuses=statuses,
            after=after,
            limit=limit,
            offset=offset,
        )
        return [LogRow.from_query(tx, key, row) for row in result.all()]

    find = reads(find_within)

    def rows_within(
        self, tx: Transaction, key: str, ids: Sequence[int]
    ) -> list[LogRow]:
        """Return the rows of a session with these ids, active ones too, oldest first; deleted rows are left out."""
        return self.rows_in_within(tx, key, ids) or []

    rows = reads(rows_within)

    def rows_in_within(
        self, tx: Transaction, key: str, ids: Sequence[int], epoch: int | None = None
    ) -> list[LogRow] | None:
        """As ``rows``; None if rows were deleted since ``epoch``, because later rows may have got their ids."""
        rows = tx.execute(_SELECT_ROWS_BY_ID, key=key, row_ids=list(ids)).all()
        if epoch not in (None, rows[0].epoch):
            return None
        return [LogRow.from_query(tx, key, row) for row in rows if row.id is not None]

    rows_in = reads(rows_in_within)

    def sessions_within(self, tx: Transaction, user_id: str) -> list[str]:
        """Return the sessions of a user, also those without a message."""
        return tx.scalars(_SELECT_SESSIONS, user_id=user_id)

    def lines_within(self, tx: Transaction, key: str) -> frozenset[str]:
        """Return the lines of all messages of a session, as the ``source`` of a fact holds them."""
        lines = set()
        for row in self.find_within(tx, key):
            lines.update(visible(spoken(row.message)).splitlines())
        return frozenset(lines)

    @reads
    def read_snapshot(
        self,
        tx: Transaction,
        key: str,
        reader: str,
        last_id: int,
        watch: str,
        access: SessionAccess,
    ) -> Snapshot:
        """Return the active rows of a session, and at most 40 rows of its log from the row ``last_id`` on.

        Without a ``last_id`` (0), the log of the snapshot is empty. A reader that knows
        the earlier rows needs no other query for a prompt. ``watch`` is the namespace of
        the facts whose version is read.
        """
        result = tx.execute(
            _SELECT_SNAPSHOT,
            key=key,
            reader=reader,
            watch=watch,
            last_id=last_id or LAST_ID,
            user_id=access.user_in(key),
            closed=OWN if access.shared else SHARED,
        ).all()
        session = result[0]
        active = []
        log = []
        for row in result:
            if row.id is None:
                continue
            log_row = LogRow.from_query(tx, key, row)
            if log_row.is_active:
                active.append(log_row)
            else:
                log.append(log_row)
        return Snapshot(
            epoch=session.epoch,
            position=session.position,
            facts=FactsVersion(session.facts_epoch, session.facts_change),
            is_empty=session.newest is None,
            is_closed=bool(session.other_owners),
            active=tuple(_readable(active)),
            log=tuple(log),
        )

    @reads
    def page(
        self,
        tx: Transaction,
        key: str,
        reader: str,
        seen: ReadPosition,
        *,
        before: int | None = None,
        limit: int,
        watch: str = "",
    ) -> LogPage:
        """Return the newest rows of the log behind the reader's cursor that it has not read, at most ``limit``.

        ``before`` turns the page: only rows with a smaller id. ``watch`` is a namespace
        of facts: the page has the version of its facts, which saves a query.
        """
        last_id = seen.last_id
        result = tx.execute(
            _SELECT_PAGE,
            key=key,
            reader=reader,
            watch=watch,
            last_id=last_id,
            newest=LAST_ID if before is None else before - 1,
            limit=limit + 1,
        ).all()
        session = result[0]
        rows = [
            LogRow.from_query(tx, key, row)
            for row in result
            if row.id not in (None, last_id)
        ]
        has_more = len(rows) > limit
        # The row that the reader has read last is the oldest of the result, if it exists.
        is_last_stored = session.id == last_id
        is_whole = is_last_stored or has_more or last_id <= session.position
        is_fresh = not last_id or (is_whole and session.epoch == seen.epoch)
        return LogPage(
            position=session.position,
            epoch=session.epoch,
            rows=rows[-limit:] if is_fresh else [],
            fresh=is_fresh,
            more=is_fresh and has_more,
            facts=FactsVersion(session.facts_epoch, session.facts_change),
        )

    @reads
    def unread(
        self,
        tx: Transaction,
        key: str,
        reader: str,
        *,
        with_active: bool = False,
        after: int | None = None,
        limit: int = LAST_ID,
    ) -> LogPage:
        """Return the oldest rows of the log behind the reader's cursor, or behind the row ``after``.

        ``with_active`` adds the active rows.
        """
        page = self._cursor_of(tx, key, reader)
        if after is None:
            after = page.position
        statuses = ALL_STATUSES if with_active else [ARCHIVED]
        rows = self.find_within(tx, key, statuses, after, limit=limit)
        return replace(page, rows=rows)

    # ---- cursors ----

    def _cursor_of(self, tx: Transaction, key: str, reader: str) -> LogPage:
        """Return a page without rows, and with the state of the cursor."""
        cursor = tx.execute(_SELECT_CURSOR, key=key, reader=reader).one()
        return LogPage(
            position=cursor.position or 0,
            epoch=cursor.epoch,
            rows=[],
            registered=cursor.position is not None,
            state=tx.read(cursor.state, f"The state of {reader!r} in session {key!r}"),
        )

    @reads
    def state(self, tx: Transaction, key: str, reader: str) -> CursorState:
        """Return the position of a cursor, and the state that was stored with it."""
        page = self._cursor_of(tx, key, reader)
        return CursorState(page.position, page.state)

    async def move(
        self,
        key: str,
        reader: str,
        *,
        epoch: int,
        old: int,
        new: int,
        state: Json = None,
    ) -> bool:
        """Move a reader's cursor from ``old`` to ``new``, the last row that is processed, for every process.

        ``epoch`` is the session's epoch at the time of the reading. ``state`` is the
        reader's result for the rows before, as JSON. It replaces the earlier state. If
        one of these rows is deleted, the reader begins again without a state.

        Two kinds of cursors only move back to a row that remains: cursors without a
        state, and cursors whose state has the key ``ROWS``. This key holds a list of
        ``[first row, last row, ...]``, from which the deletion takes the deleted rows.

        False if another process has moved the cursor, rows were deleted meanwhile, or
        the database is busy.
        """
        try:
            moved: bool = await self.database.run(
                self.move_within,
                key,
                reader,
                epoch=epoch,
                old=old,
                new=new,
                state=state,
                sessions=[key],
            )
        except StoreError as error:
            logger.warning(
                "The cursor of %s was not moved (%s); it is tried again.",
                reader,
                type(error).__name__,
            )
            return False
        return moved

    def move_within(
        self,
        tx: Transaction,
        key: str,
        reader: str,
        *,
        epoch: int,
        old: int,
        new: int,
        state: Json = None,
    ) -> bool:
        """As ``move``; the transaction is rolled back where it is False."""
        if not self.is_current_within(tx, key, epoch, reader, old):
            tx.rollback()
            return False
        self.put_cursor_within(tx, key, reader, new, state)
        return True

    def put_cursor_within(
        self, tx: Transaction, key: str, reader: str, position: int, state: Json
    ) -> None:
        """Store the cursor of a reader."""
        tx.execute(_PUT_CURSOR, key=key, reader=reader, position=position, state=state)

    def register_within(
        self, tx: Transaction, key: str, readers: Sequence[str]
    ) -> None:
        """Store the cursors of readers, so that ``sessions_of_reader`` returns their session."""
        if readers:
            cursors = [{"key": key, "reader": reader} for reader in readers]
            tx.execute(_REGISTER_READER, cursors)

    def renew_within(self, tx: Transaction, key: str) -> None:
        """Give a session a new epoch, so that its readers read it again."""
        tx.execute(_RENEW_SESSION, key=key, epoch=time.time_ns())
        tx.epochs.pop(key, None)

    def is_current_within(
        self, tx: Transaction, key: str, epoch: int, reader: str = "", position: int = 0
    ) -> bool:
        """Return whether no row of the session was deleted since ``epoch``, and a reader is at ``position``."""
        cursor = self._cursor_of(tx, key, reader)
        is_same = cursor.epoch == epoch
        if epoch == 0 and not is_same:
            # A log that only LlamaIndex has written got its epoch by the lock of this
            # transaction.
            is_same = bool(self.find_within(tx, key, limit=1))
        return is_same and cursor.position == position

    # ---- names and counts ----

    def names_within(self, tx: Transaction, key: str) -> list[str]:
        """Return the names of the readers of a session, sorted."""
        return tx.scalars(_SELECT_READERS, key=key)

    names = reads(names_within)

    @reads
    def sessions_of_reader(
        self, tx: Transaction, reader: str, *, pending: bool = False
    ) -> list[str]:
        """Return the sessions in which this reader is registered; ``pending``: only with unread messages."""
        query = _SELECT_SESSIONS_OF_READER
        if pending:
            query = _SELECT_UNREAD_SESSIONS_OF_READER
        return tx.scalars(query, reader=reader)

    @reads
    def unread_elsewhere(
        self, tx: Transaction, key: str, reader: str, user_id: str
    ) -> list[LogRow]:
        """Return the newest 200 messages that the reader has not read in other sessions of the user, oldest first.

        They are the user's words, in sessions without another owner.
        """
        result = tx.execute(
            _SELECT_UNREAD_ELSEWHERE,
            key=key,
            reader=reader,
            user_id=user_id,
            limit=_MOST_UNREAD_ELSEWHERE,
        )
        return [LogRow.from_query(tx, key, row) for row in result.all()][::-1]

    @reads
    def has_session(self, tx: Transaction, key: str) -> bool:
        """Return whether a message was ever stored in a session."""
        return bool(tx.execute(_HAS_SESSION, key=key).scalar())

    @reads
    def count_messages(
        self,
        tx: Transaction,
        key: str,
        *,
        status: str | None = None,
        reader: str = "",
        after: int = 0,
        last: int = LAST_ID,
    ) -> int:
        """Return the number of messages behind the row ``after``, up to ``last``, that a reader has not read.

        Without a ``status``, messages of any status count.
        """
        count: int = tx.execute(
            _COUNT_UNREAD,
            key=key,
            reader=reader,
            statuses=[status] if status else ALL_STATUSES,
            after=after,
            last=last,
        ).scalar_one()
        return count
