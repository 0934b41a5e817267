"""What is found in a long session and among many facts, and the days on which it was said."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from pathlib import Path

from llama_index_memory_ext import Fact
from tests.conversation import assistant, user
from tests.inspector.conftest import Inspect, memory_in
from tests.inspector.example import SESSION


async def test_a_message_is_found_by_its_words(
    tmp_path: Path, inspect: Inspect
) -> None:
    file = tmp_path / "memory.db"
    async with memory_in(file, "birds") as memory:
        messages = []
        for i in range(60):
            messages += [user(f"I have seen bird {i}x."), assistant(f"Bird {i}y?")]
        await memory.aput_messages(messages)
    client = await inspect(file)
    found = await client.page("messages", id="birds", q="BIRD 27")
    texts = re.findall(r"<pre>(.*?)</pre>", found)
    assert texts == ["I have seen bird 27x.", "Bird 27y?"]
    many = await client.page("messages", id="birds", q="bird")
    assert "Page 3 of 3" in many
    assert "q=bird" in many
    nothing = await client.page("messages", id="birds", q="fish")
    assert "No message has these words." in nothing


async def test_facts_are_listed_by_category_tag_and_day(
    filled: Path, inspect: Inspect
) -> None:
    client = await inspect(filled)
    day = datetime(2026, 3, 2, 9, tzinfo=timezone.utc)
    facts = [
        Fact(content="Likes sencha", category="preference", tags=("drink", "tea")),
        Fact(content="Likes cola", category="preference", tags=("drink",)),
        Fact(content="Sells tea", tags=("tea",), created_at=day),
    ]
    await client.inspector.writer.facts.write("mia", facts)

    async def listed(**filters: str) -> set[str]:
        page = await client.page("facts", user="mia", **filters)
        contents = re.findall(r'class="what"><a [^>]*>(.*?)</a>', page)
        return set(contents) & {fact.content for fact in facts}

    assert await listed(tag="drink") == {"Likes sencha", "Likes cola"}
    assert await listed(tag="tea", category="preference") == {"Likes sencha"}
    assert await listed(day="2026-03-02") == {"Sells tea"}
    assert await listed(tag="none") == set()
    page = await client.page("facts", user="mia", tag="drink")
    # Each filter is a link; a chosen filter leads back.
    assert re.search(
        r'class="chip accent" href="[^"]*user=mia">#drink 2 \u00d7</a>', page
    )
    assert re.search(r'href="[^"]*tag=drink[^"]*category=preference">preference', page)
    assert ">2026-03-02</a>" not in page


async def test_a_pinned_fact_is_marked_beside_the_prompt_and_in_the_list(
    filled: Path, inspect: Inspect
) -> None:
    client = await inspect(filled)
    for text in (
        await client.page("facts", user="mia", q="eat"),
        await client.page("session", id=SESSION),
    ):
        entries = text.split('<div class="fact')[1:]
        pinned = [entry for entry in entries if "pinned</span>" in entry]
        assert len(pinned) == 1
        assert "Eats vegetarian food" in pinned[0]


async def test_a_session_has_the_days_on_which_it_was_said(
    tmp_path: Path, inspect: Inspect
) -> None:
    """Not the day of its import."""
    file = tmp_path / "memory.db"
    async with memory_in(file, "old") as memory:
        days = ("2025-03-02", "2025-04-05")
        texts = [{"role": "user", "content": "Hello.", "date": day} for day in days]
        await memory.aimport(texts)
    client = await inspect(file)
    page = await client.page("messages", id="old")
    assert "2025-03-02 00:00 to 2025-04-05 00:00" in page
