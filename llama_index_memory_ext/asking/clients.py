"""Imports in a thread what a model's client imports at its first call."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from importlib import import_module

# By the packages that import them late; those of OpenAI are some 500 modules, which take a second.
_LATE = {"openai": ("openai.resources",), "httpx": ("httpcore", "anyio._backends._asyncio")}
_imported: set[str] = set()


async def import_clients() -> None:
    """Imports what is still missing of the clients whose packages the program has imported."""
    names = [name for package in _LATE.keys() & sys.modules.keys() for name in _LATE[package]]
    # A module is known to the interpreter before it is whole, and whoever imports it then waits in the event loop.
    if not _imported.issuperset(names):
        await asyncio.to_thread(_import, names)


def _import(names: list[str]) -> None:
    for name in names:
        # Of another version there may be no such module.
        with suppress(ImportError):
            import_module(name)
        _imported.add(name)
