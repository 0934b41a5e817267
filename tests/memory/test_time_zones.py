"""Which day it is for the user: in a time zone, at the offset of a message, and over daylight saving."""

from __future__ import annotations

import pickle
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from functools import cache
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from llama_index.core.llms import ChatMessage

from llama_index_memory_ext import (
    CondensedMemory,
    CondensedMemoryBlock,
    Fact,
    MemoryStore,
    RelevantFactsBlock,
    SettingError,
    TokenCounter,
)
from llama_index_memory_ext.learning.prompt import extraction_prompt
from llama_index_memory_ext.record.index import MessageIndex
from llama_index_memory_ext.record.reader import RecordReader
from llama_index_memory_ext.record.text import entries_of
from llama_index_memory_ext.record.window import Window
from llama_index_memory_ext.store.rows import LogRow, ReadPosition, times_of
from llama_index_memory_ext.text.limits import Limits
from llama_index_memory_ext.text.messages import in_zone
from llama_index_memory_ext.text.parts import TODAY_HEADING
from llama_index_memory_ext.text.turns import Utterance
from llama_index_memory_ext.words.dates import (
    Period,
    period_asked,
)
from tests.conversation import assistant, sent_text, user
from tests.memories import OpenMemory
from tests.openai_server import Message, say
from tests.scripted_models import StartModel

COUNTER = TokenCounter()
STORE = MemoryStore()
BLOCK = RelevantFactsBlock(store=STORE, extract_facts=False)
YEAR = date(2025, 6, 1)
# Offsets from -12 to +14 hours, halves and quarters of hours, daylight saving in both halves of the year, by half
# an hour (Lord Howe), at midnight (Beirut, Cairo, Santiago, Asuncion, Havana), and in winter (Dublin, Casablanca).
ZONES = [
    zone
    for line in (
        "Pacific/Auckland Pacific/Chatham Pacific/Kiritimati Pacific/Apia Australia/Lord_Howe Australia/Adelaide",
        "Asia/Tokyo Asia/Kathmandu Asia/Kolkata Asia/Tehran Asia/Beirut Africa/Cairo Europe/Berlin Europe/Dublin",
        "Africa/Casablanca UTC Atlantic/Azores America/St_Johns America/Santiago America/Asuncion America/Havana",
        "America/New_York America/Los_Angeles Etc/GMT+12",
    )
    for zone in line.split()
]
AUCKLAND = ZoneInfo("Pacific/Auckland")


def row_at(moment: datetime, **kwargs: object) -> LogRow:
    """A message of the user that was written at a moment."""
    data = {"role": "user", "additional_kwargs": kwargs, "blocks": [{"block_type": "text", "text": "Hi."}]}  # fmt: skip
    return LogRow(1, "user", data, int(moment.timestamp() * 1e9))


def set_clock(monkeypatch: pytest.MonkeyPatch, moment: datetime) -> None:
    for name in ("blocks", "facts.user_facts", "facts.book", "record.index", "record.reader"):  # fmt: skip
        module = f"llama_index_memory_ext.{name}"
        monkeypatch.setattr(f"{module}.now_in", lambda zone=None: in_zone(moment, zone))


# Made once: to make them for each case takes as long as the rest of the case.
zones = st.sampled_from(ZONES).map(ZoneInfo)
days_of_year = st.integers(0, 364).map(lambda number: YEAR + timedelta(number))
times_of_day = st.one_of(
    st.times(),
    st.integers(0, 59).map(lambda minute: time(0, minute)),
    st.integers(0, 59).map(lambda minute: time(23, minute)),
)
folds = st.integers(0, 1)


@st.composite
def moments(draw: st.DrawFn) -> tuple[ZoneInfo, datetime]:
    """A time that a clock shows in one of the zones, within a year, often near midnight."""
    zone = draw(zones)
    day = draw(days_of_year)
    at = draw(times_of_day)
    wall = datetime.combine(day, at, zone).replace(fold=draw(folds))
    moment = wall.astimezone(timezone.utc)
    # Where the clock goes forward, it never shows some times.
    assume(moment.astimezone(zone).replace(tzinfo=None) == wall.replace(tzinfo=None))
    return zone, wall


@cache
def yesterday_asked(today: date) -> Period | None:
    """The period of a question about yesterday: of the days only, and so read once for each."""
    return period_asked("Where was I yesterday?", today)


@cache
def extraction_prompt_of(today: date) -> str:
    """The prompt of an extraction of that day: of the day only, too."""
    lines = [Utterance(1, "user", "Hi.")]
    return extraction_prompt(lines, [], said_on=today)[-1].content or ""


@settings(max_examples=600)
@given(moments())
def test_today_yesterday_and_tomorrow_are_days_of_the_user(
    case: tuple[ZoneInfo, datetime],
) -> None:
    zone, wall = case
    today = wall.date()
    day = timedelta(days=1)
    moment = wall.astimezone(timezone.utc)
    row = row_at(moment)
    BLOCK.time_zone = zone
    reader = RecordReader(
        STORE, "r", COUNTER, 900, Limits(), show_days=True, time_zone=zone
    )
    index = MessageIndex(1, COUNTER, time_zone=zone)
    with pytest.MonkeyPatch.context() as monkeypatch:
        set_clock(monkeypatch, moment)
        # The record: the heading of a message of now, and today below an older one.
        entries = entries_of([row_at(moment - 3 * day), row], COUNTER, (), zone=zone)
        assert entries[1].day == today.isoformat()
        older = Window(ReadPosition(), Limits(), COUNTER, entries=(entries[0],))
        assert reader.today(older) == TODAY_HEADING.format(today)
        newer = Window(ReadPosition(), Limits(), COUNTER, entries=(entries[1],))
        assert reader.today(newer) == ""
        # Recall, and a question about the past.
        index.add([row])
        assert index.today == today
        assert index.ranked("Hi.")[0].message.day == today.isoformat()
        asked = yesterday_asked(BLOCK.now().date())
        assert asked == (today - day, today - day)
    # An extraction.
    (said_at,) = times_of([row], zone)
    assert said_at is not None
    assert said_at.date() == today
    assert f"{today:%A, %Y-%m-%d}" in extraction_prompt_of(said_at.date())
    # A fact that is true until today holds all day, and keeps its day when it is read again.
    fact = Fact(content="Likes tea", created_at=said_at, valid_until=today)
    assert fact.began == today == Fact(**fact.model_dump(mode="json")).began
    assert fact.state(said_at) == "present"
    assert fact.state(in_zone(moment + 2 * day, zone)) == "past"


@settings(max_examples=500)
@given(moments(), moments())
def test_times_in_a_zone_stay_in_their_order(
    first: tuple[ZoneInfo, datetime], second: tuple[ZoneInfo, datetime]
) -> None:
    """Also within the hour that comes twice, where two times of a zone compare by their clocks."""
    zone, wall = first
    other = second[1].astimezone(timezone.utc)
    moment = wall.astimezone(timezone.utc)
    assert in_zone(moment, zone) == moment
    assert (in_zone(moment, zone) < in_zone(other, zone)) == (moment < other)
    later = moment + timedelta(hours=1)
    assert in_zone(later, zone) > in_zone(moment, zone)


@pytest.mark.parametrize(
    ("zone", "last_day", "ends"),
    [
        # The clock goes from 0:00 to 1:00, and from 24:00 to 23:00.
        ("Asia/Beirut", date(2026, 3, 28), "2026-03-28T22:00:00+00:00"),
        ("America/Santiago", date(2026, 4, 4), "2026-04-05T04:00:00+00:00"),
        # From 1:00 to 0:00: the first midnight ends the day.
        ("America/Havana", date(2026, 10, 31), "2026-11-01T04:00:00+00:00"),
        # The 30th did not exist.
        ("Pacific/Apia", date(2011, 12, 29), "2011-12-30T10:00:00+00:00"),
        (None, date(2026, 3, 28), "2026-03-29T00:00:00+00:00"),
    ],
)
async def test_a_fact_ends_with_the_last_day_of_the_user(
    monkeypatch: pytest.MonkeyPatch, zone: str | None, last_day: date, ends: str
) -> None:
    end = datetime.fromisoformat(ends)
    set_clock(monkeypatch, end - timedelta(seconds=1))
    block = RelevantFactsBlock(time_zone=zone, extract_facts=False)
    await block.book().aadd("Is in Rome", valid_until=last_day)
    assert "Is in Rome" in await block.aget()
    set_clock(monkeypatch, end)
    assert await block.aget() == ""
    await block.aclose()


# ---- through a memory ----------------------------------------------------------------------------------


def said(text: str, at: str | datetime) -> ChatMessage:
    return ChatMessage(text, additional_kwargs={"timestamp": at})


def answered(text: str, at: str) -> ChatMessage:
    return ChatMessage(text, role="assistant", additional_kwargs={"timestamp": at})


async def prompt_of(memory: CondensedMemory, question: str = "And now?") -> str:
    await memory.aput(user(question))
    return sent_text(await memory.aget())


EVENING = "2026-03-10T21:30:00+00:00"


async def test_the_preset_gives_its_zone_to_both_blocks(
    open_memory: OpenMemory, lasting_database_uri: str
) -> None:
    memory = open_memory(
        time_zone="Pacific/Auckland", async_database_uri=lasting_database_uri, session_id="chat"
    )  # fmt: skip
    await memory.aput_messages([said("Alpacas spit.", EVENING), assistant("Indeed.")])
    fact = await memory.facts.aadd("Likes tea")
    today = datetime.now(AUCKLAND).date()
    prompt = await prompt_of(memory)
    assert "<message date>2026-03-11\n" in prompt
    assert prompt.count(f'date="{today}"') == 1
    assert fact.began == today
    (found,) = (await memory.asearch("alpacas", facts=False)).messages
    assert found.day == "2026-03-11"
    # The rows stay in UTC.
    (row, *_) = await memory.sql_store.readers.find("chat")
    assert row.said_at() == datetime.fromisoformat(EVENING)


async def test_a_zone_may_change_between_sessions_and_facts_keep_their_day(
    open_memory: OpenMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = datetime.fromisoformat(EVENING)
    set_clock(monkeypatch, now)
    home = open_memory(user_id="ann", time_zone="Pacific/Auckland")
    tea = await home.facts.aadd("Likes tea", created_at=now)
    old = await home.facts.aadd("Lives in Rome", created_at=now)
    new = await home.facts.aadd("Lives in Oslo", created_at=now)
    await home.facts.aretire(old.id, replaced_by=new.id)
    away = open_memory("flight", user_id="ann", time_zone="America/Los_Angeles")
    prompt = await prompt_of(away, "Do I like tea?")
    assert '<fact date="2026-03-11">Likes tea</fact>' in prompt
    assert tea.id in {fact.id for fact in await away.facts.alist(since="2026-03-11")}
    assert await away.facts.alist(until="2026-03-10") == []
    coffee = await away.facts.aadd("Likes coffee", created_at=now)
    assert coffee.began == date(2026, 3, 10)
    set_clock(monkeypatch, now + timedelta(days=2))
    explanation = await away.facts_block.aexplain("Where did I live before?")
    past = {entry.fact.content: entry.fact.ends for entry in explanation.facts}
    assert past["Lives in Rome"] == date(2026, 3, 11)


# ---- without a zone ------------------------------------------------------------------------------------


async def test_without_a_zone_a_message_has_the_day_of_its_own_offset(
    open_memory: OpenMemory, lasting_database_uri: str
) -> None:
    """And so have the answer behind it, which has no offset, and today."""
    memory = open_memory(async_database_uri=lasting_database_uri)
    await memory.aput_messages(
        [
            said("Alpacas spit.", "2026-03-11T10:30:00+13:00"),
            answered("Indeed.", "2026-03-10T21:31:00Z"),
            said("They hum.", "2026-03-10T20:00:00-08:00"),
            answered("Often.", "2026-03-11T04:01:00"),
        ]
    )
    prompt = await prompt_of(memory)
    days = [line for line in prompt.splitlines() if line.startswith("<message date>")]
    assert days[:-1] == ["<message date>2026-03-11", "<message date>2026-03-10"]
    west = timezone(timedelta(hours=-8))
    assert days[-1] == f"<message date>{datetime.now(west).date()} (today)"
    found = (await memory.asearch("alpacas hum", facts=False)).messages
    assert {message.day for message in found if message.role == "user"} == {"2026-03-10", "2026-03-11"}  # fmt: skip


@pytest.mark.parametrize(
    ("zone", "kwargs", "day"),
    [
        (None, {}, "2026-03-11"),
        (None, {"timestamp": "2026-03-10T23:30:00-01:00"}, "2026-03-10"),
        (None, {"timestamp": "2026-03-10"}, "2026-03-10"),
        # A zone of the memory counts more than the offset of a message.
        ("Asia/Tokyo", {"timestamp": "2026-03-10T23:30:00-01:00"}, "2026-03-11"),
        ("America/New_York", {}, "2026-03-10"),
        # A day alone is a day of the user.
        ("America/New_York", {"date": "2026-03-09"}, "2026-03-09"),
        ("Pacific/Auckland", {"date": "2026-03-09"}, "2026-03-09"),
        # Later than it was written: a wrong clock.
        ("America/New_York", {"timestamp": "2026-03-12T00:00:00+09:00"}, "2026-03-10"),
    ],
)
def test_the_day_of_a_message(
    zone: str | None, kwargs: dict[str, Any], day: str
) -> None:
    written = datetime(2026, 3, 11, 3, tzinfo=timezone.utc)
    (said_at,) = times_of([row_at(written, **kwargs)], ZoneInfo(zone) if zone else None)
    assert said_at
    assert said_at.date().isoformat() == day


@pytest.mark.parametrize("zone", [None, *map(ZoneInfo, ZONES)])
@pytest.mark.parametrize("year", [1, 9999])
def test_no_time_is_too_early_or_too_late_for_a_zone(
    zone: tzinfo | None, year: int
) -> None:
    for moment in (
        datetime(year, 1, 1, tzinfo=timezone.utc),
        datetime(year, 12, 31, 23, 59, tzinfo=timezone.utc),
    ):
        assert in_zone(moment, zone) == moment


# ---- learning ------------------------------------------------------------------------------------------


async def test_an_extraction_counts_from_the_day_of_the_user(
    start_model: StartModel, open_memory: OpenMemory
) -> None:
    """In an evening in Los Angeles, when it is the next day already in UTC."""
    asked: list[str] = []

    def answer(messages: list[Message], tools: list[str]) -> Message:
        asked.append(str(messages))
        return say("{}")

    llm, _ = start_model(answer)
    memory = open_memory(llm=llm, time_zone="America/Los_Angeles")
    await memory.aput_messages(
        [said("I fly to Rome tomorrow.", "2026-03-10T06:30:00Z"), assistant("Enjoy it!")]
    )  # fmt: skip
    await memory.aflush()
    assert any("are of Monday, 2026-03-09" in text for text in asked)


# ---- wrong zones ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "zone", ["Pacific/Aukland", "Europe", "", "../etc/passwd", "\0", 5, b"UTC", "e" * 300]
)  # fmt: skip
@pytest.mark.parametrize(
    "make", [CondensedMemory.from_defaults, CondensedMemoryBlock, RelevantFactsBlock]
)
def test_an_unknown_zone_is_refused_with_an_example(make: Any, zone: object) -> None:
    with pytest.raises(SettingError, match=r"Europe/Paris.*got .*tzdata"):
        make(time_zone=zone)


def test_a_zone_survives_copies_and_json() -> None:
    block = RelevantFactsBlock(time_zone="Asia/Kolkata", extract_facts=False)
    assert pickle.loads(pickle.dumps(block)).zone == ZoneInfo("Asia/Kolkata")
    assert block.model_dump(mode="json", include={"time_zone"}) == {
        "time_zone": "Asia/Kolkata"
    }
    assert RelevantFactsBlock(time_zone=None).zone is None
