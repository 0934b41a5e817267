"""Moves conversations and facts out of a database and into it: the commands ``export`` and ``import``."""

from __future__ import annotations

import asyncio
import sys
from enum import Enum
from json import detect_encoding
from pathlib import Path
from typing import Annotated

import typer

from llama_index_memory_ext.cli.database import Place, existing, existing_or_new, place_of
from llama_index_memory_ext.cli.options import AsJson, Database, Session, User, one_of
from llama_index_memory_ext.cli.plain import plain
from llama_index_memory_ext.cli.reasons import TerminalError, counted
from llama_index_memory_ext.cli.screen import say, show_json

_STREAM = Path("-")


class Layout(str, Enum):
    """How messages are written."""

    LLAMA_INDEX = "llama_index"
    OPENAI = "openai"


Format = Annotated[Layout, typer.Option("--format", help="How messages are written.")]
Output = Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Where to; - for stdout.")]
File = Annotated[Path, typer.Argument(metavar="FILE", help="Where from; - for stdin.")]


def export(
    *,
    session: Session = None,
    user: User = None,
    format_: Format = Layout.LLAMA_INDEX,
    output: Output = _STREAM,
    db: Database = None,
) -> None:
    """Write messages as JSON, or facts as JSON Lines.

    With --session the messages of the session, with --user all that is known about the user, retired facts too.
    """
    one_of(user, session)
    if output != _STREAM and not output.expanduser().parent.is_dir():
        raise typer.BadParameter(f"the folder {output.expanduser().parent} does not exist.")
    if output != _STREAM and output.expanduser().is_dir():
        raise typer.BadParameter(f"--output must name a file, and {output} is a folder.")
    place = place_of(db)
    text = asyncio.run(_messages(place, session, format_.value) if session else _facts(place, str(user)))
    if output == _STREAM:
        _print(text)
    else:
        _write(output, text)
        say(f"Written to {output}.", stderr=True)


def import_(
    file: File, *, session: Session = None, user: User = None, db: Database = None, json: AsJson = False
) -> None:
    """Add messages to a session, or facts to a user.

    A database that does not exist is created. With --session the file holds messages as LlamaIndex or OpenAI's API
    write them, and --user says whose they are. With --user alone it holds facts as `export --user` writes them. Facts
    of imported messages are extracted when the session is next talked in.
    """
    if not (session or user):
        raise typer.BadParameter("say --session ID for messages, or --user ID for facts.")
    content, place = _read(file), place_of(db)
    if session:
        count = asyncio.run(_import_messages(place, content, session, user))
    else:
        count = asyncio.run(_import_facts(place, _decoded(file, content), str(user)))
    kind = "message" if session else "fact"
    if json:
        show_json({f"{kind}s": count})
    else:
        say(f"Imported {counted(count, kind)} into {session or user}.")


async def _messages(place: Place, session: str, layout: str) -> str:
    # Imported here, as everything that starts LlamaIndex.
    from llama_index_memory_ext.formats.llama_index import messages_to_json

    async with existing(place) as store:
        messages = await store.get_messages(session, None)
    if not messages:
        raise TerminalError(f"There is no session {session!r}. `sessions` lists those that there are.")
    return messages_to_json(messages, layout="openai" if layout == "openai" else "llama_index") + "\n"


async def _facts(place: Place, user: str) -> str:
    from llama_index_memory_ext.facts.book import FactBook

    async with existing(place) as store:
        return await FactBook(store, user).aexport()


async def _import_messages(place: Place, content: bytes, session: str, user: str | None) -> int:
    from llama_index_memory_ext.memory.condensed_memory import CondensedMemory

    async with existing_or_new(place) as store:
        memory = CondensedMemory.from_defaults(session, user_id=user, chat_store=store, extract_facts=False)
        return await memory.aimport(content, show_progress=sys.stderr.isatty())


async def _import_facts(place: Place, text: str, user: str) -> int:
    from llama_index_memory_ext.facts.book import FactBook

    async with existing_or_new(place) as store:
        return await FactBook(store, user).aimport(text)


def _read(file: Path) -> bytes:
    try:
        return sys.stdin.buffer.read() if file == _STREAM else file.expanduser().read_bytes()
    except OSError as error:
        raise TerminalError(f"{file} cannot be read: {error.strerror}.") from None


def _decoded(file: Path, content: bytes) -> str:
    try:
        # Some editors and shells put a mark in front, or write UTF-16.
        return content.decode(detect_encoding(content)).removeprefix("\ufeff")
    except UnicodeDecodeError:
        raise TerminalError(f"{file} is not text in UTF-8, as JSON has to be. Nothing was imported.") from None


def _write(file: Path, text: str) -> None:
    try:
        file.expanduser().write_bytes(text.encode())
    except OSError as error:
        raise TerminalError(f"{file} cannot be written: {error.strerror}.") from None


def _print(text: str) -> None:
    """On a terminal nothing of it may be a command to that; anybody else gets the bytes of a file."""
    if sys.stdout.isatty():
        print(plain(text), end="")
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(text.encode())
        sys.stdout.buffer.flush()
