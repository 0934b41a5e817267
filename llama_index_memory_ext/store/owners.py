"""The owners of each session: which users may open it, their readers of facts, and copies with the same owners."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from llama_index_memory_ext.errors import SessionOwnerError, StoreError
from llama_index_memory_ext.store.readers import (
    put_cursor,
    reader_names,
    rows_by_message_id,
)
from llama_index_memory_ext.store.tables import (
    LAST_ID,
    OWN,
    ROWS,
    SHARED,
    WITHOUT_USER,
)
from llama_index_memory_ext.text.messages import ID_KEY, message_id_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from llama_index_memory_ext.store.rows import SessionAccess
    from llama_index_memory_ext.store.transaction import Transaction

_SELECT_OWNERS = "SELECT user_id, kind FROM {owners} WHERE key = :key"
_IS_USED = """
SELECT EXISTS (SELECT 1 FROM {rows} WHERE key = :new) OR EXISTS (SELECT 1 FROM {owners} WHERE key = :new)
"""

_SELECT_IDS = "SELECT id FROM {rows} WHERE key = :key AND id <= :last ORDER BY id"
_COPY_ROWS = """
INSERT INTO {rows} (key, status, timestamp, role, data, user_id)
SELECT :new, 'archived', timestamp, role, data, user_id FROM {rows}
WHERE key = :key AND id <= :last ORDER BY id
"""
# The nth row of the session has its copy in the nth row of the new one.
_COPY_MESSAGE_IDS = """
INSERT INTO {message_ids} (key, message_id, row_id)
SELECT :new, ids.message_id, copies.id FROM {message_ids} AS ids
JOIN (
    SELECT id, ROW_NUMBER() OVER (ORDER BY id) AS place FROM {rows} WHERE key = :key AND id <= :last
) AS originals ON originals.id = ids.row_id
JOIN (
    SELECT id, ROW_NUMBER() OVER (ORDER BY id) AS place FROM {rows} WHERE key = :new
) AS copies ON copies.place = originals.place
WHERE ids.key = :key
"""
_COPY_OWNERS = """
INSERT INTO {owners} (key, user_id, kind)
SELECT :new, user_id, kind FROM {owners} WHERE key = :key AND kind <> 'nobody'
"""
_SELECT_CURSORS = "SELECT reader, position, state FROM {cursors} WHERE key = :key"


def check_owner(tx: Transaction, key: str, access: SessionAccess) -> dict[str, str]:
    """Return how each owner has opened a session.

    Raises:
        SessionOwnerError: Another user owns it, and not both have opened it as
            shared.
    """
    kinds = kinds_of_owners(tx, key)
    closed = {OWN} if access.shared else {OWN, SHARED}
    user_id = access.user_in(key)
    for owner, kind in kinds.items():
        if owner != user_id and kind in closed:
            raise SessionOwnerError(
                f"Session {key!r} holds words of another user, and is not shared; nothing was read or written. "
                "Open another session for this user, or give each memory of this session a user_id and "
                "shared=True if all its users may read everything."
            )
    return kinds


def kinds_of_owners(tx: Transaction, key: str) -> dict[str, str]:
    """Return how each owner has opened a session, for any user."""
    return {row.user_id: row.kind for row in tx.rows(_SELECT_OWNERS, key=key)}


def users_of_session(tx: Transaction, key: str) -> list[str]:
    """Return the users who own a session; [] for a session without a user."""
    return users_in(kinds_of_owners(tx, key))


def readers_of_facts(
    tx: Transaction, key: str, user_id: str | None = None
) -> list[str]:
    """Return the names of the readers that extract a user's facts from a session; None: the facts of any owner."""
    namespaces = set(kinds_of_owners(tx, key))
    if user_id is not None:
        namespaces.add(user_id)
    readers = []
    for reader in reader_names(tx, key):
        owner = namespace_of_reader(reader, namespaces)
        if owner is not None and user_id in (None, owner):
            readers.append(reader)
    return readers


# ---- copies ----


def branch_session(
    tx: Transaction,
    key: str,
    new: str,
    access: SessionAccess,
    end: str | int | None,
    *,
    with_end: bool,
) -> None:
    """Copy a session into a new one, up to the message with the id ``end``; None copies all messages.

    ``with_end``: whether this message is copied, too.

    The copy has the same owners and is all log. Each reader's cursor is at the
    corresponding row. The stored state of single rows is not copied.
    ``CondensedMemory.abranch`` lists the errors.
    """
    tx.lock([new], ())
    check_owner(tx, key, access)
    if tx.scalar(_IS_USED, new=new):
        raise StoreError(
            f"Expected a new session; {new!r} was used before. Nothing was copied. Name another one."
        )
    last = LAST_ID
    if end is not None:
        last = _row_of_message(tx, key, end)
        if not with_end:
            last -= 1
    old_ids = tx.scalars(_SELECT_IDS, key=key, last=last)
    if not old_ids:
        tx.rollback()
        return
    tx.execute(_COPY_ROWS, key=key, new=new, last=last)
    tx.execute(_COPY_MESSAGE_IDS, key=key, new=new, last=last)
    tx.execute(_COPY_OWNERS, key=key, new=new)
    _copy_cursors(tx, key, new, old_ids)


def _row_of_message(tx: Transaction, key: str, message_id: str | int) -> int:
    """Return the row of a message of a session; a StoreError if no message has this id."""
    stored_id = message_id_of({ID_KEY: message_id})
    for row in rows_by_message_id(tx, key, [stored_id or ""]).values():
        return row.id
    raise StoreError(
        f"Expected the message_id of a message of {key!r}; got {message_id!r}. Nothing was copied."
    )


def _copy_cursors(tx: Transaction, key: str, new: str, old_ids: Sequence[int]) -> None:
    """Copy the cursors of a session to the copies of the rows ``old_ids``."""
    positions = [0, *tx.scalars(_SELECT_IDS, key=new, last=LAST_ID)]
    for cursor in tx.rows(_SELECT_CURSORS, key=key):
        position = positions[bisect_right(old_ids, cursor.position)]
        state = tx.read(cursor.state, f"The state of {cursor.reader!r} in {key!r}")
        if state is not None and ROWS in state:
            state = None
        if state and cursor.position > old_ids[-1]:
            # The state covers messages that are not in the copy.
            position = 0
            state = None
        put_cursor(tx, new, cursor.reader, position, state)


def users_in(kinds: Mapping[str, str]) -> list[str]:
    """Return the owners who are users, without the namespace of a session without a user."""
    return [owner for owner, kind in kinds.items() if kind != WITHOUT_USER]


def namespace_of_reader(reader: str, namespaces: Iterable[str]) -> str | None:
    """Return the namespace for which a reader extracts facts; None for a reader of something else.

    The name of such a reader ends with " of " and the namespace. The id of a user may
    hold " of ", too, so the longest namespace counts.

    >>> namespace_of_reader("facts of x of bob", ["bob", "x of bob"])
    'x of bob'
    """
    matching = [name for name in namespaces if reader.endswith(f" of {name}")]
    return max(matching, key=len, default=None)
