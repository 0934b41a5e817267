"""Reads what was said last in a session, by which facts are ranked."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from llama_index_memory_ext.store.rows import Seen
from llama_index_memory_ext.text.messages import spoken, turns_in

if TYPE_CHECKING:
    from llama_index.core.base.llms.types import ChatMessage

    from llama_index_memory_ext.store.cursors import Readers
    from llama_index_memory_ext.store.rows import Glance, LogPage

_CONTEXT_ROWS = 40


class Talk(NamedTuple):
    """The last messages of a session in the log, and their turns."""

    seen: Seen = Seen()
    messages: tuple[ChatMessage, ...] = ()
    turns: tuple[list[str], ...] = ()


async def read_talk(
    readers: Readers, session_id: str, namespace: str, talk: Talk, glance: Glance | None, turns: int
) -> tuple[Talk, LogPage]:
    """Returns the talk with what has been said since, its last ``turns`` turns, and the page that was read for it."""
    # No cursor of a reader: what was left behind was said all the same.
    read = partial(readers.page, session_id, "", limit=_CONTEXT_ROWS, watch=namespace)
    page = (glance and glance.page("", talk.seen, _CONTEXT_ROWS, namespace)) or await read(talk.seen)
    if not page.fresh:
        talk = Talk()
        page = await read(talk.seen)
    if page.rows:
        new = [message for message in (row.message for row in page.rows) if spoken(message)]
        kept = (*talk.messages, *new)[-_CONTEXT_ROWS:]
        talk = Talk(Seen(page.epoch, page.position, page.rows[-1].id), kept, tuple(turns_in(kept)[-turns:]))
    return talk, page
