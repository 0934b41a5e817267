"""Imports what programs of the tests use, and forks a process for each program that a client asks for.

A program ends as any other one does: what is registered for its end runs, and its exit code, output and errors are
its own. Only its modules are not taken apart, which takes a second.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import io
import json
import multiprocessing
import os
import pkgutil
import runpy
import select
import signal
import socket
import sys
import threading
import traceback
import types
import warnings
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

# Of the libraries, besides what the package imports.
IMPORTED = (
    "anyio._backends._asyncio",
    "concurrent.futures.process",
    "multiprocessing.forkserver",
    "multiprocessing.resource_tracker",
    "fastapi",
    "h11",
    "gunicorn.app.wsgiapp",
    "httpcore",
    "httpx",
    "jsonschema",
    "llama_index.core.agent.workflow",
    "llama_index.llms.openai",
    "mcp.client.stdio",
    "mcp.server.stdio",
    "openai.resources.chat",
    "openai.resources.responses",
    "psycopg",
    "rich.markdown",
    "rich.table",
    "sqlalchemy.dialects.postgresql.psycopg",
    "sqlalchemy.dialects.sqlite.aiosqlite",
    "tqdm",
    "uvicorn.main",
    "uvicorn.loops.auto",
    "uvicorn.protocols.http.auto",
    "workflows.plugins.basic",
    "workflows.runtime.control_loop",
)


# Of a program; their numbers are lower.
MOST_FILES = 100


def import_all() -> None:
    """Import the package and the libraries, and load the data that each program would read anew."""
    gc.disable()
    for name in IMPORTED:
        # Older versions of a library have other modules.
        with suppress(ModuleNotFoundError):
            import_module(name)
    package = import_module("llama_index_memory_ext")
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        import_module(module.name)
    import_module("llama_index_memory_ext.text.tokens").TokenCounter().count("warm")
    words = import_module("llama_index_memory_ext.words")
    words.language_of("The language of this is detected.")
    gc.collect()
    gc.freeze()
    gc.enable()


def serve(path: str) -> None:
    """Fork a program for each connection, until the standard input ends."""
    listener = socket.socket(socket.AF_UNIX)
    # Clients look for the socket, so it appears when it can be connected to.
    listener.bind(f"{path}.new")
    listener.listen(128)
    Path(f"{path}.new").rename(path)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        ready = select.select([listener, sys.stdin], [], [])[0]
        if sys.stdin in ready:
            return
        connection, _ = listener.accept()
        if not fork():
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            supervise(connection)
            os._exit(0)
        connection.close()


def supervise(connection: socket.socket) -> None:
    """Start the program of a client, say its number and its exit code, and kill it if the client was killed."""
    _, files, *_ = socket.recv_fds(connection, 1, MOST_FILES)
    with connection.makefile("rb") as lines:
        request = json.loads(lines.readline())
    program = fork()
    if not program:
        connection.close()
        become(request, files)
    for file in files:
        os.close(file)
    connection.sendall(f"{program}\n".encode())

    def watch() -> None:
        with suppress(ProcessLookupError):
            if not connection.recv(1):
                os.kill(program, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
    exit_code = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
    # A client that was killed does not listen.
    with suppress(BrokenPipeError):
        connection.sendall(f"{exit_code}\n".encode())


def fork() -> int:
    """Fork without the warning about threads of libraries, which hold no lock of Python."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def give_numbers(files: list[int], numbers: list[int]) -> None:
    """Give open files the numbers that they have in the client."""
    copies = [fcntl.fcntl(file, fcntl.F_DUPFD, MOST_FILES) for file in files]
    for file in files:
        os.close(file)
    for copy, number in zip(copies, numbers, strict=True):
        os.dup2(copy, number)
        os.close(copy)


def become(request: dict[str, Any], files: list[int]) -> None:
    """Be the process that the client stands for; never return."""
    give_numbers(files, request["files"])
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in request["ignored"]:
        signal.signal(number, signal.SIG_IGN)
    open_streams()
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    status = 0
    try:
        run(request["arguments"], main)
    except SystemExit as end:
        status = exit_code_of(end)
    except KeyboardInterrupt:
        status = -signal.SIGINT
        traceback.print_exc()
    except BaseException:  # noqa: BLE001 - Python ends with a traceback, too
        status = 1
        sys.excepthook(*sys.exc_info())
    os._exit(end_program(main, status))


def open_streams() -> None:
    """Open the standard streams as Python does at its start."""
    at_once = bool(os.environ.get("PYTHONUNBUFFERED"))
    opened: list[io.TextIOWrapper] = []
    for number, mode in enumerate(("rb", "wb", "wb")):
        old = (sys.__stdin__, sys.__stdout__, sys.__stderr__)[number]
        assert old is not None
        raw = open(  # noqa: SIM115
            number, mode, buffering=0 if at_once and number else -1, closefd=False
        )
        opened.append(
            io.TextIOWrapper(
                raw,
                encoding=old.encoding,
                errors=old.errors,
                line_buffering=number == 2 or os.isatty(number),
                write_through=bool(at_once and number),
            )
        )
    sys.stdin, sys.stdout, sys.stderr = opened
    for name, stream in zip(
        ("__stdin__", "__stdout__", "__stderr__"), opened, strict=True
    ):
        setattr(sys, name, stream)


def run(arguments: list[str], main: types.ModuleType) -> None:
    """Do what ``python`` does with these arguments."""
    while arguments[0] in {"-B", "-W"}:
        if arguments.pop(0) == "-W":
            warnings._setoption(arguments.pop(0))  # type: ignore[attr-defined]
    add_paths()
    if arguments[0] == "-c":
        sys.path.insert(0, "")
        sys.argv = ["-c", *arguments[2:]]
        code = compile(arguments[1], "<string>", "exec", dont_inherit=True)
        exec(code, vars(main))  # noqa: S102
    elif arguments[0] == "-m":
        sys.path.insert(0, os.getcwd())  # noqa: PTH109
        sys.argv = arguments[1:]
        sys.modules.pop(f"{arguments[1]}.__main__", None)
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(arguments[0]).parent))
        sys.argv = arguments
        runpy.run_path(arguments[0], run_name="__main__")


def add_paths() -> None:
    """Put the PYTHONPATH of the program first, and import what it has for the start of each Python."""
    # The first path is that of this file.
    del sys.path[0]
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    new = [path for path in paths if path and path not in sys.path]
    sys.path[:0] = new
    for path in new:
        if Path(path, "sitecustomize.py").exists():
            sys.modules.pop("sitecustomize", None)
            import_module("sitecustomize")


def exit_code_of(end: SystemExit) -> int:
    """Return the exit code that Python makes of it; print a message."""
    if end.code is None:
        return 0
    if isinstance(end.code, int):
        return end.code & 0xFF
    sys.stderr.write(f"{end.code}\n")
    return 1


def end_program(main: types.ModuleType, status: int) -> int:
    """Do what Python does at the end of a program; return the exit code, or die by a signal."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    vars(main).clear()
    gc.collect()
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        status = status or 120
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


if __name__ == "__main__":
    import_all()
    # The processes of multiprocessing are forked here, too.
    multiprocessing.set_executable(str(Path(sys.argv[1]).with_name("python")))
    serve(sys.argv[1])
    # Modules are not taken apart, which takes a second.
    os._exit(0)
