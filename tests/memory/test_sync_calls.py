"""Event loops that end, pause or are closed in the middle of a call leave nothing waiting and lose nothing."""

from __future__ import annotations

import asyncio
import gc
import inspect
import threading
from collections.abc import Coroutine
from functools import partial
from itertools import count
from typing import Any

import httpx
import pytest
from llama_index.core.llms import ChatMessage

from llama_index_memory_ext import CondensedMemory, MemoryStore
from llama_index_memory_ext.background.loop import run
from llama_index_memory_ext.facts.book import FactBook
from llama_index_memory_ext.models.offline import OfflineModel
from tests.conversation import assistant, sent_text, user
from tests.openai_server import Message, say, serve
from tests.scripted_models import client_of, client_without_connections

HISTORY: list[ChatMessage] = [
    message for i in range(6) for message in (user(f"question {i}"), assistant("yes"))
]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"summarize": True, "max_messages": 6, "keep_messages": 2, "extract_facts": False},
    {"recall_token_limit": 500, "max_messages": 6, "extract_facts": False},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_a_memory_with_a_history_can_be_opened_before_any_loop_and_in_one(
    options: dict[str, Any],
) -> None:
    def open_one() -> CondensedMemory:
        history = [*HISTORY, user("now?")]
        return CondensedMemory.from_defaults(
            "chat", chat_history=history, llm=OfflineModel(), **options
        )

    async def ask(memory: CondensedMemory) -> None:
        assert "question 5" in sent_text(await asyncio.wait_for(memory.aget(), 20))
        memory.set([*HISTORY, user("and now?")])
        assert sent_text(memory.get()).endswith("and now?")
        assert sent_text(await asyncio.wait_for(memory.aget(), 20)).endswith("and now?")
        await memory.aclose()

    async def open_and_ask() -> None:
        await ask(open_one())

    asyncio.run(ask(open_one()))
    asyncio.run(open_and_ask())


def test_a_put_waits_for_its_own_session_and_cancels_nothing(database_uri: str) -> None:
    """What another session has under way goes on meanwhile."""
    asked, may_answer = threading.Event(), threading.Event()

    def model(messages: list[Message], tools: list[str]) -> Message:
        if "slow" in str(messages):
            asked.set()
            may_answer.wait(60)
        return say("")

    with serve(model) as server:
        llm, store = client_without_connections(server), MemoryStore(database_uri)
        slow, quick = (
            CondensedMemory.from_defaults(
                name, llm=llm, chat_store=store, extract_every_turns=1
            )
            for name in ("slow", "quick")
        )
        talk = [user("Is this slow?"), assistant("yes"), user("And now?")]
        waiting = threading.Thread(target=slow.put_messages, args=(talk,))
        waiting.start()
        assert asked.wait(60)
        quick.put_messages([user("Is this quick?"), assistant("yes"), user("And now?")])
        # The question of the turn that goes on.
        assert quick.stats().pending == 1
        assert waiting.is_alive()
        may_answer.set()
        waiting.join(60)
        assert slow.stats().pending == 1
        assert slow.stats().failures == {}
        run(store.aclose())


@pytest.mark.parametrize("owner", [CondensedMemory, FactBook])
def test_help_shows_each_twin_by_its_own_name(owner: type) -> None:
    """A twin has the arguments of its method, and the name without the "a"."""
    twins = [name for name in vars(owner) if f"a{name.rstrip('_')}" in vars(owner)]
    assert len(twins) >= 8
    for name in twins:
        twin, method = getattr(owner, name), getattr(owner, f"a{name.rstrip('_')}")
        assert twin.__name__ == name.rstrip("_")
        assert list(inspect.signature(twin).parameters) == list(
            inspect.signature(method).parameters
        )
        assert not inspect.iscoroutinefunction(twin)


# ---- loops that are closed in the middle of a call, as by a notebook or at an interruption --------------


class Stepped(asyncio.SelectorEventLoop):
    """Stops after some steps."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.left = steps

    def _run_once(self) -> None:
        super()._run_once()  # type: ignore[misc]  # it is private
        self.left -= 1
        if self.left == 0:
            self.stop()

    def run(self, call: Coroutine[Any, Any, Any]) -> bool:
        """Runs so many steps of a call, closes the loop, and returns whether the call has ended."""
        task = self.create_task(call)
        task.add_done_callback(lambda _: self.stop())
        self.run_forever()
        self.close()
        return task.done()


# Of tasks that never end, and threads of aiosqlite whose loop is gone.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SAWarning")
@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")
@pytest.mark.parametrize("kind", ["aput", "aget", "the first aput"])
def test_the_next_loop_goes_on_wherever_one_was_closed(
    any_database_uri: str | None, kind: str
) -> None:
    """Nothing that was confirmed is lost; also where the call was the first one of a memory."""

    def open_one(name: str) -> CondensedMemory:
        return CondensedMemory.from_defaults(
            name, async_database_uri=any_database_uri, extract_facts=False
        )

    # What other tests have left is not walked through behind each step.
    gc.collect()
    gc.freeze()
    memory, confirmed = open_one("chat"), ["first?", "yes"]
    asyncio.run(memory.aput_messages([user("first?"), assistant("yes")]))
    for steps in count(1):
        if kind == "the first aput":
            asyncio.run(memory.aclose())
            memory, confirmed = open_one(f"chat {steps}"), []
        call = memory.aget() if kind == "aget" else memory.aput(user(f"open {steps}"))
        has_ended = Stepped(steps).run(call)
        asyncio.run(asyncio.wait_for(memory.aput(user(f"now {steps}?")), 20))
        assert f"now {steps}?" in sent_text(
            asyncio.run(asyncio.wait_for(memory.aget(), 20))
        )
        confirmed.append(f"now {steps}?")
        if has_ended:
            break
        gc.collect()
    rows = [message.content for message in asyncio.run(memory.aget_all())]
    assert [row for row in rows if not (row or "").startswith("open")] == confirmed
    asyncio.run(asyncio.wait_for(memory.aclose(), 20))
    gc.collect()


@pytest.mark.parametrize("shared", [True, False])
def test_puts_of_many_threads_all_come_back(database_uri: str, shared: bool) -> None:
    """With one memory, or one each on the same store; the model's client keeps its connections open."""
    with serve(lambda messages, tools: say("")) as server, httpx.Client() as client:
        async_client = httpx.AsyncClient()
        llm, store = client_of(server, client, async_client), MemoryStore(database_uri)
        opened = partial(
            CondensedMemory.from_defaults,
            llm=llm,
            chat_store=store,
            extract_every_turns=1,
        )
        first = opened("chat 0")
        memories = [first if shared else opened(f"chat {i}") for i in range(8)]
        done: list[int] = []

        def talk(i: int) -> None:
            for j in range(4):
                memories[i].put(
                    assistant(f"answer {i} {j}") if j % 2 else user(f"question {i} {j}")
                )
            done.append(i)

        threads = [
            threading.Thread(target=talk, args=(i,), daemon=True) for i in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(100)
        assert sorted(done) == list(range(8))
        assert len(first.get_all()) == (32 if shared else 4)
        assert server.requests
        run(store.aclose())
        run(async_client.aclose())
