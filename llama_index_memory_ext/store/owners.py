"""The owners of each session: claims of users, and the sessions of a user."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llama_index_memory_ext.errors import SessionOwnerError
from llama_index_memory_ext.store.database import (
    Database,
    reads,
    transaction_of,
    writes_session,
)
from llama_index_memory_ext.store.tables import (
    OF_NOBODY,
    OWN,
    SHARED,
    SessionAccess,
    namespace_of_session,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from sqlalchemy import Connection

    from llama_index_memory_ext.store.facts import Facts
    from llama_index_memory_ext.store.log import Readers

_SELECT_OWNERS = "SELECT user_id, kind FROM {owners} WHERE key = :key"
_SELECT_SESSIONS = "SELECT key FROM {owners} WHERE user_id = :user_id"
_SELECT_ANONYMOUS = (
    "SELECT user_id FROM {owners} WHERE kind = 'nobody' AND key {in_keys}"
)
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


class Owners:
    """The owners of the sessions. Methods named ``..._within`` work in a transaction that has locked the session."""

    def __init__(self, database: Database, readers: Readers, facts: Facts) -> None:
        self.database = database
        self._sql = database.tables.sql
        self._readers = readers
        self._facts = facts

    def claim_within(
        self,
        conn: Connection,
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
        transaction = transaction_of(conn)
        epoch = transaction.epochs.get(key)
        if not access.shared:
            # A claim that this process has stored in this epoch is still true.
            claim = (key, epoch, access, *readers)
            if epoch is not None and claim in self.database.claims:
                return False
            transaction.claims.append(claim)
        kinds = self.owners_within(conn, key, access)
        user_id = access.user_in(key)
        users = {user_id, *speakers}
        new_owners = [
            {"key": key, "user_id": user, "kind": access.kind}
            for user in users
            if kinds.get(user) != access.kind
        ]
        if new_owners:
            conn.execute(self._sql(_PUT_OWNER), new_owners)
        if kinds.get(namespace_of_session(key)) == OF_NOBODY:
            self._take_over(conn, key, user_id)
        earlier = _users_in(kinds)
        users.update(earlier)
        has_several = len(users) > 1
        if has_several and len(earlier) <= 1:
            speaker = earlier[0] if earlier else user_id
            conn.execute(self._sql(_NAME_SPEAKER), {"key": key, "user_id": speaker})
            # Readers begin again to show the name.
            self._readers.renew_within(conn, key)
        self._readers.register_within(conn, key, readers)
        return has_several

    def _take_over(self, conn: Connection, key: str, user_id: str) -> None:
        """Give the facts and cursors of a session without a user to its first user."""
        namespace = namespace_of_session(key)
        if user_id == namespace:
            return
        conn.execute(self._sql(_DELETE_OWNER), {"key": key, "user_id": namespace})
        for reader in self.facts_readers_within(conn, key, namespace):
            renamed = {
                "key": key,
                "reader": reader,
                "new_name": reader.removesuffix(namespace) + user_id,
            }
            conn.execute(self._sql(_RENAME_READER), renamed)
        self._facts.move_within(conn, namespace, user_id)
        self._readers.renew_within(conn, key)

    def owners_within(
        self, conn: Connection, key: str, access: SessionAccess
    ) -> dict[str, str]:
        """Return how each owner has opened a session.

        Raises:
            SessionOwnerError: Another user owns it, and not both have opened it as
                shared.
        """
        kinds = self.kinds_within(conn, key)
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

    def kinds_within(self, conn: Connection, key: str) -> dict[str, str]:
        """Return how each owner has opened a session, for any user."""
        result = conn.execute(self._sql(_SELECT_OWNERS), {"key": key})
        return {row.user_id: row.kind for row in result}

    @writes_session
    def claim(
        self,
        conn: Connection,
        key: str,
        access: SessionAccess,
        *,
        readers: Sequence[str],
        epoch: int,
    ) -> None:
        """As ``claim_within``, unless rows were deleted since ``epoch``; an owner stays as shared as before."""
        if not self._readers.is_current_within(conn, key, epoch):
            conn.rollback()
            return
        kinds = self.kinds_within(conn, key)
        is_shared = kinds.get(access.user_id or "") == SHARED
        self.claim_within(conn, key, access._replace(shared=is_shared), (), readers)

    @reads
    def users_of_session(self, conn: Connection, key: str) -> list[str]:
        """Return the users who own a session; [] for a session without a user."""
        return _users_in(self.kinds_within(conn, key))

    def sessions_within(self, conn: Connection, user_id: str) -> list[str]:
        """Return the sessions of a user, also those without a message."""
        return list(conn.scalars(self._sql(_SELECT_SESSIONS), {"user_id": user_id}))

    sessions_of_user = reads(sessions_within)

    def anonymous_within(self, conn: Connection, keys: Collection[str]) -> list[str]:
        """Return the namespaces of the given sessions that were begun without a user."""
        return list(conn.scalars(self._sql(_SELECT_ANONYMOUS), {"keys": list(keys)}))

    anonymous_namespaces = reads(anonymous_within)

    def facts_readers_within(
        self, conn: Connection, key: str, user_id: str
    ) -> list[str]:
        """Return the names of the readers that extract a user's facts from a session."""
        namespaces = {user_id, *self.kinds_within(conn, key)}
        return [
            reader
            for reader in self._readers.names_within(conn, key)
            if namespace_of_reader(reader, namespaces) == user_id
        ]


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
