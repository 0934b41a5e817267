"""Wrong calls that a newcomer makes: each is answered with what was expected, what was seen and what to do."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from inspect import isawaitable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from llama_index.core.llms import ChatMessage
from llama_index.core.memory import Memory

from llama_index_memory_ext import (
    CondensedMemory,
    MemoryExtError,
    MemoryRetriever,
    MemoryStore,
    MemoryToolSpec,
    OfflineModel,
    RelevantFactsBlock,
    StoreError,
    TfidfRanker,
    messages_from_json,
    trim,
)
from llama_index_memory_ext.blocks import learning as learning_module
from llama_index_memory_ext.memory.closing import warn_of_unused

FEBRUARY, JANUARY = (
    datetime(2026, 2, 1, tzinfo=timezone.utc),
    datetime(2026, 1, 1, tzinfo=timezone.utc),
)
A_LIST = "Expected a list of ChatMessage objects"
A_JSON = "Expected JSON"
WRAPPED = 'Wrap a text as ChatMessage(role="user", content=text)'


def opened(**options: Any) -> CondensedMemory:
    return CondensedMemory.from_defaults(**{"session_id": "chat", **options})


async def done(answer: Any) -> None:
    if isawaitable(answer):
        await answer


# The call, with a memory that knows one fact; what was expected; what was seen; what to do.
CALLS: list[tuple[Callable[[Any], Any], str, str, str]] = [
    (
        lambda _: opened(token_limit="40k"),  # noqa: S106 - a number of tokens, no password
        "a whole number of tokens",
        "got '40k'",
        "Leave it out",
    ),
    (
        lambda _: opened(token_limt=8000),
        "from_defaults()",
        "'token_limt'",
        "Did you mean 'token_limit'?",
    ),
    (
        lambda _: CondensedMemory.from_defaults("chat", "ann"),  # type: ignore[arg-type]
        "The second argument is chat_history, a list of messages",
        "got a str",
        "Pass a user by name: user_id=",
    ),
    (
        lambda _: opened(session_id=""),
        "must be a str that is not empty",
        "got ''",
        "can be deleted",
    ),
    (
        lambda _: opened(user_id=" ann"),
        "without spaces around it",
        "got ' ann'",
        "can be deleted",
    ),
    (
        lambda _: opened(user_id="ann\ud83d"),
        "or lone surrogates",
        r"got 'ann\ud83d'",
        "can be deleted",
    ),
    (
        lambda _: opened(session_id="\udc00chat"),
        "or lone surrogates",
        r"got '\udc00chat'",
        "can be deleted",
    ),
    (
        lambda memory: memory.abranch("chat\ud83d"),
        "or lone surrogates",
        r"got 'chat\ud83d'",
        "can be deleted",
    ),
    (
        lambda _: opened(condensed_token_limit=20),
        "at least 50",
        "condensed_token_limit=20",
        "Lower them, or raise",
    ),
    (
        lambda _: opened(async_database_uri="mysql://x/y"),
        "SQLite or PostgreSQL",
        "'mysql'",
        "Use one of sqlite",
    ),
    (
        lambda _: opened(llm="gpt-4o-mini"),
        "an instance of LLM",
        "got a str",
        "Pass OpenAI(model='gpt-4o-mini')",
    ),
    (
        lambda _: RelevantFactsBlock(user_id="ann", llm="gpt-4o-mini"),  # type: ignore[arg-type]
        "an instance of LLM",
        "got a str",
        "Pass OpenAI(model='gpt-4o-mini')",
    ),
    (
        lambda _: opened(temporary=True),
        "needs the address of an existing database",
        "is in memory, or was not used yet",
        "Pass async_database_uri",
    ),
    (
        lambda _: opened(async_database_uri="memory.db"),
        "must be a SQLAlchemy address",
        "got another text",
        "Pass a file of SQLite as a Path",
    ),
    (
        lambda _: MemoryStore("memory.db"),
        "must be a SQLAlchemy address",
        "got another text",
        "Pass a file of SQLite as a Path",
    ),
    (
        lambda _: opened(insert_method="middle"),
        "'system' or 'user'",
        "got 'middle'",
        "Give it such a value",
    ),
    (
        lambda _: opened(shared=True),
        "needs a user_id",
        "got none",
        "Pass the user's id",
    ),
    (
        lambda _: opened(keep_ratio=2),
        "less than or equal to 1",
        "got 2",
        "Leave it out for 0.4",
    ),
    (
        lambda _: opened(categories="diet"),
        "1 to 50 names",
        "got 'diet'",
        'as in ["diet", "allergy"]',
    ),
    (
        lambda _: opened(tokenizer_fn=len),
        "a function from a text to the list",
        "got a function that returns int",
        "TokenCounter(",
    ),
    (
        lambda _: opened(scope="agent"),
        "needs to know the agent",
        "agent_id is None",
        'Name it, agent_id="travel"',
    ),
    (
        lambda memory: memory.aput("Hello"),
        A_LIST,
        "got str",
        WRAPPED,
    ),
    (
        lambda memory: memory.aput_messages("Hello"),
        A_LIST,
        "got str",
        WRAPPED,
    ),
    (
        lambda _: opened(session_id=uuid4()),
        "must be a str",
        "got an UUID",
        "str(session_id)",
    ),
    (
        lambda memory: memory.aput_messages(ChatMessage("Hello")),
        A_LIST,
        "got ChatMessage",
        "Pass a list: [message]",
    ),
    (
        lambda memory: memory.aput({"role": "user", "content": "Hello"}),
        A_LIST,
        "got dict",
        "ChatMessage(**d), or read JSON with messages_from_json",
    ),
    (
        lambda memory: memory.aput_messages([{"role": "user", "content": "Hello"}]),
        A_LIST,
        "got dict",
        "ChatMessage(**d), or read JSON with messages_from_json",
    ),
    (
        lambda memory: memory.aput([ChatMessage("Hello")]),
        A_LIST,
        "got list",
        "Put several messages with aput_messages",
    ),
    (
        lambda memory: memory.facts.aupdate("any"),
        "needs a field to change",
        "got none",
        'such as content="Likes tea"',
    ),
    (
        lambda _: MemoryToolSpec(Memory.from_defaults()),  # type: ignore[arg-type]
        "MemoryToolSpec asks a CondensedMemory",
        "this is a Memory",
        "Build one with",
    ),
    (
        lambda memory: memory.facts.aadd("Likes tea.", confidence=2),
        "equal to 1",
        "got 2",
        "Leave it out for 1.0",
    ),
    (
        lambda memory: memory.facts.aadd("x", category="no"),
        "one of the categories",
        "got 'no'",
        "Choose one of them",
    ),
    (
        lambda memory: memory.facts.aretire("nothing"),
        "'ann' has no fact 'nothing'",
        "(1 facts)",
        "List them first",
    ),
    (
        lambda memory: memory.facts.aretire("any", 5),
        "reason must be a str",
        "got 5",
        "Pass the text itself",
    ),
    (
        lambda memory: memory.facts.areject("any", reason=None),
        "reason must be a str",
        "got None",
        "Pass the text itself",
    ),
    (
        lambda _: opened(keep_messages=6),
        "keep_messages=6 needs max_messages of at least 6",
        "got None",
        "Raise max_messages",
    ),
    (
        lambda memory: memory.facts.aapprove(["an id"]),
        "separate str arguments",
        "got a list",
        "Write a star",
    ),
    (
        lambda memory: memory.facts.alist(since=FEBRUARY, until=JANUARY),
        "before until",
        "got 2026-02-01",
        "Swap",
    ),
    (
        lambda memory: memory.abranch("chat"),
        "a new session",
        "'chat' was used before",
        "Name another one",
    ),
    (
        lambda memory: memory.abackfill(session_ids=["x"]),
        "There is no session",
        "'x'",
        "get_keys()` lists the sessions",
    ),
    (
        lambda _: messages_from_json("{"),
        A_JSON,
        "got 1 other characters",
        "To read a file, pass its bytes",
    ),
    (
        lambda _: MemoryStore("sqlite:///x.db", pool_size=0),
        "equal to 1",
        "got 0",
        "Leave it out for 5",
    ),
    (
        lambda _: MemoryRetriever("memory"),  # type: ignore[arg-type]
        "asks a CondensedMemory",
        "this is a str",
        "Build one with",
    ),
    (
        lambda _: TfidfRanker(vectorizer=3),
        "a vectorizer of scikit-learn",
        "got 3",
        "TfidfVectorizer()",
    ),
    (
        lambda memory: memory.asearch(7),
        "question must be a str",
        "got 7",
        "Pass the text itself",
    ),
    (
        lambda memory: memory.asearch(None),
        "question must be a str",
        "got None",
        "Pass the text itself",
    ),
    (
        lambda memory: memory.facts.asearch(["tea"]),
        "question must be a str",
        "got a list",
        "Pass the text itself",
    ),
    (
        lambda memory: memory.facts.afind(2.5),
        "content must be a str",
        "got 2.5",
        "Pass the text itself",
    ),
    (
        lambda memory: memory.facts.aimport(b"{}"),
        "lines must be a str",
        "got a bytes",
        "Pass the text itself",
    ),
    (
        lambda memory: memory.asearch("tea", similarity_top_k="10"),
        "similarity_top_k must be a whole number of at least 1",
        "got '10'",
        "Pass another number, or leave it out",
    ),
    (
        lambda memory: memory.facts.asearch("tea", similarity_top_k=1.5),
        "similarity_top_k must be a whole number of at least 1",
        "got 1.5",
        "Pass another number, or leave it out",
    ),
    (
        lambda memory: MemoryRetriever(memory, token_limit=True),
        "token_limit must be a whole number of at least 1",
        "got True",
        "Pass another number, or leave it out",
    ),
]


@pytest.mark.parametrize(
    ("call", "expected", "seen", "do"), CALLS, ids=[seen for _, _, seen, _ in CALLS]
)
async def test_a_wrong_call_is_told_what_was_expected_what_was_seen_and_what_to_do(
    call: Callable[[Any], Any], expected: str, seen: str, do: str
) -> None:
    async with opened(user_id="ann", extract_facts=False) as memory:
        await memory.aput(ChatMessage("Hello"))
        await memory.facts.aadd("Likes tea.")
        with pytest.raises((MemoryExtError, TypeError)) as refused:
            await done(call(memory))
        # Nothing is lost over it.
        assert [message.content for message in await memory.aget_all()] == ["Hello"]
        assert [fact.content for fact in await memory.facts.alist()] == ["Likes tea."]
    said = str(refused.value)
    assert expected in said
    assert seen in said
    assert do in said


def test_a_summary_without_a_model_is_told_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    opened(summarize=True, llm=OfflineModel())
    assert caplog.text == ""
    opened(summarize=True)
    assert "summarize=True has no model" in caplog.text


async def test_the_path_of_a_file_is_taken(tmp_path: Path) -> None:
    """With any characters in it, by a memory and by a store."""
    file = tmp_path / "50%? of #ann.db"
    memory = opened(async_database_uri=file, extract_facts=False)
    async with memory:
        await memory.aput(ChatMessage("Hello"))
    assert file.exists()
    store = MemoryStore(file)
    assert await store.get_keys() == ["chat"]
    await store.aclose()


def test_a_facts_block_without_a_user_that_learns_is_warned_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    learning_module._warn_without_user.cache_clear()
    RelevantFactsBlock(user_id="ann", llm=OfflineModel())
    RelevantFactsBlock(extract_facts=False)
    opened(llm=OfflineModel())
    assert caplog.text == ""
    for _ in range(2):
        RelevantFactsBlock(llm=OfflineModel())
    assert caplog.text.count("Pass user_id=...") == 1


def test_a_memory_is_closed_by_with(caplog: pytest.LogCaptureFixture) -> None:
    """As by ``async with``, with the error of a program that fails."""
    warn_of_unused.cache_clear()
    with opened(extract_facts=False) as memory:
        memory.put(ChatMessage("Hello"))
        assert [message.content for message in memory.get_all()] == ["Hello"]
    with pytest.raises(StoreError, match="was in memory and was closed"):
        memory.get_all()
    with pytest.raises(ZeroDivisionError), opened():
        raise ZeroDivisionError
    assert "pass the memory to each run" not in caplog.text
    with opened():
        pass
    assert "pass the memory to each run" in caplog.text


def test_trim_without_a_limit_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    chat = [ChatMessage("Hello")]
    trim(chat, token_limit=100)
    trim(chat, max_messages=2)
    assert caplog.text == ""
    assert trim(chat) == chat
    assert "Pass one of them, such as token_limit=4_000." in caplog.text
