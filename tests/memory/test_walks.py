"""Three ways through the package are short, and no call comes back into the file that it came from."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import threading
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from inspect import currentframe
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from llama_index.core.llms import ChatMessage, ChatResponse, MockLLM

import llama_index_memory_ext
from tests.conversation import assistant, user
from tests.memories import OpenMemory

# No step of a walk: what stands around pydantic's construction of an object.
PASSED = "build_checked"
# No calls either: a module that is imported, and a generator that its maker handed over.
DATA = ("<module>", "<genexpr>", PASSED)
# Checks that, like the words, are plain functions on two texts.
PLAIN_CHECKS = {
    f"checks/{name}.py" for name in ("additions", "clauses", "figures", "secrets")
}
Work = Coroutine[Any, Any, Any] | Generator[Any, None, Any]
PACKAGE = f"{Path(llama_index_memory_ext.__file__).parent}{os.sep}"


class Walk:
    """``files`` were run through. ``returns`` are the functions that were called again from a file they had called.

    A task goes on from the place where it was started. Constructing a dataclass runs no code of a file.
    """

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.returns: set[str] = set()
        self.started_in: dict[asyncio.Task[Any], tuple[str, ...]] = {}
        # Before Python 3.12 threads that began in the block go on to report.
        self.is_over = False

    def make_task(
        self, loop: asyncio.AbstractEventLoop, work: Work, /, **options: Any
    ) -> asyncio.Task[Any]:
        assert isinstance(
            work, Coroutine
        )  # From Python 3.12 on a task takes nothing else.
        frame = currentframe()
        task = asyncio.Task(work, loop=loop, **options)
        self.started_in[task] = self.path(frame and frame.f_back)
        return task

    def see(self, frame: FrameType, event: str, _: Any) -> None:
        name = file_of(frame.f_code)
        if (
            self.is_over
            or event != "call"
            or name is None
            or frame.f_code.co_name in DATA
        ):
            return
        if Path(name).parts[0] != "words" and name not in PLAIN_CHECKS:
            self.files.add(name)
        path = self.path(frame.f_back)
        if path and path[0] != name and name in path:
            self.returns.add(f"{path[0]} calls {frame.f_code.co_name} of {name}")

    def path(self, frame: FrameType | None) -> tuple[str, ...]:
        """The files on the way to a frame, the nearest first, each as often as it was entered."""
        path: list[str] = []
        while frame is not None:
            name = None if frame.f_code.co_name == PASSED else file_of(frame.f_code)
            if name is not None and path[-1:] != [name]:
                path.append(name)
            frame = frame.f_back
        return (*path, *self.started_in.get(current_task(), ()))


@contextmanager
def walking() -> Iterator[Walk]:
    """Records what all threads run through until the block ends; before Python 3.12 no thread that runs already."""
    profile: Callable[..., None] = getattr(
        threading, "setprofile_all_threads", threading.setprofile
    )
    walk, loop = Walk(), asyncio.get_running_loop()
    loop.set_task_factory(walk.make_task)
    # What ends here of other tests' memories is no part of the walk.
    gc.collect()
    gc.disable()
    profile(walk.see)
    sys.setprofile(walk.see)
    try:
        yield walk
    finally:
        walk.is_over = True
        sys.setprofile(None)
        profile(None)
        gc.enable()
        loop.set_task_factory(None)


def file_of(code: CodeType) -> str | None:
    return (
        code.co_filename.removeprefix(PACKAGE)
        if code.co_filename.startswith(PACKAGE)
        else None
    )


def current_task() -> Any:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


# Besides words, a library of plain functions on texts.
LONGEST_AGET, LONGEST_EXTRACTION, LONGEST_FORGETTING = 17, 22, 9


class Reporter(MockLLM):
    """Reports one fact."""

    async def achat(self, messages: Any, **options: Any) -> ChatResponse:
        fact = {
            "label": "n1",
            "content": "Likes tea",
            "confidence": 0.9,
            "quote": "I like tea",
        }
        return ChatResponse(
            message=ChatMessage(
                role="assistant", content=json.dumps({"new_facts": [fact]})
            )
        )


async def test_reading_the_prompt_of_a_new_turn(open_memory: OpenMemory) -> None:
    async with open_memory(user_id="ann") as memory:
        await memory.facts.aadd("Likes tea in the morning")
        for i in range(2):
            await memory.aput(user(f"Do I like tea {i}?"))
            await memory.aget()
            await memory.aput(assistant("Yes."))
        await memory.aput(user("And in the morning?"))
        with walking() as walk:
            await memory.aget()
    assert len(walk.files) <= LONGEST_AGET, "\n".join(sorted(walk.files))
    assert not walk.returns, "\n".join(sorted(walk.returns))


async def test_extracting_facts(open_memory: OpenMemory) -> None:
    async with open_memory(llm=Reporter(max_tokens=None)) as memory:
        await memory.sql_store.log.append(
            "chat", [user("I like tea."), assistant("Fine.")], len
        )
        block = memory.facts_block
        with walking() as walk:
            await block.aflush("chat")
        assert [fact.content for fact in await memory.facts.alist()] == ["Likes tea"]
    assert len(walk.files) <= LONGEST_EXTRACTION, "\n".join(sorted(walk.files))
    assert not walk.returns, "\n".join(sorted(walk.returns))


async def test_forgetting_a_person(open_memory: OpenMemory) -> None:
    async with open_memory(llm=Reporter(max_tokens=None)) as memory:
        await memory.aput_messages([user("I like tea."), assistant("Fine.")])
        await memory.aflush()
        with walking() as walk:
            counts = await memory.aforget()
    assert counts["facts"] == 1
    assert len(walk.files) <= LONGEST_FORGETTING, "\n".join(sorted(walk.files))
    assert not walk.returns, "\n".join(sorted(walk.returns))
