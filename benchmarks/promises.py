"""Checks that the quick promises are kept on this machine: import, turns, facts, ranking. Writes no results.

Only ratios are checked, since seconds say as much of the machine as of the package. A promise is missed if the best
of three runs passes its limit by more than a quarter.
"""

from __future__ import annotations

import sys
from time import perf_counter

from benchmarks import facts_cost, import_time, ranking_speed, turn_cost
from benchmarks.report import Promise

BENCHMARKS = (import_time, turn_cost, facts_cost, ranking_speed)
RUNS, MARGIN = 3, 1.25


def best_ratios(benchmark: object) -> list[Promise]:
    """The best of each ratio of a benchmark, in as few of the runs as show all of them kept."""
    best: dict[str, Promise] = {}
    for _ in range(RUNS):
        for promise in benchmark.measured()[1]:  # type: ignore[attr-defined]
            if not promise.unit and (
                promise.what not in best
                or promise.measured < best[promise.what].measured
            ):
                best[promise.what] = promise
        if all(map(is_kept, best.values())):
            break
    return list(best.values())


def is_kept(promise: Promise) -> bool:
    """Whether a ratio is within its limit and the margin."""
    return promise.measured <= MARGIN * promise.limit


def main() -> int:
    """Print each ratio beside its limit; return the exit code: 1 if one is missed."""
    missed = 0
    for benchmark in BENCHMARKS:
        start = perf_counter()
        for promise in best_ratios(benchmark):
            verdict = "kept" if is_kept(promise) else "missed"
            print(
                f"  {promise.what:70} {promise.bound:>14}  measured {promise.measured:6.3g}  {verdict}"
            )
            missed += not is_kept(promise)
        print(f"{benchmark.__name__}: {perf_counter() - start:.0f} s", flush=True)
    return min(missed, 1)


if __name__ == "__main__":
    sys.exit(main())
