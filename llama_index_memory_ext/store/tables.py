"""The tables of a store, the names in their columns, and their statements in SQL."""

from __future__ import annotations

import re
from functools import lru_cache
from json import loads
from typing import TYPE_CHECKING, Any, TypeAlias

import sqlalchemy as sa
from llama_index.core.storage.chat_store.base_db import MessageStatus
from sqlalchemy.engine import make_url

from llama_index_memory_ext.errors import EncryptionError
from llama_index_memory_ext.store.encryption import TOKEN, Cipher

if TYPE_CHECKING:
    from sqlalchemy.schema import SchemaItem


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

    Examples:
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
