"""No statement of the store walks through the rows of other sessions or users, on SQLite and PostgreSQL."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import sqlalchemy as sa
from llama_index.core.storage.chat_store.sql import SQLAlchemyChatStore

import llama_index_memory_ext
from llama_index_memory_ext import MemoryStore
from llama_index_memory_ext.store.schema import TABLES, Tables
from llama_index_memory_ext.store.transaction import Transaction
from tests.conversation import user
from tests.databases import OpenStore, ask

PACKAGE = Path(llama_index_memory_ext.__file__).parent
STATEMENT = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE)\b.*\{\w+\}", re.DOTALL)
SESSIONS = 300
# Statements that read whole tables, each with its reason.
EVERY_SESSION = "lists the sessions of all users, for an operator"
WHOLE_TABLE = {
    "store/database.py _SELECT_DATA": "dumps a database in memory",
    "store/sessions.py _SELECT_KEYS": EVERY_SESSION,
    "store/retention.py SELECT_DUE": EVERY_SESSION,
    "store/facts.py _COUNT_FACTS": "lists all users, for an operator",
    "store/marks.py SELECT_PLACES": "lists all rows that are to be encrypted",
    "store/versions.py _SELECT_VERSION": "its table has one row",
    "store/versions.py _INSERT_VERSION": "its table has one row",
    "store/versions.py _DELETE_EARLIER": "its table has one row",
    "store/transaction.py _SELECT_MARK": "its table has one row",
    "store/transaction.py _LOCK_SESSION": "reads the mark in that table",
    "store/marks.py _SET_MARK": "its table has one row",
}


class Statement(NamedTuple):
    """A statement of the package. ``name``: its file and its variable."""

    name: str
    sql: str


def statements() -> Iterator[Statement]:
    """Yield all statements in the source of the package, wherever they stand."""
    for file in sorted(PACKAGE.rglob("*.py")):
        where = file.relative_to(PACKAGE).as_posix()
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            name = getattr(node, "name", "")
            if isinstance(node, ast.Assign):
                name = ast.unparse(node.targets[0])
            for part in ast.walk(node):
                text = part.value if isinstance(part, ast.Constant) else None
                if isinstance(text, str) and STATEMENT.match(text):
                    yield Statement(f"{where} {name}", text)


STATEMENTS = list(statements())


def test_each_exception_is_a_statement() -> None:
    assert WHOLE_TABLE.keys() <= {statement.name for statement in STATEMENTS}


def example_values(tables: Tables, sql: str) -> dict[str, Any]:
    """Return a value for each parameter of a statement."""
    values: dict[str, Any] = {}
    for name, parameter in tables.sql(sql).compile().binds.items():
        kind = parameter.type
        value: Any = "session 150"
        if isinstance(kind, sa.BigInteger):
            value = 1 if name in ("first", "after") else 6_030
        elif name == "statuses":
            value = ["archived"]
        elif isinstance(kind, sa.LargeBinary):
            value = b"vector"
        elif name in ("data", "state"):
            value = {}
        elif isinstance(kind, sa.JSON | sa.ARRAY):
            is_number = name == "row_ids"
            value = [6_030, 6_031] if is_number else ["session 150", "session 151"]
        values[name] = value
    return values


def fill(tx: Transaction) -> None:
    """Store sessions of many users, with rows in all tables."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for i in range(SESSIONS):
        session = f"session {i}"
        name = f"user {i}"
        of_session = {"key": session, "user_id": name}
        for j in range(40):
            status = "active" if j > 37 else "archived"
            row_id = 40 * i + j + 1
            row = {"timestamp": row_id, "role": "user", "status": status, "data": {}}
            rows.setdefault("rows", []).append({**of_session, **row})
            rows.setdefault("message_ids", []).append(
                {"key": session, "message_id": f"m{j}", "row_id": row_id}
            )
        rows.setdefault("sessions", []).append({"key": session, "epoch": 1})
        rows.setdefault("owners", []).append({**of_session, "kind": "own"})
        for reader in ("record", f"facts of {name}"):
            rows.setdefault("cursors", []).append(
                {"key": session, "reader": reader, "position": 3}
            )
        rows.setdefault("users", []).append(
            {"namespace": name, "epoch": 1, "change": 9}
        )
        for j in range(10):
            of_fact = {"namespace": name, "id": f"fact {i} {j}"}
            fact = {"change": j, "agent_id": "", "data": {}, "session_id": session}
            rows.setdefault("facts", []).append({**of_fact, **fact, "said_by": name})
            vector = {"model": "m", "digest": "", "vector": b""}
            rows.setdefault("embeddings", []).append({**of_fact, **vector})
    for table, values in rows.items():
        names = ", ".join(values[0])
        parameters = ", ".join(f":{name}" for name in values[0])
        tx.execute(
            f"INSERT INTO {{{table}}} ({names}) VALUES ({parameters})",  # noqa: S608 - our own
            values,
        )


# ---- SQLite ----


# SQLite prefers the newest of two indexes that seem equally good.
STATUS_LAST = (
    "DROP INDEX ix_llama_index_memory_status",
    "CREATE INDEX ix_llama_index_memory_status ON llama_index_memory (status)",
)


@pytest.fixture(
    params=["own", "host's", "host's, status last", "analyzed", "host's, analyzed"]
)
async def file_store(
    request: pytest.FixtureRequest, database_uri: str, open_store: OpenStore
) -> MemoryStore:
    """A filled file: the chat table of the package or of LlamaIndex, without statistics or with them."""
    if "host" in request.param:
        host = SQLAlchemyChatStore("llama_index_memory", database_uri)
        await host.add_message("other", user("One"))
        assert host._async_engine is not None
        await host._async_engine.dispose()
    store = open_store(database_uri)
    await store.database.run(fill, seconds=600)
    if "last" in request.param:
        await ask(database_uri, *STATUS_LAST)
    if "analyzed" in request.param:
        await ask(database_uri, "ANALYZE")
    return store


def walks_of_sqlite(tx: Transaction, sql: str) -> list[str]:
    """Return the steps of a plan that walk through a table or through the rows of one status or time."""
    explain = f"EXPLAIN QUERY PLAN {sql}"
    plan = tx.execute(explain, **example_values(tx.tables, explain))
    tables = {tx.tables.name_of(table) for table in TABLES}
    tables.update(re.findall(r"\{\w+\} AS (\w+)", sql))
    walks = []
    for step in plan:
        access, name, *_ = step.detail.split()
        if name in tables and access in ("SCAN", "SEARCH"):
            columns = re.findall(r"[( ](\w+)=\?", step.detail)
            if not columns or columns[0] in ("status", "timestamp"):
                walks.append(step.detail)
    return walks


async def test_sqlite_reads_no_rows_of_other_sessions(file_store: MemoryStore) -> None:
    walks = {}
    for statement in STATEMENTS:
        steps = await file_store.database.run(walks_of_sqlite, statement.sql)
        if steps and statement.name not in WHOLE_TABLE:
            walks[statement.name] = steps
    assert walks == {}


# ---- PostgreSQL ----

LEADING_COLUMNS = """
SELECT indexrelid::regclass::text AS name, attname AS column
FROM pg_index JOIN pg_attribute ON attrelid = indexrelid AND attnum = 1
"""


def nodes_of(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the nodes of a plan of PostgreSQL."""
    yield plan
    for part in plan.get("Plans", ()):
        yield from nodes_of(part)


def walks_of_postgres(tx: Transaction, sql: str) -> list[str]:
    """Return the nodes of a plan that read a table, or an index without a value for its first column."""
    leading = {row.name: row.column for row in tx.execute(LEADING_COLUMNS)}
    tx.execute("SET LOCAL enable_seqscan = off")
    explain = f"EXPLAIN (FORMAT JSON) {sql}"
    explained = tx.execute(explain, **example_values(tx.tables, explain))
    walks = []
    for node in nodes_of(explained.scalar_one()[0]["Plan"]):
        index = node.get("Index Name")
        is_walk = node["Node Type"] == "Seq Scan"
        if index is not None:
            column = leading[index]
            equals = rf"\b{column}(\)::text)? = "
            is_walk = not re.search(equals, node.get("Index Cond", ""))
            is_walk = is_walk or column in ("status", "timestamp")
        if is_walk:
            walks.append(f"{node['Node Type']} {index} {node.get('Index Cond')}")
    return walks


async def test_postgres_reads_no_rows_of_other_sessions(
    postgres_uri: str, open_store: OpenStore
) -> None:
    store = open_store(postgres_uri)
    await store.database.run(fill, seconds=600)
    await ask(postgres_uri, "ANALYZE")
    walks = {}
    for statement in STATEMENTS:
        steps = await store.database.run(walks_of_postgres, statement.sql)
        if steps and statement.name not in WHOLE_TABLE:
            walks[statement.name] = steps
    assert walks == {}
