"""Compares what is installed with what the package needs, and says why a version is refused."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from typing import TYPE_CHECKING, Literal

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = "llama-index-memory-ext"

# Why a version that is installed but not allowed does harm; said beside the versions that are.
_REASONS = {
    "llama-index-core": "Memory.from_defaults(chat_store=...) came with 0.14.24",
    "llama-index-workflows": "2.21.0 to 2.22.1 refuse run(memory=...), 2.22.2 to 2.23.2 work on a copy of the memory",
    "banks": "before 2.5.0 text in a message could replace the prompt or inject an image",
    "tiktoken": "before 0.13 a run of 100,000 characters without a space took minutes or crashed",
}
_OPTIONAL = {"asyncpg": 'for PostgreSQL: pip install "llama-index-memory-ext[postgres]"'}
_PYTHONS = SpecifierSet(">=3.10,<3.14")


@dataclass(frozen=True)
class Installed:
    """A library, and whether its version is one that the package works with."""

    name: str
    verdict: Literal["ok", "warning", "wrong"]
    found: str


def installed() -> Iterator[Installed]:
    """Python, this package, and each library that it names, in the order in which it does."""
    python = platform.python_version()
    yield _judged("Python", python, _PYTHONS)
    try:
        needed = [Requirement(line) for line in requires(PACKAGE) or ()]
        yield Installed(PACKAGE, "ok", version(PACKAGE))
    except PackageNotFoundError:
        yield Installed(PACKAGE, "wrong", "runs from a folder and is not installed: pip install it")
        return
    for need in needed:
        if need.marker is None or need.marker.evaluate():
            yield _checked(need)
        elif need.name in _OPTIONAL and need.marker.evaluate({"extra": "postgres"}):
            yield _checked(need, missing=_OPTIONAL[need.name])


def _checked(need: Requirement, missing: str | None = None) -> Installed:
    try:
        return _judged(need.name, version(need.name), need.specifier)
    except PackageNotFoundError:
        if missing is None:
            return Installed(need.name, "wrong", f"not installed; {need.specifier} is needed")
        return Installed(need.name, "ok", f"not installed ({missing})")


def _judged(name: str, seen: str, allowed: SpecifierSet) -> Installed:
    if allowed.contains(seen, prereleases=True):
        return Installed(name, "ok", seen)
    reason = f" ({_REASONS[name]})" if name in _REASONS else ""
    return Installed(name, "wrong", f"{seen}, but {allowed} is needed{reason}")
