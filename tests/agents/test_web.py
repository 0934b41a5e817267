"""The web application of the guide, served by real workers to many users at once."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from inspect import signature
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import pytest
import uvicorn
from llama_index.core.agent.workflow import FunctionAgent

from llama_index_memory_ext import CondensedMemory, MemoryStore
from tests.forked import python_command
from tests.learning.learning import learner
from tests.openai_server import Message, OpenAIServer, say, serve
from tests.scripted_models import StartModel
from tests.test_docs import PAGES, blocks

APP, _, TURN = blocks("python", PAGES["production.md"])
(BRANCHES,) = blocks("python", PAGES["branching.md"])


def model(messages: list[Message], tools: list[str]) -> Message:
    """Learns what users like, tells them so when they ask, and greets them otherwise."""
    if tools == ["report_facts"]:
        return learner(messages, tools)
    prompt = messages[-1]["content"]
    question = prompt.split("\n")[-1]
    if question != "What do I like?":
        return say(f"{question} to you.")
    return say(" ".join(sorted(set(re.findall(r"(?:I like|>Likes) (\w+)", prompt)))))


@contextmanager
def serving(
    database_uri: str, model_server: OpenAIServer, workers: int, app: str = APP
) -> Iterator[str]:
    """The socket of the application, from when it has started until it has ended by itself, without a complaint."""
    # The path of a socket must be short, which those of pytest are not.
    with TemporaryDirectory(prefix="web") as folder:
        Path(folder, "app.py").write_text(app, encoding="utf-8")
        command = [
            *python_command(),
            "-m",
            "uvicorn",
            "app:app",
            "--no-access-log",
            "--log-level",
            "info",
        ]
        # A client may use its open connection again after any time, and a server that closes it then answers nothing.
        command += ["--timeout-keep-alive", "600"]
        # On a busy machine a worker needs more than 5 seconds to start. The lowest version has no such limit to set.
        if "timeout_worker_healthcheck" in signature(uvicorn.Config).parameters:
            command += ["--timeout-worker-healthcheck", "120"]
        environment = {
            **os.environ,
            "DATABASE_URI": database_uri,
            "OPENAI_API_KEY": "sk-test",
            "OPENAI_API_BASE": model_server.api_base,
        }
        process = subprocess.Popen(
            [*command, "--uds", f"{folder}/socket", "--workers", str(workers)],
            cwd=folder,
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        lines: list[str] = []
        started = threading.Semaphore(0)
        # A single worker makes the socket behind its start; several find it made.
        sign = "Uvicorn running" if workers == 1 else "startup complete"
        reader = threading.Thread(target=_read, args=(process, lines, sign, started))
        reader.start()
        try:
            assert all(started.acquire(timeout=120) for _ in range(workers)), lines
            yield f"{folder}/socket"
        finally:
            process.terminate()
            process.wait(60)
            reader.join()
        assert [line for line in lines if not line.startswith("INFO:")] == []


def _read(
    process: subprocess.Popen[str],
    lines: list[str],
    sign: str,
    started: threading.Semaphore,
) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        lines.append(line)
        if sign in line:
            started.release()
    process.stderr.close()


@asynccontextmanager
async def users(socket: str, number: int) -> AsyncIterator[list[httpx.AsyncClient]]:
    """A client with a connection of its own for each."""
    clients = [
        httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(uds=socket),
            base_url="http://app",
            headers={"user-id": f"user{i}"},
            timeout=120,
        )
        for i in range(number)
    ]
    yield clients
    for client in clients:
        await client.aclose()


async def ask(client: httpx.AsyncClient, session_id: str, message: str) -> str:
    response = await client.post(
        "/chat", json={"session_id": session_id, "message": message}
    )
    assert response.status_code == 200, response.text
    answer: str = response.json()
    return answer


async def talk(client: httpx.AsyncClient) -> list[str]:
    word = client.headers["user-id"]
    questions = [f"I like tea_{word}.", "Hello", "Good day", "What do I like?"]
    return [await ask(client, "first", question) for question in questions]


async def check(
    database_uri: str, socket: str, server: OpenAIServer, number: int
) -> None:
    """Each of so many users, in two sessions at once, is answered with what is theirs."""
    async with users(socket, number) as clients:
        assert (await clients[0].get("/health")).status_code == 200
        answers = await asyncio.gather(*map(talk, clients))
        # The first question of another session makes the model read what was said.
        again = await asyncio.gather(
            *(ask(client, "second", "What do I like?") for client in clients)
        )
        await all_extracted(database_uri, number)
    store = MemoryStore(database_uri)
    for i in range(number):
        likes = f"tea_user{i}"
        assert answers[i] == [
            f"I like {likes}. to you.",
            "Hello to you.",
            "Good day to you.",
            likes,
        ]
        assert again[i] == likes
        said = [
            message.content
            for message in await store.get_messages(
                json.dumps([f"user{i}", "first"]), None
            )
        ]
        asked = [f"I like {likes}.", "Hello", "Good day", "What do I like?"]
        assert said == [
            text for turn in zip(asked, answers[i], strict=True) for text in turn
        ]
    assert server.refusals == []
    await store.aclose()


async def all_extracted(database_uri: str, *numbers: int) -> None:
    """Behind the answers, which have not waited for it."""
    store = MemoryStore(database_uri)

    async def watch() -> None:
        for i in range(*numbers):
            while not (await store.facts.read(f"user{i}")).facts:  # noqa: ASYNC110 - those who do it are other processes
                await asyncio.sleep(0.05)

    await asyncio.wait_for(watch(), 120)
    await store.aclose()


async def test_two_workers_answer_twenty_users_each_with_what_is_theirs(
    postgres_uri: str,
) -> None:
    """At once, from two sessions each; and shut down without a complaint."""
    store = MemoryStore(postgres_uri)
    await store.get_keys()
    await store.aclose()
    with serve(model) as server, serving(postgres_uri, server, 2) as socket:
        await check(postgres_uri, socket, server, 20)


async def test_what_a_shutdown_interrupts_is_taken_up_by_the_next_start_which_serves_from_a_file(
    database_uri: str,
) -> None:
    """An extraction in the middle of which the application is shut down."""
    asked = threading.Event()
    answered = threading.Event()

    def slow(messages: list[Message], tools: list[str]) -> Message:
        if tools == ["report_facts"] and not asked.is_set():
            asked.set()
            answered.wait(120)
        return model(messages, tools)

    with serve(slow) as server:
        with serving(database_uri, server, 1) as socket:
            async with users(socket, 4) as clients:
                await ask(clients[3], "zero", "I like milk.")
                await ask(clients[3], "between", "Hello")
            assert await asyncio.to_thread(asked.wait, 120)
        answered.set()
        with serving(database_uri, server, 1) as socket:
            async with users(socket, 4) as clients:
                await ask(clients[3], "first", "Hello")
                await all_extracted(database_uri, 3, 4)
                assert await ask(clients[3], "second", "What do I like?") == "milk"
            await check(database_uri, socket, server, 3)


async def test_a_question_is_answered_anew_and_edited_in_branches_that_stream(
    database_uri: str,
) -> None:
    """The session from which they come stays as it is."""

    async def stream(client: httpx.AsyncClient, path: str, **question: str) -> str:
        response = await client.post(path, json={"session_id": "first", **question})
        assert response.status_code == 200, response.text
        return response.text

    with serve(model) as server, serving(database_uri, server, 1, BRANCHES) as socket:
        async with users(socket, 2) as (ann, bob):
            assert (
                await stream(ann, "/chat", message_id="1", message="Hello")
                == "Hello to you."
            )
            assert (
                await stream(ann, "/chat", message_id="2", message="Good day")
                == "Good day to you."
            )
            again = {
                "message_id": "2",
                "message": "Good day",
                "new_session_id": "second",
            }
            assert await stream(ann, "/again", **again) == "Good day to you."
            edited = {
                "message_id": "1",
                "message": "Good night",
                "new_session_id": "third",
            }
            assert await stream(ann, "/again", **edited) == "Good night to you."
            for client, wrong in (
                (ann, again),
                (ann, {**again, "message_id": "3"}),
                (bob, edited),
            ):
                response = await client.post(
                    "/again", json={"session_id": "first", **wrong}
                )
                assert response.status_code == 404
    store = MemoryStore(database_uri)
    said = {
        key: [one.content for one in await store.get_messages(key, None)]
        for key in await store.get_keys()
    }
    both = ["Hello", "Hello to you.", "Good day", "Good day to you."]
    names = {json.dumps(["user0", name]): name for name in ("first", "second", "third")}
    expected = {
        "first": both,
        "second": both,
        "third": ["Good night", "Good night to you."],
    }
    assert {names[key]: texts for key, texts in said.items()} == expected
    await store.aclose()


async def test_a_lock_of_the_server_lets_one_turn_through_in_all_processes(
    postgres_uri: str, start_model: StartModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two engines stand for two workers: only the database can tell one from the other."""
    monkeypatch.setenv("DATABASE_URI", postgres_uri)
    turns = []
    for _ in range(2):
        names: dict[str, Any] = {}
        exec(TURN, names)  # noqa: S102 - it is our own
        turns.append(names["turn_in_all_workers"])
    # Without the lock that all memories of this process share.
    monkeypatch.setattr(CondensedMemory, "turn", alone)
    llm, _ = start_model(model)
    agent = FunctionAgent(llm=llm)
    store = MemoryStore(postgres_uri)

    async def ask_within(turn: Any, question: str) -> str:
        memory = CondensedMemory.from_defaults(
            "chat", chat_store=store, extract_facts=False
        )
        async with turn(memory):
            return str(await agent.run(question, memory=memory))

    questions = [f"Hello {i}" for i in range(8)]
    answers = await asyncio.gather(
        *(ask_within(turns[i % 2], question) for i, question in enumerate(questions))
    )
    assert answers == [f"{question} to you." for question in questions]
    await store.aclose()


@asynccontextmanager
async def alone(memory: CondensedMemory) -> AsyncIterator[CondensedMemory]:
    yield memory


CITING = blocks("python", PAGES["citing.md"])[1]
(STREAMING,) = blocks("python", PAGES["fastapi.md"])


async def test_an_answer_has_footnotes_that_lead_to_the_history_of_a_fact(
    database_uri: str,
) -> None:
    """With the user's words, escaped; no other user can follow them."""
    store = MemoryStore(database_uri)
    with serve(model) as server, serving(database_uri, server, 1, CITING) as socket:
        async with users(socket, 2) as (ann, bob):
            said = await ann.post(
                "/chat", json={"session_id": "first", "message": "I like <b>tea."}
            )
            assert said.text == "<p>I like &lt;b&gt;tea. to you.</p><ol></ol>"
            async with aclosing(MemoryStore(database_uri)) as other:
                memory = CondensedMemory.from_defaults(
                    "x", user_id="user0", chat_store=other, extract_facts=False
                )
                rome = await memory.facts.aadd("Likes Rome & Oslo")
                oslo = await memory.facts.aadd("Likes Oslo")
                await memory.facts.aretire(
                    rome.id, "The user said so.", replaced_by=oslo.id
                )
            answer = await ann.post(
                "/chat",
                json={"session_id": "second", "message": "What do I like of Oslo?"},
            )
            assert (
                f'<li><a href="/facts/{oslo.id}">Likes Oslo</a> <q></q> ' in answer.text
            )
            history = await ann.get(f"/facts/{oslo.id}")
            assert (
                "Likes Rome &amp; Oslo <q></q> The user said so.</li><li>Likes Oslo"
                in history.text
            )
            assert (await bob.get(f"/facts/{oslo.id}")).status_code == 404
            assert (
                await bob.post("/chat", json={"session_id": "second", "message": "Hi"})
            ).status_code == 404
    await store.aclose()


async def test_a_client_that_goes_away_finds_the_answer_later_and_a_run_can_be_stopped(
    database_uri: str,
) -> None:
    asked, answered = threading.Event(), threading.Event()

    def slow(messages: list[Message], tools: list[str]) -> Message:
        if not tools and messages[-1]["content"].endswith("Slow"):
            asked.set()
            answered.wait(120)
        return model(messages, tools)

    async def said(client: httpx.AsyncClient, number: int) -> list[str | None]:
        async with aclosing(MemoryStore(database_uri)) as store:
            key = json.dumps([client.headers["user-id"], "first"])
            while len(found := await store.get_messages(key, None)) < number:  # noqa: ASYNC110 - another process does it
                await asyncio.sleep(0.05)
            return [one.content for one in found]

    with serve(slow) as server, serving(database_uri, server, 1, STREAMING) as socket:
        async with users(socket, 2) as (ann, bob):

            def question(number: int, text: str) -> dict[str, Any]:
                return {
                    "json": {
                        "session_id": "first",
                        "message_id": str(number),
                        "message": text,
                    }
                }

            async def leave_while_it_is_answered(client: httpx.AsyncClient) -> None:
                asked.clear()
                async with client.stream(
                    "POST", "/chat", **question(1, "Slow")
                ) as response:
                    assert response.headers["content-type"].startswith(
                        "text/event-stream"
                    )
                    assert await asyncio.to_thread(asked.wait, 120)

            await leave_while_it_is_answered(ann)
            assert (await ann.post("/chat", **question(2, "Hello"))).status_code == 409
            answered.set()
            assert await asyncio.wait_for(said(ann, 2), 60) == ["Slow", "Slow to you."]
            answered.clear()
            await leave_while_it_is_answered(bob)
            assert (await ann.post("/stop?session_id=first")).json() is False
            assert (await bob.post("/stop?session_id=first")).json() is True
            response = await bob.post("/chat", **question(2, "Hello"))
            while response.status_code == 409:  # until the run has been stopped
                response = await bob.post("/chat", **question(2, "Hello"))
            answered.set()
            deltas = re.findall(r"event: delta\ndata: (.*)\n", response.text)
            assert "".join(map(json.loads, deltas)) == "Hello to you."
            assert response.text.endswith("event: done\ndata: null\n\n")
            assert await said(bob, 3) == ["Slow", "Hello", "Hello to you."]
            anew = {**question(2, "Good day")["json"], "new_session_id": "second"}
            deltas = re.findall(
                r"delta\ndata: (.*)\n", (await bob.post("/again", json=anew)).text
            )
            assert "".join(map(json.loads, deltas)) == "Good day to you."
            assert (await bob.post("/again", json=anew)).status_code == 404


# What a browser has: `fetch`, here over the socket of the application, and an element to write into.
BROWSER = """
import http from "node:http";
import {Readable} from "node:stream";
globalThis.fetch = (path, options) => new Promise((resolve, reject) => {
  const sent = http.request(
    {socketPath: process.argv[2], path, method: options.method, headers: options.headers},
    answer => resolve({ok: answer.statusCode === 200, status: answer.statusCode, body: Readable.toWeb(answer)}),
  );
  sent.on("error", reject);
  sent.end(options.body);
});
"""
CLIENT = blocks("javascript", PAGES["fastapi.md"])
(CURL,) = (
    block for block in blocks("text", PAGES["fastapi.md"]) if block.startswith("curl ")
)


async def answer_of(*command: str) -> str:
    """Return what a program has written."""
    done = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    written, complaints = await done.communicate()
    assert done.returncode == 0, complaints.decode()
    return written.decode()


@pytest.mark.skipif(shutil.which("node") is None, reason="Node.js is not installed")
async def test_the_client_of_the_browser_shows_each_piece_of_an_answer(
    database_uri: str, tmp_path: Path
) -> None:
    asking = 'await ask("first", process.argv[3], text => process.stdout.write(text));'
    script = tmp_path / "client.mjs"
    script.write_text("\n".join([BROWSER, *CLIENT, asking]), encoding="utf-8")

    with serve(model) as server, serving(database_uri, server, 1, STREAMING) as socket:
        written = await answer_of("node", str(script), socket, "I like tea.")
    assert written == "I like tea. to you."


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
async def test_the_line_for_curl_prints_the_events(database_uri: str) -> None:
    command, *arguments = shlex.split(CURL)
    with serve(model) as server, serving(database_uri, server, 1, STREAMING) as socket:
        written = await answer_of(
            command, "--silent", "--unix-socket", socket, *arguments
        )
    deltas = re.findall(r"event: delta\ndata: (.*)\n", written)
    assert "".join(map(json.loads, deltas)) == "Hello to you."
    assert written.endswith("event: done\ndata: null\n\n")
