"""The version and the key of the tables: makes missing tables, upgrades an earlier version, and encrypts all rows."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import make_url
from sqlalchemy.schema import CreateColumn, CreateIndex, CreateSchema, CreateTable

from llama_index_memory_ext.errors import StoreError

if TYPE_CHECKING:
    from llama_index_memory_ext.store.tables import Tables, Transaction

SCHEMA_VERSION = 6
# The oldest version that is upgraded in place.
_OLDEST_VERSION = 3
# The versions whose facts have no speakers. An upgrade of a later version must not run
# this step: it would clear the speaker of each fact whose message was deleted.
_WITHOUT_SPEAKERS = (3, 4)

_SELECT_VERSION = "SELECT MAX(version) AS version FROM {schema}"
_INSERT_VERSION = """
INSERT INTO {schema} (version, encryption) SELECT :version, MAX(encryption) FROM {schema}
"""
_DELETE_EARLIER = "DELETE FROM {schema} WHERE version < :version"

# Version 4 stores how the owners have opened their sessions, and who has spoken.
_STORE_KINDS = (
    # A session that is its own user, and is no other session's user, was begun without
    # a user.
    """
    UPDATE {owners} SET kind = 'nobody'
    WHERE user_id = key AND key NOT IN (SELECT user_id FROM {owners} WHERE user_id <> key)
    """,
    """
    UPDATE {owners} SET kind = 'shared'
    WHERE kind = 'own'
      AND key IN (SELECT key FROM {owners} WHERE kind = 'own' GROUP BY key HAVING COUNT(*) > 1)
    """,
    # In a session of several users, the speakers of its messages are unknown.
    """
    UPDATE {rows} SET user_id = ''
    WHERE role = 'user' AND key IN (SELECT key FROM {owners} WHERE kind = 'shared')
    """,
)

# Version 5 gives sessions without a user separate namespaces. Before, these had the ids
# of the sessions.
_NAME_ANONYMOUS = (
    # If a user has the id of a session as name, only the facts of that session move.
    """
    UPDATE {embeddings} SET namespace = ' session ' || namespace
    WHERE namespace IN (SELECT key FROM {owners} WHERE kind = 'nobody' AND user_id = key)
      AND (namespace NOT IN (SELECT user_id FROM {owners} WHERE user_id <> key)
           OR (namespace, id) IN (SELECT namespace, id FROM {facts} WHERE session_id = namespace))
    """,
    """
    UPDATE {facts} SET namespace = ' session ' || namespace
    WHERE namespace IN (SELECT key FROM {owners} WHERE kind = 'nobody' AND user_id = key)
      AND (namespace NOT IN (SELECT user_id FROM {owners} WHERE user_id <> key) OR session_id = namespace)
    """,
    """
    INSERT INTO {users} (namespace, epoch, change)
    SELECT ' session ' || namespace, epoch, change FROM {users}
    WHERE namespace IN (SELECT key FROM {owners} WHERE kind = 'nobody' AND user_id = key)
    """,
    # A reader of the user's facts must lose the facts that have moved.
    """
    UPDATE {users} SET epoch = epoch + 1
    WHERE namespace IN (SELECT key FROM {owners} WHERE kind = 'nobody' AND user_id = key)
    """,
    """
    DELETE FROM {users}
    WHERE namespace IN (SELECT key FROM {owners} WHERE kind = 'nobody' AND user_id = key)
      AND namespace NOT IN (SELECT namespace FROM {facts})
    """,
    # The names of the readers of facts end with " of " and the namespace.
    """
    UPDATE {cursors} SET reader = SUBSTR(reader, 1, LENGTH(reader) - LENGTH(key)) || ' session ' || key
    WHERE key IN (SELECT key FROM {owners} WHERE kind = 'nobody' AND user_id = key)
      AND SUBSTR(reader, LENGTH(reader) - LENGTH(key) - 3) = ' of ' || key
    """,
    """
    UPDATE {facts} SET said_by = ' session ' || session_id
    WHERE said_by = session_id
      AND session_id IN (SELECT key FROM {owners} WHERE kind = 'nobody' AND user_id = key)
    """,
    "UPDATE {owners} SET user_id = ' session ' || key WHERE kind = 'nobody' AND user_id = key",
)


def version_of(conn: sa.Connection, tables: Tables) -> int | None:
    """Return the version of the tables; None for a database without them, such as a database of the plain host."""
    if not sa.inspect(conn).has_table(tables.schema.name, tables.schema.schema):
        return None
    return conn.execute(tables.sql(_SELECT_VERSION)).scalar()


def supported_version_of(conn: sa.Connection, tables: Tables) -> int | None:
    """As ``version_of``; a StoreError for a version that this package neither uses nor upgrades."""
    version = version_of(conn, tables)
    if version is None or _OLDEST_VERSION <= version <= SCHEMA_VERSION:
        return version
    hint = "Use llama-index-memory-ext in a version at least as new as the one that made them."
    if version < _OLDEST_VERSION:
        hint = "Export messages and facts with the copy that made them, and import them into a new database."
    raise StoreError(
        f"The tables of {tables.rows.fullname!r} have schema version {version}, and this package knows version "
        f"{SCHEMA_VERSION}. {hint} Nothing was changed."
    )


def create_missing(conn: sa.Connection, tables: Tables) -> None:
    """Create the tables, columns and indexes that do not exist, upgrade the rows, and note the version."""
    metadata = tables.rows.metadata
    # Another process may have created them since.
    version = supported_version_of(conn, tables)
    if version == SCHEMA_VERSION:
        return
    if metadata.schema is not None and not sa.inspect(conn).has_schema(metadata.schema):
        conn.execute(CreateSchema(metadata.schema, if_not_exists=True))
    _create_all(conn, metadata)
    if version == _OLDEST_VERSION:
        for statement in _STORE_KINDS:
            conn.execute(tables.sql(statement))
    if version in _WITHOUT_SPEAKERS:
        _store_speakers(conn, tables)
        for statement in _NAME_ANONYMOUS:
            conn.execute(tables.sql(statement))
    conn.execute(tables.sql(_INSERT_VERSION), {"version": SCHEMA_VERSION})
    conn.execute(tables.sql(_DELETE_EARLIER), {"version": SCHEMA_VERSION})


def _create_all(conn: sa.Connection, metadata: sa.MetaData) -> None:
    """Create the tables, columns and indexes that do not exist."""
    existing = sa.inspect(conn).get_table_names(metadata.schema)
    for table in metadata.sorted_tables:
        creation = _creation(table, conn.dialect.name)
        conn.exec_driver_sql(creation.table)
        if table.name in existing:
            _add_columns(conn, table)
        for statement in creation.indexes:
            conn.exec_driver_sql(statement)


class _Creation(NamedTuple):
    """The statements that create a table and its indexes."""

    table: str
    indexes: list[str]


@lru_cache(maxsize=64)
def _creation(table: sa.Table, backend: str) -> _Creation:
    """Return the statements that create a table and its indexes, if they do not exist."""
    dialect = make_url(f"{backend}://").get_dialect()()
    creation = CreateTable(table, if_not_exists=True)
    indexes = [CreateIndex(index, if_not_exists=True) for index in table.indexes]
    return _Creation(
        str(creation.compile(dialect=dialect)),
        [str(index.compile(dialect=dialect)) for index in indexes],
    )


def _add_columns(conn: sa.Connection, table: sa.Table) -> None:
    """Add the columns that a table of an earlier version lacks, where its rows need no value for them."""
    columns = sa.inspect(conn).get_columns(table.name, table.schema)
    existing = {column["name"] for column in columns}
    name = conn.dialect.identifier_preparer.format_table(table)
    for column in table.columns:
        # A column that needs a value is missing only in a table of another program. The
        # first write to that table fails with the reason.
        can_be_added = column.nullable or column.server_default is not None
        if column.name not in existing and can_be_added:
            definition = CreateColumn(column).compile(dialect=conn.dialect)
            conn.exec_driver_sql(f"ALTER TABLE {name} ADD COLUMN {definition}")


def _store_speakers(conn: sa.Connection, tables: Tables) -> None:
    """Store the session and the speaker of each fact of a version before 5."""
    rows = tables.rows
    facts = tables.facts
    # Each database spells paths in JSON in another way, so SQLAlchemy writes this
    # statement.
    session_id = facts.c.data["session_id"].as_string()
    row_id = sa.cast(facts.c.data[("message_ids", 0)].as_string(), sa.BigInteger)
    owner = sa.select(sa.func.min(tables.owners.c.user_id)).where(
        tables.owners.c.key == rows.c.key
    )
    speaker = sa.select(
        sa.func.coalesce(rows.c.user_id, owner.scalar_subquery())
    ).where(rows.c.key == session_id, rows.c.id == row_id)
    conn.execute(
        sa.update(facts)
        .where(session_id.is_not(None))
        .values(session_id=session_id, said_by=speaker.scalar_subquery())
    )


# ---- encryption ----

_SELECT_MARK = "SELECT encryption FROM {schema}"
_SET_MARK = "UPDATE {schema} SET encryption = :mark"
# The sessions and the users whose rows are encrypted, each with the namespace of the
# vectors.
SELECT_PLACES = """
SELECT key, NULL AS namespace, 'messages of ' || key AS vectors FROM {rows}
UNION SELECT key, NULL, 'messages of ' || key FROM {cursors}
UNION SELECT NULL, namespace, namespace FROM {facts}
"""
# Queries for the rows of a place, each with the statement that stores these rows anew.
_REWRITES = (
    (
        "SELECT key, id AS row_id, data FROM {rows} WHERE key = :key",
        "UPDATE {rows} SET data = :data WHERE key = :key AND id = :row_id",
    ),
    (
        "SELECT key, reader, state FROM {cursors} WHERE key = :key",
        "UPDATE {cursors} SET state = :state WHERE key = :key AND reader = :reader",
    ),
    (
        "SELECT namespace, id, data FROM {facts} WHERE namespace = :namespace",
        "UPDATE {facts} SET data = :data WHERE namespace = :namespace AND id = :id",
    ),
    (
        "SELECT namespace, id, model, digest, vector FROM {embeddings} WHERE namespace = :vectors",
        """
        UPDATE {embeddings} SET digest = :digest, vector = :vector
        WHERE namespace = :namespace AND id = :id AND model = :model
        """,
    ),
)


def is_marked(conn: sa.Connection, tables: Tables) -> bool:
    """Return whether a store with a key has opened the database; an EncryptionError for another key, or for no key."""
    encrypted = conn.execute(tables.sql(_SELECT_MARK)).scalar()
    if encrypted is None:
        return False
    tables.read_json(encrypted)
    return True


def mark(conn: sa.Connection, tables: Tables) -> None:
    """Mark a database as encrypted with the newest key of the store, if the store has one."""
    is_marked(conn, tables)
    if tables.cipher.is_set:
        conn.execute(tables.sql(_SET_MARK), {"mark": tables.cipher.encrypt_digest("")})


def encrypt_within(tx: Transaction, place: Any) -> None:
    """Store the rows of a session or a user, one of ``SELECT_PLACES``, anew, encrypted with the newest key."""
    tx.lock({place["key"]} - {None}, {place["namespace"]} - {None})
    count = 0
    for query, update in _REWRITES:
        rows = [{**place, **row} for row in tx.execute(query, **place).mappings()]
        count += len(rows)
        if rows:
            tx.execute(update, rows)
    if not count:
        # The session or the user was deleted meanwhile.
        tx.rollback()
