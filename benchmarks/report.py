"""Prints what was measured next to what was promised, and keeps it in ``benchmarks/results``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from time import perf_counter
from typing import Any

from benchmarks.command import command_of
from benchmarks.machine import commit, machine, versions
from benchmarks.measured import RESULTS, digests

# Benchmarks import this file before they begin.
_STARTED = perf_counter()


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
        return (
            self.measured >= self.limit
            if self.at_least
            else self.measured <= self.limit
        )

    @property
    def bound(self) -> str:
        return (
            f"at {'least' if self.at_least else 'most'} {_shown(self.limit, self.unit)}"
        )


@dataclass(frozen=True)
class Series:
    """One line of a picture: what a side has in one setting, as points (x, y) in the order of x."""

    what: str
    setting: str
    side: str
    by: str
    unit: str
    points: tuple[tuple[float, float], ...]


def publish(
    name: str,
    measures: list[Measure],
    promises: list[Promise],
    series: Sequence[Series] = (),
    *,
    part: str = "",
) -> int:
    """Print the tables and write ``results/NAME.json``. Returns the exit code: 1 if a promise is missed.

    ``part`` names a part of the benchmark that cannot be measured everywhere: it has a file of its own,
    ``results/NAME_PART.json``, which stays where the part is not measured.
    """
    command, file = command_of(name), f"{name}_{part}" if part else name
    width = max(
        len(what) for what in [*(m.what for m in measures), *(p.what for p in promises)]
    )
    print(f"{file}: {command}")
    for measure in measures:
        print(f"  {measure.what:{width}}  {_shown(measure.value, measure.unit):>12}")
    for promise in promises:
        verdict = "kept" if promise.kept else "missed"
        measured = _shown(promise.measured, promise.unit)
        print(
            f"  {promise.what:{width}}  {promise.bound:>16}  measured {measured:>9}  {verdict}"
        )
    RESULTS.mkdir(exist_ok=True)
    result = {
        "command": command,
        "commit": commit(),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "seconds": round(perf_counter() - _STARTED),
        "machine": machine(),
        "versions": versions(),
        "measured": digests(file),
        "measures": [_plain(measure) for measure in measures],
        "promises": [{**_plain(promise), "kept": promise.kept} for promise in promises],
    }
    (RESULTS / f"{file}.json").write_text(
        _written(result, series) + "\n", encoding="utf-8"
    )
    return 0 if all(promise.kept for promise in promises) else 1


def _written(result: dict[str, Any], series: Sequence[Series]) -> str:
    """JSON, with each series on a line of its own: a number on each line would make thousands of them."""
    lines = [
        {**asdict(line), "points": [[_short(x), _short(y)] for x, y in line.points]}
        for line in series
    ]
    listed = ",\n    ".join(json.dumps(line) for line in lines)
    text = json.dumps({**result, "series": []}, indent=2)
    return (
        text.replace('"series": []', f'"series": [\n    {listed}\n  ]')
        if listed
        else text
    )


def _plain(line: Measure | Promise) -> dict[str, Any]:
    return {key: _short(value) for key, value in asdict(line).items()}


def _short(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _shown(value: float, unit: str) -> str:
    digits = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{digits} {unit}".rstrip()
