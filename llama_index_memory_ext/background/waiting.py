"""Which jobs of an owner run in this process, and how long a question waits for them."""

from __future__ import annotations

import asyncio
import time
from typing import NamedTuple

from llama_index_memory_ext.background.locks import LOOK_SECONDS, at_fork
from llama_index_memory_ext.background.recent import Recent


class JobKey(NamedTuple):
    """The session of a job, the reader of its log that the job works for, and the owner of the result.

    Questions of the ``owner`` can wait for the job (``wait_for_owner``); (): no owner.
    """

    session_id: str
    reader: str = ""
    owner: tuple[str, ...] = ()


# The tasks of jobs in this process that have neither ended nor failed, in any event loop.
running_jobs: dict[asyncio.Task[None], JobKey] = {}
# No job of the parent ends in its child.
at_fork(after_in_child=running_jobs.clear)

# The owners whose last job has failed, or took longer than a question waits: no
# question waits until a job has succeeded.
owners_not_waited_for: Recent[tuple[str, ...], bool] = Recent(1_000)


async def wait_for_owner(
    owner: tuple[str, ...], seconds: float, *, except_session: str | None = None
) -> None:
    """Wait until the jobs of an owner in this process have ended, except jobs of the session ``except_session``.

    The wait takes at most ``seconds``; 0: there is no wait. After a job that has failed, or
    that took longer, no call waits until a job has succeeded.
    """
    tasks = [
        task
        for task, key in list(running_jobs.items())
        if key.owner == owner and key.session_id != except_session
    ]
    end = time.monotonic() + seconds
    while (
        seconds
        and any(task in running_jobs for task in tasks)
        and not owners_not_waited_for.get(owner)
    ):
        if time.monotonic() >= end:
            owners_not_waited_for.put(owner, value=True)
        await asyncio.sleep(LOOK_SECONDS)
