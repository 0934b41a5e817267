"""A conversation at a terminal and through a pipe, with the real program and a local server."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.offline_server import model
from tests.cli.terminal import (
    PATIENCE_SECONDS,
    Here,
    at_terminal,
    clean_environment,
    package_command,
)
from tests.openai_server import Message, OpenAIServer, fail, say, serve
from tests.signals import interruptible

at_a_terminal = pytest.mark.skipif(
    sys.platform == "win32", reason="there are no such terminals"
)
KEY = "sk-not-to-be-shown"
S = ("--session", "s")
ANN = ("--user", "ann")

Chat = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def chat(command: Here, database: Path) -> Chat:
    """A conversation of these lines, to its end."""

    def talk(
        lines: str,
        *options: str,
        server: OpenAIServer | None = None,
        **environment: str,
    ) -> object:
        if server:
            environment |= {"OPENAI_API_KEY": KEY, "OPENAI_API_BASE": server.api_base}
        done = command(
            "chat", "--db", str(database), *options, stdin=lines, **environment
        )
        assert "Traceback" not in done.stderr
        assert KEY not in done.stderr
        return done

    return talk  # type: ignore[return-value]


@contextmanager
def piped(database: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A conversation in a process of its own."""
    pipe = subprocess.PIPE
    command = package_command("chat", "--db", str(database), *S)
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=pipe, env=clean_environment()
    ) as process:
        yield process


def test_lines_of_a_pipe_are_answered_one_by_one(chat: Chat, database: Path) -> None:
    """Only the answers are on stdout."""
    done = chat("My name is Logan.\n\nWhat is my name?\n", *S)
    assert (done.returncode, done.stdout) == (
        0,
        "Noted: your name is Logan.\nYour name is Logan.\n",
    )
    assert "OPENAI_API_KEY is not set" in done.stderr
    assert f"database {database}" in done.stderr
    assert "\x1b" not in done.stdout + done.stderr


def test_a_conversation_goes_on_where_it_was_left(chat: Chat) -> None:
    chat("My name is Logan.\n/quit\nnot asked\n", *S)
    done = chat("What is my name?\n", *S)
    assert done.stdout == "Your name is Logan.\n"
    assert "s, 2 messages so far" in done.stderr


def test_what_a_user_has_said_is_known_at_once_and_in_the_next_session(
    chat: Chat,
) -> None:
    first = chat("I live in Rome.\n/facts\nWhere do I live?\n", *ANN).stdout
    assert "Lives in Rome" in first
    assert first.endswith("You live in Rome.\n")
    second = chat("Where do I live?\n/facts\n/why\n/why Who am I?\n", *ANN).stdout
    assert second.startswith("You live in Rome.\n")
    assert second.count("Lives in Rome") == 3
    assert "'Where do I live?'" in second


def test_a_server_is_asked_as_the_environment_says_and_gets_the_marks_that_its_model_needs(
    chat: Chat,
) -> None:
    """As the doctor tells others to set them."""
    with serve(model) as server:
        done = chat("What is 12 + 30?\n", "--model", "gpt-4o", server=server)
        assert (done.returncode, done.stdout) == (0, "12 + 30 = 42\n")
        assert "gpt-4o at 127.0.0.1" in done.stderr
        question = f"{'A few words. ' * 100} What is 12 + 30?\n"
        done = chat(question * 3, "--model", "gpt-5.6-sol", server=server)
        assert (done.returncode, done.stdout) == (0, "12 + 30 = 42\n" * 3)
    assert {"mode": "explicit"} in [
        body.get("prompt_cache_options") for body in server.bodies
    ]
    assert server.refusals == []


def test_a_model_of_any_name_answers_and_facts_are_learned_from_its_text(
    chat: Chat,
) -> None:
    def small(messages: list[Message], tools: list[str]) -> Message:
        asked = str(messages[-1]["content"])
        if "Answer with one JSON object" not in asked:
            return say("I am small.")
        fact = {
            "content": "Lives in Oslo",
            "confidence": 0.9,
            "quote": "I live in Oslo",
        }
        return say(
            json.dumps({"new_facts": [fact] if "I live in Oslo" in asked else []})
        )

    with serve(small) as server:
        said = "I live in Oslo.\n/facts\nHello\n"
        done = chat(
            said, "--model", "tiny:135m", server=server, OPENAI_CONTEXT_WINDOW="8192"
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("I am small.") == 2
    assert "Lives in Oslo" in done.stdout
    assert "tiny:135m at 127.0.0.1" in done.stderr


def test_a_model_that_is_too_slow_is_told_as_that(chat: Chat) -> None:
    may_answer = threading.Event()

    def slow(messages: list[Message], tools: list[str]) -> Message:
        may_answer.wait(30)
        return say("At last.")

    with serve(slow) as server:
        done = chat("Hello\n", server=server, OPENAI_TIMEOUT="0.2")
        may_answer.set()
    said = " ".join(done.stderr.split())
    assert (
        "has not answered in time. --timeout SECONDS or OPENAI_TIMEOUT gives it more."
        in said
    )
    assert "no connection" not in said


def test_a_failing_model_costs_one_line_and_no_question(chat: Chat) -> None:
    """Where nobody can read it, the exit code says it too."""
    failed = chat(
        "My name is Logan.\n",
        *S,
        OPENAI_API_KEY=KEY,
        OPENAI_API_BASE="http://127.0.0.1:9",
    )
    assert (failed.returncode, failed.stdout) == (1, "")
    assert "No answer: there is no connection to 127.0.0.1:9." in failed.stderr
    with serve(lambda *_: fail(500, "out of order")) as server:
        assert (
            "answers with status 500: out of order."
            in chat("Hello\n", server=server).stderr
        )
    assert chat("What is my name?\n", *S).stdout == "Your name is Logan.\n"


def test_what_a_model_says_does_not_command_the_terminal(chat: Chat) -> None:
    with serve(
        lambda *_: say("\x1b[31mred \x1b]0;title\x07 [bold]plain[/bold]")
    ) as server:
        assert (
            chat("Hello\n", server=server).stdout
            == "␛[31mred ␛]0;title␇ [bold]plain[/bold]\n"
        )


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("/dance", "There is no /dance. /help lists the commands."),
        ("/why", "There is no question yet"),
        ("/help", "/quit"),
        ("/facts", "No facts of s."),
    ],
)
def test_a_slash_is_obeyed_and_mistakes_are_told(
    chat: Chat, line: str, says: str
) -> None:
    done = chat(f"{line}\n", *S)
    assert done.returncode == 0
    assert says in done.stdout + done.stderr


def test_a_temporary_conversation_leaves_the_database_as_it_is(
    chat: Chat, command: Here, database: Path
) -> None:
    """It knows the user, and itself while it lasts."""
    missing = chat("Hello.\n", *ANN, "--temporary")
    assert missing.returncode == 1
    assert not database.exists()
    assert (
        command("facts", "add", "Name is Logan", *ANN, "--db", str(database)).returncode
        == 0
    )
    before = database.read_bytes()
    done = chat("I live in Rome.\n/facts\n/why What is my name?\n", *ANN, "--temporary")
    assert done.returncode == 0, done.stderr
    assert "temporary: nothing is stored" in done.stderr
    assert done.stdout.count("Name is Logan") == 2
    assert [file.name for file in database.parent.iterdir()] == [database.name]
    assert database.read_bytes() == before


@at_a_terminal
def test_a_person_interrupts_answers_and_waits_but_no_conversation(
    command: Here, database: Path
) -> None:
    """Nothing that the model has written is lost, and nothing commands the terminal."""
    asked, extracting, go_on = threading.Event(), threading.Event(), threading.Event()

    def slow(messages: list[Message], tools: list[str]) -> Message:
        question = str(messages[-1]["content"])
        if tools == ["report_facts"] and "I live in Rome." in question:
            extracting.set()
            go_on.wait(PATIENCE_SECONDS)
        if question.endswith("My name is Logan."):
            asked.set()
            go_on.wait(PATIENCE_SECONDS)
        shown = say(
            "Use **bold** and the <memory> tag.\n\n1. one\n2. two\x1b]0;t\x07\n"
        )
        return shown if question.endswith("Show me.") else model(messages, tools)

    with serve(slow) as server:
        openai = {"OPENAI_API_KEY": KEY, "OPENAI_API_BASE": server.api_base}
        with at_terminal(
            "chat", "--db", str(database), *S, NO_COLOR="1", **openai
        ) as terminal:
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
            terminal.type("What is 12 + 30?")
            terminal.wait_for("add(a=12, b=30) -> 42")
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
    assert (
        "Use **bold** and the <memory> tag.\r\n\r\n1. one\r\n2. two␛]0;t␇\r\n"
        in printed
    )
    # What was asked is kept, and what was not extracted is not lost.
    later = command(
        "chat", "--db", str(database), *S, stdin="What is my name?\n/facts\n"
    ).stdout
    assert later.startswith("Your name is Logan.")
    assert (
        "Lives in Rome"
        in later + command("facts", "list", "--db", str(database), *S).stdout
    )


@at_a_terminal
def test_ctrl_c_ends_a_conversation_through_a_pipe(database: Path) -> None:
    """Whatever bytes came through it."""
    with interruptible(), piped(database) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"My name is Logan\xff.\n")
        process.stdin.flush()
        assert process.stdout.readline().startswith(b"Noted: your name is Logan")
        process.send_signal(signal.SIGINT)
        # The input stays open: at its end the conversation would end by itself.
        process.wait(timeout=PATIENCE_SECONDS)
        _, printed = process.communicate()
    assert process.returncode == 130
    assert b"Traceback" not in printed


def test_a_closed_output_ends_the_conversation_without_an_error_text(
    database: Path,
) -> None:
    with piped(database) as process:
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


def test_a_database_that_may_only_be_read_begins_no_conversation(
    command: Here, chat: Chat, database: Path
) -> None:
    """It says so before the first question, and promises nothing."""
    chat("My name is Logan.\n", *S)
    address = f"sqlite+aiosqlite:///file:{database}?mode=ro&uri=true"
    done = command("chat", "--db", address, *S, stdin="What is my name?\n")
    assert (done.returncode, done.stdout) == (1, "")
    assert (
        "attempt to write a readonly database. Nothing was changed: see who may write"
        in done.stderr
    )
    shown = command("export", "--session", "s", "--db", address)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "My name is Logan." in shown.stdout
