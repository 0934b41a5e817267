"""The log of each session: ``Log`` writes messages, and makes their users owners of the session."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from llama_index_memory_ext.errors import MessageError
from llama_index_memory_ext.store.facts import move_facts
from llama_index_memory_ext.store.message_rows import (
    insert_messages,
    new_messages,
    set_statuses,
)
from llama_index_memory_ext.store.owners import (
    branch_session,
    check_owner,
    kinds_of_owners,
    readers_of_facts,
    users_in,
    users_of_session,
)
from llama_index_memory_ext.store.readers import (
    find_rows,
    is_current,
    register_readers,
    renew_session,
)
from llama_index_memory_ext.store.row_deletion import (
    delete_all,
    delete_oldest,
    delete_row,
    delete_rows,
)
from llama_index_memory_ext.store.tables import (
    ACTIVE,
    SHARED,
    WITHOUT_USER,
    namespace_of_session,
)
from llama_index_memory_ext.store.transaction import StorePart, Transaction, door
from llama_index_memory_ext.text.messages import (
    SPEAKER_KEY,
    Plan,
    is_same,
    speaker_of,
    storable,
)
from llama_index_memory_ext.text.turns import with_code_results

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from llama_index.core.base.llms.types import ChatMessage

    from llama_index_memory_ext.store.rows import LogRow, SessionAccess

_PUT_OWNER = """
INSERT INTO {owners} (key, user_id, kind) VALUES (:key, :user_id, :kind)
ON CONFLICT (key, user_id) DO UPDATE SET kind = excluded.kind
"""
_DELETE_OWNER = "DELETE FROM {owners} WHERE key = :key AND user_id = :user_id"
# Names the first user of a session as the speaker of the user messages that name none.
_NAME_SPEAKER = """
UPDATE {rows} SET user_id = :user_id WHERE key = :key AND role = 'user' AND user_id IS NULL
"""
# Unless another reader has the new name.
_RENAME_READER = """
UPDATE {cursors} SET reader = :new_name
WHERE key = :key AND reader = :reader
  AND NOT EXISTS (SELECT 1 FROM {cursors} WHERE key = :key AND reader = :new_name)
"""


class Appended(NamedTuple):
    """The result of writing messages.

    ``written``: the number of messages that were not stored before.
    ``flushed``: copies of the messages that newly went into the log, oldest first.
    """

    written: int = 0
    flushed: Sequence[ChatMessage] = ()


def append_messages(
    tx: Transaction,
    key: str,
    messages: Sequence[ChatMessage],
    plan_flush: Plan | None,
    *,
    replace: bool = False,
    access: SessionAccess | None = None,
    readers: Sequence[str] = (),
    strict: bool = False,
) -> Appended:
    """Write messages after the active messages, and move messages from short-term memory into the log.

    Args:
        tx: A transaction that has locked the session.
        key: The session.
        messages: The new messages. Of messages with the same ``message_id``, only
            the first is written.
        plan_flush: Takes the messages that stay active (with ``replace``, all that
            stay) and then the new messages, oldest first. Returns how many of the
            oldest go into the log; None: none.
        replace: Whether the new messages replace all messages of the session. The
            rows that have the first messages, in the same order, stay, with ids and
            times. All other rows are deleted.
        access: How the session is opened. Its user becomes an owner of the session, if
            there are messages to write or to move; None: the owners stay.
        readers: The readers that are registered for the session.
        strict: Whether a second message with the same ``message_id`` and other words
            raises a MessageError.

    Raises:
        MessageError: As for ``new_messages``. Or a message names another user, and the
            session is not opened as shared.
        SessionOwnerError: As for ``claim_session``.
    """
    speakers = _speakers_in(messages, access)
    stored = []
    replaced = []
    if not replace:
        if plan_flush:
            stored = find_rows(tx, key, [ACTIVE])
        messages = new_messages(tx, key, messages, strict=strict)
        if not (messages or stored):
            tx.rollback()
            return Appended()
    user_id = None
    if access:
        user_id = claim_session(tx, key, access, speakers, readers)
    if replace:
        rows = {row.id: row for row in find_rows(tx, key)}
        stored = _take_same(rows, messages)
        delete_rows(tx, key, list(rows))
        replaced = list(rows.values())
        messages = new_messages(tx, key, messages[len(stored) :])
    count = 0
    if plan_flush:
        before = [row.message for row in stored]
        count = plan_flush(with_code_results([*before, *messages]))
    flushed = set_statuses(tx, key, stored, archived=count)
    new = insert_messages(
        tx, key, messages, user_id, archived=count - len(stored), replaced=replaced
    )
    return Appended(len(messages), [*flushed, *new])


def claim_session(
    tx: Transaction,
    key: str,
    access: SessionAccess,
    speakers: Collection[str],
    readers: Sequence[str],
) -> str | None:
    """Make the user who opens a session and the ``speakers`` its owners, and register the ``readers``.

    Return the user who opens it if the session has several users; otherwise None. A
    session without a user becomes the session of its first user, with its facts.

    Raises:
        SessionOwnerError: Another user owns it, and not both have opened it as
            shared.
    """
    kinds = check_owner(tx, key, access)
    user_id = access.user_in(key)
    users = {user_id, *speakers}
    new_owners = [
        {"key": key, "user_id": user, "kind": access.kind}
        for user in users
        if kinds.get(user) != access.kind
    ]
    if new_owners:
        tx.execute(_PUT_OWNER, new_owners)
    if kinds.get(namespace_of_session(key)) == WITHOUT_USER:
        _take_over(tx, key, user_id)
    earlier = users_in(kinds)
    users.update(earlier)
    has_several = len(users) > 1
    if has_several and len(earlier) <= 1:
        speaker = earlier[0] if earlier else user_id
        tx.execute(_NAME_SPEAKER, key=key, user_id=speaker)
        # Readers begin again to show the name.
        renew_session(tx, key)
    register_readers(tx, key, readers)
    return access.user_id if has_several else None


def _take_over(tx: Transaction, key: str, user_id: str) -> None:
    """Give the facts and cursors of a session without a user to its first user."""
    namespace = namespace_of_session(key)
    if user_id == namespace:
        return
    tx.execute(_DELETE_OWNER, key=key, user_id=namespace)
    for reader in readers_of_facts(tx, key, namespace):
        tx.execute(
            _RENAME_READER,
            key=key,
            reader=reader,
            new_name=reader.removesuffix(namespace) + user_id,
        )
    move_facts(tx, namespace, user_id)
    renew_session(tx, key)


def claim_unless_deleted(
    tx: Transaction,
    key: str,
    access: SessionAccess,
    *,
    readers: Sequence[str],
    epoch: int,
) -> None:
    """Claim a session as ``claim_session`` does, unless rows were deleted since ``epoch``.

    The session stays shared, or not, as the user has opened it before.
    """
    if not is_current(tx, key, epoch):
        tx.rollback()
        return
    kinds = kinds_of_owners(tx, key)
    is_shared = kinds.get(access.user_id or "") == SHARED
    claim_session(tx, key, access._replace(shared=is_shared), (), readers)


def _take_same(
    rows: dict[int, LogRow], messages: Sequence[ChatMessage]
) -> list[LogRow]:
    """Take the rows that have the first messages, in the same order, from ``rows``, and return them."""
    same = []
    wanted = map(storable, messages)
    message = next(wanted, None)
    for row in list(rows.values()):
        if message and is_same(row.data, message):
            same.append(rows.pop(row.id))
            message = next(wanted, None)
    return same


def _speakers_in(
    messages: Sequence[ChatMessage], access: SessionAccess | None
) -> set[str]:
    """Return the users that messages name, except the user who opens the session.

    If no user opens it, names do not count, and the set is empty.

    Raises:
        MessageError: A message names another user, and the session is not opened as
            shared.
    """
    if access is None or access.user_id is None:
        return set()
    speakers = set(filter(None, map(speaker_of, messages))) - {access.user_id}
    if speakers and not access.shared:
        raise MessageError(
            f"Expected additional_kwargs[{SPEAKER_KEY!r}] of a message to be the user_id of the memory; got another "
            "user, whose words would become facts of the memory's user. Open the session with shared=True."
        )
    return speakers


class Log(StorePart):
    """The log of a store, and the owners of its sessions.

    Rows are written and archived in the order of their ids.
    """

    append = door(append_messages, "sessions")
    delete_row = door(delete_row, "sessions")
    delete_all = door(delete_all, "sessions")
    delete_oldest = door(delete_oldest, "sessions")

    check_owner = door(check_owner)
    claim = door(claim_unless_deleted, "sessions")
    users_of_session = door(users_of_session)
    branch = door(branch_session, "sessions")
