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

from llama_index_memory_ext import CondensedMemory, Fact, MemoryStore
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
            memory = CondensedMemory.from_defaults(
                "s",
                user_id=name,
                shared=shared,
                chat_store=store,
                extract_facts=False,
            )
            memory.session_id = session
            await memory.aput_messages([user(text), assistant("Fine.")])
        book = FactBook(store, "ann", scope="all")
        oslo = await book.aadd("Lives in Oslo")
        rome = await book.aadd(
            "Lives in Rome", session_id=ALONE, quote="I live in Rome."
        )
        await book.aretire(oslo.id, "The user moved.", replaced_by=rome.id)
        await book.aupdate(rome.id, tags=["home"])
        # The separator ends a line for Python's splitlines, but not in JSON.
        await book.aadd(
            Fact(
                content="Likes trains", agent_id="travel", metadata={"from": "a\u2028b"}
            )
        )


@pytest.fixture
def filled(command: Here, database: Path, tmp_path: Path) -> Path:
    """The file of Ann's copy."""
    asyncio.run(fill(database))
    file = tmp_path / "ann.json"
    done = command("export", "--user", "ann", "-o", str(file), "--db", str(database))
    assert (done.returncode, done.stdout) == (0, "")
    return file


def read(command: Here, database: Path, *options: str) -> Any:
    return command.json(*options, "--db", str(database))


def test_a_copy_has_all_sessions_and_facts_and_is_read_again(
    command: Here, filled: Path, tmp_path: Path
) -> None:
    """A second import adds nothing, and a copy of the copy is the same."""
    new = tmp_path / "new.db"
    copy = json.loads(filled.read_text())
    assert set(copy["sessions"]) == {ALONE, SHARED}
    counts = {"messages": 6, "sessions": 2, "facts": 3}
    assert read(command, new, "import", str(filled)) == {**counts, "skipped": []}
    again = read(command, new, "import", str(filled))
    assert sorted(again.pop("skipped")) == sorted([ALONE, SHARED])
    assert again == {**counts, "messages": 0, "sessions": 0}
    listed = read(command, new, "sessions", "list")
    users = {info["session_id"]: info["user_ids"] for info in listed}
    assert users == {ALONE: ["ann"], SHARED: ["ann", "bob"]}
    printed = command("export", "--user", "ann", "--db", str(new)).stdout
    copy_of_copy = json.loads(printed)
    assert copy_of_copy["sessions"] == copy["sessions"]
    for facts in (copy_of_copy["facts"], copy["facts"]):
        # The first is the version; the rows of a message are those of its database.
        assert [fact.pop("message_ids") for fact in facts[1:]]
    assert copy_of_copy["facts"] == copy["facts"]


def test_a_copy_of_an_unknown_user_is_refused(
    command: Here, database: Path, filled: Path
) -> None:
    done = command("export", "--user", "anne", "--db", str(database))
    assert (done.returncode, done.stdout) == (1, "")
    assert "Nothing is stored about 'anne'." in done.stderr


def test_the_words_of_another_stay_the_words_of_the_other(
    command: Here, filled: Path, tmp_path: Path
) -> None:
    new = tmp_path / "new.db"
    command("import", str(filled), "--db", str(new))
    done = command("forget", "--user", "bob", "--yes", "--db", str(new))
    assert "Deleted 2 messages" in done.stdout
    shown = command("export", "--session", SHARED, "--db", str(new)).stdout
    assert ("nuts" in shown, "tea" in shown) == (False, True)


def test_a_copy_is_read_under_another_name_that_was_put_into_its_files(
    command: Here, filled: Path, tmp_path: Path
) -> None:
    """By the expression of the page about deletion."""
    page = (Path(__file__).parents[2] / "docs/deleting-a-person.md").read_text()
    (expression,) = re.findall(r"`(sed -i[^`]+)`", page)
    program = expression.replace("ann.json", str(filled))
    subprocess.run(program, shell=True, check=True)  # noqa: S602 - of our page
    new = tmp_path / "new.db"
    done = command("import", str(filled), "--db", str(new))
    assert "Imported 6 messages, 2 sessions, 3 facts of anna." in done.stdout
    listed = read(command, new, "sessions", "list")
    users = {info["session_id"]: info["user_ids"] for info in listed}
    assert users == {ALONE: ["anna"], SHARED: ["anna", "bob"]}
    assert len(read(command, new, "facts", "list", "--user", "anna")) == 2


@pytest.mark.parametrize("owner", [(), ("--user", "ann"), ("--user", "cem")])
def test_one_file_of_a_shared_session_keeps_its_speakers(
    command: Here, database: Path, filled: Path, tmp_path: Path, owner: tuple[str, ...]
) -> None:
    new = tmp_path / "new.db"
    exported = command("export", "--session", SHARED, "--db", str(database)).stdout
    options = ("--session", "new", "--db", str(new))
    done = command("import", "-", *options, *owner, stdin=exported)
    assert done.stdout.startswith("Imported 4 messages")
    assert command("export", *options).stdout == exported
    (listed,) = read(command, new, "sessions", "list")
    assert set(listed["user_ids"]) == {"ann", "bob", *owner[1:]}
    assert filled.exists()


def test_what_is_no_copy_is_refused(
    command: Here, filled: Path, tmp_path: Path
) -> None:
    new = ("--db", str(tmp_path / "new.db"))
    copy = json.loads(filled.read_text())
    part = {name: copy[name] for name in ("user", "sessions")}
    wrong_copies = [copy | {name: 7} for name in copy]
    wrong_copies += [copy | {"sessions": [copy["sessions"]]}]
    wrong_copies += [copy | {"sessions": {"s": {}}}, copy | {"facts": {}}]
    for content in ("[]", "no JSON", *map(json.dumps, [part, *wrong_copies])):
        done = command("import", "-", *new, stdin=content)
        assert (done.returncode, "must be a copy" in done.stderr) == (2, True)
    as_messages = command("import", str(filled), "--session", "s", *new)
    assert "Expected an object with a 'role'" in as_messages.stderr
    as_facts = command("import", str(filled), "--user", "bob", *new)
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
