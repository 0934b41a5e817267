"""The web server of the recipes, served by real workers to many users at once."""

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
from uuid import uuid4

import httpx
import pytest
import uvicorn
from llama_index.core.agent.workflow import FunctionAgent

from llama_index_memory_ext import CondensedMemory, Fact, MemoryStore
from llama_index_memory_ext.fact import utc_now
from tests.conversation import assistant, user
from tests.forked import python_command
from tests.learning.learning import learner
from tests.openai_server import Message, OpenAIServer, fail, say, serve
from tests.pages import PAGES, RECIPES, blocks
from tests.scripted_models import StartModel

(APP,) = blocks("python", RECIPES["web-server.md"])
(TURN,) = (
    block
    for block in blocks("python", PAGES["production.md"])
    if "turn_in_all_workers" in block
)


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
    database_uri: str,
    model_server: OpenAIServer,
    workers: int,
    complaint: str = "",
    program: str = APP,
) -> Iterator[str]:
    """The socket of the application, from when it has started until it has ended by itself, with no other complaint."""
    # The path of a socket must be short, which those of pytest are not.
    with TemporaryDirectory(prefix="web") as folder:
        Path(folder, "app.py").write_text(program, encoding="utf-8")
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
        complaints = [line for line in lines if not line.startswith("INFO:")]
        assert "".join(complaints[:1]) == complaint


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


def events_of(written: str) -> list[tuple[str, Any]]:
    """Return the names and the data of the events of an answer."""
    events = re.findall(r"event: (.*)\ndata: (.*)\n\n", written)
    return [(name, json.loads(data)) for name, data in events]


def text_of(written: str) -> str:
    """Return the text of an answer, which has ended without an error."""
    events = events_of(written)
    assert [name for name, _ in events if name != "delta"] == ["sources", "done"]
    return "".join(data for name, data in events if name == "delta")


async def post(client: httpx.AsyncClient, path: str, **question: str) -> str:
    """Return the events of an answer in the first session, if no other is named."""
    question = {"session_id": "first", "message_id": uuid4().hex, **question}
    response = await client.post(path, json=question)
    assert response.status_code == 200, response.text
    return response.text


async def ask(client: httpx.AsyncClient, session_id: str, message: str) -> str:
    return text_of(await post(client, "/chat", session_id=session_id, message=message))


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
        messages = await store.get_messages(json.dumps([f"user{i}", "first"]), None)
        said = [message.content for message in messages]
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
    again = {"message_id": "2", "message": "Good day", "new_session_id": "second"}
    edited = {"message_id": "1", "message": "Good night", "new_session_id": "third"}
    with serve(model) as server, serving(database_uri, server, 1) as socket:
        async with users(socket, 2) as (ann, bob):
            hello = await post(ann, "/chat", message_id="1", message="Hello")
            assert text_of(hello) == "Hello to you."
            day = await post(ann, "/chat", message_id="2", message="Good day")
            assert text_of(day) == "Good day to you."
            assert text_of(await post(ann, "/again", **again)) == "Good day to you."
            assert text_of(await post(ann, "/again", **edited)) == "Good night to you."
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
    monkeypatch.setenv("LOCKS_URI", postgres_uri)
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


async def add_fact(
    database_uri: str, user_id: str, content: str, *, replaces: str = ""
) -> Fact:
    """Store a fact as another process does."""
    async with aclosing(MemoryStore(database_uri)) as store:
        memory = CondensedMemory.from_defaults(
            "x", user_id=user_id, chat_store=store, extract_facts=False
        )
        fact = await memory.facts.aadd(content)
        if replaces:
            await memory.facts.aretire(
                replaces, "The user said so.", replaced_by=fact.id
            )
        return fact


async def test_an_answer_has_sources_that_lead_to_the_history_of_a_fact(
    database_uri: str,
) -> None:
    """No other user sees them, also in a session of the same name."""
    with serve(model) as server, serving(database_uri, server, 1) as socket:
        async with users(socket, 2) as (ann, bob):
            written = await post(ann, "/chat", message="I like <b>tea.")
            assert ("sources", {"facts": [], "messages": []}) in events_of(written)
            await add_fact(database_uri, "user0", "Plays chess")
            rome = await add_fact(database_uri, "user0", "Likes Rome & Oslo")
            oslo = await add_fact(database_uri, "user0", "Likes Oslo", replaces=rome.id)
            question = {"session_id": "second", "message": "What do I like of Oslo?"}
            sources = dict(events_of(await post(ann, "/chat", **question)))["sources"]
            assert "Plays chess" not in str(sources)
            assert {
                "id": oslo.id,
                "content": "Likes Oslo",
                "quote": "",
                "began": str(oslo.began),
                "retired_reason": None,
            } in sources["facts"]
            history = (await ann.get(f"/facts/{oslo.id}")).json()
            assert [(fact["content"], fact["retired_reason"]) for fact in history] == [
                ("Likes Rome & Oslo", "The user said so."),
                ("Likes Oslo", None),
            ]
            assert (await bob.get(f"/facts/{oslo.id}")).status_code == 404
            written = await post(bob, "/chat", **question)
            assert ("sources", {"facts": [], "messages": []}) in events_of(written)


async def test_the_sources_have_the_messages_that_were_recalled(
    database_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URI", database_uri)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    names: dict[str, Any] = {"__name__": "app"}
    exec(APP, names)  # noqa: S102 - it is our own
    async with CondensedMemory.from_defaults(
        "chat",
        chat_store=names["store"],
        extract_facts=False,
        max_messages=2,
        keep_messages=1,
    ) as memory:
        for text in ("The code of the door is 4711.", "Fine.", "Hello"):
            await memory.aput(user(text))
            await memory.aput(assistant("Noted."))
        await memory.aput(user("What is the code of the door?"))
        await memory.aget()
        sources = names["sources_of"](memory)
    await names["store"].aclose()
    today = str(utc_now().date())
    first = {"role": "user", "day": today, "text": "The code of the door is 4711."}
    assert first in json.loads(json.dumps(sources))["messages"]


async def test_a_request_that_failed_is_repeated_and_stores_its_question_once(
    database_uri: str,
) -> None:
    failed = threading.Event()

    def failing(messages: list[Message], tools: list[str]) -> Message:
        if not failed.is_set():
            return fail(400, "It failed.")
        return model(messages, tools)

    complaint = "ERROR:root:A turn has failed\n"
    with (
        serve(failing) as server,
        serving(database_uri, server, 1, complaint) as socket,
    ):
        async with users(socket, 2) as (ann, bob):
            written = await post(ann, "/chat", message_id="1", message="Hello")
            assert [name for name, _ in events_of(written)] == ["error", "done"]
            failed.set()
            written = await post(ann, "/chat", message_id="1", message="Hello")
            assert text_of(written) == "Hello to you."
            assert (await ann.get("/messages?session_id=first")).json() == [
                {"role": "user", "text": "Hello"},
                {"role": "assistant", "text": "Hello to you."},
            ]
            assert (await bob.get("/messages?session_id=first")).json() == []


async def test_a_user_is_forgotten_with_the_answer_that_runs(database_uri: str) -> None:
    """Another user, and another user's answer, stay."""
    asked, answered = threading.Semaphore(0), threading.Event()

    def slow(messages: list[Message], tools: list[str]) -> Message:
        if not tools and messages[-1]["content"].endswith("Slow"):
            asked.release()
            answered.wait(120)
        return model(messages, tools)

    with serve(slow) as server, serving(database_uri, server, 1) as socket:
        async with users(socket, 2) as clients:
            ann, bob = clients
            for client in clients:
                await ask(client, "first", f"I like {client.headers['user-id']}.")
                await ask(client, "between", "Hello")
            await all_extracted(database_uri, 2)
            answers = [
                asyncio.create_task(post(client, "/chat", message="Slow"))
                for client in clients
            ]
            for _ in clients:
                assert await asyncio.to_thread(asked.acquire, timeout=120)
            assert (await ann.delete("/user")).status_code == 200
            answered.set()
            assert [name for name, _ in events_of(await answers[0])] == ["done"]
            assert text_of(await answers[1]) == "Slow to you."
            async with aclosing(MemoryStore(database_uri)) as store:
                assert await store.sessions("user0") == []
                assert (await store.facts.read("user0")).facts == []
                assert (await store.facts.read("user1")).facts != []
            assert await ask(ann, "second", "What do I like?") == ""
            assert await ask(bob, "second", "What do I like?") == "user1"


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

    with serve(slow) as server, serving(database_uri, server, 1) as socket:
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
            assert text_of(response.text) == "Hello to you."
            assert await said(bob, 3) == ["Slow", "Hello", "Hello to you."]
            again = {"message_id": "2", "message": "Hi", "new_session_id": "second"}
            assert text_of(await post(bob, "/again", **again)) == "Hi to you."


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
FOOTNOTES = blocks("javascript", PAGES["citing.md"])
# An element takes texts and elements; whatever writes HTML into it fails.
ELEMENTS = """
class Element {
  set innerHTML(html) { throw new Error("Words as HTML"); }
}
globalThis.document = {createElement: () => new Element()};
globalThis.footnotes = {
  append: part => console.log(part.textContent ? `${part.textContent}${part.href}` : part),
};
"""
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
async def test_the_client_of_the_browser_shows_an_answer_and_its_sources_as_text(
    database_uri: str, tmp_path: Path
) -> None:
    fact = await add_fact(database_uri, "ann", "Likes <b>tea")
    asking = """
const delta = text => process.stdout.write(text);
await ask("first", process.argv[3], {delta, sources: showSources});
showSources({facts: [], messages: [{role: "user", day: "2026-01-02", text: "<b>Hi"}]});
"""
    script = tmp_path / "client.mjs"
    script.write_text(
        "\n".join([BROWSER, ELEMENTS, *CLIENT, *FOOTNOTES, asking]), encoding="utf-8"
    )
    with serve(model) as server, serving(database_uri, server, 1) as socket:
        written = await answer_of("node", str(script), socket, "I like tea.")
    assert written == (
        f"I like tea. to you.Likes <b>tea () /facts/{fact.id}\n"
        "user, 2026-01-02: <b>Hi \n"
    )


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
async def test_the_line_for_curl_prints_the_events(database_uri: str) -> None:
    command, *arguments = shlex.split(CURL)
    with serve(model) as server, serving(database_uri, server, 1) as socket:
        written = await answer_of(
            command, "--silent", "--unix-socket", socket, *arguments
        )
    assert text_of(written) == "Hello to you."
