"""Runs the benchmarks in turn, each in its own process; the exit code is 1 if one is missed or not measured.

    python -m benchmarks.run_all [--data FOLDER] [--only NAME ...] [--stale] [--jobs N] [--list]
        [--base-url URL --model NAME] [--show-progress]

``--stale`` runs those alone whose results are older than what they measure, or that have none: after an interruption it
goes on with what is left. ``--jobs`` runs so many at a time, the longest first; those that time something follow, one
by one. ``--list`` runs nothing, and prints how long each took when it was last run, and what it needs. FOLDER (default
``../shared/recall``) holds the conversations; docs/figures.md says how to get them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import inf
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.command import BASE_URL, NOT_MEASURED, SHOW_PROGRESS, shown
from benchmarks.honesty import DEFAULT_FOLDER as HONESTY
from benchmarks.locomo import DEFAULT_FOLDER, file_in
from benchmarks.measured import RESULTS, stale

# What some of them need, as --list says it.
LOCOMO, FOLDER, CASES = (
    "LoCoMo",
    "a folder with LoCoMo",
    "cases written by hand, and LoCoMo",
)
REALMEM, BENCH, E5, POSTGRESQL, MODEL = (
    "RealMem",
    "[bench]",
    "[local] for a part",
    "PostgreSQL (in [dev])",
    "a model behind --base-url",
)
# In the order in which they run.
NEEDS: dict[str, tuple[str, ...]] = {
    "answers": (BENCH, MODEL, E5),
    "answers_locomo": (BENCH, MODEL, LOCOMO),
    "live_agent": (BENCH, MODEL),
    "import_time": (),
    "first_question": (),
    "cached_prefix": (BENCH, LOCOMO),
    "tool_rounds": (BENCH,),
    "real_engine": (BENCH, LOCOMO),
    "one_message": (BENCH,),
    "sharded": (),
    "evidence_in_prompt": (LOCOMO, E5),
    "equal_room": (LOCOMO,),
    "background_calls": (LOCOMO,),
    "next_session": (LOCOMO,),
    "long_replies": (LOCOMO,),
    "named_times": (LOCOMO,),
    "dated_questions": (BENCH,),
    "honesty": (CASES,),
    "secrets_stored": (),
    "whose_words": (),
    "per_turn": (BENCH,),
    "turn_cost": (),
    "history_cost": (BENCH,),
    "bulk_put": (),
    "long_session": (),
    "pauses": (),
    "restore": (),
    "facts_cost": (),
    "ranking_speed": (BENCH,),
    "index_operations": (),
    "recall": (FOLDER, E5),
    "other_words": (E5,),
    "exact_facts": (),
    "growing": (REALMEM,),
    "many_sessions": (POSTGRESQL,),
    "hard_days": (POSTGRESQL,),
    "process_size": (),
}
NAMES = tuple(NEEDS)
# They time something, or use all cores: nothing else may run beside them.
ALONE = frozenset(
    {
        "answers",
        "answers_locomo",
        "bulk_put",
        "facts_cost",
        "first_question",
        "hard_days",
        "history_cost",
        "import_time",
        "live_agent",
        "long_session",
        "many_sessions",
        "other_words",
        "pauses",
        "process_size",
        "ranking_speed",
        "real_engine",
        "restore",
        "turn_cost",
    }
)


def arguments_of(
    name: str, data: Path, base_url: str = "", model: str = ""
) -> list[str]:
    """The files, folders and the model that the command of a benchmark names."""
    named: dict[str, list[Any]] = {LOCOMO: [file_in(data)]}
    named |= {CASES: [HONESTY, file_in(data)], FOLDER: [data], REALMEM: [data]}
    if base_url:
        named[MODEL] = [f"{BASE_URL}={base_url}", f"--model={model}"]
    return [str(path) for need in NEEDS[name] for path in named.get(need, [])]


def benchmark_of(result: Any) -> str:
    """The benchmark that has written a file of results."""
    return str(result["command"].split()[2].removeprefix("benchmarks."))


def results_by_benchmark() -> dict[str, dict[str, Any]]:
    """The files of results, by benchmark and name."""
    found: dict[str, dict[str, Any]] = {name: {} for name in NAMES}
    for file in sorted(RESULTS.glob("*.json")):
        result = json.loads(file.read_text(encoding="utf-8"))
        found.setdefault(benchmark_of(result), {})[file.stem] = result
    return found


def stale_benchmarks() -> list[str]:
    """Those with a result that is older than what it measures, and those without any."""
    changed, known = stale(), results_by_benchmark()
    return [
        name
        for name in NAMES
        if not known[name] or not changed.keys().isdisjoint(known[name])
    ]


def last_seconds(results: dict[str, Any]) -> int | None:
    """The seconds of the last run of a benchmark; None if they are not known."""
    seconds = [result["seconds"] for result in results.values() if "seconds" in result]
    return max(seconds, default=None)


def listed() -> str:
    """A line for each benchmark: the seconds of its last run, and what it needs."""
    lines = []
    for name, results in results_by_benchmark().items():
        seconds = last_seconds(results)
        took = "not known" if results else "not yet run"
        if seconds is not None:
            took = f"{seconds:,} s"
        lines.append(f"{name:20} {took:>11}  {', '.join(NEEDS.get(name, ()))}".rstrip())
    return "\n".join(lines)


def run(name: str, arguments: Sequence[str], *, is_beside: bool = False) -> int:
    """The exit code of one benchmark; how long it took is printed.

    What a benchmark prints beside others is shown when it has ended.
    """
    start = perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", *arguments],
        check=False,
        stdout=subprocess.PIPE if is_beside else None,
        text=True,
    )
    print(f"{done.stdout or ''}{name}: {perf_counter() - start:.0f} s\n", flush=True)
    return done.returncode


def side_by_side(names: Sequence[str]) -> list[str]:
    """Those that may run beside others, the longest first; what was never run may be long."""
    results = results_by_benchmark()
    seconds: dict[str, float] = {}
    for name in names:
        if name not in ALONE:
            took = last_seconds(results[name])
            seconds[name] = inf if took is None else took
    return sorted(seconds, key=seconds.__getitem__, reverse=True)


def run_each(names: Sequence[str], asked: argparse.Namespace) -> dict[str, int]:
    """The exit code of each benchmark."""
    progress = [SHOW_PROGRESS] if asked.show_progress else []
    arguments = {}
    for name in names:
        named = arguments_of(name, asked.data, asked.base_url, asked.model)
        arguments[name] = [*named, *progress]
    beside = side_by_side(names) if asked.jobs > 1 else []
    with ThreadPoolExecutor(asked.jobs) as pool:
        run_beside = partial(run, is_beside=True)
        codes = dict(
            zip(
                beside,
                pool.map(run_beside, beside, [arguments[name] for name in beside]),
                strict=True,
            )
        )
    alone = [name for name in names if name not in codes]
    for name in shown(alone, "benchmarks"):
        codes[name] = run(name, arguments[name])
    return codes


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """What the command asks for."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.run_all", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--data", type=Path, default=DEFAULT_FOLDER, metavar="FOLDER")
    parser.add_argument(
        "--only", nargs="+", choices=NAMES, default=NAMES, metavar="NAME"
    )
    parser.add_argument(
        "--stale",
        action="store_true",
        help="only those with results older than what they measure",
    )
    parser.add_argument(
        "--list",
        action="store_true",
        help="run nothing; print the seconds of the last run, and needs",
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=1,
        metavar="N",
        help="run so many at a time that time nothing; the others follow alone",
    )
    parser.add_argument(
        BASE_URL,
        default="",
        metavar="URL",
        help="a server with OpenAI's protocol, for those that ask a real model",
    )
    parser.add_argument("--model", default="default", metavar="NAME")
    parser.add_argument(SHOW_PROGRESS, action="store_true")
    return parser.parse_args(arguments)


def main() -> int:
    """Run, name what is not kept and what is not measured, and return the exit code."""
    asked = parsed(sys.argv[1:])
    if asked.list:
        print(listed())
        return 0
    names = [
        name
        for name in (stale_benchmarks() if asked.stale else NAMES)
        if name in asked.only
    ]
    codes = run_each(names, asked)
    without = [
        name for name, code in codes.items() if code in (NOT_MEASURED, NOT_MEASURED | 1)
    ]
    failed = [name for name, code in codes.items() if code not in (0, NOT_MEASURED)]
    print(
        f"missed: {', '.join(failed)}"
        if failed
        else "all promises kept that were measured"
    )
    if without:
        print(
            f"not measured, or not all of it: {', '.join(f'{name} (needs {why(name)})' for name in without)}"
        )
    return 1 if failed or without else 0


def why(name: str) -> str:
    """What a benchmark needs, in words."""
    return ", ".join(NEEDS[name]) or "what it has said above"


if __name__ == "__main__":
    sys.exit(main())
