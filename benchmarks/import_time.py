"""What importing the package adds to importing LlamaIndex, in fresh processes that alternate.

Each process counts the processor's time of its own import, so starting Python is not counted. The first process of
each side, which has to compile and to read from a cold disk, is not counted either: pip compiles what it installs,
once, whatever ``PYTHONDONTWRITEBYTECODE`` says to a checkout.
"""

from __future__ import annotations

import os
import subprocess
import sys
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.command import shown
from benchmarks.report import Measure, Promise, publish

ROUNDS = 7
# The names of the package are loaded on first use; the preset stands upon nearly all of it.
HOST, BOTH = (
    "llama_index.core",
    "llama_index.core, llama_index_memory_ext.memory.condensed_memory",
)


def import_seconds(modules: str, compiled: str) -> float:
    """The seconds that the import takes in a new process, which keeps and finds what is compiled in a folder."""
    code = f"from time import process_time; start = process_time(); import {modules}; print(process_time() - start)"
    environment = {
        **os.environ,
        "PYTHONPYCACHEPREFIX": compiled,
        "PYTHONDONTWRITEBYTECODE": "",
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        check=True,
        text=True,
        env=environment,
    )
    return float(done.stdout)


def measured() -> tuple[list[Measure], list[Promise]]:
    """Measure imports."""
    seconds: dict[str, list[float]] = {HOST: [], BOTH: []}
    with TemporaryDirectory() as compiled:
        for _ in shown(range(1 + ROUNDS), "rounds"):
            for modules, taken in seconds.items():
                taken.append(import_seconds(modules, compiled))
    medians = {modules: median(taken[1:]) for modules, taken in seconds.items()}
    measures = [
        Measure(f"import {modules}", taken, "s") for modules, taken in medians.items()
    ]
    promises = [
        Promise(
            "seconds more than LlamaIndex alone",
            0.1,
            medians[BOTH] - medians[HOST],
            "s",
        ),
        Promise("both against LlamaIndex alone", 1.1, medians[BOTH] / medians[HOST]),
    ]
    return measures, promises


if __name__ == "__main__":
    sys.exit(publish("import_time", *measured()))
