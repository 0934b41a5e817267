"""Prints what was measured beside what was promised, and keeps it in ``benchmarks/results``."""

from __future__ import annotations

import json
import os
import platform
import sys
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"

_PACKAGES = (
    "llama-index-memory-ext",
    "llama-index-core",
    "llama-index-workflows",
    "sqlalchemy",
    "aiosqlite",
    "tiktoken",
    "banks",
)


@dataclass(frozen=True)
class Measure:
    """One number as it was measured."""

    what: str
    value: float
    unit: str = ""


@dataclass(frozen=True)
class Promise:
    """A number that must not pass ``limit``; with ``at_least`` one that must reach it."""

    what: str
    limit: float
    measured: float
    unit: str = ""
    at_least: bool = False

    @property
    def kept(self) -> bool:
        return self.measured >= self.limit if self.at_least else self.measured <= self.limit

    @property
    def bound(self) -> str:
        return f"at {'least' if self.at_least else 'most'} {_shown(self.limit, self.unit)}"


def publish(name: str, measures: list[Measure], promises: list[Promise]) -> int:
    """Print the tables and write ``results/NAME.json``. Returns the exit code: 1 if a promise is missed."""
    width = max(len(what) for what in [*(m.what for m in measures), *(p.what for p in promises)])
    print(f"{name}: {_command(name)}")
    for measure in measures:
        print(f"  {measure.what:{width}}  {_shown(measure.value, measure.unit):>12}")
    for promise in promises:
        verdict = "kept" if promise.kept else "missed"
        measured = _shown(promise.measured, promise.unit)
        print(f"  {promise.what:{width}}  {promise.bound:>16}  measured {measured:>9}  {verdict}")
    RESULTS.mkdir(exist_ok=True)
    result = {
        "command": _command(name),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": {"cpus": os.cpu_count(), "platform": platform.platform(), "python": platform.python_version()},
        "versions": {package: _version(package) for package in _PACKAGES},
        "measures": [_plain(measure) for measure in measures],
        "promises": [{**_plain(promise), "kept": promise.kept} for promise in promises],
    }
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 0 if all(promise.kept for promise in promises) else 1


def _command(name: str) -> str:
    # Where a file lies on the machine is nobody's business.
    return " ".join([f"python -m benchmarks.{name}", *(Path(argument).name for argument in sys.argv[1:])])


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed: the working tree"


def _plain(line: Measure | Promise) -> dict[str, Any]:
    return {key: float(f"{value:.4g}") if isinstance(value, float) else value for key, value in asdict(line).items()}


def _shown(value: float, unit: str) -> str:
    digits = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{digits} {unit}".rstrip()
