"""The owners of each session: claims of users, the sessions of a user, and copies with the same owners."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from llama_index_memory_ext.errors import SessionOwnerError, StoreError
from llama_index_memory_ext.store.tables import (
    LAST_ID,
    OF_NOBODY,
    OWN,
    ROWS,
    SHARED,
    namespace_of_session,
)
from llama_index_memory_ext.store.transaction import Transaction, reads, writes_session
from llama_index_memory_ext.text.messages import ID_KEY, message_id_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from llama_index_memory_ext.store.database import Database
    from llama_index_memory_ext.store.facts import Facts
    from llama_index_memory_ext.store.readers import Readers
    from llama_index_memory_ext.store.rows import SessionAccess

_SELECT_OWNERS = "SELECT user_id, kind FROM {owners} WHERE key = :key"
_PUT_OWNER = """
INSERT INTO {owners} (key, user_id, kind) VALUES (:key, :user_id, :kind)
ON CONFLICT (key, user_id) DO UPDATE SET kind = excluded.kind
"""
_DELETE_OWNER = "DELETE FROM {owners} WHERE key = :key AND user_id = :user_id"
# The user of the messages that name no speaker.
_NAME_SPEAKER = """
UPDATE {rows} SET user_id = :user_id WHERE key = :key AND role = 'user' AND user_id IS NULL
"""
# Unless another reader has the new name.
_RENAME_READER = """
UPDATE {cursors} SET reader = :new_name
WHERE key = :key AND reader = :reader
  AND NOT EXISTS (SELECT 1 FROM {cursors} WHERE key = :key AND reader = :new_name)
"""
_IS_USED = """
SELECT EXISTS (SELECT 1 FROM {rows} WHERE key = :new) OR EXISTS (SELECT 1 FROM {owners} WHERE key = :new)
"""
_SELECT_ROW_OF_MESSAGE = """
SELECT rows.id FROM {message_ids} AS ids JOIN {rows} AS rows ON rows.key = :key AND rows.id = ids.row_id
WHERE ids.key = :key AND ids.message_id = :message_id
"""
_SELECT_IDS = "SELECT id FROM {rows} WHERE key = :key AND id <= :last ORDER BY id"
_COPY_ROWS = """
INSERT INTO {rows} (key, status, timestamp, role, data, user_id)
SELECT :new, 'archived', timestamp, role, data, user_id FROM {rows}
WHERE key = :key AND id <= :last ORDER BY id
"""
_SELECT_MESSAGE_IDS = "SELECT message_id, row_id FROM {message_ids} WHERE key = :key"
_INSERT_MESSAGE_ID = """
INSERT INTO {message_ids} (key, message_id, row_id) VALUES (:key, :message_id, :row_id)
"""
_COPY_OWNERS = """
INSERT INTO {owners} (key, user_id, kind)
SELECT :new, user_id, kind FROM {owners} WHERE key = :key AND kind <> 'nobody'
"""
_SELECT_CURSORS = "SELECT reader, position, state FROM {cursors} WHERE key = :key"


class Owners:
    """The owners of the sessions. Methods named ``..._within`` work in a transaction that has locked the session."""

    def __init__(self, database: Database, readers: Readers, facts: Facts) -> None:
        self.database = database
        self._readers = readers
        self._facts = facts

    def claim_within(
        self,
        tx: Transaction,
        key: str,
        access: SessionAccess,
        speakers: Collection[str],
        readers: Sequence[str],
    ) -> bool:
        """Make the user who opens a session, and its ``speakers``, its owners, and register their readers.

        Return whether the session has several users. A session without a user becomes
        the session of its first user, with its facts.

        Raises:
            SessionOwnerError: Another user owns it, and not both have opened it as
                shared.
        """
        kinds = self.owners_within(tx, key, access)
        user_id = access.user_in(key)
        users = {user_id, *speakers}
        new_owners = [
            {"key": key, "user_id": user, "kind": access.kind}
            for user in users
            if kinds.get(user) != access.kind
        ]
        if new_owners:
            tx.execute(_PUT_OWNER, new_owners)
        if kinds.get(namespace_of_session(key)) == OF_NOBODY:
            self._take_over(tx, key, user_id)
        earlier = _users_in(kinds)
        users.update(earlier)
        has_several = len(users) > 1
        if has_several and len(earlier) <= 1:
            speaker = earlier[0] if earlier else user_id
            tx.execute(_NAME_SPEAKER, key=key, user_id=speaker)
            # Readers begin again to show the name.
            self._readers.renew_within(tx, key)
        self._readers.register_within(tx, key, readers)
        return has_several

    def _take_over(self, tx: Transaction, key: str, user_id: str) -> None:
        """Give the facts and cursors of a session without a user to its first user."""
        namespace = namespace_of_session(key)
        if user_id == namespace:
            return
        tx.execute(_DELETE_OWNER, key=key, user_id=namespace)
        for reader in self.facts_readers_within(tx, key, namespace):
            tx.execute(
                _RENAME_READER,
                key=key,
                reader=reader,
                new_name=reader.removesuffix(namespace) + user_id,
            )
        self._facts.move_within(tx, namespace, user_id)
        self._readers.renew_within(tx, key)

    def owners_within(
        self, tx: Transaction, key: str, access: SessionAccess
    ) -> dict[str, str]:
        """Return how each owner has opened a session.

        Raises:
            SessionOwnerError: Another user owns it, and not both have opened it as
                shared.
        """
        kinds = self.kinds_within(tx, key)
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

    check = reads(owners_within)

    def kinds_within(self, tx: Transaction, key: str) -> dict[str, str]:
        """Return how each owner has opened a session, for any user."""
        result = tx.execute(_SELECT_OWNERS, key=key)
        return {row.user_id: row.kind for row in result}

    @writes_session
    def claim(
        self,
        tx: Transaction,
        key: str,
        access: SessionAccess,
        *,
        readers: Sequence[str],
        epoch: int,
    ) -> None:
        """As ``claim_within``, unless rows were deleted since ``epoch``; an owner stays as shared as before."""
        if not self._readers.is_current_within(tx, key, epoch):
            tx.rollback()
            return
        kinds = self.kinds_within(tx, key)
        is_shared = kinds.get(access.user_id or "") == SHARED
        self.claim_within(tx, key, access._replace(shared=is_shared), (), readers)

    @reads
    def users_of_session(self, tx: Transaction, key: str) -> list[str]:
        """Return the users who own a session; [] for a session without a user."""
        return _users_in(self.kinds_within(tx, key))

    def facts_readers_within(
        self, tx: Transaction, key: str, user_id: str | None = None
    ) -> list[str]:
        """Return the names of the readers that extract a user's facts from a session; None: the facts of any owner."""
        namespaces = set(self.kinds_within(tx, key))
        if user_id is not None:
            namespaces.add(user_id)
        readers = []
        for reader in self._readers.names_within(tx, key):
            owner = namespace_of_reader(reader, namespaces)
            if owner is not None and user_id in (None, owner):
                readers.append(reader)
        return readers

    # ---- copies ----

    @writes_session
    def branch(
        self,
        tx: Transaction,
        key: str,
        new: str,
        access: SessionAccess,
        end: str | int | None,
        *,
        with_end: bool,
    ) -> None:
        """Copy a session into a new one, up to the message with the id ``end``, and ``with_end`` that too; None: all.

        The copy has the same owners and is all log. Each reader's cursor is at the
        corresponding row. The stored state of single rows is not copied.
        ``CondensedMemory.abranch`` lists the errors.
        """
        tx.lock([new], ())
        self.owners_within(tx, key, access)
        if tx.execute(_IS_USED, new=new).scalar():
            raise StoreError(
                f"Expected a new session; {new!r} was used before. Nothing was copied. Name another one."
            )
        last = LAST_ID
        if end is not None:
            last = self._row_of_message(tx, key, end)
            if not with_end:
                last -= 1
        row_ids = self._copy_rows(tx, key, new, last)
        if not row_ids:
            tx.rollback()
            return
        self._copy_message_ids(tx, key, new, row_ids)
        tx.execute(_COPY_OWNERS, key=key, new=new)
        self._copy_cursors(tx, key, new, row_ids)

    def _row_of_message(self, tx: Transaction, key: str, message_id: str | int) -> int:
        """Return the row of a message of a session; a StoreError if no message has this id."""
        row_id: int | None = tx.execute(
            _SELECT_ROW_OF_MESSAGE,
            key=key,
            message_id=message_id_of({ID_KEY: message_id}),
        ).scalar()
        if row_id is None:
            raise StoreError(
                f"Expected the message_id of a message of {key!r}; saw {message_id!r}. Nothing was copied."
            )
        return row_id

    def _copy_rows(
        self, tx: Transaction, key: str, new: str, last: int
    ) -> dict[int, int]:
        """Copy rows into the log of a new session; return the id of each copy by the id of its row, in their order."""
        old_ids = tx.scalars(_SELECT_IDS, key=key, last=last)
        tx.execute(_COPY_ROWS, key=key, new=new, last=last)
        new_ids = tx.scalars(_SELECT_IDS, key=new, last=LAST_ID)
        return dict(zip(old_ids, new_ids, strict=True))

    def _copy_message_ids(
        self, tx: Transaction, key: str, new: str, row_ids: Mapping[int, int]
    ) -> None:
        copies = [
            {"key": new, "message_id": row.message_id, "row_id": row_ids[row.row_id]}
            for row in tx.execute(_SELECT_MESSAGE_IDS, key=key)
            if row.row_id in row_ids
        ]
        if copies:
            tx.execute(_INSERT_MESSAGE_ID, copies)

    def _copy_cursors(
        self, tx: Transaction, key: str, new: str, row_ids: Mapping[int, int]
    ) -> None:
        """Copy the cursors of a session to the copies of their rows."""
        old_ids = list(row_ids)
        positions = [0, *row_ids.values()]
        for cursor in tx.execute(_SELECT_CURSORS, key=key).all():
            position = positions[bisect_right(old_ids, cursor.position)]
            state = tx.read(cursor.state, f"The state of {cursor.reader!r} in {key!r}")
            if state is not None and ROWS in state:
                state = None
            if state and cursor.position > old_ids[-1]:
                # The state covers messages that are not in the copy.
                position = 0
                state = None
            self._readers.put_cursor_within(tx, new, cursor.reader, position, state)


def _users_in(kinds: Mapping[str, str]) -> list[str]:
    """Return the owners who are users, without the namespace of a session without a user."""
    return [owner for owner, kind in kinds.items() if kind != OF_NOBODY]


def namespace_of_reader(reader: str, namespaces: Iterable[str]) -> str | None:
    """Return the namespace for which a reader extracts facts; None for a reader of something else.

    The name of such a reader ends with " of " and the namespace. The id of a user may
    hold " of ", too, so the longest namespace counts.

    >>> namespace_of_reader("facts of x of bob", ["bob", "x of bob"])
    'x of bob'
    """
    matching = [name for name in namespaces if reader.endswith(f" of {name}")]
    return max(matching, key=len, default=None)
