"""Facts that mem0, LangGraph and Zep have exported become facts of a user."""

from __future__ import annotations

import json
from datetime import date, datetime, timezone
from typing import Any

import pytest

from llama_index_memory_ext import Fact, FactError
from llama_index_memory_ext.fact import utc_now
from tests.memories import OpenMemory

TIMES = {"created_at": "2024-07-20T08:30:36.275141+00:00", "updated_at": "2024-08-20T08:30:36.275141Z"}
MEM0: dict[str, Any] = {
    "id": "892db2ae-06d9-49e5-8b3e-585ef9b85b8e", "memory": "Is allergic to nuts", "user_id": "ann", "hash": "aa1",
    "metadata": {"source": "chat"}, "categories": ["health", "user_preferences"], "expiration_date": None, "score": 0.9,
    "created_at": "2024-07-20T01:30:36.275141-07:00", "updated_at": "2024-08-20T01:30:36.275141-07:00",
}  # fmt: skip
ITEM: dict[str, Any] = {"namespace": ["ann", "memories"], "key": "k1", "score": None, **TIMES}
ITEM["value"] = {"text": "Is allergic to nuts", "category": "preference"}
EDGE: dict[str, Any] = {
    "uuid": "e1", "fact": "Ann lives in Köln", "name": "LIVES_IN", "source_node_uuid": "n1", "target_node_uuid": "n2",
    "created_at": "2024-07-20T08:30:36Z", "valid_at": "2020-03-01T00:00:00Z", "invalid_at": "2024-05-01T00:00:00Z",
    "expired_at": "2024-07-21T08:30:36Z",
}  # fmt: skip


async def imported(open_memory: OpenMemory, source: Any, user_id: str = "ann") -> list[Fact]:
    memory = open_memory("chat", user_id=user_id)
    text = source if isinstance(source, str) else json.dumps(source)
    count = await memory.facts.aimport(text)
    facts = await memory.facts.alist(with_retired=True, with_expired=True)
    assert count == len(facts)
    return facts


@pytest.mark.parametrize(
    "source",
    [
        {"results": [MEM0], "relations": []},
        {"count": 1, "next": None, "previous": None, "results": [MEM0]},
        [MEM0],
        json.dumps(MEM0) + "\n",
        {"user": {"user_id": "ann"}, "memories": [{**MEM0, "content": MEM0["memory"], "memory": None}]},
    ],
)
async def test_memories_of_mem0_become_facts(open_memory: OpenMemory, source: Any) -> None:
    (fact,) = await imported(open_memory, source)
    assert (fact.id, fact.content, fact.category) == (MEM0["id"], "Is allergic to nuts", "preference")
    assert fact.created_at == datetime(2024, 7, 20, 8, 30, 36, 275141, tzinfo=timezone.utc)
    assert fact.updated_at == datetime(2024, 8, 20, 8, 30, 36, 275141, tzinfo=timezone.utc)
    assert (fact.namespace, fact.imported_from, fact.state(utc_now())) == ("ann", "mem0", "present")


async def test_what_mem0_has_put_away_is_not_shown_and_what_it_has_deleted_is_left_out(open_memory: OpenMemory) -> None:
    source = [
        {**MEM0, "id": "1", "memory": "Is in Rome", "expiration_date": "2024-09-01"},
        {**MEM0, "id": "2", "memory": "Likes tea", "state": "archived", "archived_at": "2024-09-01T00:00:00Z"},
        {**MEM0, "id": "4", "memory": "Likes rain", "state": "deleted", "deleted_at": "2024-09-01T00:00:00Z"},
        {**MEM0, "id": "3", "memory": "Likes nuts", "state": "active", "created_at": None, "updated_at": None},
    ]
    states = {fact.content: fact.state(utc_now()) for fact in await imported(open_memory, {"results": source})}
    assert states == {"Is in Rome": "expired", "Likes tea": "retired", "Likes nuts": "present"}


@pytest.mark.parametrize(
    "value",
    [
        {"text": "Is allergic to nuts", "category": "preference"},
        {"data": "Is allergic to nuts", "category": ["preferences"]},
        {"kind": "Preference", "content": {"content": "Is allergic to nuts"}},
        {"memory": "Is allergic to nuts", "type": "preference"},
    ],
)
async def test_items_of_langgraphs_store_become_facts(open_memory: OpenMemory, value: Any) -> None:
    (fact,) = await imported(open_memory, {"items": [{**ITEM, "value": value}]})
    assert (fact.content, fact.category) == ("Is allergic to nuts", "preference")
    assert (fact.created_at.year, fact.updated_at.month, fact.imported_from) == (2024, 8, "LangGraph")


async def test_facts_of_zep_become_facts_with_the_days_on_which_they_held(open_memory: OpenMemory) -> None:
    later = {**EDGE, "uuid": "e2", "fact": "Ann lives in Oslo", "valid_at": EDGE["invalid_at"], "invalid_at": None,
             "expired_at": None}  # fmt: skip
    unclear = {**EDGE, "uuid": "e3", "fact": "Ann has a cat", "valid_at": None, "invalid_at": None}
    odd = {**EDGE, "uuid": "e4", "fact": "Ann was in Rome", "invalid_at": EDGE["valid_at"]}
    facts = {fact.id: fact for fact in await imported(open_memory, {"edges": [EDGE, later, unclear, odd]})}
    assert (facts["e1"].content, facts["e1"].imported_from) == ("Ann lives in Köln", "Zep")
    # It stopped to be true when the first of May began.
    assert (facts["e1"].valid_from, facts["e1"].valid_until) == (date(2020, 3, 1), date(2024, 4, 30))
    assert {fact_id: fact.state(utc_now()) for fact_id, fact in facts.items()} == {
        "e1": "past", "e2": "present", "e3": "past", "e4": "past",
    }  # fmt: skip
    assert facts["e4"].valid_from == facts["e4"].valid_until == date(2020, 3, 1)
    older = {"uuid_": "f1", "content": "Ann lives in Köln", "fact": "Ann lives in Köln", "rating": None,
             "created_at": "2024-07-20T08:30:36Z"}  # fmt: skip
    assert await open_memory("chat", user_id="bob").facts.aimport(json.dumps({"facts": [older]})) == 1


async def test_importing_twice_stores_once_and_facts_travel_on(open_memory: OpenMemory) -> None:
    ann = open_memory("chat", user_id="ann").facts
    for source in ({"results": [MEM0]}, [ITEM], {"items": [EDGE]}) * 2:
        await ann.aimport(json.dumps(source))
    facts = await ann.alist(with_retired=True)
    assert len(facts) == 3
    others = {fact.id: fact for fact in await imported(open_memory, await ann.aexport(), "bob")}
    assert others == {fact.id: fact.model_copy(update={"namespace": "bob"}) for fact in facts}


async def test_of_several_users_only_the_one_who_is_named_is_imported(open_memory: OpenMemory) -> None:
    """The facts of others must not become hers; an export of one user alone may be of any name."""
    others = {**MEM0, "id": "1", "memory": "Likes fish", "user_id": "bob"}
    assert [fact.content for fact in await imported(open_memory, [MEM0, others])] == ["Is allergic to nuts"]
    items = [ITEM, {**ITEM, "namespace": ["bob", "memories"], "key": "k2"}]
    cem = open_memory("chat", user_id="cem")
    for source, seen in (([MEM0, others], "of 2 users"), (items, "of 2 namespaces")):
        with pytest.raises(FactError, match=seen):
            await cem.facts.aimport(json.dumps(source))
    assert await cem.facts.aimport(json.dumps([others])) == 1


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ({"chat": ["the secret word"]}, "saw an object with the keys 'chat'"),
        (["the secret word"], "entry 0: saw a text"),
        ([MEM0, {"name": "the secret word"}], "entry 1: saw an object with the keys 'name'"),
        ([MEM0, {**MEM0, "memory": " "}], "entry 1: what is wrong is content"),
        ([{**MEM0, "created_at": "the secret word"}], "entry 0: what is wrong is created_at"),
        ([{**ITEM, "value": {"name": "the secret word"}}], "entry 0: 'value' with a text as memory, content, text"),
        ([{**EDGE, "fact": {"a": "the secret word"}}], "entry 0: what is wrong is content"),
        ([{**EDGE, "valid_at": "the secret word"}], "entry 0: what is wrong is valid_from"),
    ],
)
async def test_what_is_no_export_is_refused_and_nothing_is_stored(
    open_memory: OpenMemory, source: Any, complaint: str
) -> None:
    memory = open_memory("chat", user_id="ann")
    with pytest.raises(FactError) as raised:
        await memory.facts.aimport(json.dumps(source))
    assert complaint in str(raised.value)
    assert "Nothing was imported." in str(raised.value)
    assert "the secret word" not in str(raised.value)
    assert await memory.facts.alist(with_retired=True) == []
