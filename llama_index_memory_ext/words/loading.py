"""Loads the modules and data of the first extraction ahead, in a thread: a second of processor time."""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import suppress
from datetime import datetime, timezone
from importlib import import_module

from llama_index_memory_ext.words.tokens import keywords

# Each module is imported by itself, so that a fork waits for one import at most.
# py3langid and dateparser need the encodings.
_MODULES = (
    "encodings.ascii",
    "encodings.cp437",
    "py3langid.langid",
    "num2words",
    "dateparser.date",
    "dateparser.data.date_translation_data.en",
)
_LOOK_SECONDS = 0.02

# Held during an import and during a fork: a child of the fork would never get the module
# that another thread is importing.
_importing = threading.RLock()
_threads: list[threading.Thread] = []

if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_importing.acquire,
        after_in_parent=_importing.release,
        after_in_child=_importing.release,
    )
    # The thread of the parent does not go on in its child.
    os.register_at_fork(after_in_child=_threads.clear)


def start_loading(*modules: str) -> None:
    """Begin to load, once in a process, in a thread that does not delay the end of the program.

    The thread imports ``modules`` first.
    """
    if not _threads:
        # The thread suppresses errors, because the extraction raises them again.
        thread = threading.Thread(
            target=_load, args=(modules,), name="language", daemon=True
        )
        _threads.append(thread)
        # A program that ends starts no thread any more.
        with suppress(RuntimeError):
            thread.start()


async def wait_until_loaded() -> None:
    """Wait until the thread has loaded all modules; return at once if none runs."""
    for thread in _threads:
        # A waiting thread of an executor would delay the end of the program.
        while thread.is_alive():  # noqa: ASYNC110 - it ends in no event loop
            await asyncio.sleep(_LOOK_SECONDS)


def _load(modules: tuple[str, ...]) -> None:
    with suppress(Exception):
        for name in (*modules, *_MODULES):
            with _importing:
                import_module(name)
        with _importing:
            # By name, because the checks import this room.
            dates = import_module("llama_index_memory_ext.checks.dates")
            numbers = import_module("llama_index_memory_ext.checks.numbers")
        source = "I moved to Oslo three weeks ago, with my two cats."
        statement = "Moved to Oslo on 3 May 2023 with 2 cats"
        keywords(source)
        numbers.missing_numbers(statement, source)
        dates.missing_dates(statement, source, datetime.now(timezone.utc).date())
