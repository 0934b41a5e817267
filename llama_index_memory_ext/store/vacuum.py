"""Rewrites the files of a database, so that they hold no deleted words."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from llama_index_memory_ext.store.schema import TABLES

if TYPE_CHECKING:
    from llama_index_memory_ext.store.transaction import Transaction

logger = logging.getLogger(__name__)

# A server skips a table that the user may not vacuum. It says so in a notice, which
# drivers do not hand on.
_MAY_VACUUM = """
SELECT pg_has_role(relowner, 'USAGE') OR (
    SELECT pg_has_role(datdba, 'USAGE') FROM pg_database WHERE datname = current_database()
)
FROM pg_class WHERE oid = to_regclass(:name)
"""


def vacuum(tx: Transaction) -> bool:
    """Rewrite the files of a database; False, and a warning in the log, if deleted words may remain."""
    # VACUUM runs outside of a transaction.
    tx.rollback()
    if tx.connection.dialect.name == "sqlite":
        return _vacuum_file(tx)
    return _vacuum_on_server(tx)


def _vacuum_file(tx: Transaction) -> bool:
    tx.execute("VACUUM")
    is_busy = tx.scalar("PRAGMA wal_checkpoint(TRUNCATE)")
    if is_busy:
        logger.warning(
            "The write-ahead log of the database could not be emptied, because another connection is reading: "
            "deleted words may be in it until `await store.vacuum()` is called once more, or the last connection is "
            "closed."
        )
    return not is_busy


def _vacuum_on_server(tx: Transaction) -> bool:
    names = sorted(tx.tables.names[table] for table in TABLES)
    forbidden = [name for name in names if not tx.scalar(_MAY_VACUUM, name=name)]
    tx.rollback()
    tx.connection.execution_options(isolation_level="AUTOCOMMIT")
    tx.execute("SET statement_timeout = 0")
    try:
        tx.connection.exec_driver_sql(f"VACUUM {', '.join(names)}")
    finally:
        # No other call may get a connection with this setting.
        tx.connection.invalidate()
    if forbidden:
        logger.warning(
            "This database user may not vacuum %s: deleted words stay in the files of the server until the owner of "
            "the tables or autovacuum vacuums them.",
            ", ".join(forbidden),
        )
    return not forbidden
