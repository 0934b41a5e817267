"""Facts of what was said before anybody asked for facts."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import threading
from datetime import date, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_memory_ext import (
    Backfilled,
    MemoryStore,
    SessionOwnerError,
    StoreError,
)
from llama_index_memory_ext.learning.batch import batch_end
from tests.conversation import assistant, user
from tests.learning.learning import (
    Learns,
    contents,
    extractions,
    learner,
    likes,
    poisoned,
    talk,
)
from tests.memories import OpenMemory
from tests.openai_server import Message, fail

OUT_OF_ORDER = fail(500, "out of order")


async def tell(store: MemoryStore, session_id: str, *words: str) -> None:
    await store.add_messages(session_id, talk(*words))


def set_day(database_uri: str, session_id: str, first_id: int, day: date) -> None:
    """Say of the rows from an id on that they were written on another day."""
    noon = datetime(day.year, day.month, day.day, 12, tzinfo=timezone.utc)
    with sqlite3.connect(database_uri.partition("///")[2]) as connection:
        connection.execute(
            "UPDATE llama_index_memory SET timestamp = ? + id WHERE key = ? AND id >= ?",
            (int(noon.timestamp()) * 10**9, session_id, first_id),
        )
    connection.close()


async def test_a_plain_memorys_history_is_read_once(
    any_database_uri: str | None, learns: Learns
) -> None:
    """Its newest turns too, which are still active; even where no facts are extracted otherwise."""
    memory, server = learns(
        session_id="old", extract_facts=False, async_database_uri=any_database_uri
    )
    await tell(memory.sql_store, "old", "tea", "rain")
    assert await memory.abackfill() == Backfilled(sessions=1, messages=4, new=2)
    assert await contents(memory) == ["Likes rain", "Likes tea"]
    assert [fact.session_id for fact in await memory.facts.alist()] == ["old", "old"]
    assert await memory.abackfill() == Backfilled(sessions=1)
    assert likes(server.requests) == [["tea", "rain"]]
    await tell(memory.sql_store, "old", "snow")
    assert await memory.abackfill() == Backfilled(sessions=1, messages=2, new=1)
    await memory.aclose()
    assert likes(server.requests) == [["tea", "rain"], ["snow"]]


async def test_all_sessions_of_the_user_are_read_the_oldest_first(
    open_memory: OpenMemory, learns: Learns
) -> None:
    """Those too in which no facts were extracted on purpose; and not those of others."""
    for session_id, user_id in (("b", "ann"), ("a", "ann"), ("c", "bob")):
        memory = open_memory(session_id, user_id=user_id, extract_facts=False)
        await memory.aput_messages(talk(f"{session_id}1", f"{session_id}2"))
    memory, server = learns(session_id="new")
    assert await memory.abackfill() == Backfilled(sessions=3, messages=8, new=4)
    assert likes(server.requests) == [["b1", "b2"], ["a1", "a2"]]
    assert await contents(open_memory("c", user_id="bob")) == []


async def test_the_sessions_that_are_named_become_the_users_in_their_order(
    learns: Learns,
) -> None:
    memory, server = learns(session_id="new")
    for session_id in ("a", "b", "c"):
        await tell(memory.sql_store, session_id, session_id)
    assert await memory.abackfill(["c", "a", "c"]) == Backfilled(
        sessions=2, messages=4, new=2
    )
    assert likes(server.requests) == [["c"], ["a"]]
    assert await contents(memory) == ["Likes a", "Likes c"]
    assert await memory.abackfill([]) == Backfilled()


@pytest.mark.parametrize(
    ("session_ids", "complaint"),
    [
        (["a", "nobody's"], 'There is no session "nobody\'s" in this database'),
        (["a", 7], "There is no session 7"),
        ("a", "a list of session ids; got str"),
        (7, "a list of session ids; got int"),
    ],
)
async def test_a_session_that_does_not_exist_is_named_before_a_model_is_asked(
    session_ids: list[str], complaint: str, learns: Learns
) -> None:
    memory, server = learns(session_id="new")
    await tell(memory.sql_store, "a", "tea")
    with pytest.raises(StoreError, match=re.escape(complaint)):
        await memory.abackfill(session_ids)
    assert server.requests == []


async def test_a_session_of_another_user_is_refused_before_a_model_is_asked(
    learns: Learns,
) -> None:
    bob, _ = learns(session_id="bob's", user_id="bob")
    await bob.aput_messages(talk("tea"))
    memory, server = learns(session_id="new")
    with pytest.raises(SessionOwnerError):
        await memory.abackfill(["bob's"])
    assert server.requests == []


async def test_a_session_that_the_user_shares_is_read(learns: Learns) -> None:
    """As without a list of sessions."""
    for name in ("bob", "ann"):
        team, server = learns(session_id="team", user_id=name, shared=True)
        await team.aput_messages(talk(name))
    memory, server = learns(session_id="new", user_id="ann")
    await memory.abackfill(["team"])
    assert likes(server.requests) == [["ann"]]


async def test_messages_without_a_question_are_left_behind_without_a_request(
    learns: Learns,
) -> None:
    memory, server = learns(session_id="new", user_id=None)
    await memory.sql_store.add_messages("new", [assistant("Hello!")])
    assert await memory.abackfill() == Backfilled(sessions=1, messages=1)
    assert await memory.abackfill() == Backfilled(sessions=1)
    assert server.requests == []


async def test_a_session_that_fails_does_not_stop_the_others(
    learns: Learns, caplog: pytest.LogCaptureFixture
) -> None:
    """And is gone on with where it stopped."""
    memory, server = learns(poisoned(OUT_OF_ORDER, "wine"), "new")
    for session_id, word in (("a", "tea"), ("b", "wine"), ("c", "rain")):
        await tell(memory.sql_store, session_id, word)
    done = await memory.abackfill(["a", "b", "c"])
    assert done == Backfilled(
        sessions=2, messages=4, new=2, failed={"b": "InternalServerError"}
    )
    assert "session 'b', InternalServerError" in caplog.text
    assert "wine" not in caplog.text + repr(done)
    assert likes(server.requests)[-1] == ["rain"]
    again = learns(session_id="new")[0]
    assert await again.abackfill(["a", "b", "c"]) == Backfilled(
        sessions=3, messages=2, new=1
    )
    assert await contents(again) == ["Likes rain", "Likes tea", "Likes wine"]


async def test_failures_that_are_not_in_a_row_do_not_end_it(learns: Learns) -> None:
    memory, _ = learns(poisoned(OUT_OF_ORDER, "wine"), "new")
    words = ("tea", "wine", "rain", "wine", "snow", "wine", "milk")
    for session_id, word in zip("abcdefg", words, strict=True):
        await tell(memory.sql_store, session_id, word)
    done = await memory.abackfill(["a", "b", "c", "d", "e", "f", "g"])
    assert (list(done.failed), done.not_tried) == (["b", "d", "f"], ())


async def test_after_three_failures_in_a_row_the_rest_is_not_tried(
    learns: Learns,
) -> None:
    memory, server = learns(lambda messages, tools: fail(401, "no such key"), "new")
    sessions = [f"s{i}" for i in range(10)]
    for session_id in sessions:
        await tell(memory.sql_store, session_id, "tea")
    done = await memory.abackfill(sessions)
    assert done.failed == dict.fromkeys(sessions[:3], "AuthenticationError")
    assert done.not_tried == tuple(sessions[3:])
    assert (done.sessions, done.messages, len(server.requests)) == (0, 0, 3)


async def test_a_person_who_is_forgotten_meanwhile_stays_forgotten(
    open_memory: OpenMemory, learns: Learns
) -> None:
    asked, loop, may_answer = (
        asyncio.Event(),
        asyncio.get_running_loop(),
        threading.Event(),
    )

    def model(messages: list[Message], tools: list[str]) -> Message:
        loop.call_soon_threadsafe(asked.set)
        may_answer.wait(20)
        return learner(messages, tools)

    memory, other = learns(model, extract_facts=False)[0], open_memory(user_id="ann")
    await memory.aput_messages(talk("tea", "rain"))
    task = asyncio.create_task(memory.abackfill())
    await asked.wait()
    await other.aforget()
    may_answer.set()
    assert (await task).new == 0
    assert await contents(memory) == []
    assert await memory.sql_store.sessions() == []


async def test_two_at_once_ask_once(open_memory: OpenMemory, learns: Learns) -> None:
    first, server = learns()
    second = open_memory(user_id="ann", llm=first.facts_block.llm)
    await tell(first.sql_store, "chat", "tea", "rain")
    done = await asyncio.gather(first.abackfill(), second.abackfill())
    assert sorted(one.new for one in done) == [0, 2]
    assert await contents(first) == ["Likes rain", "Likes tea"]
    assert len(likes(server.requests)) == 1


async def test_what_was_said_on_another_day_is_read_as_of_that_day(
    database_uri: str, learns: Learns
) -> None:
    """One request for each day; a fact is as old as its words."""
    memory, server = learns(session_id="old", extract_facts=False)
    await tell(memory.sql_store, "old", "tea", "rain", "snow")
    set_day(database_uri, "old", 1, date(2024, 2, 28))
    set_day(database_uri, "old", 5, date(2024, 3, 1))
    assert (await memory.abackfill()).messages == 6
    assert likes(server.requests) == [["tea", "rain"], ["snow"]]
    days = [
        re.findall(r"messages are of (\w+, [\d-]+)", text)
        for text in extractions(server.requests)
    ]
    assert days == [["Wednesday, 2024-02-28"], ["Friday, 2024-03-01"]]
    learned = {
        fact.content: fact.created_at.date() for fact in await memory.facts.alist()
    }
    first, second = date(2024, 2, 28), date(2024, 3, 1)
    assert learned == {"Likes snow": second, "Likes rain": first, "Likes tea": first}
    # Beside a profile, facts are left out whose messages the record shows.
    memory.facts_block.profile_token_limit = 0
    await memory.aput(user("What do I like?"))
    assert '<fact date="2024-03-01">Likes snow</fact>' in str(
        (await memory.aget())[0].content
    )


async def test_an_old_conversation_retires_nothing_that_was_learned_later(
    database_uri: str, learns: Learns
) -> None:
    """It is not shown to the model; but said in the same words it is not stored a second time."""
    memory, server = learns(session_id="old", extract_facts=False)
    then = datetime(2020, 1, 1, tzinfo=timezone.utc)
    known = await memory.facts.aadd("Likes tea", confidence=0.8)
    await memory.facts.aadd("Likes tea from Assam", created_at=then, updated_at=then)
    await tell(memory.sql_store, "old", "tea")
    set_day(database_uri, "old", 1, date(2024, 2, 28))
    assert await memory.abackfill() == Backfilled(sessions=1, messages=2, confirmed=1)
    shown = extractions(server.requests)[0].split("</known_facts>")[0]
    assert "1. Likes tea from Assam\n" in shown
    assert "2." not in shown
    surer = {fact.id: fact for fact in await memory.facts.alist()}[known.id]
    assert surer.confidence > known.confidence
    assert surer.updated_at == known.updated_at


async def test_no_conversation_is_one_of_tomorrow(
    database_uri: str, learns: Learns
) -> None:
    """Where the clock was ahead, today's day counts."""
    memory, server = learns(extract_facts=False)
    await tell(memory.sql_store, "chat", "tea")
    set_day(
        database_uri, "chat", 1, datetime.now(timezone.utc).date() + timedelta(days=3)
    )
    await memory.abackfill()
    (text,) = extractions(server.requests)
    assert f"{datetime.now(timezone.utc):%A, %Y-%m-%d}" in text
    (fact,) = await memory.facts.alist()
    assert fact.created_at <= datetime.now(timezone.utc)


ROWS = st.lists(
    st.tuples(st.booleans(), st.integers(0, 60), st.integers(1, 3)), max_size=12
)


@given(ROWS)
def test_batches_hold_whole_turns_of_one_day_and_no_more_than_fits(
    rows: list[tuple[bool, int, int]],
) -> None:
    """But for a turn that is too long by itself; every message is in exactly one."""
    days_in_order = sorted(day for _, _, day in rows)
    left = [
        (starts, tokens, day)
        for (starts, tokens, _), day in zip(rows, days_in_order, strict=True)
    ]
    assert batch_end([], [], [], token_limit=100, most_turns=None) == 0
    while left:
        starts, tokens, days = zip(
            *[(one[0], one[1], date(2024, 1, one[2])) for one in left], strict=True
        )
        end = batch_end(starts, tokens, days, token_limit=100, most_turns=None)
        batch, left = left[:end], left[end:]
        assert batch
        assert len({day for begins, _, day in batch if begins}) <= 1
        assert not left or left[0][0]
        if sum(one[1] for one in batch) > 100:
            assert sum(begins for begins, _, _ in batch) <= 1
