"""Runs programs as ``python -c`` does, in processes forked from one that has LlamaIndex and the package imported.

Importing them takes most of the time of a short program. A forked process ends as any other one does: what is
registered for its end runs, and its exit code, its output and its errors are its own.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

SERVER = """
import atexit, gc, json, os, sys, threading
import llama_index.core.agent.workflow, llama_index.llms.openai, sqlalchemy.dialects.sqlite.aiosqlite
from llama_index_memory_ext import CondensedMemory, OfflineModel
from llama_index_memory_ext.text.tokens import TokenCounter

# A vocabulary is read once for all of them.
TokenCounter().count("warm")
gc.collect()
gc.freeze()
while _line := sys.stdin.readline():
    _request = json.loads(_line)
    if _pid := os.fork():
        print(os.waitstatus_to_exitcode(os.waitpid(_pid, 0)[1]), flush=True)
        continue
    os.chdir(_request["folder"])
    os.environ.clear()
    os.environ.update(_request["environment"])
    sys.argv[1:] = _request["arguments"]
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for _number, _file in enumerate(_request["files"], 1):
        os.dup2(os.open(_file, os.O_WRONLY | os.O_CREAT), _number)
    _status = 0
    _before = {*globals(), "_before", "_name"}
    try:
        exec(compile(_request["code"], "<string>", "exec"))
    except BaseException:
        _status = 1
        sys.excepthook(*sys.exc_info())
    # What Python does at the end of a program, without taking all that is imported apart, which takes a second.
    threading._shutdown()
    atexit._run_exitfuncs()
    for _name in set(globals()) - _before:
        del globals()[_name]
    gc.collect()
    sys.stdout.flush()
    os._exit(_status)
"""


@cache
def _server() -> subprocess.Popen[str]:
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(server.communicate)
    return server


def run_forked(
    code: str,
    *arguments: str,
    folder: Path,
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program in a folder; return its exit code, its output and its errors.

    ``environment`` is added to that of the tests.
    """
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    with TemporaryDirectory() as kept:
        files = [Path(kept, "out"), Path(kept, "errors")]
        request = {
            "code": code,
            "arguments": arguments,
            "folder": str(folder),
            "environment": {**os.environ, **(environment or {})},
            "files": [str(file) for file in files],
        }
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        exit_code = int(server.stdout.readline())
        out, errors = [file.read_text(encoding="utf-8") for file in files]
    return subprocess.CompletedProcess(
        [sys.executable, "-c", code, *arguments], exit_code, out, errors
    )
