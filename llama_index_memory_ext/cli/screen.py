"""Prints tables, lines and JSON; all text is taken as it is, never as markup."""

from __future__ import annotations

import json
import os
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from llama_index_memory_ext.cli.plain import one_line, plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from contextlib import AbstractContextManager

_NARROWEST = 12


def console(*, stderr: bool = False) -> Console:
    """What is printed to; without colours where ``NO_COLOR`` is set or nobody looks at a terminal."""
    colours = None if os.environ.get("NO_COLOR") else "auto"
    return Console(
        stderr=stderr,
        color_system=colours,  # type: ignore[arg-type]  # a literal of Rich's own
        highlight=False,
        markup=False,
        emoji=False,
        soft_wrap=True,
    )


def say(text: str, *, style: str = "", stderr: bool = False) -> None:
    """Print a line, or several."""
    console(stderr=stderr).print(Text(plain(text), style=style))


def show_table(
    head: Sequence[str], rows: Iterable[Sequence[str]], *, folded: str = "fact", stderr: bool = False
) -> None:
    """Print rows under their heads; the column ``folded`` takes the room that is left and goes over several lines."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in head:
        is_folded = name == folded
        table.add_column(name, overflow="fold", no_wrap=not is_folded, min_width=_NARROWEST if is_folded else None)
    for row in rows:
        table.add_row(*(Text(one_line(cell)) for cell in row))
    console(stderr=stderr).print(table, soft_wrap=False)


def show_json(value: Any) -> None:
    """Print a value as JSON; all that is not ASCII is escaped, so that any terminal and any pipe takes it."""
    json.dump(value, sys.stdout, indent=2)
    sys.stdout.write("\n")


def waiting(text: str) -> AbstractContextManager[Any]:
    """Something that moves, as long as the block lasts; nothing where nobody sees it."""
    screen = console(stderr=True)
    return screen.status(plain(text)) if screen.is_terminal else nullcontext()


def is_terminal() -> bool:
    """Whether somebody can be asked, and sees the answer."""
    return sys.stdin is not None and sys.stdin.isatty()
