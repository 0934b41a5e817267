"""Runs Python programs in processes forked from one that has LlamaIndex, the package and its libraries imported.

Importing them takes most of the time of a short program. ``PYTHON`` stands for ``python`` in a command: it takes the
same arguments, and its input, output, errors, signals and exit code are those of the program. The processes that a
program starts through ``multiprocessing`` are forked, too. What a test wants to see of a new Python (which modules it
imports, and when) needs ``sys.executable``.
"""

from __future__ import annotations

import atexit
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

FOLDER = Path(__file__).parent
# The socket of a server that all workers of a run share.
SHARED = "TESTS_FORKED_SOCKET"
START_SECONDS = 300.0


@cache
def start_server() -> str:
    """Start the process that others are forked from, which ends with this one; return its socket."""
    # The path of a socket must be short.
    folder = TemporaryDirectory(prefix="fork")
    path = f"{folder.name}/socket"
    write_scripts(Path(folder.name), shlex.join(client_of(path)))
    server = subprocess.Popen(
        [sys.executable, str(FOLDER / "forked_server.py"), path],
        stdin=subprocess.PIPE,
        cwd=FOLDER.parent,
    )

    def end() -> None:
        server.communicate()
        folder.cleanup()

    atexit.register(end)
    return path


def client_of(path: str) -> list[str]:
    """Return the command that stands for ``python``, by the socket of the server."""
    # Without the modules of the site, which the client does not need.
    return [sys.executable, "-I", "-S", str(FOLDER / "forked_client.py"), path]


def write_scripts(folder: Path, command: str) -> None:
    """Write ``python`` and the command of the package, which are forked."""
    for name, options in (
        ("python", ""),
        ("llama-index-memory", "-m llama_index_memory_ext"),
    ):
        script = folder / name
        script.write_text(f'#!/bin/sh\nexec {command} {options} "$@"\n')
        script.chmod(0o755)


def started_server() -> str:
    """Return the socket of the server when it can be connected to."""
    path = os.environ.get(SHARED) or start_server()
    deadline = time.monotonic() + START_SECONDS
    while not Path(path).exists():
        assert time.monotonic() < deadline, "the process to fork from has not started"
        time.sleep(0.01)
    return path


def python_command() -> list[str]:
    """Return what stands for ``python`` in a command."""
    return client_of(started_server())


def python_file() -> Path:
    """Return the file that stands for ``sys.executable``."""
    return Path(started_server()).with_name("python")


def path_with_python() -> str:
    """Return a PATH on which ``python`` and the command of the package are forked."""
    return os.pathsep.join([str(python_file().parent), os.environ["PATH"]])


def run_forked(
    code: str,
    *arguments: str,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    typed: str = "",
) -> subprocess.CompletedProcess[str]:
    """Run a program in a folder; return its exit code, its output and its errors.

    ``environment`` is added to that of the tests. ``typed`` is the input.
    """
    return subprocess.run(
        [*python_command(), "-c", code, *arguments],
        cwd=folder,
        env={**os.environ, **(environment or {})},
        input=typed,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
        timeout=240,
    )


def run_shell(
    script: str, folder: Path, *options: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run shell commands in a folder, without a key or input, up to the first that fails.

    ``options`` are those of bash; ``environment`` is added to that of the tests.
    """
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("OPENAI_")
    }
    return subprocess.run(
        ["bash", "-eu", *options, "-c", script],  # noqa: S607 - wherever it is
        cwd=folder,
        env={**inherited, "PATH": path_with_python(), **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
