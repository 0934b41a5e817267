"""How much of the evidence is in the prompt if a question says when it was said: "two weeks ago", "yesterday".

    python -m benchmarks.named_times [LOCOMO_JSON]

The conversations are those of ``evidence_in_prompt.py``, moved in time so that each ended four days ago. Asked are the
questions whose evidence is of one day, with the time since that day at their end, and without. Every side may show
2,000 tokens: CondensedMemory with 500 of them for what is recalled, and LlamaIndex's Memory. What a message gains by
its time was chosen on the first two conversations; the others are reported apart. Nothing is timed. Only counts are
kept.
"""

from __future__ import annotations

import asyncio
import sys
from datetime import datetime, timedelta, timezone
from functools import partial

from benchmarks.command import NOT_MEASURED, shown
from benchmarks.evidence_in_prompt import HOST, Open, condensed
from benchmarks.locomo import Conversation, load_conversations, messages_of, prompt_text
from benchmarks.recall import day_of
from benchmarks.recipe import IN_MEMORY, plain_memory
from benchmarks.report import Measure, Promise, publish

LIMIT, RECALLED, CHOSEN_ON, SINCE_THE_END = 2_000, 500, 2, timedelta(days=4)
MOST_DAYS, MOST_WEEKS = 6, 8
OURS, TOLD, UNTOLD = "CondensedMemory", "with its time", "without"
SIDES: dict[str, Open] = {
    OURS: partial(condensed, LIMIT, recall_token_limit=RECALLED),
    HOST: partial(plain_memory, IN_MEMORY, token_limit=LIMIT),
}


def ago(days: int) -> str:
    """How people say so many days, from 4 on."""
    if days <= MOST_DAYS:
        return f"{days} days ago"
    weeks = round(days / 7)
    if weeks == 1:
        return "a week ago"
    return (
        f"{weeks} weeks ago"
        if weeks <= MOST_WEEKS
        else f"{round(days / 30)} months ago"
    )


async def ask(opened: Open, conversation: Conversation) -> dict[str, list[float]]:
    """For each question with evidence of one day, the share that is in its prompt, with the time and without."""
    turns = {turn["id"]: turn for turn in conversation["pools"]["turns"]}
    days = {name: day_of(turn["time"]) for name, turn in turns.items()}
    today = datetime.now(timezone.utc)
    later = today - SINCE_THE_END - max(days.values())
    messages = messages_of(conversation)
    for message, day in zip(messages, days.values(), strict=True):
        message.additional_kwargs["timestamp"] = (day + later).isoformat()
    shares: dict[str, list[float]] = {TOLD: [], UNTOLD: []}
    async with opened() as memory:
        await memory.aput_messages(messages)
        for question in conversation["questions"]:
            evidence = question["evidence"]
            if question["adversarial"] or len({days[name] for name in evidence}) != 1:
                continue
            text = question["text"].rstrip("?")
            since = ago((today - days[evidence[0]] - later).days)
            for how, asked in ((TOLD, f"{text}, {since}?"), (UNTOLD, f"{text}?")):
                prompt = prompt_text(await memory.aget(input=asked))
                shares[how].append(
                    sum(turns[name]["text"] in prompt for name in evidence)
                    / len(evidence)
                )
    return shares


def main() -> int:
    """Measure, publish, and return the exit code."""
    conversations = load_conversations("named_times")
    if not conversations:
        return NOT_MEASURED
    measures, promises = list[Measure](), list[Promise]()
    for part, some in (
        ("chosen on", conversations[:CHOSEN_ON]),
        ("elsewhere", conversations[CHOSEN_ON:]),
    ):
        for side, opened in shown(SIDES.items(), f"memories, {part}"):
            found = [asyncio.run(ask(opened, one)) for one in some]
            means = {}
            for how in (TOLD, UNTOLD):
                values = [value for shares in found for value in shares[how]]
                means[how] = 100 * sum(values) / len(values)
                measures.append(
                    Measure(f"evidence, {part}, {side}, {how}", means[how], "%")
                )
            if side == OURS:
                gain = means[TOLD] - means[UNTOLD]
                promises.append(
                    Promise(
                        f"what the time adds, {part}", 5, gain, "points", at_least=True
                    )
                )
    return publish("named_times", measures, promises)


if __name__ == "__main__":
    sys.exit(main())
