"""Prints the help of a command with its arguments as their names alone: ``QUESTION``, not ``{QUESTION} <str>``."""

from __future__ import annotations

import re
from typing import Any

from typer.core import TyperCommand

# Typer 0.29 writes {NAME} into the usage, and NAME <str> above the help of an argument.
_NAME = re.compile(r"\{(\w+)\}")
_TYPED_NAME = re.compile(r"^(  [A-Z]+(?:\.\.\.)?) <[\w\[\]]+>", re.MULTILINE)


def plain_usage(text: str) -> str:
    r"""Returns a help text without the marks that Typer puts around the names of arguments.

    >>> plain_usage("Usage: facts search [OPTIONS] {QUESTION}\n\n  QUESTION <str>  What is asked.  \\[required]")
    'Usage: facts search [OPTIONS] QUESTION\n\n  QUESTION  What is asked.  [required]'
    """
    # The backslash is of Typer 0.20.
    return _TYPED_NAME.sub(r"\1", _NAME.sub(r"\1", text)).replace("\\[", "[")


class Command(TyperCommand):
    """A command of Typer whose help and usage are plain."""

    # The class of a context has a public name only in older versions of Typer.
    def get_help(self, ctx: Any) -> str:
        """Returns what ``--help`` prints."""
        return plain_usage(super().get_help(ctx))

    def get_usage(self, ctx: Any) -> str:
        """Returns the line that is printed with an error, too."""
        return plain_usage(super().get_usage(ctx))
