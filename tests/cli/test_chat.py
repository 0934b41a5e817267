"""A conversation at a terminal and through a pipe, with the real program and a local server."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from llama_index_memory_ext.cli.chat import split_blocks
from tests.cli.offline_server import model
from tests.cli.terminal import COMMAND, PATIENCE_SECONDS, Here, Typed, at_terminal, clean_environment
from tests.openai_server import Message, fail, say, serve
from tests.signals import interruptible

at_a_terminal = pytest.mark.skipif(sys.platform == "win32", reason="there are no such terminals")
KEY = "sk-not-to-be-shown"


@pytest.fixture
def database(tmp_path: Path) -> str:
    return str(tmp_path / "memory.db")


def test_lines_of_a_pipe_are_answered_one_by_one(command: Here, database: str) -> None:
    """Only the answers are on stdout."""
    done = command("chat", "--db", database, "--session", "s", stdin="My name is Logan.\n\nWhat is my name?\n")
    assert (done.returncode, done.stdout) == (0, "Noted: your name is Logan.\nYour name is Logan.\n")
    assert "OPENAI_API_KEY is not set" in done.stderr
    assert f"database {database}" in done.stderr
    assert "\x1b" not in done.stdout + done.stderr


def test_a_conversation_goes_on_where_it_was_left(command: Here, database: str) -> None:
    command("chat", "--db", database, "--session", "s", stdin="My name is Logan.\n/quit\nnot asked\n")
    done = command("chat", "--session", "s", stdin="What is my name?\n", LLAMA_INDEX_MEMORY_DB=database)
    assert done.stdout == "Your name is Logan.\n"
    assert "s, 2 messages so far" in done.stderr


def test_what_a_user_has_said_is_known_in_the_next_session(command: Here, database: str) -> None:
    command("chat", "--db", database, "--user", "ann", stdin="I live in Rome.\n")
    done = command("chat", "--db", database, "--user", "ann", stdin="Where do I live?\n/facts\n/why\n/why Who am I?\n")
    assert done.stdout.startswith("You live in Rome.\n")
    assert done.stdout.count("Lives in Rome") == 3
    assert "'Where do I live?'" in done.stdout


def test_what_was_said_just_now_is_known(command: Here, database: str) -> None:
    done = command("chat", "--db", database, "--user", "ann", stdin="I live in Rome.\n/facts\nWhere do I live?\n")
    assert "Lives in Rome" in done.stdout
    assert done.stdout.endswith("You live in Rome.\n")


def test_words_that_several_facts_contain_delete_none(command: Here, database: str) -> None:
    said = "I like green tea.\nI like black tea.\n"
    done = command("chat", "--db", database, "--user", "ann", stdin=f"{said}/forget tea\n/facts\n")
    assert "2 facts contain 'tea': " in done.stderr
    assert "Give more of the one you mean." in " ".join(done.stderr.split())
    assert done.stdout.count("Likes") == 2


def test_a_model_that_needs_marks_gets_them(command: Here, database: str) -> None:
    """As the doctor tells others to set them."""
    question = f"{'A few words. ' * 100} What is 12 + 30?\n"
    with serve(model) as server:
        openai = {"OPENAI_API_KEY": KEY, "OPENAI_API_BASE": server.api_base}
        done = command("chat", "--db", database, "--model", "gpt-5.6-sol", stdin=question * 3, **openai)
    assert (done.returncode, done.stdout) == (0, "12 + 30 = 42\n" * 3)
    assert {"mode": "explicit"} in [body.get("prompt_cache_options") for body in server.bodies]
    assert server.refusals == []


def test_a_server_is_asked_as_the_environment_says(command: Here, database: str) -> None:
    with serve(model) as server:
        openai = {"OPENAI_API_KEY": KEY, "OPENAI_API_BASE": server.api_base}
        done = command("chat", "--db", database, "--model", "gpt-4o", stdin="What is 12 + 30?\n", **openai)
    assert (done.returncode, done.stdout) == (0, "12 + 30 = 42\n")
    assert "gpt-4o at 127.0.0.1" in done.stderr
    assert KEY not in done.stderr
    assert server.refusals == []


def test_a_model_of_any_name_answers_and_facts_are_learned_from_its_text(command: Here, database: str) -> None:
    def small(messages: list[Message], tools: list[str]) -> Message:
        asked = str(messages[-1]["content"])
        if "Answer with one JSON object" not in asked:
            return say("I am small.")
        fact = {"content": "Lives in Oslo", "confidence": 0.9, "quote": "I live in Oslo"}
        return say(json.dumps({"new_facts": [fact] if "I live in Oslo" in asked else []}))

    with serve(small) as server:
        openai = {"OPENAI_API_KEY": KEY, "OPENAI_API_BASE": server.api_base, "OPENAI_CONTEXT_WINDOW": "8192"}
        said = "I live in Oslo.\n/facts\nHello\n/stats\n"
        done = command("chat", "--db", database, "--model", "tiny:135m", stdin=said, **openai)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("I am small.") == 2
    assert "Lives in Oslo" in done.stdout
    assert "tiny:135m at 127.0.0.1" in done.stderr


def test_a_model_that_is_too_slow_is_told_as_that(command: Here, database: str) -> None:
    """With the seconds, and how to give it more; extraction says so in the log."""
    may_answer = threading.Event()

    def slow(messages: list[Message], tools: list[str]) -> Message:
        may_answer.wait(30)
        return say("At last.")

    with serve(slow) as server:
        openai = {"OPENAI_API_KEY": KEY, "OPENAI_API_BASE": server.api_base, "OPENAI_TIMEOUT": "0.2"}
        done = command("chat", "--db", database, stdin="Hello\n", **openai)
        may_answer.set()
    said = " ".join(done.stderr.split())
    assert "has not answered within 0.2 s. --timeout SECONDS or OPENAI_TIMEOUT gives it more." in said
    assert "no connection" not in said


def test_a_failing_model_costs_one_line_and_no_question(command: Here, database: str) -> None:
    """Where nobody can read it, the exit code says it too."""
    broken = {"OPENAI_API_KEY": KEY, "OPENAI_API_BASE": "http://127.0.0.1:9"}
    failed = command("chat", "--db", database, "--session", "s", stdin="My name is Logan.\n", **broken)
    assert (failed.returncode, failed.stdout) == (1, "")
    assert "No answer: there is no connection to 127.0.0.1:9." in failed.stderr
    assert "Traceback" not in failed.stderr
    assert KEY not in failed.stderr
    assert (
        command("chat", "--db", database, "--session", "s", stdin="What is my name?\n").stdout
        == "Your name is Logan.\n"
    )


def test_what_a_model_says_does_not_command_the_terminal(command: Here, database: str) -> None:
    with serve(lambda *_: say("\x1b[31mred \x1b]0;title\x07 [bold]plain[/bold]")) as server:
        openai = {"OPENAI_API_KEY": KEY, "OPENAI_API_BASE": server.api_base}
        done = command("chat", "--db", database, stdin="Hello\n", **openai)
    assert done.stdout == "␛[31mred ␛]0;title␇ [bold]plain[/bold]\n"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("/dance", "There is no /dance. /help lists the commands."),
        ("/why", "nothing was asked yet"),
        ("/forget", "say which"),
        ("/forget nothing like it", "no fact is called 'nothing like it'"),
        ("/help", "/quit"),
        ("/facts", "No facts of s."),
        ("/stats", "messages"),
    ],
)
def test_a_slash_is_obeyed_and_mistakes_are_told(command: Here, database: str, line: str, says: str) -> None:
    done = command("chat", "--db", database, "--session", "s", stdin=f"{line}\n")
    assert done.returncode == 0
    assert says in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (["--db", "/no/such/folder/m.db"], 1, "create it first"),
        (["--db", "/"], 2, "is a folder"),
        (["--db", "mysql://a:secret@b/c"], 1, "SQLite or PostgreSQL"),
        (["--db", "sqlite:///x.db?timout=3"], 1, "Did you mean 'timeout'?"),
        (["--db", "postgresql+asyncpg://a:secret@127.0.0.1:9/c"], 1, "a:***@127.0.0.1:9/c cannot be used"),
        (["--db", "sqlite+aiosqlite://"], 2, "in memory"),
        (["--session", ""], 2, "must not be empty"),
        (["--user", ""], 2, "must not be empty"),
        (["--dance"], 2, "No such option"),
    ],
)
def test_what_cannot_work_is_told_at_once(
    command: Here, tmp_path: Path, options: list[str], code: int, says: str
) -> None:
    done = command("chat", *options, LLAMA_INDEX_MEMORY_DB=str(tmp_path / "m.db"))
    assert done.returncode == code, done.stderr
    assert says in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert "secret" not in done.stderr


def test_a_person_is_asked_before_a_fact_is_deleted(command: Here, database: str) -> None:
    """And told that the words stay; ids, too, name a fact."""
    typed = "I live in Rome.\n/forget rome\nmaybe\nn\n/facts\n/forget rome\ny\nWhat is 12 + 30?\n/facts\n"
    done = command("chat", "--db", database, "--user", "ann", "--session", "s", stdin=Typed(typed))
    out, err = done.stdout, " ".join(done.stderr.split())
    assert done.returncode == 0
    assert out.index("Noted: you live in Rome.") < out.index("Lives in Rome") < out.index("Deleted.")
    assert out.index("Deleted.") < out.index("12 + 30 = 42") < out.index("No facts of ann.")
    assert err.count("Delete this fact for good? [y/N]:") == 3
    assert err.count("Nothing was deleted.") == 1
    assert "add(a=12, b=30) -> 42" in err
    assert "The words in which it was said stay in the messages of this session" in err
    assert "`llama-index-memory forget --session s` deletes that session." in err


def assert_whole(printed: str, sentence: str) -> None:
    """A terminal of 100 columns shows rendered Markdown with whole words."""
    seen = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", printed)
    lines = [line.strip() for line in seen.splitlines()]
    assert "Use bold and the <memory> tag." in lines
    assert " ".join(sentence.split()) in " ".join(" ".join(lines).split())
    assert "2 two␛]0;t␇" in lines
    assert max(map(len, seen.splitlines())) <= 100
    assert "\x1b]" not in printed


@at_a_terminal
def test_a_person_reads_markdown_and_interrupts_answers_and_waits_but_no_conversation(
    command: Here, database: str
) -> None:
    """Nothing that the model has written is lost, and nothing commands the terminal."""
    asked, extracting, go_on = threading.Event(), threading.Event(), threading.Event()
    sentence = "Some quite ordinary words that go on and on until the line has no room for them. " * 3
    answer = f"# Title\n\n{sentence}\n\nUse **bold** and the <memory> tag.\n\n1. one\n2. two\x1b]0;t\x07\n"

    def slow(messages: list[Message], tools: list[str]) -> Message:
        question = str(messages[-1]["content"])
        if tools == ["report_facts"] and "I live in Rome." in question:
            extracting.set()
            go_on.wait(PATIENCE_SECONDS)
        if question.endswith("My name is Logan."):
            asked.set()
            go_on.wait(PATIENCE_SECONDS)
        return say(answer) if question.endswith("Show me.") else model(messages, tools)

    with serve(slow) as server:
        openai = {"OPENAI_API_KEY": KEY, "OPENAI_API_BASE": server.api_base}
        with at_terminal("chat", "--db", database, "--session", "s", NO_COLOR="1", **openai) as terminal:
            terminal.wait_for("you> ")
            terminal.press_ctrl_c()
            terminal.wait_for("/quit or Ctrl-D ends the conversation.")
            terminal.wait_for("you> ")
            terminal.type("Show me.")
            printed = terminal.wait_for("you> ")
            terminal.type("My name is Logan.")
            assert asked.wait(PATIENCE_SECONDS)
            terminal.press_ctrl_c()
            terminal.wait_for("(interrupted)")
            terminal.wait_for("you> ")
            terminal.type("I live in Rome.")
            terminal.wait_for("you live in Rome.")
            terminal.wait_for("you> ")
            terminal.type("/facts")
            assert extracting.wait(PATIENCE_SECONDS)
            terminal.wait_for("Extracting facts")
            terminal.press_ctrl_c()
            terminal.wait_for("extracted when this session is next used")
            terminal.wait_for("you> ")
            terminal.press_ctrl_d()
            terminal.wait_for("Extracting facts")
            terminal.press_ctrl_c()
            terminal.wait_for("extracted when this session is next used")
            assert terminal.end() == 0
            assert "Traceback" not in terminal.printed
        go_on.set()
    assert_whole(printed, sentence)
    # What was asked is kept, and what was not extracted is not lost.
    later = command("chat", "--db", database, "--session", "s", stdin="What is my name?\n/facts\n").stdout
    assert later.startswith("Your name is Logan.")
    assert "Lives in Rome" in later + command("facts", "list", "--db", database, "--session", "s").stdout


@at_a_terminal
def test_ctrl_c_ends_a_conversation_through_a_pipe(database: str) -> None:
    """Whatever bytes came through it."""
    command, pipe = [*COMMAND, "chat", "--db", database], subprocess.PIPE
    with (
        interruptible(),
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=clean_environment()) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"My name is Logan\xff.\n")
        process.stdin.flush()
        assert process.stdout.readline().startswith(b"Noted: your name is Logan")
        process.send_signal(signal.SIGINT)
        _, printed = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 130
    assert b"Traceback" not in printed


def test_an_error_of_the_model_is_told_in_its_words(command: Here, database: str) -> None:
    with serve(lambda *_: fail(500, "out of order")) as server:
        openai = {"OPENAI_API_KEY": KEY, "OPENAI_API_BASE": server.api_base}
        done = command("chat", "--db", database, stdin="Hello\n", **openai)
    assert "answers with status 500: out of order." in done.stderr


def test_a_database_that_may_only_be_read_begins_no_conversation(command: Here, database: str) -> None:
    """It says so before the first question, and promises nothing."""
    command("chat", "--db", database, "--session", "s", stdin="My name is Logan.\n")
    address = f"sqlite+aiosqlite:///file:{database}?mode=ro&uri=true"
    done = command("chat", "--db", address, "--session", "s", stdin="What is my name?\n")
    assert (done.returncode, done.stdout) == (1, "")
    assert "attempt to write a readonly database. Nothing was changed: see who may write" in done.stderr
    assert "is kept" not in done.stderr
    shown = command("sessions", "show", "s", "--db", address)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "My name is Logan." in shown.stdout


@pytest.mark.parametrize("size", [1, 3, 1_000])
def test_markdown_is_split_between_blocks_whatever_parts_it_comes_in(size: int) -> None:
    """And not within a list, or a block of code."""
    blocks = ["# Title\n\n", "Two\nlines\n\n", "1. one\n\n2. two\n\n", "```python\nx = 1\n\ny = 2\n```\n", "The end."]
    text, finished, rest = "".join(blocks), "", ""
    for start in range(0, len(text), size):
        done, rest = split_blocks(rest + text[start : start + size])
        finished += done
        assert "".join(blocks).startswith(finished)
        assert finished in ["".join(blocks[:count]) for count in range(len(blocks))]
    assert finished + rest == text


def test_a_closed_output_ends_the_conversation_without_an_error_text(database: str) -> None:
    command = [*COMMAND, "chat", "--db", database, "--session", "s"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=clean_environment()) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(b"My name is Logan.\n" * 30)
        process.stdin.close()
        process.stdout.readline()
        process.stdout.close()
        printed = process.stderr.read().decode()
    assert printed.splitlines()[-1].startswith("facts ")
    assert process.returncode == 1
