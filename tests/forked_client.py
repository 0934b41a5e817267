"""Stands for ``python``: hands its arguments, files and variables to the server, and ends as the program there does.

Imports little, because each program of the tests starts it.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Callable

FORWARDED = (signal.SIGINT, signal.SIGTERM)


def main(path: str, arguments: list[str]) -> None:
    """Run a program; its exit code or signal becomes that of this process."""
    files = inherited_files()
    early: list[int] = []
    forward_to(early.append)
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    socket.send_fds(connection, [b"."], files)
    request = {
        "arguments": arguments,
        "files": files,
        "folder": os.getcwd(),  # noqa: PTH109 - pathlib takes longer to import
        "environment": dict(os.environ),
        "ignored": [number for number in FORWARDED if is_ignored(number)],
    }
    connection.sendall(json.dumps(request).encode() + b"\n")
    # Only the program has its input, its output and its pipes now.
    for file in files:
        if file != 2:
            os.close(file)
    answers = connection.makefile("rb")
    program = int(answers.readline())
    forward_to(lambda number: os.kill(program, number))
    for number in early:
        os.kill(program, number)
    end(int(answers.readline() or -signal.SIGKILL))


def inherited_files() -> list[int]:
    """Return the numbers of the open files: input, output, errors, and the pipes of ``multiprocessing``."""
    numbers = sorted(int(name) for name in os.listdir("/dev/fd"))  # noqa: PTH208 - pathlib takes longer to import
    # The last one was the folder itself.
    return [number for number in numbers if is_open(number)]


def is_open(number: int) -> bool:
    """Say whether a file has this number."""
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def is_ignored(number: int) -> bool:
    """Say whether this process was started with a signal that it ignores, as under nohup."""
    return signal.getsignal(number) is signal.SIG_IGN


def forward_to(receive: Callable[[int], object]) -> None:
    """Call a function with each signal that comes from now on."""
    for number in FORWARDED:
        if not is_ignored(number):
            signal.signal(number, lambda number, _: receive(number))


def end(exit_code: int) -> None:
    """End with an exit code; below 0, by that signal."""
    if exit_code >= 0:
        os._exit(exit_code)
    if -exit_code in FORWARDED:
        signal.signal(-exit_code, signal.SIG_DFL)
    os.kill(os.getpid(), -exit_code)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
