"""What a memory learns with a real model: how exact its quotes are, what is stored, and what each check is worth.

    python -m benchmarks.real_facts ANSWERS_JSONL DIALOGUES_JSON [ADDRESS MODEL] [--tools] [--together=4] [--read=FILE]

ADDRESS is that of a server with OpenAI's protocol, as http://localhost:8091/v1; the key is OPENAI_API_KEY, if one is
needed. Each dialogue is one request, in JSON or with ``--tools`` by a tool call; with ``--together=4``, each four
dialogues of a language and a half are one. Its answer is appended to ANSWERS_JSONL, so that a run that was stopped
goes on where it ended. Without an ADDRESS only the answers of the file are counted.

DIALOGUES_JSON is a list of ``{"id": ..., "said": [["user", "..."], ["assistant", "..."]]}``. Gold labels may stand
beside: ``store`` has what a careful reader keeps and ``no`` what must not be stored, as lists that begin with a
statement, or as ``{"statement": ..., "words": [...]}``, whose words a fact must have to be like it; ``known`` has the
known facts. ``real_dialogues.json`` has 80 messages of 30 dialogues in five languages; the form was chosen on the half
"choose". By the gold labels, a stored fact is

- true, if it has at least half of the keywords of a statement to store, and as many of them as of one not to store;
- bad, if it has more of a statement not to store;
- useless otherwise. Words of two languages cannot be compared, so a translated fact counts as useless. A statement
  with a denial is not like one without.

The stored facts are printed with these verdicts, for a reader, who judges better. With ``--read=FILE``, the reader's
verdicts count: FILE has them by the words of the facts, as ``real_verdicts.json`` for ``real_dialogues.json``. The
table is printed, and written with a picture beside the answers: ANSWERS.json and ANSWERS.png.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from llama_index.core.base.llms.types import ChatResponse
from llama_index.core.llms import LLMMetadata
from llama_index.llms.openai import OpenAI
from openai import APIConnectionError

from benchmarks.command import NOT_MEASURED, shown
from llama_index_memory_ext.checks.clauses import closest_clause, denies
from llama_index_memory_ext.checks.quotes import find_quote
from llama_index_memory_ext.errors import FactReplyError
from llama_index_memory_ext.fact import CATEGORIES, Fact
from llama_index_memory_ext.learning.budget import RequestBudget
from llama_index_memory_ext.learning.prompt import extraction_prompt
from llama_index_memory_ext.learning.rejections import CHECKS, Check
from llama_index_memory_ext.learning.reply import NewFact, read_facts
from llama_index_memory_ext.learning.report import ask_for_facts
from llama_index_memory_ext.learning.validation import ValidatedReply, validate_reply
from llama_index_memory_ext.models.ask import usage_of
from llama_index_memory_ext.text.tokens import TokenCounter
from llama_index_memory_ext.text.turns import Utterance
from llama_index_memory_ext.words import sentences_in
from llama_index_memory_ext.words.tokens import keywords, shared

SAID_AT = datetime(2026, 11, 24, 12, tzinfo=timezone.utc)
WINDOW = 8_192
LEAST_SHARE = 0.5
VERDICTS = ("true", "useless", "bad")


class NoAnswerError(Exception):
    """A server that gives no answer."""

    def __init__(self, address: str, problem: str) -> None:
        super().__init__(
            f"Expected an answer of the server at {address}; got none ({problem}). Start the server, or pass "
            "its ADDRESS, such as http://localhost:8091/v1. The same command goes on with the dialogues that are left."
        )


class Model(OpenAI):
    """A model of a server with OpenAI's protocol, whatever its name."""

    calls_tools: bool = False

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(
            context_window=WINDOW,
            is_chat_model=True,
            is_function_calling_model=self.calls_tools,
            model_name=self.model,
        )


@dataclass
class Score:
    """What became of the answers: numbers of answers, of reported and stored facts, and of gold facts."""

    answers: int = 0
    parsed: int = 0
    reported: int = 0
    exact: int = 0
    gold: int = 0
    learned: int = 0
    stored: Counter[str] = field(default_factory=Counter)
    rejected: Counter[str] = field(default_factory=Counter)
    facts: list[tuple[str, str]] = field(default_factory=list)
    prompt_tokens: int = 0
    answer_tokens: int = 0
    seconds: float = 0.0

    def lines(self) -> list[tuple[str, str]]:
        """The table: what was counted, and its value."""
        stored = self.stored.total()
        rows = [
            ("answers read", _share(self.parsed, self.answers)),
            ("exact quotes among reported facts", _share(self.exact, self.reported)),
            ("gold facts stored", _share(self.learned, self.gold)),
            ("facts stored", str(stored)),
        ]
        rows += [
            (f"- {verdict}", _share(self.stored[verdict], stored))
            for verdict in VERDICTS
        ]
        if self.answers:
            rows += [
                ("tokens of a request", f"{self.prompt_tokens / self.answers:,.0f}"),
                ("tokens of an answer", f"{self.answer_tokens / self.answers:,.0f}"),
                ("seconds of a request", f"{self.seconds / self.answers:,.1f}"),
            ]
        return rows


def _share(count: int, of: int) -> str:
    return f"{count} of {of} ({100 * count / of:.0f} %)" if of else "none"


def lines_of(dialogue: dict[str, Any]) -> list[Utterance]:
    """The messages of a dialogue."""
    return [
        Utterance(number, role, text)
        for number, (role, text) in enumerate(dialogue["said"], 1)
    ]


def known_of(dialogue: dict[str, Any]) -> list[Fact]:
    """The facts that are known before a dialogue."""
    return [
        Fact(content=content, created_at=SAID_AT, confidence=0.8)
        for content in dialogue.get("known", ())
    ]


async def ask(llm: Model, dialogue: dict[str, Any]) -> dict[str, Any]:
    """The model's last answer about a dialogue, as a line of the file, with its tokens and seconds.

    Raises a NoAnswerError if the server gives no answer.
    """
    known = known_of(dialogue) if llm.calls_tools else ()
    prompt = extraction_prompt(lines_of(dialogue), known, said_on=SAID_AT.date())
    responses: list[ChatResponse] = []
    started = time.perf_counter()
    try:
        await ask_for_facts(
            llm,
            prompt,
            categories=CATEGORIES,
            answer_tokens=RequestBudget().answer,
            responses=responses,
        )
    except FactReplyError:
        # An answer that cannot be read is counted as such.
        pass
    except APIConnectionError as error:
        raise NoAnswerError(str(llm.api_base), str(error)) from error
    if not responses:
        raise NoAnswerError(str(llm.api_base), "no response")
    seconds = time.perf_counter() - started
    message = responses[-1].message
    calls = [block for block in message.blocks if hasattr(block, "tool_kwargs")]
    reply = message.content or ""
    if calls:
        arguments = calls[0].tool_kwargs
        reply = arguments if isinstance(arguments, str) else json.dumps(arguments)
    usage = usage_of(prompt, responses[-1], TokenCounter())
    return {
        "dialogue": dialogue["id"],
        "reply": reply,
        "by_tool": bool(calls),
        "prompt_tokens": usage.prompt_tokens,
        "answer_tokens": usage.completion_tokens,
        "seconds": round(seconds, 1),
    }


def verdict_on(content: str, dialogue: dict[str, Any]) -> str:
    """What the reader, or else the gold labels, say of a stored fact: "true", "useless" or "bad"."""
    read: dict[str, str] = dialogue.get("read", {})
    if content in read:
        return read[content]
    wanted = max(
        (_likeness(content, gold) for gold in dialogue.get("store", ())), default=0
    )
    unwanted = max(
        (_likeness(content, gold) for gold in dialogue.get("no", ())), default=0
    )
    if max(wanted, unwanted) < LEAST_SHARE:
        return "useless"
    return "true" if wanted >= unwanted else "bad"


def _likeness(content: str, label: dict[str, Any] | list[str]) -> float:
    """The share of the keywords of a gold fact that a content has; 0 if one denies what the other does not.

    With the words of a gold fact, 1 if the content has all of them, else 0.
    """
    if isinstance(label, dict):
        return float(all(word in content.casefold() for word in label["words"]))
    gold = label[0]
    clause = closest_clause(gold, sentences_in(content)).text
    if denies(clause) != denies(gold):
        return 0.0
    telling = keywords(gold)
    return len(shared(telling, keywords(content))) / max(len(telling), 1)


def score(
    answers: Sequence[dict[str, Any]],
    dialogues: dict[str, dict[str, Any]],
    checks: Sequence[Check] = CHECKS,
) -> Score:
    """What is stored of the answers with these checks."""
    total = Score()
    for answer in answers:
        dialogue = dialogues[answer["dialogue"]]
        total.answers += 1
        total.prompt_tokens += answer.get("prompt_tokens", 0)
        total.answer_tokens += answer.get("answer_tokens", 0)
        total.seconds += answer.get("seconds", 0.0)
        total.gold += len(dialogue.get("store", ()))
        by_tool = answer.get("by_tool", False)
        try:
            reply = read_facts(answer["reply"], CATEGORIES, by_tool=by_tool)
        except FactReplyError:
            continue
        total.parsed += 1
        valid = validate_reply(
            reply,
            lines_of(dialogue),
            known_of(dialogue),
            now=SAID_AT,
            checks=tuple(checks),
        )
        _add(total, reply, valid, dialogue)
    return total


def _add(
    total: Score,
    reply: Sequence[NewFact],
    valid: ValidatedReply,
    dialogue: dict[str, Any],
) -> None:
    texts = [text for role, text in dialogue["said"] if role == "user"]
    for fact in reply:
        total.reported += 1
        spans = [find_quote(fact.quote, text) for text in texts]
        total.exact += any(span and span.likeness == 1.0 for span in spans)
    total.rejected.update(valid.rejections)
    contents = [fact.content for fact in valid.accepted]
    if "store" not in dialogue and "read" not in dialogue:
        total.stored["not judged"] += len(contents)
        return
    for content in contents:
        verdict = verdict_on(content, dialogue)
        total.stored[verdict] += 1
        total.facts.append((verdict, content))
    for gold in dialogue.get("store", ()):
        total.learned += any(
            _likeness(content, gold) >= LEAST_SHARE for content in contents
        )


def without_each_check(
    answers: Sequence[dict[str, Any]], dialogues: dict[str, dict[str, Any]]
) -> dict[str, Score]:
    """What is stored without one of the checks, by its name."""
    scores = {}
    for left_out in shown(CHECKS, "checks"):
        checks = [check for check in CHECKS if check is not left_out]
        scores[left_out.__name__] = score(answers, dialogues, checks)
    return scores


def report(total: Score, scores: dict[str, Score], file: Path) -> None:
    """Print the tables, and write them and the picture beside the answers."""
    for what, value in total.lines():
        print(f"  {what:36} {value}")
    for verdict, content in sorted(total.facts):
        print(f"  {verdict}: {content}")
    print("  rejected:", dict(total.rejected.most_common()))
    print(f"  {'without the check':36} {'true':>8} {'useless':>8} {'bad':>8}")
    for name, one in scores.items():
        counts = [one.stored[verdict] - total.stored[verdict] for verdict in VERDICTS]
        if any(counts):
            print(f"  {name:36} " + " ".join(f"{count:+8}" for count in counts))
    result = {
        "counts": dict(total.lines()),
        "stored": dict(total.stored),
        "rejected": dict(total.rejected),
        "stored without a check": {
            name: dict(one.stored) for name, one in scores.items()
        },
    }
    file.with_suffix(".json").write_text(
        json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    draw({"all checks": total, **scores}, file.with_suffix(".png"))


def draw(scores: dict[str, Score], file: Path) -> None:
    """Draw what is stored with all checks, and without each that makes a difference."""
    # Imported here: counting needs no picture.
    import matplotlib as mpl  # noqa: PLC0415

    mpl.use("Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415

    with_all = scores["all checks"].stored
    names = [name for name, one in scores.items() if one.stored != with_all]
    names = ["all checks", *names]
    figure, axes = plt.subplots(figsize=(8, 1 + 0.4 * len(names)))
    left = [0] * len(names)
    for verdict in (*VERDICTS, "not judged"):
        counts = [scores[name].stored[verdict] for name in names]
        axes.barh(names, counts, left=left, label=verdict)
        left = [start + count for start, count in zip(left, counts, strict=True)]
    axes.invert_yaxis()
    axes.set_xlabel("facts stored")
    axes.set_title("All checks, and without one of them")
    axes.legend()
    figure.savefig(file, bbox_inches="tight")
    plt.close(figure)


def together(dialogues: Sequence[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """Join each so many dialogues of one language and half to one."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for dialogue in dialogues:
        key = (dialogue.get("language", ""), dialogue.get("half", ""))
        groups.setdefault(key, []).append(dialogue)
    joined = []
    for group in groups.values():
        for start in range(0, len(group), count):
            part = group[start : start + count]
            joined.append(_joined(part))
    return joined


def _joined(dialogues: Sequence[dict[str, Any]]) -> dict[str, Any]:
    joined: dict[str, Any] = {"id": " ".join(one["id"] for one in dialogues)}
    for name in ("said", "store", "no", "known"):
        joined[name] = [part for one in dialogues for part in one.get(name, ())]
    return joined


async def answer_all(
    llm: Model, dialogues: dict[str, dict[str, Any]], file: Path
) -> None:
    """Ask about each dialogue that has no answer yet, and append the answers to the file."""
    answered = {answer["dialogue"] for answer in read_answers(file)}
    missing = [one for name, one in dialogues.items() if name not in answered]
    for dialogue in shown(missing, "dialogues"):
        answer = await ask(llm, dialogue)
        with file.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(answer, ensure_ascii=False) + "\n")


def read_answers(file: Path) -> list[dict[str, Any]]:
    """The answers of the file; [] for a file that is not there. A line that was cut by a stop is left out."""
    if not file.exists():
        return []
    answers = []
    for line in file.read_text(encoding="utf-8").splitlines():
        try:
            answers.append(json.loads(line))
        except ValueError:  # noqa: PERF203 - each line is read apart
            continue
    return answers


def main() -> int:
    """Ask, count, and return the exit code."""
    named = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
    if len(named) not in (2, 4):
        print(__doc__.split("\n\n")[1], file=sys.stderr)
        return NOT_MEASURED
    file = Path(named[0])
    listed = json.loads(Path(named[1]).read_text(encoding="utf-8"))
    for argument in sys.argv[1:]:
        if argument.startswith("--together="):
            listed = together(listed, int(argument.removeprefix("--together=")))
        if argument.startswith("--read="):
            file_read = Path(argument.removeprefix("--read="))
            read = json.loads(file_read.read_text(encoding="utf-8"))
            listed = [{**dialogue, "read": read} for dialogue in listed]
    dialogues = {dialogue["id"]: dialogue for dialogue in listed}
    if len(named) > 2:
        llm = Model(
            model=named[3],
            api_base=named[2],
            api_key=os.environ.get("OPENAI_API_KEY", "none"),
            temperature=0,
            timeout=600,
            calls_tools="--tools" in sys.argv,
        )
        try:
            asyncio.run(answer_all(llm, dialogues, file))
        except NoAnswerError as error:
            print(error, file=sys.stderr)
            return NOT_MEASURED
    answers = [one for one in read_answers(file) if one["dialogue"] in dialogues]
    report(score(answers, dialogues), without_each_check(answers, dialogues), file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
