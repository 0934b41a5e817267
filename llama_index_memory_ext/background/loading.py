"""Imports modules early, in a thread."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from datetime import datetime, timezone
from importlib import import_module

from llama_index_memory_ext.background.locks import LOOK_SECONDS, at_fork

# The modules of the first extraction. With their data, they take a second of processor
# time. Each module is imported by itself, so that a fork waits for one import at most.
# py3langid needs the encodings.
_MODULES = (
    "encodings.ascii",
    "encodings.cp437",
    "py3langid.langid",
    "rapidfuzz.fuzz",
    "rapidfuzz.distance",
)

# Held during an import and during a fork: a child of the fork would never get the module
# that another thread is importing.
_importing = threading.RLock()
_loaders: list[threading.Thread] = []

at_fork(
    before=_importing.acquire,
    after_in_parent=_importing.release,
    after_in_child=_importing.release,
)
# The thread of the parent does not go on in its child.
at_fork(after_in_child=_loaders.clear)


def start_loading(*modules: str) -> None:
    """Start a thread, once in a process, that imports ``modules`` and the modules of the first extraction.

    The thread does not delay the end of the program.
    """
    if not _loaders:
        # The thread suppresses errors, because the extraction raises them again.
        thread = threading.Thread(
            target=_load, args=(modules,), name="language", daemon=True
        )
        _loaders.append(thread)
        # A program that ends starts no thread any more.
        with suppress(RuntimeError):
            thread.start()


async def wait_until_loaded() -> None:
    """Wait until the thread has loaded all modules; return at once if none runs."""
    for thread in _loaders:
        # A waiting thread of an executor would delay the end of the program.
        while thread.is_alive():  # noqa: ASYNC110 - it ends in no event loop
            await asyncio.sleep(LOOK_SECONDS)


def _load(modules: tuple[str, ...]) -> None:
    with suppress(Exception):
        for name in (*modules, *_MODULES):
            with _importing:
                import_module(name)
        with _importing:
            # By name, because these modules import this file.
            tokens = import_module("llama_index_memory_ext.words.tokens")
            comparison = import_module("llama_index_memory_ext.checks.comparison")
        words = "I moved to Oslo three weeks ago, with my two cats."
        statement = "Moved to Oslo on 3 May 2023 with 2 cats"
        tokens.keywords(words)
        comparison.says_more(statement, words, "", datetime.now(timezone.utc).date())
