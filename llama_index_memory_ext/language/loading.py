"""Loads ahead what the first extraction of a process needs: a second of processor time, in a thread."""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import suppress
from datetime import datetime, timezone
from importlib import import_module

from llama_index_memory_ext.language.tokens import keywords

# Each is imported by itself, so that a fork waits for one of them at most. The
# encodings are those of the model that tells languages, and of dateparser.
_MODULES = (
    "encodings.ascii",
    "encodings.cp437",
    "py3langid.langid",
    "num2words",
    "snowballstemmer",
    "dateparser.date",
    "dateparser.data.date_translation_data.en",
)
_LOOK_SECONDS = 0.02

# Held while a module is imported, and over a fork: in a child, what another thread
# imports is never there.
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
    """Begin to load, once in a process, in a thread that the end of the program does not wait for.

    ``modules`` are imported first.
    """
    if not _threads:
        # An error is raised again where it matters: by the extraction.
        thread = threading.Thread(
            target=_load, args=(modules,), name="language", daemon=True
        )
        _threads.append(thread)
        # A program that ends starts no thread any more.
        with suppress(RuntimeError):
            thread.start()


async def wait_until_loaded() -> None:
    """Wait for what is being loaded, so that nothing is loaded twice; return at once if nothing is."""
    for thread in _threads:
        # No thread of an executor waits, for which the end of the program would wait.
        while thread.is_alive():  # noqa: ASYNC110 - it ends in no event loop
            await asyncio.sleep(_LOOK_SECONDS)


def _load(modules: tuple[str, ...]) -> None:
    with suppress(Exception):
        for name in (*modules, *_MODULES):
            with _importing:
                import_module(name)
        with _importing:
            # Here, because importing the package must not wait for them.
            from llama_index_memory_ext.language.numbers import missing_numbers
            from llama_index_memory_ext.language.said_dates import missing_dates
        said = "I moved to Oslo three weeks ago, with my two cats."
        statement = "Moved to Oslo on 3 May 2023 with 2 cats"
        keywords(said)
        missing_numbers(statement, said)
        missing_dates(statement, said, datetime.now(timezone.utc).date())
