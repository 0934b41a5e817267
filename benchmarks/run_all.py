"""Runs all benchmarks in turn, each in its own process; the exit code is 1 if a promise is missed."""

from __future__ import annotations

import subprocess
import sys

NAMES = (
    "import_time",
    "cached_prefix",
    "sharded",
    "evidence_in_prompt",
    "turn_cost",
    "bulk_put",
    "restore",
    "facts_cost",
    "ranking_speed",
    "recall",
)


def main() -> int:
    """Run, name what is not kept or could not be measured, and return the exit code."""
    codes = {
        name: subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=False).returncode for name in NAMES
    }
    failed = [name for name, code in codes.items() if code]
    print(f"missed or not measured: {', '.join(failed)}" if failed else "all promises kept")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
