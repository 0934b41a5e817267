"""The commands ``export``, ``import`` and ``doctor``."""

from __future__ import annotations

import asyncio
import os
import platform
import sys
from contextlib import aclosing
from json import detect_encoding
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import typer

import llama_index_memory_ext as ext
from llama_index_memory_ext.cli import PACKAGE, TerminalError, describe_error, plain, pluralize
from llama_index_memory_ext.cli import app as cli
from llama_index_memory_ext.cli.app import Agent, Db, Json, Session, User

if TYPE_CHECKING:
    from collections.abc import Iterator

_Format = Annotated[Literal["llama_index", "openai"], typer.Option("--format", help="How messages are written.")]
_Output = Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The file to write; - for stdout.")]
_File = Annotated[Path, typer.Argument(metavar="FILE", help="The file to read; - for stdin.")]

_STREAM = Path("-")


@cli.app.command()
def export(
    *,
    session: Session = None,
    user: User = None,
    agent: Agent = None,
    layout: _Format = "llama_index",
    output: _Output = _STREAM,
    db: Db = None,
) -> None:
    """Write messages as JSON, or facts as JSON Lines.

    With --session the messages of the session, with --user all that is known about the user, retired facts too, of all
    agents or, with --agent, what this one sees.
    """
    name, file = cli.one_of(user, session), output.expanduser()
    if not file.parent.is_dir():
        raise typer.BadParameter(f"the folder {file.parent} does not exist.")
    if file.is_dir():
        raise typer.BadParameter(f"--output must name a file, and {output} is a folder.")

    async def read(store: ext.MemoryStore) -> str:
        if not session:
            return await cli.book_of(cli.memory_on(store, name, agent_id=agent)).aexport()
        if messages := await store.get_messages(name, None):
            return ext.messages_to_json(messages, layout=layout) + "\n"
        raise TerminalError(f"There is no session {name!r}. `sessions list` shows those that there are.")

    text = cli.run(db, read)
    if output != _STREAM:
        try:
            file.write_bytes(text.encode())
        except OSError as error:
            raise TerminalError(f"{output} cannot be written: {error.strerror}.") from None
        cli.say(f"Written to {output}.", stderr=True)
    else:
        sys.stdout.buffer.write((plain(text) if sys.stdout.isatty() else text).encode())
        sys.stdout.buffer.flush()


@cli.app.command("import")
def import_(
    file: _File,
    *,
    session: Session = None,
    user: User = None,
    agent: Agent = None,
    db: Db = None,
    json: Json = False,
) -> None:
    """Add messages to a session, or facts to a user.

    A database that does not exist is created. With --session the file holds messages as LlamaIndex, OpenAI's API,
    LangChain, LangGraph or Zep write them, and --user says whose they are. With --user alone it holds facts as
    `export --user` writes them, or an export of mem0, LangGraph's store or Zep. Facts of imported messages are
    extracted when the session is next used.
    """
    if not (name := session or user):
        raise typer.BadParameter("say --session ID for messages, or --user ID for facts.")
    try:
        content = sys.stdin.buffer.read() if file == _STREAM else file.expanduser().read_bytes()
        # Some editors write UTF-16.
        text = content.decode(detect_encoding(content))
    except OSError as error:
        raise TerminalError(f"{file} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise TerminalError(f"{file} is not text in UTF-8, as JSON has to be. Nothing was imported.") from None

    async def write(store: ext.MemoryStore) -> int:
        memory = cli.memory_on(store, name, user, agent)
        if session:
            # As bytes: an error about a text says how a program reads a file.
            return await memory.aimport(text.encode(), show_progress=sys.stderr.isatty())
        return await cli.book_of(memory).aimport(text)

    count, kind = cli.run(db, write, create=True), "message" if session else "fact"
    cli.show({f"{kind}s": count}, f"Imported {pluralize(count, kind)} into {name}.", as_json=json)


class Check(NamedTuple):
    """What was checked, the verdict (ok, warning or wrong), and what was found."""

    name: str
    verdict: str
    found: str


@cli.app.command()
def doctor(*, db: Db = None, json: Json = False) -> None:
    """Check whether all that is needed is there.

    The database, the tokenizers' files, the key and the model. Nothing is created. Exit code 1 if something is wrong.
    `pip check` tells whether the libraries have the versions that are needed.
    """
    here = f"{ext.__version__}, on Python {platform.python_version()}"
    checks = [Check(PACKAGE, "ok", here), *asyncio.run(_check_database(db)), *_check_models()]
    is_ok = all(check.verdict != "wrong" for check in checks)
    rows = [(check.verdict.replace("wrong", "WRONG"), check.name, check.found) for check in checks]
    table = cli.table(["result", "checked", "found"], rows)
    cli.show({"ok": is_ok, "checks": [check._asdict() for check in checks]}, table, as_json=json)
    if not is_ok:
        raise typer.Exit(1)


async def _check_database(db: str | None) -> list[Check]:
    """Checks whether the database can be reached, the version of its schema, and whether rows can be written."""
    store, file = cli.find_store(db)
    name, checks = str(file or store.address), list[Check]()
    if file and cli.is_missing(file):
        # The folder of the default file is created.
        if file == cli.default_file() or os.access(file.parent, os.W_OK | os.X_OK):
            return [Check("database", "ok", f"{name} does not exist yet; the first conversation creates it.")]
        needed = f"{name} needs the folder {file.parent}, which does not exist or may not be written to."
        return [Check("database", "wrong", needed)]
    try:
        async with aclosing(store):
            # Nothing is created where the database exists.
            await cli.check_store(store, file, create=True)
            checks.append(Check("database", "ok", name))
            schema = "no tables of this package yet; the first conversation creates them."
            if (number := await store.read_schema_version()) is not None:
                await cli.try_writing(store)
                checks.append(Check("writing", "ok", "rows can be written"))
                schema = f"version {number}"
            checks.append(Check("schema", "ok", schema))
    except Exception as error:  # noqa: BLE001 - whatever failed is what this command is to find
        checks.append(Check("writing" if checks else "database", "wrong", describe_error(error)))
    return checks


def _check_models() -> Iterator[Check]:
    # Imported here: they import LlamaIndex.
    from llama_index_memory_ext.cli.demo import choose_model, describe_model
    from llama_index_memory_ext.memory.prompt_caches import how_to_mark, needs_cache_points
    from llama_index_memory_ext.text.tokens import is_shipped

    for name, models in (("o200k_base", "GPT-4o and later"), ("cl100k_base", "GPT-4 and GPT-3.5")):
        there = f"tokenizer of {models}: there, so tokens are counted without a network"
        missing = (
            f"tokenizer of {models}: its file in llama-index-core cannot be loaded. Install llama-index-core again."
        )
        yield Check(name, "ok", there) if is_shipped(name) else Check(name, "wrong", missing)
    has_key = bool(os.environ.get("OPENAI_API_KEY"))
    unset = "not set: `chat` and `demo` answer with the offline model"
    yield Check("OPENAI_API_KEY", "ok" if has_key else "warning", "set" if has_key else unset)
    try:
        model = choose_model()
    except TerminalError as error:
        yield Check("model", "wrong", str(error))
        return
    yield Check("model", "ok", describe_model(model))
    if family := needs_cache_points(model.metadata.model_name):
        found = f"{family} find a conversation in their cache only at cache points. In a program say"
        yield Check("prompt cache", "warning", f"{found} {how_to_mark(family)}.")
