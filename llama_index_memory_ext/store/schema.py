"""The schema: the tables of a store, and their statements in SQL."""

from __future__ import annotations

import re
from functools import lru_cache
from json import loads
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.engine import make_url

from llama_index_memory_ext.errors import EncryptionError
from llama_index_memory_ext.store.encryption import TOKEN, Cipher

if TYPE_CHECKING:
    from collections.abc import Iterable

# The names of the parameters of statements that are numbers, and the types of all
# parameters that are no texts.
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
                return EncryptionError(f"Expected JSON; got a {type(error).__name__}.")

        return read


# The parts of the schema that differ between the backends.
_TYPE_NAMES = {
    "sqlite": {"serial": "INTEGER", "bytes": "BLOB"},
    "postgresql": {"serial": "BIGSERIAL", "bytes": "BYTEA"},
}
# The tables of this version. ``{rows}`` is LlamaIndex's own table, but with 64-bit ids on
# a server, and with other indexes: no statement looks for a time or a status in all
# sessions. Each other primary key begins with the key of a session or the namespace of a
# user, so that each table can be partitioned by it. ``{schema}`` has one row.
SCHEMA = """
CREATE TABLE IF NOT EXISTS {rows} (
    id {serial} NOT NULL PRIMARY KEY,
    key VARCHAR NOT NULL,
    timestamp BIGINT NOT NULL,
    role VARCHAR NOT NULL,
    status VARCHAR NOT NULL,
    data JSON NOT NULL,
    user_id VARCHAR -- the speaker in a session of several users, '' if unknown
);
CREATE INDEX IF NOT EXISTS {ix_key} ON {rows} (key);
CREATE INDEX IF NOT EXISTS {ix_log} ON {rows} (key, status, id);
-- The ids that programs have given their messages, each with its row.
CREATE TABLE IF NOT EXISTS {message_ids} (
    key VARCHAR NOT NULL,
    message_id VARCHAR NOT NULL,
    row_id BIGINT NOT NULL,
    PRIMARY KEY (key, message_id)
);
CREATE INDEX IF NOT EXISTS {ix_message_ids_row} ON {message_ids} (key, row_id);
-- A writer of a session locks its row. A deletion changes the epoch.
CREATE TABLE IF NOT EXISTS {sessions} (
    key VARCHAR NOT NULL PRIMARY KEY,
    epoch BIGINT NOT NULL
);
-- The owners of each session. kind: how the owner has opened it last.
CREATE TABLE IF NOT EXISTS {owners} (
    key VARCHAR NOT NULL,
    user_id VARCHAR NOT NULL,
    kind VARCHAR NOT NULL DEFAULT 'own',
    PRIMARY KEY (key, user_id)
);
CREATE INDEX IF NOT EXISTS {ix_owners_user} ON {owners} (user_id, key);
-- The cursor of each reader. state: its result for the rows before.
CREATE TABLE IF NOT EXISTS {cursors} (
    key VARCHAR NOT NULL,
    reader VARCHAR NOT NULL,
    position BIGINT NOT NULL,
    state JSON,
    PRIMARY KEY (key, reader)
);
CREATE INDEX IF NOT EXISTS {ix_cursors_reader} ON {cursors} (reader, key);
-- A writer of a user's facts locks the user's row, and counts the changes there. A
-- deletion changes the epoch.
CREATE TABLE IF NOT EXISTS {users} (
    namespace VARCHAR NOT NULL PRIMARY KEY,
    epoch BIGINT NOT NULL,
    change BIGINT NOT NULL
);
-- A fact as JSON, with the number of its last change. The namespace is in the key, so that
-- one user's import cannot replace another user's fact. agent_id: '' for a fact that all
-- agents of the user share. By session_id and said_by, a deletion finds the facts of a
-- user's words in any namespace, even without the rows.
CREATE TABLE IF NOT EXISTS {facts} (
    namespace VARCHAR NOT NULL,
    id VARCHAR NOT NULL,
    change BIGINT NOT NULL,
    agent_id VARCHAR NOT NULL,
    data JSON NOT NULL,
    session_id VARCHAR,
    said_by VARCHAR,
    PRIMARY KEY (namespace, id)
);
CREATE INDEX IF NOT EXISTS {ix_facts_id} ON {facts} (id);
CREATE INDEX IF NOT EXISTS {ix_facts_change} ON {facts} (namespace, change);
CREATE INDEX IF NOT EXISTS {ix_facts_session_id} ON {facts} (session_id);
CREATE INDEX IF NOT EXISTS {ix_facts_said_by} ON {facts} (said_by);
-- The vector of a text, with the text's digest: of the content of a fact, or of a message,
-- by the id of its first row, in a namespace of its session.
CREATE TABLE IF NOT EXISTS {embeddings} (
    namespace VARCHAR NOT NULL,
    id VARCHAR NOT NULL,
    model VARCHAR NOT NULL,
    digest VARCHAR NOT NULL,
    vector {bytes} NOT NULL,
    PRIMARY KEY (namespace, id, model)
);
-- encryption: an encrypted value, by which a wrong key is recognised.
CREATE TABLE IF NOT EXISTS {schema} (
    version INTEGER NOT NULL PRIMARY KEY,
    encryption VARCHAR
)
"""
TABLES = re.findall(r"TABLE IF NOT EXISTS \{(\w+)\}", SCHEMA)
_INDEXES = re.findall(r"\{ix_(\w+)\}", SCHEMA)


class Tables:
    """The tables of a store, and their statements.

    A query decrypts the columns of texts and vectors with the ``cipher``.
    """

    def __init__(
        self,
        name: str,
        db_schema: str | None,
        backend: str,
        cipher: Cipher | None = None,
    ) -> None:
        self.name = name
        self._is_sqlite = backend == "sqlite"
        self.db_schema = None if self._is_sqlite else db_schema
        cipher = cipher or Cipher()
        self.cipher = cipher
        as_json = _Encrypted(cipher.encrypt, self.read_json)
        self.encrypted_columns = {
            "data": as_json,
            "state": as_json,
            "digest": _Encrypted(cipher.encrypt_digest, cipher.decrypt_digest),
            "vector": _Encrypted(cipher.encrypt_vector, cipher.decrypt_vector),
        }
        # The statements by their texts, each built once; to build one takes as long as to
        # run it.
        self._built: dict[str, Any] = {}
        dialect: Any = make_url(f"{backend}://").get_dialect()
        preparer = dialect(paramstyle="named").identifier_preparer
        # The names of tables, indexes and types in statements.
        self.names = dict(_TYPE_NAMES[backend])
        for table in TABLES:
            name_in_sql = sa.table(self.name_of(table), schema=self.db_schema)
            self.names[table] = preparer.format_table(name_in_sql)
        for index in _INDEXES:
            self.names[f"ix_{index}"] = preparer.quote(f"ix_{name}_{index}")

    def name_of(self, table: str) -> str:
        """Return the name of a table without the schema."""
        return self.name if table == "rows" else f"{self.name}_{table}"

    def read_json(self, value: Any) -> Any:
        """Return the value of a column of JSON, which psycopg alone has parsed, decrypted if it is encrypted."""
        if isinstance(value, str):
            value = loads(value)
        if isinstance(value, dict) and TOKEN in value:
            value = self.cipher.decrypt(value)
        if not isinstance(value, dict):
            raise EncryptionError(
                f"Expected a JSON object; got {type(value).__name__}."
            )
        return value

    def sql(self, statement: str) -> Any:
        """Return a statement in SQL in which ``{rows}``, ``{owners}`` and so on are the names of tables.

        ``{in_keys}`` becomes a condition: the value is in the list ``keys``, which may
        have any length. Other names work alike. Only ``:statuses`` is a short list.
        """
        if statement not in self._built:
            self._built[statement] = self._build(statement)
        return self._built[statement]

    def note_columns(self, statement: str, names: Iterable[str]) -> None:
        """Note the columns of a query, in order: SQLAlchemy then does not look for them by name at each call."""
        self._built[statement] = self._built[statement].element.columns(
            *(sa.column(name, self.encrypted_columns.get(name)) for name in names)
        )

    def _build(self, statement: str) -> Any:
        types = dict(_TYPES)

        def replace(word: re.Match[str]) -> str:
            name = word[1].removeprefix("in_")
            if name == word[1]:
                return self.names[name].replace(":", r"\:")
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
        if re.search(r"^\s*SELECT|\bRETURNING\b", statement):
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
