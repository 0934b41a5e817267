"""Counts the words of one user that another is shown: 200 random interleavings of 3 users in 4 sessions.

Each user has words of their own, which they say in turns of random memories, sessions, restarts and deletions. Two of
the sessions are shared by two users and by all, one is opened by all though it is not shared, and one was begun
without a user. The model that extracts facts is careless: it reports what anybody has said as the user's.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Sequence
from random import Random
from typing import Any

from llama_index.core.base.llms.types import ChatMessage, ChatResponse, ToolCallBlock

from benchmarks.command import shown
from benchmarks.report import Measure, Promise, publish
from llama_index_memory_ext import (
    CondensedMemory,
    MemoryStore,
    OfflineModel,
    SessionOwnerError,
)

INTERLEAVINGS, STEPS = 200, 16
USERS = {"ann": "Antwerp", "bob": "Bilbao", "cem": "Cannes"}
# Who opens each session as shared; everybody tries to open each of them.
SHARED_BY = {"two": ("ann", "bob"), "all": tuple(USERS), "one": (), "begun": ()}
_LINE = re.compile(r"^(?:\d+\. )?[a-z ]+: (.*)$", re.MULTILINE)


class CarelessModel(OfflineModel):
    """Reports each line of a transcript as a fact about the user, whoever has said it."""

    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        found = [
            line
            for line in _LINE.findall(messages[-1].content or "")
            if "I live in" in line
        ]
        facts = [
            {
                "message": i,
                "quote": line,
                "fact": f"Lives in {line.split()[-1][:-1]}",
            }
            for i, line in enumerate(found, 1)
        ]
        arguments = {"facts": facts}
        call = ToolCallBlock(
            tool_call_id="call_1", tool_name="report_facts", tool_kwargs=arguments
        )
        return ChatResponse(message=ChatMessage(role="assistant", blocks=[call]))

    async def achat(
        self, messages: Sequence[ChatMessage], **kwargs: Any
    ) -> ChatResponse:
        return self.chat(messages, **kwargs)


async def leaks_in(store: MemoryStore, seed: int, steps: int = STEPS) -> list[str]:
    """What one random interleaving shows to whom it must not; [] if nothing."""
    random, memories, leaks = (
        Random(seed),
        dict[tuple[str, str], CondensedMemory](),
        list[str](),
    )
    begun = CondensedMemory.from_defaults(
        "begun", chat_store=store, llm=CarelessModel()
    )
    await begun.aput_messages(
        [ChatMessage("I like tea."), ChatMessage("Fine.", role="assistant")]
    )
    await begun.aflush()
    for step in range(steps):
        user, session = random.choice(list(USERS)), random.choice(list(SHARED_BY))
        is_shared = user in SHARED_BY[session]
        if (user, session) not in memories or random.random() < 0.2:
            memories[user, session] = CondensedMemory.from_defaults(
                session,
                user_id=user,
                shared=is_shared,
                chat_store=store,
                llm=CarelessModel(),
            )
        memory = memories[user, session]
        if random.random() < 0.05:
            await memory.aforget(vacuum=False)
        try:
            if random.random() < 0.7:
                turn = ChatMessage(f"In step {step}, I live in {USERS[user]}.")
                await memory.aput_messages(
                    [turn, ChatMessage("Noted.", role="assistant")]
                )
            if random.random() < 0.5:
                await memory.aflush()
            said = (
                await memory.aget(input="Where do I live?")
                if random.random() < 0.5
                else await memory.aget_all()
            )
            found = "".join(message.content or "" for message in said) + str(
                await memory.asearch("live in")
            )
        except SessionOwnerError:
            found = ""
        known = [fact.content for fact in await memory.facts.alist(state="all")]
        for other, place in USERS.items():
            may_read = is_shared and other in SHARED_BY[session]
            if other != user and (
                any(place in one for one in known) or (place in found and not may_read)
            ):
                leaks.append(f"step {step}: {user} sees {other} in {session!r}")
    return leaks


async def main() -> int:
    """Run all, publish, and return the exit code."""
    leaks = []
    for seed in shown(range(INTERLEAVINGS), "interleavings"):
        store = MemoryStore()
        leaks += [f"seed {seed}, {leak}" for leak in await leaks_in(store, seed)]
        await store.aclose()
    print(*leaks, sep="\n")
    promise = Promise("times that a user was shown another's words", 0, len(leaks))
    return publish("whose_words", [Measure("interleavings", INTERLEAVINGS)], [promise])


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
