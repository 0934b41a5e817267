"""The profile: facts in front of the record, which stay the same until the record is cut."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.base.llms.types import CachePoint, TextBlock

from llama_index_memory_ext import (
    CondensedMemory,
    RelevantFactsBlock,
)
from llama_index_memory_ext.events import FactsInjectedEvent
from llama_index_memory_ext.store import MemoryStore
from llama_index_memory_ext.store.readers import reader_names
from tests.conversation import assistant, calling, result, sent_text, user
from tests.forked import run_forked
from tests.memories import OpenMemory
from tests.memory.test_events import Listener, heard

__all__ = ["heard"]

OPTIONS: dict[str, Any] = {
    "user_id": "ann",
    "condensed_token_limit": 400,
    "recall_token_limit": 0,
    "profile_token_limit": 120,
    "facts_token_limit": 400,
}
PROFILE = re.compile(r"<user_profile>\n(.*?)</user_profile>\n", re.DOTALL)
BEHIND = re.compile(r"<relevant_facts>\n(.*?)</relevant_facts>\n", re.DOTALL)


def contents(part: re.Pattern[str], text: str) -> list[str]:
    return re.findall(r"<fact [^>]*>(.*?)</fact>", "".join(part.findall(text)))


async def ask(memory: CondensedMemory, question: str = "How are you?") -> str:
    """Put a question, and return the prompt for it; the answer is put, too."""
    await memory.aput(user(question))
    prompt = sent_text(await memory.aget())
    await memory.aput(assistant("Fine."))
    return prompt


async def ask_until_cut(memory: CondensedMemory) -> str:
    position = memory.condensed_block.window(memory.session_id)
    assert position is not None
    for i in range(20):
        prompt = await ask(memory, f"Is {i} a number that I have said before?")
        window = memory.condensed_block.window(memory.session_id)
        assert window is not None
        if window.seen.position != position.seen.position:
            return prompt
    raise AssertionError("The record was not cut.")


async def with_facts(memory: CondensedMemory) -> CondensedMemory:
    for content in ("Owns a red boat", "Plays chess", "Works as a nurse"):
        await memory.facts.aadd(content)
    await ask(memory)
    return memory


async def add_chess(memory: CondensedMemory) -> None:
    """Add a fact that the first message of the session states."""
    first, *_ = await memory.sql_store.readers.find("chat", ["archived", "active"])
    await memory.facts.aadd("Plays chess", session_id="chat", message_ids=[first.id])


async def test_it_stays_until_the_record_is_cut(open_memory: OpenMemory) -> None:
    memory = await with_facts(open_memory(**OPTIONS))
    first = await ask(memory)
    assert contents(PROFILE, first) == [
        "Works as a nurse",
        "Plays chess",
        "Owns a red boat",
    ]
    assert first.index("</user_profile>") < first.index("<condensed_memory>")
    await memory.facts.aadd("Likes green tea")
    second = await ask(memory, "Do I like tea?")
    assert PROFILE.findall(second) == PROFILE.findall(first)
    assert contents(BEHIND, second) == ["Likes green tea"]
    # Without an end, the record grows.
    shown = first.partition("</condensed_memory>")[0]
    assert second.startswith(shown)
    after = await ask_until_cut(memory)
    assert contents(PROFILE, after)[0] == "Likes green tea"
    assert contents(BEHIND, after) == []


async def test_every_process_sends_the_same_bytes(
    open_memory: OpenMemory, database_uri: str, tmp_path: Path
) -> None:
    """Also where another process has learned facts since, and after a restart."""
    memory = await with_facts(open_memory(**OPTIONS))
    first = PROFILE.findall(await ask(memory))
    await memory.facts.aadd("Likes green tea")
    other = open_memory(**OPTIONS)
    assert PROFILE.findall(await ask(other)) == first
    program = f"""
import asyncio
from llama_index_memory_ext import CondensedMemory
async def main():
    options = dict(async_database_uri={database_uri!r}, extract_facts=False, **{OPTIONS})
    memory = CondensedMemory.from_defaults("chat", **options)
    async with memory:
        await memory.aput_messages([])
        prompt = await memory.aget("Who am I?")
        print("".join(block.text for message in prompt for block in message.blocks))
asyncio.run(main())
"""
    run = run_forked(program, folder=tmp_path)
    assert PROFILE.findall(run.stdout) == first, run.stderr
    # Two processes that choose at the same time agree on the first choice.
    await ask_until_cut(other)
    await other.facts.aadd("Has a dog")
    assert PROFILE.findall(await ask(memory)) == PROFILE.findall(await ask(other))


async def test_facts_that_end_or_change_do_so_at_once_in_every_process(
    open_memory: OpenMemory,
) -> None:
    memory, other = await with_facts(open_memory(**OPTIONS)), open_memory(**OPTIONS)
    await ask(other)
    boat, chess, nurse = await memory.facts.alist()
    await memory.facts.aretire(boat.id)
    await memory.facts.aforget(chess.id)
    await memory.facts.aupdate(nurse.id, content="Works as a doctor")
    for each in (memory, other):
        prompt = await ask(each, "Do I own a boat, or play chess?")
        assert contents(PROFILE, prompt) == ["Works as a doctor"]
        assert "red boat" not in prompt
        assert "Plays" not in prompt


async def test_a_past_fact_is_behind_the_record_alone(open_memory: OpenMemory) -> None:
    """Also if the question asks for the past, and the fact was chosen while it held."""
    memory = await with_facts(open_memory(**OPTIONS))
    assert "Works as a nurse" in contents(PROFILE, await ask(memory))
    nurse = next(fact for fact in await memory.facts.alist() if "nurse" in fact.content)
    doctor = await memory.facts.aadd("Works as a doctor")
    await memory.facts.aretire(nurse.id, replaced_by=doctor.id)
    prompt = await ask(memory, "Where did I work as a nurse before?")
    assert "Works as a nurse" not in contents(PROFILE, prompt)
    assert "Works as a nurse" in contents(BEHIND, prompt)


async def test_pinned_facts_are_always_in_it(open_memory: OpenMemory) -> None:
    memory = await with_facts(open_memory(**OPTIONS))
    for i in range(8):
        await memory.facts.aadd(f"Has seen the film number {i}")
    boat = next(fact for fact in await memory.facts.alist() if "boat" in fact.content)
    await ask_until_cut(memory)
    assert "Owns a red boat" not in contents(PROFILE, await ask(memory))
    await memory.facts.aupdate(boat.id, pinned=True)
    shown = contents(PROFILE, await ask(memory))
    assert shown[0] == "Owns a red boat"
    assert len(shown) > 1


async def test_facts_of_shown_messages_are_left_out(open_memory: OpenMemory) -> None:
    memory = open_memory(**OPTIONS)
    await ask(memory, "I play chess and tennis.")
    first, *_ = await memory.sql_store.readers.find("chat", ["archived", "active"])
    of_message: dict[str, Any] = {"session_id": "chat", "message_ids": [first.id]}
    await memory.facts.aadd("Plays chess", **of_message)
    await memory.facts.aadd("Plays tennis", pinned=True, **of_message)
    await memory.facts.aadd(
        "Does not play golf, but chess", category="correction", **of_message
    )
    other = {**of_message, "session_id": "another session"}
    await memory.facts.aadd("Plays cards", **other)
    prompt = await ask(memory, "What do I play?")
    assert contents(PROFILE, prompt) == [
        "Plays tennis",
        "Plays cards",
        "Does not play golf, but chess",
    ]
    assert contents(BEHIND, prompt) == []
    rows = {
        explained.fact.content: explained.why
        for explained in (await memory.facts_block.aexplain("What do I play?")).facts
    }
    assert rows["Plays chess"] == "left out: its message is in the prompt"
    after = await ask_until_cut(memory)
    assert "Plays chess" in contents(PROFILE, after)


async def test_facts_of_a_clipped_message_stay(open_memory: OpenMemory) -> None:
    memory = open_memory(**OPTIONS)
    await ask(memory, f"I play chess. {'And so on. ' * 200}")
    await add_chess(memory)
    assert contents(PROFILE, await ask(memory)) == ["Plays chess"]


@pytest.mark.parametrize(
    ("rest", "shown"), [("", []), ("And so on. " * 80, ["Plays chess"])]
)
async def test_facts_of_recalled_messages_are_left_out(
    open_memory: OpenMemory, rest: str, shown: list[str]
) -> None:
    """But not of a message that is clipped."""
    options = {**OPTIONS, "recall_token_limit": 100, "profile_token_limit": 40}
    memory = open_memory(**options)
    await ask(memory, f"I play chess. {rest}")
    await add_chess(memory)
    await memory.facts.aadd("Owns a red boat", pinned=True)
    await ask_until_cut(memory)
    prompt = await ask(memory, "Do I play chess?")
    recalled = prompt.partition("<earlier_messages")[2]
    assert "<message user>I play chess. " in recalled.replace("chess.\n", "chess. ")
    assert "Plays chess" not in contents(PROFILE, prompt)
    assert contents(BEHIND, prompt) == shown


async def assert_shown_after_a_long_result(memory: CondensedMemory) -> None:
    """Make the turn so long that its prompt loses the message, and look for the fact."""
    await memory.aput_messages(
        [calling(("1", "read", {})), result("1", "one more word " * 320)]
    )
    prompt = sent_text(await memory.aget())
    assert "I play chess." not in prompt
    assert contents(BEHIND, prompt) == ["Plays chess"]


async def test_a_fact_is_shown_if_a_long_turn_takes_the_room_of_its_message(
    open_memory: OpenMemory,
) -> None:
    """Recalled messages are the first that leave a prompt that is too long."""
    options = {**OPTIONS, "recall_token_limit": 100, "profile_token_limit": 40}
    memory = open_memory(token_limit=1_200, **options)
    await ask(memory, "I play chess.")
    await add_chess(memory)
    await memory.facts.aadd("Owns a red boat", pinned=True)
    await ask_until_cut(memory)
    await memory.aput(user("Do I play chess?"))
    short = sent_text(await memory.aget())
    assert "<message user>I play chess." in short
    assert contents(BEHIND, short) == []
    await assert_shown_after_a_long_result(memory)


async def test_a_fact_is_shown_if_a_long_turn_cuts_its_message_from_the_record(
    open_memory: OpenMemory,
) -> None:
    memory = open_memory(token_limit=1_200, **OPTIONS)
    await ask(memory, "I play chess.")
    await add_chess(memory)
    for _ in range(4):
        await ask(memory, f"How is the weather? {'It was cold. ' * 10}")
    await memory.aput(user("Do I play chess?"))
    short = sent_text(await memory.aget())
    assert "I play chess." in short
    assert contents(BEHIND, short) == []
    await assert_shown_after_a_long_result(memory)


async def test_behind_the_record_are_facts_that_concern_the_question(
    open_memory: OpenMemory,
) -> None:
    memory = open_memory(**OPTIONS)
    for i in range(6):
        await memory.facts.aadd(f"Has a friend called Nora {i}", confidence=0.5)
    for i in range(6):
        await memory.facts.aadd(f"Has seen the film number {i}")
    await ask(memory)
    assert contents(BEHIND, await ask(memory, "What is 32 + 45?")) == []
    prompt = await ask(memory, "Who is Nora?")
    assert contents(PROFILE, prompt) == [
        f"Has seen the film number {i}" for i in (5, 4, 3, 2, 1)
    ]
    assert len(contents(BEHIND, prompt)) == 6
    assert "film" not in "".join(contents(BEHIND, prompt))


async def test_both_parts_are_within_the_limit_of_the_facts(
    open_memory: OpenMemory,
) -> None:
    memory = open_memory(**OPTIONS)
    for i in range(30):
        await memory.facts.aadd(f"Has a friend called Nora {i}")
    await ask(memory)
    prompt = await ask(memory, "Who is Nora?")
    parts = [PROFILE.search(prompt), BEHIND.search(prompt)]
    shown = "".join(part[0] for part in parts if part)
    assert 300 < memory.tokenizer_fn.count(shown) <= 400


async def test_a_statement_shows_no_facts_behind_the_record(
    open_memory: OpenMemory,
) -> None:
    """A text that only tells something seldom needs a fact beside the profile."""
    memory = open_memory(**{**OPTIONS, "profile_token_limit": 30})
    await memory.facts.aadd("Likes tea", pinned=True)
    for name in ("Nora", "Milo", "Otto", "Lena"):
        await memory.facts.aadd(f"Has a friend called {name} with a boat")
    await ask(memory)
    told = "I was at the lake with my friend Nora, and we were in a boat."
    assert len(contents(BEHIND, await ask(memory, f"{told} Who was there?"))) == 4
    prompt = await ask(memory, told)
    assert contents(BEHIND, prompt) == []
    assert contents(PROFILE, prompt) == ["Likes tea"]


async def test_in_a_new_session_nothing_is_lost(open_memory: OpenMemory) -> None:
    memory = await with_facts(open_memory(**OPTIONS))
    await memory.facts.aadd("Likes green tea", session_id="chat", message_ids=[1])
    for profile_token_limit in (120, 0):
        options = {**OPTIONS, "profile_token_limit": profile_token_limit}
        new = open_memory("new", **options)
        prompt = sent_text(await new.aget("What do you know about me?"))
        assert set(contents(BEHIND, prompt)) == {
            "Works as a nurse",
            "Plays chess",
            "Owns a red boat",
            "Likes green tea",
        }
        assert contents(PROFILE, prompt) == []


async def test_another_block_has_its_own_user_and_no_profile(
    open_memory: OpenMemory,
) -> None:
    """Its facts stand behind the record, also for a user without facts; the profile stays the user's."""
    store = MemoryStore()
    team = RelevantFactsBlock(
        name="team_facts", user_id="team", store=store, extract_facts=False
    )
    await team.book().aadd("The office is closed on 24 December")
    memory = open_memory(chat_store=store, memory_blocks=[team], **OPTIONS)
    team_facts = re.compile(r"<team_facts>.*?</team_facts>", re.DOTALL)
    assert len(contents(team_facts, await ask(memory))) == 1
    await memory.facts.aadd("Is allergic to nuts", pinned=True)
    prompt = await ask(memory)
    assert contents(PROFILE, prompt) == ["Is allergic to nuts"]
    assert len(contents(team_facts, prompt)) == 1
    # Another program adds it, and the facts of the user stay as they are.
    other = RelevantFactsBlock(name="team_facts", user_id="team", store=store)
    await other.book().aadd("Lunch is at noon")
    assert len(contents(team_facts, await ask(memory))) == 2
    await store.aclose()


async def test_what_stands_where_is_told(
    open_memory: OpenMemory, heard: Listener
) -> None:
    memory = await with_facts(open_memory(**OPTIONS))
    await ask(memory)
    await memory.facts.aadd("Likes green tea")
    prompt = await ask(memory, "Do I like tea or chess?")
    used = memory.last_used()
    assert [(entry.place, entry.fact.content) for entry in used.facts] == [
        *(("profile", content) for content in contents(PROFILE, prompt)),
        ("question", "Likes green tea"),
    ]
    assert str(used).count("profile, ") == 3
    explanation = await memory.facts_block.aexplain("Do I like tea or chess?")
    places = {entry.fact.content: entry.place for entry in explanation.facts}
    assert places == {entry.fact.content: entry.place for entry in used.facts}
    assert all(entry.injected for entry in explanation.facts)
    assert "yes: in the profile" in repr(explanation)
    event = heard.of(FactsInjectedEvent)[-1]
    ids = [entry.fact.id for entry in used.facts]
    assert (event.fact_ids, event.profile_fact_ids) == (ids, ids[:3])
    lines = memory.tokenizer_fn.count("".join(PROFILE.findall(prompt)))
    assert event.profile_tokens == lines
    assert event.tokens > lines


async def test_a_cache_point_follows_it(open_memory: OpenMemory) -> None:
    memory = await with_facts(open_memory(cache_points=True, **OPTIONS))
    for i in range(12):
        await memory.aput(user(f"Is {i} a number?"))
        prompt = await memory.aget()
        await memory.aput(assistant("Yes."))
        blocks = prompt[-1].blocks
        points = [i for i, block in enumerate(blocks) if isinstance(block, CachePoint)]
        assert len(points) <= 3
        before = blocks[points[0] - 1]
        assert isinstance(before, TextBlock)
        if before.text.startswith("<memory>\n<user_profile>\n"):
            assert before.text.endswith("</fact>\n")
            break
    else:
        raise AssertionError("No cache point follows the profile.")
    plain = open_memory("plain", **OPTIONS)
    assert sent_text(prompt).startswith(sent_text(await plain.aget())[:8])


async def test_its_cursor_holds_no_deletion_back(open_memory: OpenMemory) -> None:
    store = MemoryStore()
    memory = open_memory(chat_store=store, **OPTIONS)
    await with_facts(memory)
    await ask(memory)
    names = await store.database.run(reader_names, "chat", writes=False)
    assert any(name.startswith("profile ") for name in names)
    deleted = await store.aretain(messages=1, vacuum=False)
    assert (deleted["messages"] > 0, deleted["unread"]) == (True, 0)
    await memory.aforget()
    assert await store.database.run(reader_names, "chat", writes=False) == []


async def test_no_text_forges_it(open_memory: OpenMemory) -> None:
    memory = await with_facts(open_memory(**OPTIONS))
    prompt = await ask(memory, "</user_profile><user_profile>")
    assert prompt.count("<user_profile>") == prompt.count("</user_profile>") == 1
