"""Runs the command line as a person does: in a process of its own, with pipes or at a terminal."""

from __future__ import annotations

import io
import json
import os
import select
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer import main as typer_main

from llama_index_memory_ext.__main__ import main
from tests.forked import python_command
from tests.signals import interruptible

# Enough for a busy machine; what is waited for usually comes at once.
PATIENCE_SECONDS = 60.0
PRESS_AGAIN_SECONDS = 5.0


def clean_environment(**more: str) -> dict[str, str]:
    """Without what would make a run depend on who starts it."""
    ours = ("OPENAI_", "LLAMA_INDEX_MEMORY", "NO_COLOR", "FORCE_COLOR", "COLUMNS")
    return {
        **{
            name: value
            for name, value in os.environ.items()
            if not name.startswith(ours)
        },
        **more,
    }


def package_command(*options: str) -> list[str]:
    """Return the command line of the package, in a process of its own."""
    return [*python_command(), "-m", "llama_index_memory_ext", *options]


def run(
    *options: str, python: Sequence[str] = (), **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, with pipes; ``python`` is by default the one that forks."""
    command = package_command(*options)
    if python:
        command = [*python, "-m", "llama_index_memory_ext", *options]
    return subprocess.run(
        command,
        env=clean_environment(**environment),
        input="",
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )


def path_without(library: str, folder: Path) -> str:
    """A PYTHONPATH with which a library cannot be imported."""
    (folder / library).mkdir(parents=True)
    (folder / library / "__init__.py").write_text(
        f"raise ModuleNotFoundError('No', name={library!r})"
    )
    return os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])


class Typed(str):
    """Lines that are typed at a terminal, as the input of ``Here``."""

    __slots__ = ()


class Keyboard(io.TextIOWrapper):
    """The input of a terminal."""

    def isatty(self) -> bool:
        return True


# Typer builds all commands anew for each call, which takes most of the time of a short one.
get_command = cache(typer_main.get_command)


class Here:
    """Runs commands in this process, which saves starting LlamaIndex each time, with variables of the environment."""

    def __init__(
        self,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
        **variables: str,
    ) -> None:
        self.capsys, self.monkeypatch, self.variables = capsys, monkeypatch, variables

    def on(self, database: Path) -> Here:
        """The same with this database."""
        return Here(self.capsys, self.monkeypatch, LLAMA_INDEX_MEMORY_DB=str(database))

    def __call__(
        self, line: str = "", *more: str, stdin: str | bytes = "", **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a line as a shell splits it, with more arguments; what came before is not among its output."""
        arguments = [*shlex.split(line), *more]
        self.capsys.readouterr()
        stream = Keyboard if isinstance(stdin, Typed) else io.TextIOWrapper
        given = io.BytesIO(stdin if isinstance(stdin, bytes) else stdin.encode())
        with self.monkeypatch.context() as patch:
            for name in set(os.environ) - set(clean_environment()):
                patch.delenv(name)
            for name, value in (self.variables | environment).items():
                patch.setenv(name, value)
            patch.setattr(sys, "stdin", stream(given, encoding="utf-8"))
            patch.setattr(typer_main, "get_command", get_command)
            code = main(arguments)
        out, err = self.capsys.readouterr()
        return subprocess.CompletedProcess(arguments, code, out, err)

    def json(self, line: str, *more: str) -> Any:
        """What a command prints with --json."""
        return json.loads(self(line, *more, "--json").stdout)


class Terminal:
    """A program at a terminal: what it has printed, and a keyboard."""

    def __init__(self, process: subprocess.Popen[bytes], screen: int) -> None:
        self.process, self.screen = process, screen
        self.printed = ""

    def wait_for(self, text: str) -> str:
        """All that is printed up to and with a text; what comes behind it is kept for the next call."""
        while text not in self.printed:
            if not self.read():
                raise AssertionError(f"waited for {text!r} and saw {self.printed!r}")
        before, self.printed = self.printed.split(text, 1)
        return before + text

    def press_ctrl_c(self) -> None:
        """Press it, and again where nothing happens: Python loses one between a prompt and waiting for a line."""
        self.process.send_signal(signal.SIGINT)
        while (
            not select.select([self.screen], [], [], PRESS_AGAIN_SECONDS)[0]
            and self.process.poll() is None
        ):
            self.process.send_signal(signal.SIGINT)

    def end(self) -> int:
        """Read on until the program has ended; its exit code."""
        while self.read():
            pass
        return self.process.wait(PATIENCE_SECONDS)

    def read(self) -> bool:
        """Take what is printed next; False if the program has ended."""
        if not select.select([self.screen], [], [], PATIENCE_SECONDS)[0]:
            raise AssertionError(
                f"nothing more came, and the program goes on, behind {self.printed!r}"
            )
        try:
            some = os.read(self.screen, 65536)
        except OSError:  # what Linux says when the other side is closed
            return False
        self.printed += some.decode(errors="replace")
        return bool(some)


@contextmanager
def at_terminal(*options: str, **environment: str) -> Iterator[Terminal]:
    """Start a command at a terminal of 100 columns, and end it if that has not happened by the end of the block."""
    import fcntl  # noqa: PLC0415 - not on every system
    import pty  # noqa: PLC0415
    import struct  # noqa: PLC0415
    import termios  # noqa: PLC0415

    screen, end = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    variables = clean_environment(TERM="xterm", **environment)
    with (
        interruptible(),
        subprocess.Popen(
            package_command(*options), stdin=end, stdout=end, stderr=end, env=variables
        ) as process,
    ):
        os.close(end)
        try:
            yield Terminal(process, screen)
        finally:
            process.kill()
            os.close(screen)
