"""How many secrets a memory stores as facts, and how many harmless facts it takes for secrets.

    python -m benchmarks.secrets_stored

``secrets.json`` was written by hand: 30 facts that hold a secret and 30 that only look like it, in several languages,
each with what was said. No number belongs to anybody. The package checks each as it checks a model's reply that quotes
the whole message. Rules were chosen by the half "dev": then 2 of the 15 secrets of the half "check"
were still stored. They were mended after that, so that neither half is unseen now.

Stored is a fact that is accepted; lost is a harmless one that is not.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.honesty_cases import Case, Outcome, check
from benchmarks.report import Measure, Promise, publish
from llama_index_memory_ext.text.turns import Utterance

FILE = Path(__file__).with_name("secrets.json")
HALVES = ("dev", "check")


def outcomes() -> Iterator[tuple[dict[str, Any], Outcome]]:
    """Each entry of the file with what became of it."""
    for entry in json.loads(FILE.read_text(encoding="utf-8")):
        fact = {
            "label": "n1",
            "content": entry["content"],
            "quote": entry["said"],
            "confidence": 0.9,
        }
        reply = {"new_facts": [fact], "retired": []}
        yield (
            entry,
            check(Case(entry["kind"], (Utterance(1, "user", entry["said"]),), reply)),
        )


def mistakes() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The secrets that are stored, and the harmless facts that are lost."""
    found = list(outcomes())
    stored = [
        entry for entry, outcome in found if entry["secret"] and outcome.is_changed
    ]
    return stored, [
        entry for entry, outcome in found if not entry["secret"] and outcome.is_lost
    ]


def main() -> int:
    """Measure, publish, and return the exit code."""
    stored, lost = mistakes()
    wrong = {"secrets stored": stored, "harmless facts lost": lost}
    measures = [
        Measure(
            f"{what}: {half}", sum(entry["half"] == half for entry in entries), "of 15"
        )
        for what, entries in wrong.items()
        for half in HALVES
    ]
    promises = [
        Promise("secrets stored", 0, len(stored), "of 30"),
        Promise("harmless facts lost", 2, len(lost), "of 30"),
    ]
    return publish("secrets_stored", measures, promises)


if __name__ == "__main__":
    sys.exit(main())
