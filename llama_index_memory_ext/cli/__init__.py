"""Runs a command, and reports in one line what failed."""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from llama_index_memory_ext.errors import MemoryExtError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import typer

FAILED, WRONG_USAGE, INTERRUPTED = 1, 2, 130

_NOT_INSTALLED = (
    "The commands chat, facts, sessions, export, import, forget and doctor need Typer and Rich: "
    'pip install "llama-index-memory-ext[cli]"'
)
# Control characters except line ends and tabs, lone surrogates, and characters that change the direction of text.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class TerminalError(Exception):
    """An error that the user can correct; the text says how."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command that the arguments name (default: ``sys.argv``).

    Returns:
        0 if all went well, 1 if something failed or was not found, 2 for wrong usage, 130 if interrupted.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A model may answer in characters that the terminal does not have.
            stream.reconfigure(errors="replace")
    try:
        return _run(arguments)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else FAILED if end.code else 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of the output has closed it. Otherwise Python would report an error when it flushes the rest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:  # noqa: BLE001 - the user gets one line, whatever failed
        _print_error(describe_error(error), as_json="--json" in arguments)
        return FAILED


def load_app() -> typer.Typer:
    """Returns the Typer app with all of its commands."""
    # Imported here: Typer and Rich are optional.
    from llama_index_memory_ext.cli import chat, facts, files, forget  # noqa: F401 - they register their commands
    from llama_index_memory_ext.cli.app import app

    return app


def _run(arguments: list[str]) -> int:
    try:
        app = load_app()
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in {"typer", "rich", "packaging"}:
            raise
        return _run_without_extra(arguments)
    name = Path(sys.argv[0]).stem
    name = name if name == "llama-index-memory" else "python -m llama_index_memory_ext"
    try:
        return app(arguments, prog_name=name, standalone_mode="--json" not in arguments) or 0
    except Exception as error:
        # The class of wrong usage has a public name only in older versions of Typer.
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        _print_error(message(), as_json=True)
        return WRONG_USAGE


def _run_without_extra(arguments: list[str]) -> int:
    if not arguments or arguments[0] not in {"demo", "--help"}:
        print(_NOT_INSTALLED, file=sys.stderr)
        return WRONG_USAGE
    parser = argparse.ArgumentParser(prog="python -m llama_index_memory_ext", epilog=_NOT_INSTALLED)
    parser.add_argument("command", choices=["demo"])
    parser.add_argument("--database", type=Path, metavar="PATH")
    parser.add_argument("--session", default="demo", metavar="ID")
    options = parser.parse_args(arguments)
    # Imported here: LlamaIndex takes seconds to start, and a wrong option is reported without it.
    from llama_index_memory_ext.cli.demo import run

    return run(options.database, options.session)


def describe_error(error: BaseException) -> str:
    """Returns what failed, in one line, without keys, passwords and values that were refused."""
    if isinstance(error, (TerminalError, MemoryExtError)):
        return _redacted(str(error), longest=900)
    if (reason := _describe_model_error(error)) is not None:
        return reason
    if isinstance(error, ValueError) and callable(errors := getattr(error, "errors", None)):
        # The whole text of a pydantic error quotes the value.
        first: Any = errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or type(error).__name__
        return f"{field}: {_redacted(first['msg']).removeprefix('Value error, ').rstrip('.')}."
    if (cause := getattr(error, "orig", None)) is not None:
        return f"the database cannot be used: {_redacted(str(cause)).rstrip('.')}."
    return ": ".join(filter(None, [type(error).__name__, _redacted(str(error))]))


def _describe_model_error(error: BaseException) -> str | None:
    # Not imported: it takes half a second, and its errors can only come from where it was imported already.
    openai: Any = sys.modules.get("openai")
    if openai is None or not isinstance(error, (openai.APIConnectionError, openai.APIStatusError)):
        return None
    if isinstance(error, openai.APIConnectionError):
        return f"there is no connection to {model_host()}."
    if isinstance(error, openai.AuthenticationError):
        return f"{model_host()} refuses the key in OPENAI_API_KEY."
    text = error.body.get("message") if isinstance(error.body, dict) else error.message
    return f"{model_host()} answers with status {error.status_code}: {_redacted(str(text))}"


def model_host() -> str:
    """Returns the host of the model's API, without a user name or a password from its address."""
    address = urlsplit(os.environ.get("OPENAI_API_BASE") or "https://api.openai.com")
    return address.netloc.rpartition("@")[2] or "the address in OPENAI_API_BASE"


def plain(text: str) -> str:
    r"""Returns the text with each character that could control a terminal replaced by a visible one.

    >>> plain("\x1b[31mred")
    '␛[31mred'
    """
    return _UNSAFE.sub(_picture, text)


def one_line(text: str, longest: int = 500) -> str:
    """Returns the text safe to print, on one line of at most ``longest`` characters."""
    line = plain(" ".join(text.split()))
    return line if len(line) <= longest else f"{line[: longest - 3]}..."


def pluralize(number: int, noun: str) -> str:
    """Returns a number with its noun.

    >>> pluralize(1, "fact"), pluralize(2, "fact")
    ('1 fact', '2 facts')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _print_error(text: str, *, as_json: bool) -> None:
    print(json.dumps({"error": plain(text)}) if as_json else f"Error: {plain(text)}", file=sys.stderr)


def _redacted(text: str, longest: int = 300) -> str:
    key = os.environ.get("OPENAI_API_KEY", "").strip()
    return one_line(text.replace(key, "[key]") if key else text, longest)


def _picture(found: re.Match[str]) -> str:
    return chr(0x2400 + ord(found[0])) if found[0] < " " else "\u2421" if found[0] == "\x7f" else "\ufffd"
