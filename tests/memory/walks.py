"""Records which files of the package a call runs through, and where it comes back into a file that it came from."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Coroutine, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import llama_index_memory_ext

DATA = ("<module>", "<genexpr>", "__getattribute__")
"""No calls: a module that is imported, a generator that its maker handed over, an attribute that is read."""
Work = Coroutine[Any, Any, Any] | Generator[Any, None, Any]
PACKAGE = f"{Path(llama_index_memory_ext.__file__).parent}{os.sep}"


class Walk:
    """``files`` were run through. ``returns`` are the functions that were called again from a file they had called.

    A task goes on from the place where it was started. Reading an attribute or constructing a dataclass runs no code of
    a file.
    """

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.returns: set[str] = set()
        self._started_in: dict[asyncio.Task[Any], tuple[str, ...]] = {}

    def make_task(self, loop: asyncio.AbstractEventLoop, work: Work, /, **options: Any) -> asyncio.Task[Any]:
        assert isinstance(work, Coroutine)  # From Python 3.12 on a task takes nothing else.
        task = asyncio.Task(work, loop=loop, **options)
        self._started_in[task] = self._path(sys._getframe(1))
        return task

    def see(self, frame: FrameType, event: str, _: Any) -> None:
        name = _file_of(frame.f_code)
        if event != "call" or name is None or frame.f_code.co_name in DATA:
            return
        self.files.add(name)
        path = self._path(frame.f_back)
        if path and path[0] != name and name in path:
            self.returns.add(f"{path[0]} calls {frame.f_code.co_name} of {name}")

    def _path(self, frame: FrameType | None) -> tuple[str, ...]:
        """The files on the way to a frame, the nearest first, each as often as it was entered."""
        path: list[str] = []
        while frame is not None:
            name = None if frame.f_code.co_name == "__getattribute__" else _file_of(frame.f_code)
            if name is not None and path[-1:] != [name]:
                path.append(name)
            frame = frame.f_back
        return (*path, *self._started_in.get(_current_task(), ()))


@contextmanager
def walking() -> Iterator[Walk]:
    """Records what this thread, and threads that are started, run through until the block ends."""
    walk, loop = Walk(), asyncio.get_running_loop()
    loop.set_task_factory(walk.make_task)
    threading.setprofile(walk.see)
    sys.setprofile(walk.see)
    try:
        yield walk
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        loop.set_task_factory(None)


def _file_of(code: CodeType) -> str | None:
    return code.co_filename.removeprefix(PACKAGE) if code.co_filename.startswith(PACKAGE) else None


def _current_task() -> Any:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
