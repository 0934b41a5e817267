"""Runs all benchmarks in turn, each in its own process; the exit code is 1 if a promise is missed.

``--show-progress`` is handed on to each.
"""

from __future__ import annotations

import subprocess
import sys
from time import perf_counter

from benchmarks.command import SHOW_PROGRESS, shown

NAMES = (
    "import_time",
    "first_question",
    "cached_prefix",
    "tool_rounds",
    "real_engine",
    "one_message",
    "sharded",
    "evidence_in_prompt",
    "long_replies",
    "named_times",
    "dated_questions",
    "honesty",
    "secrets_stored",
    "whose_words",
    "consolidation",
    "per_turn",
    "turn_cost",
    "history_cost",
    "bulk_put",
    "long_session",
    "pauses",
    "restore",
    "facts_cost",
    "ranking_speed",
    "index_operations",
    "recall",
    "other_words",
    "exact_facts",
    "growing",
    "many_sessions",
    "hard_days",
)


def run(name: str) -> int:
    """The exit code of one benchmark; how long it took is printed."""
    start = perf_counter()
    progress = [SHOW_PROGRESS] if SHOW_PROGRESS in sys.argv else []
    done = subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *progress], check=False)
    print(f"{name}: {perf_counter() - start:.0f} s\n", flush=True)
    return done.returncode


def main() -> int:
    """Run, name what is not kept or could not be measured, and return the exit code."""
    failed = [name for name in shown(NAMES, "benchmarks") if run(name)]
    print(f"missed or not measured: {', '.join(failed)}" if failed else "all promises kept")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
