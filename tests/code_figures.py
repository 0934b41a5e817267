"""Figures of Python code: how many tokens and code lines a file has, and how complex its functions are."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, TypeAlias

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef

# What tokenize yields besides code.
_LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
_STRING_START = getattr(tokenize, "FSTRING_START", None)
_STRING_END = getattr(tokenize, "FSTRING_END", None)
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_BRANCHES = (
    ast.If,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.ExceptHandler,
    ast.IfExp,
    ast.match_case,
)


class Size(NamedTuple):
    """The size of a file, without comments, docstrings and blank lines.

    ``tokens``: names, numbers, strings and signs.
    ``lines``: lines that hold one of them.
    """

    tokens: int
    lines: int


def size_of(path: Path) -> Size:
    """Count the tokens and the code lines of a file."""
    text = path.read_text(encoding="utf-8")
    documented = _docstring_lines(ast.parse(text))
    tokens = 0
    lines: set[int] = set()
    # From Python 3.12 on an f-string is read in parts; before, and here, it is one token.
    open_strings = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        first_line = token.start[0]
        if token.type in _LAYOUT or first_line in documented:
            continue
        if token.type == _STRING_START:
            open_strings += 1
        if open_strings == 0:
            tokens += 1
        if token.type == _STRING_END:
            open_strings -= 1
            tokens += open_strings == 0
        lines.update(range(first_line, token.end[0] + 1))
    return Size(tokens, len(lines))


def _docstring_lines(tree: ast.Module) -> set[int]:
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node) is not None:
            docstring = node.body[0]
            lines.update(range(docstring.lineno, (docstring.end_lineno or 0) + 1))
    return lines


def functions_of(path: Path) -> Iterator[Function]:
    """Yield the functions and methods of a file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def complexity_of(function: Function) -> int:
    """Count the ways through a function, as McCabe does: 1, and 1 for each branch.

    A comprehension counts as a loop, each of its conditions and each further part of an
    ``and`` or ``or`` as a branch. Functions inside belong to the function.
    """
    complexity = 1
    for statement in function.body:
        for node in ast.walk(statement):
            if isinstance(node, _BRANCHES):
                complexity += 1
            elif isinstance(node, ast.BoolOp):
                complexity += len(node.values) - 1
            elif isinstance(node, ast.comprehension):
                complexity += 1 + len(node.ifs)
    return complexity
