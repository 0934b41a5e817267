"""The commands ``export``, ``import`` and ``doctor``."""

from __future__ import annotations

import asyncio
import os
import platform
import sys
from contextlib import aclosing
from json import detect_encoding
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import typer

import llama_index_memory_ext as ext
from llama_index_memory_ext.cli import PACKAGE, TerminalError, UsageError, describe_error, plain, pluralize
from llama_index_memory_ext.cli import app as cli
from llama_index_memory_ext.cli.app import Agent, Db, Json, Output, Session, User

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
        raise UsageError(f"the folder {file.parent} does not exist.")
    if file.is_dir():
        raise UsageError(f"--output must name a file, and {output} is a folder.")

    async def write(store: ext.MemoryStore) -> None:
        if not session:
            text = await cli.book_of(cli.memory_on(store, name, agent_id=agent)).aexport()
        elif messages := await store.get_messages(name, None):
            text = ext.messages_to_json(messages, layout=layout) + "\n"
        else:
            raise TerminalError(f"There is no session {name!r}. `sessions list` shows those that there are.")
        if output == _STREAM:
            sys.stdout.buffer.write((plain(text) if sys.stdout.isatty() else text).encode())
            sys.stdout.buffer.flush()
        else:
            cli.write_file(output, text)

    cli.run(db, write)


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
        raise UsageError("say --session ID for messages, or --user ID for facts.")
    try:
        content = sys.stdin.buffer.read() if file == _STREAM else file.expanduser().read_bytes()
        # Some editors write UTF-16.
        text = content.decode(detect_encoding(content))
    except OSError as error:
        raise TerminalError(f"{file} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise TerminalError(f"{file} is not text in UTF-8, as JSON has to be. Nothing was imported.") from None

    async def write(store: ext.MemoryStore) -> Output:
        memory = cli.memory_on(store, name, user, agent)
        if session:
            # As bytes: an error about a text says how a program reads a file.
            count, kind = await memory.aimport(text.encode(), show_progress=sys.stderr.isatty()), "message"
        else:
            count, kind = await cli.book_of(memory).aimport(text), "fact"
        return {f"{kind}s": count}, f"Imported {pluralize(count, kind)} into {name}."

    cli.run(db, write, create=True, as_json=json)


# What was checked, the verdict (ok, warning or wrong), and what was found.
_Check: TypeAlias = tuple[str, str, str]


@cli.app.command()
def doctor(*, db: Db = None, json: Json = False) -> None:
    """Check whether all that is needed is there.

    The database, the tokenizers' files, the key and the model. Nothing is created. Exit code 1 if something is wrong.
    `pip check` tells whether the libraries have the versions that are needed.
    """
    here = f"{ext.__version__}, on Python {platform.python_version()}"
    checks = [(PACKAGE, "ok", here), *asyncio.run(_check_database(db)), *_check_models()]
    is_ok = all(verdict != "wrong" for _, verdict, _ in checks)
    table = cli.table(
        ["result", "checked", "found"],
        [(verdict.replace("wrong", "WRONG"), name, found) for name, verdict, found in checks],
    )
    listed = [{"name": name, "verdict": verdict, "found": found} for name, verdict, found in checks]
    cli.show(({"ok": is_ok, "checks": listed}, table), as_json=json)
    if not is_ok:
        raise typer.Exit(1)


async def _check_database(db: str | None) -> list[_Check]:
    """Checks whether the database can be reached, the version of its schema, and whether rows can be written."""
    store = cli.find_store(db)
    file, checks = cli.file_of(store), list[_Check]()
    if file and not file.exists():
        # The folder of the default file is created.
        if file == cli.default_file() or os.access(file.parent, os.W_OK | os.X_OK):
            return [("database", "ok", f"{file} does not exist yet; the first conversation creates it.")]
        needed = f"{file} needs the folder {file.parent}, which does not exist or may not be written to."
        return [("database", "wrong", needed)]
    try:
        async with aclosing(store):
            schema = await store.read_schema_version()
            checks.append(("database", "ok", str(file or store.address)))
            if schema is None:
                empty = "no tables of this package yet; the first conversation creates them."
                return [*checks, ("schema", "ok", empty)]
            await cli.try_writing(store)
            return [*checks, ("writing", "ok", "rows can be written"), ("schema", "ok", f"version {schema}")]
    except Exception as error:  # noqa: BLE001 - whatever failed is what this command is to find
        return [*checks, ("writing" if checks else "database", "wrong", describe_error(error))]


def _check_models() -> list[_Check]:
    # Imported here: they import LlamaIndex.
    from llama_index_memory_ext.cli.demo import choose_model, describe_model
    from llama_index_memory_ext.models.prompt_caches import how_to_mark, needs_cache_points
    from llama_index_memory_ext.text.tokens import is_shipped

    checks = list[_Check]()
    for name, models in (("o200k_base", "GPT-4o and later"), ("cl100k_base", "GPT-4 and GPT-3.5")):
        found = "there, so tokens are counted without a network"
        if not (there := is_shipped(name)):
            found = "its file in llama-index-core cannot be loaded. Install llama-index-core again."
        checks.append((name, "ok" if there else "wrong", f"tokenizer of {models}: {found}"))
    has_key = bool(os.environ.get("OPENAI_API_KEY"))
    unset = "not set: `chat` and `demo` answer with the offline model"
    checks.append(("OPENAI_API_KEY", "ok" if has_key else "warning", "set" if has_key else unset))
    try:
        model = choose_model()
    except TerminalError as error:
        return [*checks, ("model", "wrong", str(error))]
    checks.append(("model", "ok", describe_model(model)))
    if family := needs_cache_points(model.metadata.model_name):
        found = f"{family} find a conversation in their cache only at cache points. In a program say"
        checks.append(("prompt cache", "warning", f"{found} {how_to_mark(family)}."))
    return checks
