"""How many questions a model answers right about conversations between people, after the evidence has left the list.

    python -m benchmarks.answers_locomo [LOCOMO_JSON] --base-url=URL [--model=NAME] [--answers=FILE]

An excerpt is the beginning of a LoCoMo conversation. ``answers_locomo.json`` has 30 questions whose evidence is one
message, with more than 2,000 tokens behind it, and words of which a right answer has at least one. They are the first
six of each conversation in an order by chance, without questions for a day or an opinion. ``CondensedMemory`` has its
defaults and learns nothing; LlamaIndex's ``Memory`` has such a limit that its prompts are as long in the mean.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from benchmarks.answer_talks import FACT, Question, Talk, tokens_in
from benchmarks.answers import WITHOUT_FACTS, answers_of, measures_of
from benchmarks.asked_model import AskedModel, asked_model
from benchmarks.command import NOT_MEASURED
from benchmarks.contenders import HOST
from benchmarks.locomo import Conversation, load_conversations, messages_of
from benchmarks.report import Measure, publish

GOLD = Path(__file__).with_name("answers_locomo.json")
TOKENS, SIZE = 4_500, 600


def excerpt_of(conversation: Conversation, gold: dict[str, list[str]]) -> Talk:
    """Return the beginning of a conversation as a talk, with its questions."""
    turns = []
    tokens = 0
    for message in messages_of(conversation):
        tokens += tokens_in(str(message.content))
        if tokens > TOKENS:
            break
        turns.append([message])
    questions = []
    for question in conversation["questions"]:
        if question["id"] in gold:
            words = tuple(gold[question["id"]])
            questions.append(Question(FACT, question["text"], words))
    return Talk("en", conversation["id"], turns, [], questions)


async def measure(talks: list[Talk], llm: AskedModel) -> list[Measure]:
    """Measure both memories."""
    lines = []
    for name in (WITHOUT_FACTS, HOST):
        lines += measures_of(name, await answers_of(name, SIZE, talks, llm))
    return lines


def main() -> int:
    """Measure with the model of the command, and return the exit code."""
    llm = asked_model("answers_locomo")
    conversations = load_conversations("answers_locomo")
    if llm is None or not conversations:
        return NOT_MEASURED
    gold = json.loads(GOLD.read_text(encoding="utf-8"))
    talks = [excerpt_of(conversation, gold) for conversation in conversations]
    return publish("answers_locomo", asyncio.run(measure(talks, llm)), [])


if __name__ == "__main__":
    sys.exit(main())
