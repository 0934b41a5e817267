"""Lists the conversations in a database: the command ``sessions``."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from llama_index_memory_ext.cli.database import existing, place_of
from llama_index_memory_ext.cli.options import AsJson, Database, User
from llama_index_memory_ext.cli.screen import console, say, show_json, show_table

if TYPE_CHECKING:
    from datetime import datetime

    from llama_index_memory_ext.store import SessionInfo

_WIDE = 80
_HEAD = ("session", "messages", "user", "last used", "first used")


def sessions(*, user: User = None, db: Database = None, json: AsJson = False) -> None:
    """List the conversations, the one that was used last first."""
    found = asyncio.run(_read(db, user))
    if json:
        show_json([_as_json(info) for info in found])
    elif not found:
        say("No sessions." if user is None else f"No sessions of {user}.")
    else:
        rows = [
            (info.session_id, str(info.messages), ", ".join(info.user_ids), _time(info.last_at), _time(info.first_at))
            for info in found
        ]
        # An id that goes over two lines cannot be copied.
        shown = len(_HEAD) if console().width >= _WIDE else len(_HEAD) - 1
        show_table(_HEAD[:shown], [row[:shown] for row in rows], folded="session")


async def _read(db: str | None, user: str | None) -> list[SessionInfo]:
    async with existing(place_of(db)) as store:
        return await store.sessions(user)


def _time(time: datetime | None) -> str:
    return f"{time.astimezone():%Y-%m-%d %H:%M}" if time else ""


def _as_json(info: SessionInfo) -> dict[str, Any]:
    return {
        "session_id": info.session_id,
        "messages": info.messages,
        "user_ids": list(info.user_ids),
        "first_at": info.first_at.isoformat() if info.first_at else None,
        "last_at": info.last_at.isoformat() if info.last_at else None,
    }
