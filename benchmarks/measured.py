"""Tells which files of the package each result depends on, and whether they have changed since it was measured.

    python -m benchmarks.measured

prints the results that are older than the last change of what they measure. Comments and docstrings do not count.
"""

from __future__ import annotations

import ast
import hashlib
import json
import sys
import tokenize
from functools import cache
from io import StringIO
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "llama_index_memory_ext"
RESULTS = Path(__file__).parent / "results"

_RECORD = ("record/reader.py", "record/window.py")
_PROMPT = (
    "record/text.py",
    *_RECORD,
    "record/cache_points.py",
    "memory/template.py",
    "text/messages.py",
    "text/entries.py",
    "text/parts.py",
    "text/turns.py",
)
_WORDS = (
    "search/tfidf.py",
    "words/tokens.py",
    "words/__init__.py",
)
_RECALL = ("record/index.py", "record/recall.py", *_RECORD, *_WORDS)
_CHECKS = (
    "checks/clauses.py",
    "checks/comparison.py",
    "learning/rejections.py",
    "learning/validation.py",
    "learning/reply.py",
    "checks/evidence.py",
    "checks/quotes.py",
    "facts/user_facts.py",
    "words",
)
_STORE = (
    "store/cache.py",
    "store/message_rows.py",
    "store/owners.py",
    "store/deletion.py",
    "store/lost_words.py",
    "store/retention.py",
    "store/readers.py",
    "store/rows.py",
    "store/database.py",
    "store/transaction.py",
    "store/schema.py",
    "store/log.py",
)
_TURN = (
    *_STORE,
    "memory/condensed_memory.py",
    "memory/writing.py",
    "memory/prompt.py",
    "blocks/record.py",
    "blocks/limits.py",
    *_RECORD,
    "memory/template.py",
)
# By the name of the results.
MEASURES: dict[str, tuple[str, ...]] = {
    "answers": (*_PROMPT, *_RECALL, "facts/ranking.py"),
    "answers_locomo": (*_PROMPT, *_RECALL),
    # LlamaIndex's memories alone.
    "answers_host": (),
    "answers_slow": (),
    "background_calls": (
        "blocks/facts.py",
        "learning/prompt.py",
        "learning/report.py",
        "learning/request.py",
        "record/summary.py",
    ),
    "bulk_put": _STORE,
    "cached_prefix": (
        *_PROMPT,
        "record/index.py",
        "record/recall.py",
        "models/ask.py",
        "facts/ranking.py",
    ),
    "cached_prefix_by_default": (
        *_PROMPT,
        "record/index.py",
        "record/recall.py",
        "models/ask.py",
        "facts/ranking.py",
    ),
    "dated_questions": _PROMPT,
    "equal_room": (*_PROMPT, *_RECALL, "facts/ranking.py"),
    "evidence_in_prompt": (*_PROMPT, *_RECALL),
    "evidence_in_prompt_e5": (*_PROMPT, *_RECALL, "search/embeddings.py"),
    "exact_facts": ("facts/concern.py", "facts/ranking.py", *_WORDS),
    "facts_cost": ("blocks/facts.py", "facts/ranking.py", "store/facts.py"),
    "first_question": (*_STORE, *_RECORD),
    "growing": ("facts/ranking.py", *_WORDS),
    "history_cost": (*_STORE, *_RECORD),
    "hard_days": _TURN,
    "honesty": _CHECKS,
    "import_time": (
        "__init__.py",
        "memory/condensed_memory.py",
        "memory/fields.py",
        "settings.py",
    ),
    "index_operations": ("search/tfidf.py",),
    "live_agent": (*_PROMPT, *_RECALL, "learning/prompt.py"),
    "long_replies": (*_PROMPT, *_RECALL),
    "long_session": _TURN,
    "many_sessions": _TURN,
    "named_times": (*_PROMPT, *_RECALL, "words/dates.py"),
    "next_session": ("blocks/facts.py", "record/unread.py"),
    "one_message": _PROMPT,
    "other_words": ("facts/ranking.py", *_WORDS),
    "other_words_e5": ("facts/ranking.py", *_WORDS, "search/embeddings.py"),
    "pauses": (*_TURN, "facts/ranking.py", "learning/extractor.py"),
    "per_turn": (*_PROMPT, "record/index.py", "record/recall.py"),
    "ranking_speed": ("facts/ranking.py", "search/tfidf.py"),
    "process_size": ("store/cache.py", *_RECORD, "record/index.py", "record/recall.py"),
    "real_engine": _PROMPT,
    "recall": ("facts/ranking.py", *_WORDS),
    "recall_e5": ("facts/ranking.py", *_WORDS, "search/embeddings.py"),
    "recall_generated": ("facts/ranking.py", *_WORDS),
    "restore": ("agents/contexts.py", *_STORE),
    "secrets_stored": ("checks/secrets.py", "learning/rejections.py"),
    "sharded": _PROMPT,
    "tool_rounds": (*_PROMPT, "models/ask.py"),
    "turn_cost": _TURN,
    "whose_words": (
        "checks/evidence.py",
        "checks/quotes.py",
        "store/message_rows.py",
        "store/log.py",
        "store/facts.py",
    ),
}


@cache
def code_of(text: str) -> str:
    """Returns the lines of a module without its comments, docstrings and empty lines; strings stay as they are."""
    lines, within = text.splitlines(), set[int]()
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            said = body[0].value
            if isinstance(said, ast.Constant) and isinstance(said.value, str):
                lines[said.lineno - 1 : said.end_lineno] = [""] * (
                    (said.end_lineno or said.lineno) - said.lineno + 1
                )
    for token in tokenize.generate_tokens(StringIO("\n".join(lines)).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column].rstrip()
        else:
            within.update(range(token.start[0], token.end[0]))
    # The lines of a string but the last one are within a token.
    return "\n".join(
        line for number, line in enumerate(lines, 1) if line.strip() or number in within
    )


def digests(name: str, package: Path = PACKAGE) -> dict[str, str]:
    """Returns the digest of each file or folder of the package that a result depends on, by its path."""
    found = {}
    for path in MEASURES[name]:
        files = (
            sorted((package / path).rglob("*.py"))
            if (package / path).is_dir()
            else [package / path]
        )
        code = "\n".join(code_of(file.read_text(encoding="utf-8")) for file in files)
        found[path] = hashlib.sha256(code.encode()).hexdigest()[:12]
    return found


def changed_since(name: str, package: Path = PACKAGE) -> list[str]:
    """Returns what has changed since a result was measured."""
    known = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8")).get(
        "measured", {}
    )
    return [
        path
        for path, digest in digests(name, package).items()
        if known.get(path) != digest
    ]


def stale(package: Path = PACKAGE) -> dict[str, list[str]]:
    """Returns the results that are older than what they measure, each with the files that have changed."""
    names = sorted(file.stem for file in RESULTS.glob("*.json"))
    return {
        name: changed for name in names if (changed := changed_since(name, package))
    }


def main() -> int:
    """Print the results that are older than what they measure; the exit code is 1 if there are any."""
    found = stale()
    for name, changed in found.items():
        print(f"{name}: changed since it was measured: {', '.join(changed)}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
