"""A copy of a user's data is complete, and what it says is said by the same people after an import."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.llms import ChatMessage

from llama_index_memory_ext import CondensedMemory, MemoryStore, OfflineModel
from llama_index_memory_ext.facts.book import FactBook
from tests.cli.terminal import Here
from tests.conversation import assistant, user

SHARED = "team/../7 \n*?:"
ALONE = "chat of Ann"


async def fill(database: Path) -> None:
    """Ann has two sessions, of which she shares one with Bob, and facts with a history."""
    async with aclosing(MemoryStore(f"sqlite+aiosqlite:///{database}")) as store:
        for name, session, shared, text in (
            ("ann", ALONE, False, "I live in Rome."),
            ("ann", SHARED, True, "I like tea."),
            ("bob", SHARED, True, "I am allergic to nuts."),
        ):
            options: Any = {"chat_store": store, "extract_facts": False}
            memory = CondensedMemory.from_defaults(
                "s", user_id=name, shared=shared, **options
            )
            memory.session_id = session
            await memory.aput_messages([user(text), assistant("Fine.")])
        book = FactBook(store, "ann", scope="all")
        oslo = await book.aadd("Lives in Oslo")
        said: Any = {"session_id": ALONE, "quote": "I live in Rome."}
        rome = await book.aadd("Lives in Rome", **said)
        await book.aretire(oslo.id, "The user moved.", replaced_by=rome.id)
        await book.aupdate(rome.id, tags=["home"])
        # The separator ends a line for Python's splitlines, but not in JSON.
        about = {"from": "a\u2028b"}
        await book.aadd("Likes trains", agent_id="travel", metadata=about)


@pytest.fixture
def old(command: Here, database: Path) -> Here:
    """The command line on the database of Ann."""
    asyncio.run(fill(database))
    return command.on(database)


@pytest.fixture
def filled(old: Here, tmp_path: Path) -> Path:
    """The file of Ann's copy."""
    file = tmp_path / "ann.json"
    done = old("export --user ann -o", str(file))
    assert (done.returncode, done.stdout) == (0, "")
    return file


@pytest.fixture
def new(command: Here, tmp_path: Path) -> Here:
    """The command line on another database."""
    return command.on(tmp_path / "new.db")


def users_in(cli: Here) -> dict[str, list[str]]:
    """The users of each session."""
    listed = cli.json("sessions list")
    return {info["session_id"]: info["user_ids"] for info in listed}


def test_a_copy_has_all_sessions_and_facts_and_is_read_again(
    filled: Path, new: Here
) -> None:
    """A second import adds nothing, and a copy of the copy is the same."""
    copy = json.loads(filled.read_text())
    assert set(copy["sessions"]) == {ALONE, SHARED}
    counts = {"messages": 6, "sessions": 2, "facts": 3}
    assert new.json("import", str(filled)) == {**counts, "skipped": []}
    again = new.json("import", str(filled))
    assert sorted(again.pop("skipped")) == sorted([ALONE, SHARED])
    assert again == {**counts, "messages": 0, "sessions": 0}
    assert users_in(new) == {ALONE: ["ann"], SHARED: ["ann", "bob"]}
    copy_of_copy = json.loads(new("export --user ann").stdout)
    assert copy_of_copy["sessions"] == copy["sessions"]
    for facts in (copy_of_copy["facts"], copy["facts"]):
        # The first is the version; the rows of a message are those of its database.
        assert [fact.pop("message_ids") for fact in facts[1:]]
    assert copy_of_copy["facts"] == copy["facts"]


def test_messages_of_a_copy_are_not_read_for_facts_again(
    command: Here, tmp_path: Path
) -> None:
    """Otherwise, deleted and retired facts come back, and edited facts are replaced. Unread messages are read."""
    old = tmp_path / "old.db"
    new = tmp_path / "new.db"
    asyncio.run(change_facts(old))
    file = tmp_path / "ann.json"
    command.on(old)("export --user ann -o", str(file))
    assert json.loads(file.read_text())["unread"] == {ALONE: 2}
    command.on(new)("import", str(file))
    learned = asyncio.run(learn_from(new))
    assert sorted(learned) == ["Likes milk", "Lives in Bern"]
    # An older copy does not say which messages were read. A damaged message is unread,
    # and not in the copy.
    copy = json.loads(file.read_text())
    for name, unread in (("older", None), ("damaged", {ALONE: 9})):
        file.write_text(json.dumps({**copy, "unread": unread}))
        other = tmp_path / f"{name}.db"
        command.on(other)("import", str(file))
        # Also before a program has opened the session.
        facts = command.on(other)("facts list --user ann").stdout
        assert "Not yet read for facts: 8 messages." in facts
        assert "Likes tea" in asyncio.run(learn_from(other))


def test_what_each_user_of_a_shared_session_has_deleted_stays_deleted(
    command: Here, tmp_path: Path
) -> None:
    """The first copy brings the messages of both."""
    old = tmp_path / "old.db"
    new = tmp_path / "new.db"
    asyncio.run(forget_tea(old))
    for name in ("ann", "bob"):
        file = str(tmp_path / f"{name}.json")
        command.on(old)("export --user", name, "-o", file)
        command.on(new)("import", file)
    assert asyncio.run(facts_of_each(new)) == {"ann": ["Likes milk"], "bob": []}
    # In the old database, an import skips no message that is unread there.
    asyncio.run(say_in_team(old, "bob", "I like coffee."))
    command.on(old)("import", str(tmp_path / "bob.json"))
    assert asyncio.run(facts_of_each(old))["bob"] == ["Likes coffee"]


async def say_in_team(database: Path, name: str, *texts: str) -> None:
    async with memory_of(name, SHARED, database, shared=True) as memory:
        for text in texts:
            await memory.aput_messages([user(text), assistant("Noted.")])


async def forget_tea(database: Path) -> None:
    """Ann and Bob share a session, and forget what was learned from them. Ann says something new."""
    for name in ("ann", "bob"):
        await say_in_team(database, name, "I like tea.")
        async with memory_of(name, SHARED, database, shared=True) as memory:
            await memory.abackfill()
            assert await memory.facts.aforget() == 1
    async with memory_of(
        "ann", SHARED, database, shared=True, extract_facts=False
    ) as memory:
        await memory.aput_messages([user("I like milk."), assistant("Noted.")])


async def facts_of_each(database: Path) -> dict[str, list[str]]:
    """Return the facts of both users after all their messages were read."""
    facts = {}
    for name in ("ann", "bob"):
        async with memory_of(name, SHARED, database, shared=True) as memory:
            await memory.abackfill()
            facts[name] = [fact.content for fact in await memory.facts.alist()]
    return facts


async def change_facts(database: Path) -> None:
    """Ann corrects, deletes and retires a fact each, and then says something that was not read yet."""
    async with memory_of_ann(database) as memory:
        for text in ("I live in Rome.", "I like tea.", "I like coffee."):
            await memory.aput_messages([user(text), assistant("Noted.")])
        await memory.abackfill()
        facts = {fact.content: fact.id for fact in await memory.facts.alist()}
        await memory.facts.aforget(facts["Likes tea"])
        await memory.facts.aretire(facts["Likes coffee"], "Asked for it.")
        await memory.facts.aupdate(facts["Lives in Rome"], content="Lives in Bern")
    async with memory_of_ann(database, extract_facts=False) as memory:
        await memory.aput_messages([user("I like milk."), assistant("Noted.")])


async def learn_from(database: Path) -> list[str]:
    """Return the present facts of Ann after all her messages were read."""
    async with memory_of_ann(database) as memory:
        await memory.abackfill()
        return [fact.content for fact in await memory.facts.alist()]


def memory_of_ann(database: Path, **options: Any) -> CondensedMemory:
    return memory_of("ann", ALONE, database, **options)


def memory_of(
    name: str, session: str, database: Path, **options: Any
) -> CondensedMemory:
    memory = CondensedMemory.from_defaults(
        "s",
        user_id=name,
        async_database_uri=f"sqlite+aiosqlite:///{database}",
        llm=OfflineModel(),
        **options,
    )
    memory.session_id = session
    return memory


def test_a_copy_of_an_unknown_user_is_refused(old: Here) -> None:
    done = old("export --user anne")
    assert (done.returncode, done.stdout) == (1, "")
    assert "Nothing is stored about 'anne'." in done.stderr


def test_the_words_of_another_stay_the_words_of_the_other(
    filled: Path, new: Here
) -> None:
    new("import", str(filled))
    assert "Deleted 2 messages" in new("forget --user bob --yes").stdout
    shown = new("export --session", SHARED).stdout
    assert ("nuts" in shown, "tea" in shown) == (False, True)


def test_a_copy_is_read_under_another_name_that_was_put_into_its_files(
    filled: Path, new: Here
) -> None:
    """By the expression of the page about deletion."""
    page = (Path(__file__).parents[2] / "docs/deleting-a-person.md").read_text()
    (expression,) = re.findall(r"`(sed -i[^`]+)`", page)
    program = expression.replace("ann.json", str(filled))
    subprocess.run(program, shell=True, check=True)  # noqa: S602 - of our page
    done = new("import", str(filled))
    assert "Imported 6 messages, 2 sessions, 3 facts of anna." in done.stdout
    assert users_in(new) == {ALONE: ["anna"], SHARED: ["anna", "bob"]}
    assert len(new.json("facts list --user anna")) == 2


@pytest.mark.parametrize("owner", [(), ("--user", "ann"), ("--user", "cem")])
def test_one_file_of_a_shared_session_keeps_its_speakers(
    old: Here, new: Here, owner: tuple[str, ...]
) -> None:
    exported = old("export --session", SHARED).stdout
    done = new("import - --session new", *owner, stdin=exported)
    assert done.stdout.startswith("Imported 4 messages")
    assert new("export --session new").stdout == exported
    assert set(users_in(new)["new"]) == {"ann", "bob", *owner[1:]}


def test_what_is_no_copy_is_refused(filled: Path, new: Here) -> None:
    copy = json.loads(filled.read_text())
    part = {name: copy[name] for name in ("user", "sessions")}
    wrong_copies = [copy | {name: 7} for name in copy]
    wrong_copies += [copy | {"sessions": [copy["sessions"]]}]
    wrong_copies += [copy | {"sessions": {"s": {}}}, copy | {"facts": {}}]
    for content in ("[]", "no JSON", *map(json.dumps, [part, *wrong_copies])):
        done = new("import -", stdin=content)
        assert (done.returncode, "must be a copy" in done.stderr) == (2, True)
    bad_fact = copy | {"facts": [*copy["facts"], {"content": ""}]}
    done = new("import -", stdin=json.dumps(bad_fact))
    assert (done.returncode, "Nothing was imported." in done.stderr) == (1, True)
    assert "There is no memory of this package" in new("sessions list").stderr
    as_messages = new("import --session s", str(filled))
    assert "Expected an object with a 'role'" in as_messages.stderr
    as_facts = new("import --user bob", str(filled))
    assert "Import a copy of `export --user` without --user." in as_facts.stderr


def test_speakers_are_named_without_a_shell(tmp_path: Path) -> None:
    """A message that names its speaker itself keeps that name."""
    database = tmp_path / "memory.db"

    async def exported() -> list[Any]:
        async with CondensedMemory.from_defaults(
            "channel",
            user_id="bot",
            shared=True,
            extract_facts=False,
            async_database_uri=f"sqlite+aiosqlite:///{database}",
        ) as memory:
            about = {"user_id": 7, "name": "Ann"}
            await memory.aput(ChatMessage("Hello!", additional_kwargs=about))
            await memory.aput(ChatMessage("Beep."))
            messages: list[Any] = json.loads(await memory.aexport())
            return messages

    kwargs = [message["additional_kwargs"] for message in asyncio.run(exported())]
    assert kwargs == [{"user_id": 7, "name": "Ann"}, {"user_id": "bot"}]
