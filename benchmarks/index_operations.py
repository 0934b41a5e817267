"""Whether an index is that of its documents after any additions, changes, removals and questions.

20,000 operations are drawn from fixed seeds: most of them on indexes for questions in any language, the others on
indexes for one of the languages each. Texts and questions are in all languages that are supported, and in some that are
not. With each question, the index is compared with a new one of the documents that are left, by the similarities of the
documents to the question.
"""

from __future__ import annotations

import sys

from benchmarks.command import shown
from benchmarks.report import Measure, Promise, publish
from tests.search.operations import count_differences
from tests.words.test_languages import KNOWN

OPERATIONS, EACH = 20_000, 1_000


def main() -> int:
    """Compare, publish, and return the exit code."""
    fixed = [(code,) for code in KNOWN]
    runs = [None] * (OPERATIONS // EACH - len(fixed)) + fixed
    found = [
        count_differences(EACH, languages, seed)
        for seed, languages in enumerate(shown(runs, "indexes"))
    ]
    promise = Promise("differences between an index and a new one", 0, sum(found))
    return publish(
        "index_operations", [Measure("operations", EACH * len(runs))], [promise]
    )


if __name__ == "__main__":
    sys.exit(main())
