"""The recipe that shows what was saved: each user's page has the user's own lines, and an undo holds."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import httpx
import pytest

from llama_index_memory_ext import CondensedMemory, MemoryStore
from tests.agents.test_web import APP, BROWSER, post, serving, text_of, users
from tests.learning.learning import as_report
from tests.openai_server import Message, call, say, serve
from tests.pages import PAGES, RECIPES, blocks

PAGE = RECIPES["what-was-saved.md"]
CLIENT = blocks("javascript", PAGES["fastapi.md"])
# Without this setting, facts are learned when they are needed.
AT_ONCE = APP.replace("llm=llm\n    )", "llm=llm, extract_every_turns=1\n    )")
(LINES,) = blocks("javascript", PAGE)

# What the model reports where the words stand anywhere in its request.
REPORTED = {
    "I am allergic to nuts": "Is allergic to nuts",
    "I live in Oslo": "Lives in Oslo",
    "I live in Rome now, I moved": "Lives in Rome",
    "Do I like sushi": "Likes sushi",
    "my name is Ann": "Is called Ann",
}


def model(messages: list[Message], tools: list[str]) -> Message:
    """Reports from all that it reads, also from words that it has read before."""
    if tools != ["report_facts"]:
        return say("Fine.")
    text = messages[-1]["content"]
    facts = []
    retired = []
    for words, content in REPORTED.items():
        if words in text:
            facts.append({"content": content, "quote": words, "confidence": 0.9})
    oslo = re.search(r"(\d+)\D{0,12}Lives in Oslo", text)
    if oslo and "I moved" in text:
        retired.append(
            {
                "number": int(oslo[1]),
                "reason": "The user moved.",
                "quote": "I live in Rome now, I moved",
                "replaced_by": f"n{len(facts)}",
            }
        )
    return call(
        ("call_1", "report_facts", as_report({"new_facts": facts, "retired": retired}))
    )


class FollowedPage:
    """An open page: its lines, as they arrive."""

    def __init__(self, response: httpx.Response) -> None:
        self._lines = response.aiter_lines()

    async def next(self) -> dict[str, str]:
        """The next notice."""
        async for line in self._lines:
            if line == "event: notice":
                data = await anext(self._lines)
                notice: dict[str, str] = json.loads(data.removeprefix("data: "))
                return notice
        raise AssertionError("The stream has ended.")

    async def opened(self) -> None:
        assert await anext(self._lines) == "event: open"


@asynccontextmanager
async def following(client: httpx.AsyncClient) -> AsyncIterator[FollowedPage]:
    async with client.stream("GET", "/saved") as response:
        page = FollowedPage(response)
        await page.opened()
        yield page


async def say_to(client: httpx.AsyncClient, message: str) -> None:
    assert text_of(await post(client, "/chat", message=message)) == "Fine."


async def contents(database_uri: str, user_id: str) -> list[str]:
    async with aclosing(MemoryStore(database_uri)) as store:
        memory = CondensedMemory.from_defaults(
            "x", user_id=user_id, chat_store=store, extract_facts=False
        )
        return sorted(fact.content for fact in await memory.facts.alist())


async def test_each_page_shows_what_was_saved_of_its_own_user_and_what_was_not_and_why(
    database_uri: str,
) -> None:
    """Two pages of one user show the same. Users talk at the same time."""
    with (
        serve(model) as server,
        serving(database_uri, server, 1, program=AT_ONCE) as socket,
    ):
        async with (
            users(socket, 2) as (ann, bob),
            following(ann) as first,
            following(ann) as second,
            following(bob) as other,
        ):
            await asyncio.gather(
                say_to(ann, "I am allergic to nuts."), say_to(bob, "Do I like sushi?")
            )
            saved = await first.next()
            assert saved["text"] == "Saved: Is allergic to nuts"
            assert await second.next() == saved
            assert await other.next() == {
                "text": "Not saved: Likes sushi. The user only asked about it.",
                "undo": "",
            }
            # Nothing of Ann's came to Bob in between, nor later.
            await say_to(bob, "I live in Oslo.")
            assert (await other.next())["text"] == "Saved: Lives in Oslo"
            wrong = await bob.post(saved["undo"])
            assert wrong.status_code == 404
    assert await contents(database_uri, "user0") == ["Is allergic to nuts"]
    assert await contents(database_uri, "user1") == ["Lives in Oslo"]


async def test_a_user_sees_what_is_known_with_what_was_said_last(
    database_uri: str,
) -> None:
    """The turn is read for it: facts are learned when they are needed. Another user's page has nothing of it."""
    with serve(model) as server, serving(database_uri, server, 1) as socket:
        async with users(socket, 2) as (ann, bob):
            await say_to(ann, "I live in Oslo.")
            (fact,) = (await ann.get("/facts")).json()
            words = (fact["content"], fact["quote"])
            assert words == ("Lives in Oslo", "I live in Oslo")
            assert (await bob.get("/facts")).json() == []


async def test_an_undo_takes_a_fact_back_for_good_and_undoes_its_correction(
    database_uri: str,
) -> None:
    """The model reports the words again at each turn in which it reads them."""
    with (
        serve(model) as server,
        serving(database_uri, server, 1, program=AT_ONCE) as socket,
    ):
        async with users(socket, 1) as (ann,), following(ann) as page:
            await say_to(ann, "I live in Oslo.")
            assert (await page.next())["text"] == "Saved: Lives in Oslo"
            await say_to(ann, "I live in Rome now, I moved.")
            rome = await page.next()
            assert rome["text"] == "Saved: Lives in Rome"
            assert await contents(database_uri, "user0") == ["Lives in Rome"]
            assert (await ann.post(rome["undo"])).status_code == 200
            assert (await ann.post(rome["undo"])).status_code == 404
            assert await contents(database_uri, "user0") == ["Lives in Oslo"]
            await say_to(ann, "Do I like sushi?")
            # Right behind the undo comes this line: nothing was saved in between.
            assert (await page.next())["text"].startswith("Not saved: Likes sushi")
    assert await contents(database_uri, "user0") == ["Lives in Oslo"]


@pytest.mark.skipif(shutil.which("node") is None, reason="Node.js is not installed")
async def test_the_page_shows_a_line_and_its_button_undoes_it(
    database_uri: str, tmp_path: Path
) -> None:
    elements = """
const send = globalThis.fetch;
globalThis.fetch = async (path, options) => {
  const response = await send(path, options);
  if (path === "/saved") console.log("open");
  return response;
};
class Element {
  parts = [];
  append(...parts) { this.parts.push(...parts); }
  remove() { console.log("removed"); process.exit(); }
}
globalThis.document = {createElement: () => new Element()};
globalThis.output = {
  append: line => {
    console.log(line.textContent, "|", line.parts[1].textContent);
    line.parts[1].onclick();
  },
};
"""
    script = tmp_path / "page.mjs"
    script.write_text(
        "\n".join([BROWSER, elements, *CLIENT, LINES]).replace('"ann"', '"user0"'),
        encoding="utf-8",
    )
    with (
        serve(model) as server,
        serving(database_uri, server, 1, program=AT_ONCE) as socket,
    ):
        page = await asyncio.create_subprocess_exec(
            "node", str(script), socket, stdout=asyncio.subprocess.PIPE
        )
        assert page.stdout is not None
        assert await page.stdout.readline() == b"open\n"
        async with users(socket, 1) as (ann,):
            await say_to(ann, "I am allergic to nuts.")
            written, _ = await page.communicate()
    assert written.decode() == "Saved: Is allergic to nuts | Undo\nremoved\n"
    assert await contents(database_uri, "user0") == []
