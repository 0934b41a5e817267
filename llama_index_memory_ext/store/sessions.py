"""Knows whose the sessions of a store are, counts what there is of each, copies a session, and deletes them."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import Counter
from typing import TYPE_CHECKING

from llama_index.core.base.llms.types import MessageRole
from sqlalchemy import (
    Connection,
    String,
    bindparam,
    cast,
    delete,
    exists,
    func,
    insert,
    literal,
    or_,
    select,
    update,
)

from llama_index_memory_ext.errors import SessionOwnerError, StoreError
from llama_index_memory_ext.store.runner import Database, reads, writes_session
from llama_index_memory_ext.store.tables import (
    ACTIVE,
    ARCHIVED,
    DONE,
    EPOCHS,
    LAST_ID,
    OF_NOBODY,
    OWN,
    ROWS,
    SHARED,
    Opening,
    Statement,
    anonymous,
    one_of,
    upsert,
    vectors_namespace,
)
from llama_index_memory_ext.text.messages import ID_KEY, message_id_of, spoken
from llama_index_memory_ext.text.tool_calls import RESULT_ROLES

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from llama_index_memory_ext.store.cursors import Readers
    from llama_index_memory_ext.store.facts import Facts
    from llama_index_memory_ext.text.tool_calls import Json

# Of so many rows one has words.
_FIRST_ROWS = 50


class Users:
    """The sessions of users. Methods named ``..._within`` work in a transaction that has locked the session."""

    def __init__(self, database: Database, readers: Readers, facts: Facts) -> None:
        self.database = database
        self._tables = database.tables
        self._readers = readers
        self._facts = facts
        owners = self._tables.owners
        self._owners = select(owners.c.user_id, owners.c.kind).where(
            owners.c.key == bindparam("session")
        )
        self._put_owners = upsert(owners, database.backend, "kind")

    # ---- whose they are ----

    def claim_within(
        self,
        conn: Connection,
        key: str,
        opening: Opening,
        speakers: Collection[str],
        readers: Sequence[str],
    ) -> bool:
        """Make a session the user's who opens it, and of the ``speakers`` in it, and register their readers.

        Returns whether it is of several users. A session that was begun without a user
        becomes that of the first one, with its facts. Raises a SessionOwnerError if it
        is another user's, unless both have opened it as shared.
        """
        epoch = conn.info[EPOCHS].get(key)
        if not opening.shared:
            # What this process has claimed in this epoch need not be claimed again,
            # once it is stored.
            claim = (key, epoch, opening, *readers)
            if epoch is not None and claim in self.database.done:
                return False
            conn.info[DONE].append(claim)
        owners = self.owners_within(conn, key, opening)
        user = opening.user_in(key)
        kind = opening.kind or owners.get(key, OF_NOBODY)
        new = [
            {"key": key, "user_id": one, "kind": kind}
            for one in {user, *speakers}
            if owners.get(one) != kind
        ]
        if new:
            conn.execute(self._put_owners, new)
        before = [owner for owner, kind in owners.items() if kind != OF_NOBODY]
        if owners.get(anonymous(key)) == OF_NOBODY:
            self._take_over(conn, key, user)
        is_of_several = len({user, *speakers, *before}) > 1
        if is_of_several and len(before) <= 1:
            # Until now no row had to say whose it is; readers begin again, to show it.
            rows = self._tables.rows
            first = next(iter(before), user)
            said = (
                rows.c.key == key,
                rows.c.role == MessageRole.USER.value,
                rows.c.user_id.is_(None),
            )
            conn.execute(update(rows).where(*said).values(user_id=first))
            self._renew(conn, key)
        self._readers.register_within(conn, key, readers)
        return is_of_several

    def owners_within(
        self, conn: Connection, key: str, opening: Opening
    ) -> dict[str, str]:
        """Return how each owner has opened a session.

        Raises a SessionOwnerError if it is another user's, unless both have opened it
        as shared.
        """
        owners = {
            row.user_id: row.kind
            for row in conn.execute(self._owners, {"session": key})
        }
        user = opening.user_in(key)
        if any(
            kind in (OWN, OWN if opening.shared else SHARED)
            for owner, kind in owners.items()
            if owner != user
        ):
            raise SessionOwnerError(
                f"Session {key!r} holds words of another user, which nobody else is shown; nothing was read or "
                "written. Open a session of its own for each user, or give each memory of this session a user_id and "
                "shared=True if all who talk in it may read everything."
            )
        return owners

    check = reads(owners_within)

    def _take_over(self, conn: Connection, key: str, user_id: str) -> None:
        """Give what was learned in a session without a user to its first one, if that is another."""
        namespace = anonymous(key)
        if user_id == namespace:
            return
        owners = self._tables.owners
        cursors = self._tables.cursors
        conn.execute(
            delete(owners).where(owners.c.key == key, owners.c.user_id == namespace)
        )
        for reader in self._readers_of(conn, key, namespace):
            here = cursors.c.key == key
            named = reader.removesuffix(namespace) + user_id
            if (
                conn.execute(
                    select(cursors.c.reader).where(here, cursors.c.reader == named)
                ).first()
                is None
            ):
                conn.execute(
                    update(cursors)
                    .where(here, cursors.c.reader == reader)
                    .values(reader=named)
                )
        self._facts.move_within(conn, namespace, user_id)
        said = self._tables.facts.c.said_by
        conn.execute(
            update(said.table).where(said == namespace).values(said_by=user_id)
        )
        self._renew(conn, key)

    def _renew(self, conn: Connection, key: str) -> None:
        """Let all who know a session read it anew: another epoch tells them."""
        sessions = self._tables.sessions
        conn.execute(
            update(sessions).where(sessions.c.key == key).values(epoch=time.time_ns())
        )
        conn.info[EPOCHS].pop(key, None)

    def _readers_of(self, conn: Connection, key: str, user_id: str) -> list[str]:
        """Return the readers of a user's facts in a session."""
        cursors = self._tables.cursors
        found = (
            conn.execute(select(cursors.c.reader).where(cursors.c.key == key))
            .scalars()
            .all()
        )
        return [one for one in found if one.endswith(f" of {user_id}")]

    @writes_session
    def claim(
        self,
        conn: Connection,
        key: str,
        opening: Opening,
        *,
        readers: Sequence[str],
        epoch: int,
    ) -> None:
        """As ``claim_within``, unless rows were deleted since ``epoch``. One of its users is no other than before."""
        if not self._readers.is_current_within(conn, key, epoch):
            conn.rollback()
            return
        kinds = {
            row.user_id: row.kind
            for row in conn.execute(self._owners, {"session": key})
        }
        self.claim_within(
            conn,
            key,
            opening._replace(shared=kinds.get(opening.user_id) == SHARED),
            (),
            readers,
        )

    @reads
    def owners(self, conn: Connection, key: str) -> list[str]:
        """Return the users whose session it is; [] for one of no user yet."""
        found = conn.execute(self._owners, {"session": key})
        return [row.user_id for row in found if row.kind != OF_NOBODY]

    @reads
    def keys(self, conn: Connection, user_id: str) -> list[str]:
        """Return the sessions of a user, also those without a message."""
        owners = self._tables.owners
        return list(
            conn.execute(
                select(owners.c.key).where(owners.c.user_id == user_id)
            ).scalars()
        )

    @reads
    def own_users(self, conn: Connection, sessions: Sequence[str]) -> list[str]:
        """Return the namespaces of those of these sessions that were begun without a user."""
        owners = self._tables.owners
        these = (
            owners.c.kind == OF_NOBODY,
            one_of(owners.c.key, self.database.backend),
        )
        return list(
            conn.execute(
                select(owners.c.user_id).where(*these), {"names": sessions}
            ).scalars()
        )

    # ---- what there is of each ----

    @reads
    def knows(self, conn: Connection, key: str) -> bool:
        """Return whether the store has ever been given a message of a session."""
        known = (
            exists().where(table.c.key == key)
            for table in (self._tables.sessions, self._tables.rows)
        )
        return bool(conn.execute(select(or_(*known))).scalar_one())

    @reads
    def facts_of_each(self, conn: Connection) -> dict[str, int]:
        """Return how many facts each user has, retired ones too; users without a fact are left out."""
        namespace = self._tables.facts.c.namespace
        found = conn.execute(select(namespace, func.count()).group_by(namespace))
        return {row[0]: row[1] for row in found}

    @reads
    def read_by(
        self, conn: Connection, reader: str, *, pending: bool = False
    ) -> list[str]:
        """Return the sessions that this reader is registered for; ``pending``: those of which it has not read all messages."""
        rows = self._tables.rows
        cursors = self._tables.cursors
        query = select(cursors.c.key).where(cursors.c.reader == reader)
        if pending:
            query = query.where(
                exists().where(
                    rows.c.key == cursors.c.key, rows.c.id > cursors.c.position
                )
            )
        return list(conn.execute(query).scalars())

    @reads
    def count(
        self,
        conn: Connection,
        key: str,
        *,
        status: str | None = None,
        reader: str = "",
        after: int = 0,
        last: int = LAST_ID,
    ) -> int:
        """Return the number of messages of a session after the row ``after``, up to ``last``, that a reader has not read.

        With any ``status`` if that is None.
        """
        rows = self._tables.rows
        cursors = self._tables.cursors
        position = (
            select(cursors.c.position)
            .where(cursors.c.key == key, cursors.c.reader == reader)
            .scalar_subquery()
        )
        unread = (
            rows.c.key == key,
            rows.c.id > func.coalesce(position, after),
            rows.c.id > after,
            rows.c.id <= last,
        )
        counted = select(func.count()).where(
            *unread, *([rows.c.status == status] if status else [])
        )
        return conn.execute(counted).scalar_one()

    # ---- copies ----

    @writes_session
    def branch(
        self,
        conn: Connection,
        key: str,
        new: str,
        opening: Opening,
        end: str | int | None,
        *,
        with_end: bool,
    ) -> None:
        """Copy a session into a new one, up to the message with the id ``end``, and ``with_end`` that too; None: all.

        The copy is of the same users, all of it is log, and each reader has come as far
        in it as it had in the session. What a reader has stored of single rows is left
        out. ``CondensedMemory.abranch`` says what is raised.
        """
        rows = self._tables.rows
        owners = self._tables.owners
        cursors = self._tables.cursors
        ids = self._tables.message_ids
        self.database.lock(conn, [new], ())
        self.owners_within(conn, key, opening)
        used = (exists().where(table.c.key == new) for table in (rows, owners))
        if conn.execute(select(or_(*used))).scalar_one():
            raise StoreError(
                f"Expected a new session; {new!r} was used before. Nothing was copied. Name another one."
            )
        copied = [rows.c.key == key]
        if end is not None:
            is_end = (
                ids.c.key == key,
                ids.c.message_id == message_id_of({ID_KEY: end}),
                rows.c.id == ids.c.row_id,
            )
            last = conn.execute(select(rows.c.id).where(*copied, *is_end)).scalar()
            if last is None:
                raise StoreError(
                    f"Expected the message_id of a message of {key!r}; saw {end!r}. Nothing was copied."
                )
            copied.append(rows.c.id <= last if with_end else rows.c.id < last)
        old_ids = (
            conn.execute(select(rows.c.id).where(*copied).order_by(rows.c.id))
            .scalars()
            .all()
        )
        if not old_ids:
            conn.rollback()
            return
        same = ("timestamp", "role", "data", "user_id")
        copies = (
            select(literal(new), literal(ARCHIVED), *rows.c[same])
            .where(*copied)
            .order_by(rows.c.id)
        )
        conn.execute(insert(rows).from_select(["key", "status", *same], copies))
        # They are written in the order of the rows.
        new_ids = (
            conn.execute(select(rows.c.id).where(rows.c.key == new).order_by(rows.c.id))
            .scalars()
            .all()
        )
        row_ids = dict(zip(old_ids, new_ids, strict=True))
        found = conn.execute(
            select(*ids.c["message_id", "row_id"]).where(ids.c.key == key)
        ).all()
        named = [(name, row_ids[row_id]) for name, row_id in found if row_id in row_ids]
        if named:
            conn.execute(
                insert(ids),
                [
                    {"key": new, "message_id": name, "row_id": row_id}
                    for name, row_id in named
                ],
            )
        of_users = (owners.c.key == key, owners.c.kind != OF_NOBODY)
        whose = select(literal(new), *owners.c["user_id", "kind"]).where(*of_users)
        conn.execute(insert(owners).from_select(["key", "user_id", "kind"], whose))
        read = conn.execute(
            select(*cursors.c["reader", "position", "state"]).where(
                cursors.c.key == key
            )
        ).all()
        for reader, old, stored in read:
            if stored is None or ROWS in stored:
                state = None
            else:
                state = stored
            position = [0, *new_ids][bisect_right(old_ids, old)]
            if state and old > old_ids[-1]:
                # It tells of messages that are not in the copy.
                position = 0
                state = None
            conn.execute(
                insert(cursors).values(
                    key=new, reader=reader, position=position, state=state
                )
            )

    # ---- deletion ----

    def delete_within(self, conn: Connection, key: str, *conditions: Statement) -> int:
        """Delete the rows of a session of which the conditions hold, and tell its readers by a new epoch.

        Returns their number.

        A cursor moves back to the last row at or before it that is left, so that no row
        that comes later, which may have the id of a deleted one, stands behind it.
        ``Readers.move`` says what becomes of its state.
        """
        rows = self._tables.rows
        cursors = self._tables.cursors
        ids = self._tables.message_ids
        vectors = self._tables.embeddings
        these = (rows.c.key == key, *conditions)
        count = 0
        first = conn.execute(select(func.min(rows.c.id)).where(*these)).scalar()
        if first is not None:
            # A result has been embedded together with its call, which comes before it.
            calls = select(rows.c.id).where(
                rows.c.key == key, rows.c.id <= first, rows.c.role.not_in(RESULT_ROLES)
            )
            call = conn.execute(calls.order_by(rows.c.id.desc()).limit(1)).scalar()
            gone = or_(
                vectors.c.id == str(call),
                vectors.c.id.in_(select(cast(rows.c.id, String)).where(*these)),
            )
            conn.execute(
                delete(vectors).where(
                    vectors.c.namespace == vectors_namespace(key), gone
                )
            )
            conn.execute(
                delete(ids).where(
                    ids.c.key == key, ids.c.row_id.in_(select(rows.c.id).where(*these))
                )
            )
            count = conn.execute(delete(rows).where(*these)).rowcount
            behind = (cursors.c.key == key, cursors.c.position >= first)
            found = conn.execute(
                select(cursors.c.reader, cursors.c.position, cursors.c.state).where(
                    *behind
                )
            )
            for reader, old, state in found.all():
                position = 0
                left = None
                if state is None or ROWS in state:
                    _, position = self._ends(conn, key, 0, old)
                if state and ROWS in state:
                    entries: list[Json] = []
                    for start, end, *more in state[ROWS]:
                        span = self._ends(conn, key, start, end)
                        entries += [[*span, *more]] if span[0] else []
                    if position or entries:
                        left = {**state, ROWS: entries}
                    else:
                        left = None
                here = (cursors.c.key == key, cursors.c.reader == reader)
                conn.execute(
                    update(cursors).where(*here).values(position=position, state=left)
                )
        self._renew(conn, key)
        return count

    def retain_within(
        self, conn: Connection, key: str, since: int, most: int, *, unread: bool
    ) -> dict[str, int]:
        """Delete turns of a session with a message that was written before ``since`` or is not one of ``most`` newest.

        The turn that goes on stays, and without ``unread`` what a reader of facts has
        not read. Returns the numbers of deleted messages, of facts that have lost
        words, and of messages that stay because they are unread.
        """
        rows = self._tables.rows
        cursors = self._tables.cursors
        columns = rows.c["id", "role", "timestamp", "status"]
        found = conn.execute(
            select(*columns).where(rows.c.key == key).order_by(rows.c.id)
        ).all()
        ids = [row.id for row in found]
        count = len(found)
        # The places where turns begin, and the end.
        starts = [
            0,
            *(i for i, row in enumerate(found) if row.role == MessageRole.USER.value),
            count,
        ]
        old = [
            i
            for i, row in enumerate(found)
            if row.timestamp < since or i < count - most
        ]
        active = [i for i, row in enumerate(found) if row.status == ACTIVE]
        due = starts[bisect_right(starts, max(old, default=-1))]
        due = min(due, starts[bisect_right(starts, min(active, default=count)) - 1])
        users = [row.user_id for row in conn.execute(self._owners, {"session": key})]
        if unread:
            readers = []
        else:
            readers = [
                one for user in users for one in self._readers_of(conn, key, user)
            ]
        of_readers = (cursors.c.key == key, cursors.c.reader.in_(readers))
        position = func.coalesce(func.min(cursors.c.position), LAST_ID)
        read = conn.execute(select(position).where(*of_readers)).scalar_one()
        end = min(due, starts[bisect_right(starts, bisect_right(ids, read)) - 1])
        if not end:
            conn.rollback()
            return {"unread": due}
        self.delete_within(conn, key, rows.c.id <= ids[end - 1])
        # A message without words, such as a picture alone, does not part the text
        # around a fact.
        left = self._readers.find_within(
            conn, key, [ARCHIVED, ACTIVE], limit=_FIRST_ROWS
        )
        first = next((row.id for row in left if spoken(row.message)), LAST_ID)
        changed = self._facts.lose_words_within(conn, key, [*ids, LAST_ID][end], first)
        return {"messages": end, "facts": changed, "unread": due - end}

    def _ends(
        self, conn: Connection, key: str, first: int, last: int
    ) -> tuple[int, int]:
        """Return the first and the last row of a session between these two, which belong to it; 0, 0 if there is none."""
        rows = self._tables.rows
        between = (rows.c.key == key, rows.c.id >= first, rows.c.id <= last)
        low, high = conn.execute(
            select(func.min(rows.c.id), func.max(rows.c.id)).where(*between)
        ).one()
        return low or 0, high or 0

    def forget_within(
        self,
        conn: Connection,
        keys: Sequence[str],
        namespaces: Sequence[str],
        user_id: str | None,
    ) -> dict[str, int]:
        """Delete sessions, and the facts of users; returns the number of deleted rows by kind.

        The embeddings of both go with them. Of a session that others own too, only the
        turns of the ``user_id`` go. What others have learned from the words of the user
        goes, too.
        """
        tables = self._tables
        backend = self.database.backend
        counts = Counter(messages=0, cursors=0, facts=0, embeddings=0)
        owners = tables.owners
        if user_id is not None:
            reader = tables.cursors.c.reader
            readers = conn.execute(
                select(reader).where(one_of(tables.cursors.c.key, backend)),
                {"names": keys},
            )
            read_by = {
                name for one in readers.scalars() for name in _namespaces_in(one)
            }
            left: dict[str, set[str]] = {key: set() for key in keys}
            others = (
                owners.c.user_id != user_id,
                owners.c.kind != OF_NOBODY,
                one_of(owners.c.key, backend),
            )
            for row in conn.execute(
                select(owners.c.key, owners.c.user_id).where(*others), {"names": keys}
            ):
                left[row.key].add(row.user_id)
            keys = [key for key, users in left.items() if not users]
            for key, users in list(left.items()):
                if users and not self._leave(conn, key, user_id, counts):
                    # It never was theirs.
                    del left[key]
            self._facts.forget_words_within(conn, namespaces, left, read_by, counts)
        vectors = [*namespaces, *map(vectors_namespace, keys)]
        # A session's row, a user's, and the id of a message are no rows that the result
        # counts.
        for kind, column, names in (
            ("messages", tables.rows.c.key, keys),
            ("cursors", tables.cursors.c.key, keys),
            ("cursors", owners.c.key, keys),
            ("", tables.message_ids.c.key, keys),
            ("", tables.sessions.c.key, keys),
            ("facts", tables.facts.c.namespace, namespaces),
            ("embeddings", tables.embeddings.c.namespace, vectors),
            ("", tables.users.c.namespace, namespaces),
        ):
            if names:
                counts[kind] += conn.execute(
                    delete(column.table).where(one_of(column, backend)),
                    {"names": names},
                ).rowcount
        del counts[""]
        return dict(counts)

    def _leave(
        self, conn: Connection, key: str, user_id: str, counts: Counter[str]
    ) -> bool:
        """Delete what a user has said, with the answers, from a session that others own.

        Returns whether it was the user's, too.
        """
        rows = self._tables.rows
        owners = self._tables.owners
        cursors = self._tables.cursors
        was_owner = conn.execute(
            delete(owners).where(owners.c.key == key, owners.c.user_id == user_id)
        ).rowcount
        if was_owner:
            counts["cursors"] += was_owner
            asked = select(rows.c.id, rows.c.user_id).where(
                rows.c.key == key, rows.c.role == MessageRole.USER.value
            )
            found = [
                (one.id, one.user_id or user_id)
                for one in conn.execute(asked.order_by(rows.c.id))
            ]
            # After a reset there is no question, and so no turn.
            ends = [*(row_id for row_id, _ in found[1:]), LAST_ID][: len(found)]
            spans = zip(found, ends, strict=True)
            turns = [
                (rows.c.id >= first) & (rows.c.id < end)
                for (first, who), end in spans
                if who == user_id
            ]
            # A statement may not be of any length.
            for start in range(0, len(turns), 200):
                counts["messages"] += self.delete_within(
                    conn, key, or_(*turns[start : start + 200])
                )
        for reader in self._readers_of(conn, key, user_id):
            here = (cursors.c.key == key, cursors.c.reader == reader)
            counts["cursors"] += conn.execute(delete(cursors).where(*here)).rowcount
        return bool(was_owner)


def _namespaces_in(reader: str) -> list[str]:
    """Return the namespaces that a reader of facts may have: ids may hold what stands in front of them, too."""
    parts = reader.split(" of ")
    return [" of ".join(parts[i:]) for i in range(1, len(parts))]
