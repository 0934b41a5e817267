"""The names that columns hold: kinds of owners, statuses, namespaces and cursors. The tables are in ``schema.py``."""

from __future__ import annotations

from typing import Any, TypeAlias

from llama_index.core.storage.chat_store.base_db import MessageStatus

# A row by the names of its columns.
Row: TypeAlias = dict[str, Any]

# The kinds of owners: the only user, one of several users, or a session without a user.
OWN = "own"
SHARED = "shared"
WITHOUT_USER = "nobody"
# Under this key the state of a cursor lists its entries about single rows.
ROWS = "rows"

# The prefix of the cursor whose state is the chosen profile of a record; it reads no
# messages.
PROFILE_READER = "profile "

ACTIVE = MessageStatus.ACTIVE.value
ARCHIVED = MessageStatus.ARCHIVED.value
# The largest id that a 64-bit column can hold.
LAST_ID = 2**63 - 1

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
