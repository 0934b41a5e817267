"""A database as one finds it in use: long sessions, tools, code, several scripts, and 200 facts."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

from llama_index.core.base.llms.types import ChatMessage, TextBlock, ToolCallBlock

from llama_index_memory_ext import CondensedMemory, Fact, MemoryStore
from llama_index_memory_ext.fact import retire, utc_now

SESSION = "trip to Japan"
CODE = """```python
async def main() -> None:
    async with CondensedMemory.from_defaults("trip", user_id="mia") as memory:
        print(await agent.run("Where do we start?", memory=memory))
```"""
TURNS = [
    (
        "I am planning ten days in Japan with my sister. We like small museums.",
        "Lovely. Kyoto and Kanazawa suit you.",
    ),
    ("What does a rail pass cost now?", "A seven-day pass is 50,000 yen."),
    ("旅行の予算は三十万円です。", "三十万円ですね。宿と列車に分けて計画します。"),
    (
        "Wie lange dauert die Fahrt nach Kanazawa? Ich esse übrigens vegetarisch.",
        "Etwa zweieinhalb Stunden.",
    ),
    (
        f"I keep our plan in a small script:\n\n{CODE}",
        "It opens the memory once, which is right.",
    ),
    (
        "My sister has moved to Leeds, so we start from Manchester now.",
        "Noted: you start from Manchester.",
    ),
]


async def fill(uri: str, turns: int = 90, others: int = 70) -> None:
    """Writes two users with a long session each, many short sessions, and one of a plain memory."""
    store = MemoryStore(uri)
    try:
        memory = CondensedMemory.from_defaults(
            SESSION, user_id="mia", chat_store=store, extract_facts=False
        )
        for i in range(turns):
            question, answer = TURNS[i % len(TURNS)]
            await memory.aput(ChatMessage(f"{question} ({i + 1})"))
            if i % 7 == 1:
                await memory.aput_messages(tool_round(i))
            await memory.aput(
                ChatMessage(
                    f"{answer} " + "That leaves time for a walk. " * (i % 40),
                    role="assistant",
                )
            )
        for i in range(others):
            whose: Any = {
                "user_id": f"user {i % 9}",
                "chat_store": store,
                "extract_facts": False,
            }
            one = CondensedMemory.from_defaults(f"support/{i:03}", **whose)
            await one.aput_messages(
                [
                    ChatMessage("Where is my parcel?"),
                    ChatMessage("On its way.", role="assistant"),
                ]
            )
        await store.facts.write("mia", facts())
    finally:
        await store.aclose()


def tool_round(number: int) -> list[ChatMessage]:
    """A call of a tool, and its result."""
    call = ToolCallBlock(
        tool_call_id=f"call_{number}",
        tool_name="find_trains",
        tool_kwargs={"to": "Kanazawa"},
    )
    asked = ChatMessage(
        role="assistant", blocks=[TextBlock(text="I look that up."), call]
    )
    trains = (
        f"{7 + i}:24 Hakutaka {551 + 2 * i}, 14,180 yen, {3 * i} seats left"
        for i in range(8)
    )
    return [
        asked,
        ChatMessage(
            "\n".join(trains),
            role="tool",
            additional_kwargs={"tool_call_id": f"call_{number}"},
        ),
    ]


def fact(
    content: str, category: str, confidence: float, quote: str = "", **more: Any
) -> Fact:
    """A fact that was said in the long session, if it has a quote."""
    said: dict[str, Any] = (
        {"session_id": SESSION, "message_ids": (1,), "source": quote} if quote else {}
    )
    return Fact(
        content=content,
        category=category,
        confidence=confidence,
        quote=quote,
        **said,
        **more,
    )


def facts() -> list[Fact]:
    """200 facts: two have ended, one has expired, one is pinned, and one was replaced."""
    now = utc_now()
    home = fact("Starts the journey from Manchester", "context", 0.95, TURNS[5][0])
    old_home = fact(
        "Starts the journey from London", "context", 0.8, created_at=now - timedelta(40)
    )
    known = [
        home,
        retire(
            old_home,
            "The sister has moved to Leeds",
            now - timedelta(3),
            home.id,
            by="change",
        ),
        fact("Eats vegetarian food", "preference", 0.98, TURNS[3][0], pinned=True),
        fact("Likes small museums", "preference", 0.9, TURNS[0][0]),
        fact("予算は三十万円", "context", 0.85, TURNS[2][0]),
        fact("Travels to Japan in May", "goal", 0.8, valid_until=date(2026, 5, 31)),
        fact("Has a cold", "context", 0.75, expires_at=now - timedelta(1)),
    ]
    chapters = (
        f"Has read chapter {i} of the guide to Kanazawa"
        for i in range(200 - len(known))
    )
    return [
        *(fact(chapter, "knowledge", 0.7) for chapter in chapters),
        *reversed(known),
    ]
