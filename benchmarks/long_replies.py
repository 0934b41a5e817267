"""How much of the evidence for a question is in the prompt of a chat whose replies are long, as assistants write them.

    python -m benchmarks.long_replies [LOCOMO_JSON]

The conversations are those of ``evidence_in_prompt.py``, but each turn of the second speaker is a part of a reply of
about 800 tokens: it stands between paragraphs that are made of sentences with words of the question, of the turn and of
other conversations, from a fixed seed. So replies hold evidence, too, and have words of most questions. The figure is
the share of a question's evidence that is in its prompt, word for word, averaged over the questions; beside it stand
the shares of the evidence that the user said and that stands in replies, and the mean tokens of the prompts.

Every side may show 8,000 tokens: CondensedMemory with 4,000 of them for what is recalled, and with none, and
LlamaIndex's Memory. The rules were chosen on the first two conversations; the others are reported apart. Nothing is
timed. Only counts are kept.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections import Counter
from collections.abc import Sequence
from copy import deepcopy
from random import Random

from benchmarks.command import NOT_MEASURED, shown
from benchmarks.evidence_in_prompt import HOST, NEWEST, RECALL, Open, sides
from benchmarks.locomo import Conversation, load_conversations, messages_of, prompt_text
from benchmarks.recipe import o200k
from benchmarks.report import Measure, Promise, publish
from llama_index_memory_ext import CondensedMemory

LIMIT, REPLY_TOKENS, SEED, CHOSEN_ON = 8_000, 800, 5, 2
SENTENCES = (
    "Here are some thoughts on {}: many people find that {} and {} help with {}.",
    "It may be worth looking at {} first, since {} often depends on {} and {}.",
    "You could start with {}, then plan {}, and keep an eye on {} and {}.",
    "A common mistake is to treat {} like {}; a better way is to think of {} or {}.",
    "If {} matters to you, set aside some time for {} each week and note how {} changes {}.",
    "**{}**: try to keep {} simple, and ask yourself what {} would look like beside {}.",
    "There are several options for {}, such as {}, {} and {}, each with its own strengths.",
)
USER, REPLY = "said by the user", "in a long reply"
Found = tuple[float, int, Counter[str], Counter[str]]


def words_in(text: str) -> list[str]:
    """The words of a text that may stand in a sentence of a reply."""
    return re.findall(r"[A-Za-z]{4,}", text)


def with_long_replies(
    conversation: Conversation, others: Sequence[str], chance: Random
) -> Conversation:
    """The conversation with replies around the turns of the second speaker, which stay whole, as ``evidence``."""
    longer, asked = deepcopy(conversation), ""
    for turn in longer["pools"]["turns"]:
        turn["evidence"] = turn["text"]
        if turn["speaker"] == longer["speakers"][0]:
            asked = turn["text"]
            continue
        known, tokens, paragraphs = (
            words_in(asked) + words_in(turn["text"]) or ["this"],
            0,
            [],
        )
        while tokens < REPLY_TOKENS:
            chosen = [
                chance.choice(known if chance.random() < 0.5 else others)
                for _ in range(16)
            ]
            frames = [chance.choice(SENTENCES) for _ in range(4)]
            paragraphs.append(
                " ".join(
                    one.format(*chosen[4 * i : 4 * i + 4])
                    for i, one in enumerate(frames)
                )
            )
            tokens += len(o200k().encode_ordinary(paragraphs[-1]))
        paragraphs.insert(chance.randrange(len(paragraphs) + 1), turn["text"])
        turn["text"] = "\n\n".join(paragraphs)
    return longer


async def ask(opened: Open, conversation: Conversation) -> list[Found]:
    """For each question the share of its evidence, the tokens of the prompt, and what of the evidence it has."""
    turns = {turn["id"]: turn for turn in conversation["pools"]["turns"]}
    asked: list[Found] = []
    async with opened() as memory:
        await memory.aput_messages(messages_of(conversation))
        if isinstance(memory, CondensedMemory):
            await memory.condensed_block.await_jobs(memory.session_id)
        for question in conversation["questions"]:
            if not question["adversarial"]:
                prompt = prompt_text(await memory.aget(input=question["text"]))
                found, of = Counter[str](), Counter[str]()
                for turn in map(turns.__getitem__, question["evidence"]):
                    kind = USER if turn["text"] == turn["evidence"] else REPLY
                    found[kind] += turn["evidence"] in prompt
                    of[kind] += 1
                asked.append(
                    (
                        found.total() / of.total(),
                        len(o200k().encode_ordinary(prompt)),
                        found,
                        of,
                    )
                )
    return asked


def main() -> int:
    """Measure, publish, and return the exit code."""
    conversations = load_conversations("long_replies")
    if not conversations:
        return NOT_MEASURED
    others = sorted(
        {
            word
            for one in conversations
            for turn in one["pools"]["turns"]
            for word in words_in(turn["text"])
        }
    )
    chance, measures, promises = Random(SEED), list[Measure](), list[Promise]()
    longer = [with_long_replies(one, others, chance) for one in conversations]
    for part, some in (
        ("chosen on", longer[:CHOSEN_ON]),
        ("elsewhere", longer[CHOSEN_ON:]),
    ):
        for side in shown((RECALL, NEWEST, HOST), f"memories, {part}"):
            asked = [
                found
                for one in some
                for found in asyncio.run(ask(sides(LIMIT)[side], one))
            ]
            found = sum((entry[2] for entry in asked), Counter[str]())
            of = sum((entry[3] for entry in asked), Counter[str]())
            mean = 100 * sum(entry[0] for entry in asked) / len(asked)
            if side == RECALL:
                promises.append(
                    Promise(
                        f"mean over the questions, {part}, {side}",
                        75,
                        mean,
                        "%",
                        at_least=True,
                    )
                )
            else:
                measures.append(
                    Measure(f"mean over the questions, {part}, {side}", mean, "%")
                )
            measures += [
                Measure(
                    f"evidence {kind}, {part}, {side}", found[kind], f"of {of[kind]}"
                )
                for kind in of
            ]
            tokens = sum(entry[1] for entry in asked) / len(asked)
            measures.append(Measure(f"tokens of a prompt, {part}, {side}", tokens))
    return publish("long_replies", measures, promises)


if __name__ == "__main__":
    sys.exit(main())
