"""Looks whether everything is there that the package needs: the command ``doctor``."""

from __future__ import annotations

import asyncio
import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal

import typer

from llama_index_memory_ext.cli.database import Place, opened, place_of
from llama_index_memory_ext.cli.options import AsJson, Database
from llama_index_memory_ext.cli.reasons import TerminalError, model_host, reason_of
from llama_index_memory_ext.cli.screen import console, show_json
from llama_index_memory_ext.cli.versions import installed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from llama_index_memory_ext.store import MemoryStore

Verdict = Literal["ok", "warning", "wrong"]

_MARKS = {"ok": ("ok", "green"), "warning": ("note", "yellow"), "wrong": ("WRONG", "bold red")}
_ENCODINGS = ("o200k_base", "cl100k_base")


@dataclass(frozen=True)
class Check:
    """What was looked at, what was found, and whether that is fine."""

    name: str
    verdict: Verdict
    found: str


def doctor(*, db: Database = None, json: AsJson = False) -> None:
    """Check whether all that is needed is there.

    Versions, the database, the tokenizers' files and the key. Nothing is created. Exit code 1 if something is wrong.
    """
    checks = [
        *(Check(one.name, one.verdict, one.found) for one in installed()),
        *asyncio.run(_database(place_of(db))),
        *map(_tokenizer, _ENCODINGS),
        *_model(),
    ]
    is_fine = all(check.verdict != "wrong" for check in checks)
    if json:
        show_json({"ok": is_fine, "checks": [asdict(check) for check in checks]})
    else:
        _show(checks, console())
    if not is_fine:
        raise typer.Exit(1)


async def _database(place: Place) -> list[Check]:
    """Whether the database can be reached, what version its tables have, and whether rows can be written."""
    if place.file is not None and place.is_missing:
        return [_missing(place)]
    try:
        async with opened(place) as (store, version):
            checks = [Check("database", "ok", place.name), _schema(version)]
            return [*checks, await _writing(store)] if version is not None and checks[1].verdict == "ok" else checks
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what this command was asked for
        return [Check("database", "wrong", reason_of(error))]


def _missing(place: Place) -> Check:
    assert place.file is not None
    folder = next(parent for parent in place.file.parents if parent.exists() or not place.is_default)
    if not folder.is_dir():
        return Check("database", "wrong", f"{place.name} needs the folder {folder}, which does not exist.")
    if not os.access(folder, os.W_OK | os.X_OK):
        return Check("database", "wrong", f"{place.name} does not exist, and {folder} may not be written to.")
    return Check("database", "ok", f"{place.name} does not exist yet; the first conversation creates it.")


def _schema(version: int | None) -> Check:
    from llama_index_memory_ext.store.schema import SCHEMA_VERSION

    if version is None:
        return Check("schema", "ok", "no tables of this package yet; the first conversation creates them.")
    if version > SCHEMA_VERSION:
        newer = f"version {version}, and this package knows version {SCHEMA_VERSION}: use a newer one."
        return Check("schema", "wrong", newer)
    older = "" if version == SCHEMA_VERSION else f"; it becomes {SCHEMA_VERSION} when it is next opened"
    return Check("schema", "ok", f"version {version}{older}")


class _TakeBackError(Exception):
    """Ends a transaction without leaving anything of it."""


async def _writing(store: MemoryStore) -> Check:
    try:
        async with store.writing("doctor"):
            raise _TakeBackError  # noqa: TRY301 - the transaction has to be taken back
    except _TakeBackError:
        return Check("writing", "ok", "rows can be written")
    except Exception as error:  # noqa: BLE001 - as above
        return Check("writing", "wrong", reason_of(error))


def _tokenizer(name: str) -> Check:
    from llama_index_memory_ext.text.tokens import is_shipped

    if is_shipped(name):
        return Check(name, "ok", "counts exactly, offline")
    return Check(
        name, "wrong", "the file that llama-index-core brings cannot be loaded: install llama-index-core again."
    )


def _model() -> Iterator[Check]:
    from llama_index_memory_ext.cli.terminal_model import DEFAULT_MODEL, terminal_model

    if os.environ.get("OPENAI_API_KEY"):
        yield Check("OPENAI_API_KEY", "ok", "set")
    else:
        yield Check("OPENAI_API_KEY", "warning", "not set: `chat` and `demo` answer with the offline model")
    try:
        terminal_model()
    except TerminalError as error:
        yield Check("model", "wrong", str(error))
        return
    yield Check("model", "ok", f"{os.environ.get('OPENAI_MODEL') or DEFAULT_MODEL} at {model_host()}")


def _show(checks: list[Check], screen: Console) -> None:
    from rich.table import Table
    from rich.text import Text

    from llama_index_memory_ext.cli.plain import one_line

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for check in checks:
        mark, style = _MARKS[check.verdict]
        table.add_row(Text(mark, style=style), check.name, Text(one_line(check.found)))
    screen.print(table, soft_wrap=False)
