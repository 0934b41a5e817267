"""How many questions a model answers right with each memory, about what has left the list of messages.

    python -m benchmarks.answers --base-url=URL [--model=NAME] [--answers=FILE] [--size=600] [--only=SYSTEM,SYSTEM]

The conversations are made (``answer_talks.py``) in English, German and Spanish. A memory gets a conversation turn by
turn, and then one question; each question is asked right behind the conversation. All memories have prompts of the same
mean length: each gets the limit with which its prompts have nearly that length. The model answers
greedily. A right answer has a word of the right value and none of the value that it replaced. Of a thing that the
conversation does not have, a right answer says that it is not known; any other answer counts as invented.

The model is any behind OpenAI's protocol; the key is OPENAI_API_KEY, if the server needs one. ``answer_model.py`` says
how to get the model of the published results. Each reply is appended to FILE, so that a run that was stopped goes on
where it ended.

Two memories do not learn: "without facts" and "with added facts", in which a program has put each sentence of the user
that is still true. The memory that learns has three conversations, and all questions about them. LlamaIndex's memories
that ask the model to learn or to summarize have two of these. The buffer is asked for its prompt once, at the end, and
so summarizes once. The vector block embeds with the local e5.

Two memories are asked once more with a system prompt that forbids guessing ("without guessing").

The results of this package are in ``answers``, and those of LlamaIndex's memories in ``answers_host``, which no change
of this package makes old. LlamaIndex's vector block and its buffer that summarizes take longest. They are measured only
by their names, ``--only=VectorMemoryBlock,ChatSummaryMemoryBuffer``, and are in ``answers_slow``.

Each wrong answer is printed with what was wrong: the prompt does not have the value ("not recalled"), the answer says
that it is not known although the prompt has the value ("overlooked"), or it has another value ("not understood").
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from statistics import mean
from typing import Any

from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.llms import LLM
from llama_index.core.memory import (
    BaseMemory,
    BaseMemoryBlock,
    ChatSummaryMemoryBuffer,
    FactExtractionMemoryBlock,
    VectorMemoryBlock,
)

from benchmarks.answer_talks import (
    CONTROL,
    LANGUAGES,
    UNKNOWN,
    Question,
    Talk,
    has_word,
    make_talk,
    says_unknown,
    tokens_in,
)
from benchmarks.asked_model import AskedModel, asked_model
from benchmarks.command import NOT_MEASURED, option
from benchmarks.contenders import (
    FACTS,
    HOST,
    SUMMARY_BUFFER,
    VECTORS,
    in_process,
    put,
)
from benchmarks.e5 import RememberingE5, has_e5
from benchmarks.locomo import prompt_text
from benchmarks.recipe import IN_MEMORY, SESSION, plain_memory
from benchmarks.report import Measure, publish
from benchmarks.stand_in import StandInModel
from benchmarks.vector_store import TextVectorStore
from llama_index_memory_ext import CondensedMemory

# The seeds were fixed before the first run; layouts are chosen on the even seeds.
SEEDS: dict[str, range] = {"en": range(8), "de": range(6), "es": range(6)}
LEARNING_SEED = 0
# Learning takes a small model about ten minutes a conversation on two cores.
LEARNING_LANGUAGES = ("en", "de", "es")
LEARNING_LANGUAGES_OF_HOST = ("en", "de")
TOKENS_BEHIND = 2_400
WITHOUT_FACTS = "CondensedMemory without facts"
ADDED_FACTS = "CondensedMemory with added facts"
LEARNING = "CondensedMemory that learns"
LEARN = (LEARNING, FACTS, SUMMARY_BUFFER)
# They are measured only by their names.
SLOW = (VECTORS, SUMMARY_BUFFER)
HOST_NO_GUESSING = f"{HOST} without guessing"
OURS_NO_GUESSING = f"{WITHOUT_FACTS} without guessing"
NOT_RECALLED, OVERLOOKED, NOT_UNDERSTOOD = (
    "not recalled",
    "overlooked",
    "not understood",
)
INSTRUCTION = ChatMessage(
    "You are a helpful assistant. Answer in one short sentence, in the language of the question. If you do not know "
    "the answer, say so.",
    role=MessageRole.SYSTEM,
)
# The system prompt of docs/local-models.md against invented answers, chosen on the even seeds.
NO_GUESSING = ChatMessage(
    f"{INSTRUCTION.content} Answer from these messages what they say. Answer general questions from your own "
    'knowledge. Say "I do not know" if I ask about something of mine that they do not say.',
    role=MessageRole.SYSTEM,
)
# A mean length that differs by less is the same.
_NEAR, _MOST_TRIES = 0.03, 5
# If it differs by more, limits up to so many times the length are tried in steps.
_FAR, _MOST_TIMES, _STEPS = 0.2, 3, 12
_TALKS_AT_ONCE = 3

# Opens a memory with a limit of tokens, for a model.
Open = Callable[[int, LLM], AbstractAsyncContextManager[BaseMemory]]


@dataclass(frozen=True)
class Answer:
    """The answer to a question of a talk, with the text of the prompt."""

    talk: Talk
    question: Question
    prompt: str
    text: str

    @property
    def is_right(self) -> bool:
        return self.question.is_right(self.text)

    @property
    def problem(self) -> str:
        """What was wrong; "" for a right answer, and for a question that needs no memory or has no answer."""
        if self.is_right or self.question.kind in (CONTROL, UNKNOWN):
            return ""
        if not has_word(self.prompt, self.question.gold):
            return NOT_RECALLED
        return OVERLOOKED if says_unknown(self.text) else NOT_UNDERSTOOD


@asynccontextmanager
async def ours(limit: int, _: LLM, **settings: Any) -> AsyncIterator[BaseMemory]:
    """Open a CondensedMemory with this limit, which learns nothing."""
    async with CondensedMemory.from_defaults(
        SESSION,
        token_limit=limit,
        async_database_uri=IN_MEMORY,
        extract_facts=False,
        **settings,
    ) as memory:
        yield memory


@asynccontextmanager
async def learning(limit: int, llm: LLM) -> AsyncIterator[BaseMemory]:
    """Open a CondensedMemory with this limit, which learns facts from the model."""
    async with CondensedMemory.from_defaults(
        SESSION, token_limit=limit, async_database_uri=IN_MEMORY, llm=llm
    ) as memory:
        yield memory


@asynccontextmanager
async def summary_buffer(limit: int, llm: LLM) -> AsyncIterator[BaseMemory]:
    """Open LlamaIndex's buffer, which summarizes what does not fit."""
    yield ChatSummaryMemoryBuffer.from_defaults(llm=llm, token_limit=limit)


def host(
    limit: int, llm: LLM, make: Callable[[LLM], BaseMemoryBlock[Any]] | None = None
) -> AbstractAsyncContextManager[BaseMemory]:
    """Open LlamaIndex's Memory with this limit, and with a block of its own."""
    blocks = [make(llm)] if make else []
    return in_process(plain_memory(IN_MEMORY, token_limit=limit, memory_blocks=blocks))


def facts_block(llm: LLM) -> FactExtractionMemoryBlock:
    """Return the block that learns facts, as it comes."""
    return FactExtractionMemoryBlock(llm=llm)


def vector_block(_: LLM) -> VectorMemoryBlock:
    """Return the block that embeds, as it comes."""
    return VectorMemoryBlock(
        vector_store=TextVectorStore(), embed_model=RememberingE5()
    )


SYSTEMS: dict[str, Open] = {
    HOST: host,
    WITHOUT_FACTS: partial(ours, facts_token_limit=0),
    ADDED_FACTS: ours,
    LEARNING: learning,
    FACTS: partial(host, make=facts_block),
    VECTORS: partial(host, make=vector_block),
    SUMMARY_BUFFER: summary_buffer,
    HOST_NO_GUESSING: host,
    OURS_NO_GUESSING: partial(ours, facts_token_limit=0),
}


# The memories by the mean length of their prompts. Long prompts take long.
SIZES: dict[int, tuple[str, ...]] = {
    600: tuple(SYSTEMS),
    1_500: (HOST, WITHOUT_FACTS),
}


def talks_for(name: str) -> list[Talk]:
    """Return the conversations of a memory."""
    if name in LEARN:
        is_ours = name == LEARNING
        languages = LEARNING_LANGUAGES if is_ours else LEARNING_LANGUAGES_OF_HOST
        return [
            make_talk(LEARNING_SEED, language, TOKENS_BEHIND, all_asked=True)
            for language in languages
        ]
    talks = []
    for language in LANGUAGES:
        seeds = SEEDS[language]
        talks += [make_talk(seed, language, TOKENS_BEHIND) for seed in seeds]
    return talks


async def prompts_of(
    name: str, limit: int, talk: Talk, llm: LLM, questions: Iterable[Question]
) -> list[list[ChatMessage]]:
    """Return the prompt of each question, asked right behind the conversation."""
    prompts = []
    instruction = INSTRUCTION
    if name in (HOST_NO_GUESSING, OURS_NO_GUESSING):
        instruction = NO_GUESSING
    for question in questions:
        async with SYSTEMS[name](limit, llm) as memory:
            for turn in talk.turns:
                await put(memory, turn)
            if name == ADDED_FACTS and isinstance(memory, CondensedMemory):
                for sentence in talk.told:
                    await memory.facts.aadd(sentence)
            await put(memory, [ChatMessage(question.text)])
            prompts.append([instruction, *await memory.aget()])
    return prompts


async def limit_for(name: str, size: int, talks: Sequence[Talk]) -> int:
    """Return the limit with which the prompts of a memory most nearly have this mean length in these conversations."""
    lengths: dict[int, float] = {}

    def distance(limit: int) -> float:
        return abs(lengths[limit] / size - 1)

    limit = size
    for _ in range(_MOST_TRIES):
        lengths[limit] = await mean_length(name, limit, talks)
        if distance(limit) < _NEAR:
            break
        limit = round(limit * size / lengths[limit])
    limits = range(size, _MOST_TIMES * size, size // _STEPS)
    # The length of LlamaIndex's Memory rises and falls with its limit.
    if min(map(distance, lengths)) > _FAR:
        for limit in limits:
            lengths[limit] = await mean_length(name, limit, talks)
            if distance(limit) < 2 * _NEAR:
                break
    return min(lengths, key=distance)


async def mean_length(name: str, limit: int, talks: Sequence[Talk]) -> float:
    """Return the mean length of the prompts of first questions, with a stand-in that learns and summarizes."""
    sizes = []
    for talk in talks:
        first = talk.questions[:1]
        (prompt,) = await prompts_of(name, limit, talk, StandInModel(), first)
        sizes.append(tokens_in(prompt_text(prompt[1:])))
    return mean(sizes)


async def answer_talk(
    name: str, limit: int, talk: Talk, llm: AskedModel
) -> list[Answer]:
    """Ask all questions of a conversation."""
    prompts = await prompts_of(name, limit, talk, llm, talk.questions)
    # A server may reuse the beginning of a prompt that it has answered.
    first = await llm.answer(prompts[0])
    replies = [first, *await asyncio.gather(*map(llm.answer, prompts[1:]))]
    answers = []
    for question, prompt, reply in zip(talk.questions, prompts, replies, strict=True):
        answers.append(Answer(talk, question, prompt_text(prompt[1:]), reply))
    return answers


async def answers_of(
    name: str, size: int, talks: Sequence[Talk], llm: AskedModel
) -> list[Answer]:
    """Ask all questions of these conversations, with prompts of a mean length."""
    limit = await limit_for(name, size, talks)
    print(f"{name}, {size} tokens: token_limit={limit}", flush=True)
    gate = asyncio.Semaphore(_TALKS_AT_ONCE)

    async def answer_in_turn(talk: Talk) -> list[Answer]:
        async with gate:
            return await answer_talk(name, limit, talk, llm)

    answers = []
    for of_talk in await asyncio.gather(*map(answer_in_turn, talks)):
        answers += of_talk
    for answer in answers:
        if not answer.is_right:
            talk, question = answer.talk, answer.question
            print(
                f"{name}, {size}, {talk.language} {talk.seed}, {answer.problem or question.kind}: {question.text} "
                f"{question.gold[0]!r}, {answer.text!r}"
            )
    return answers


def measures_of(of: str, answers: Sequence[Answer]) -> list[Measure]:
    """Return what is published of the answers with a memory."""
    kinds: dict[str, list[bool]] = {}
    about_told = []
    for answer in answers:
        kinds.setdefault(answer.question.kind, []).append(answer.is_right)
        if answer.question.kind not in (CONTROL, UNKNOWN):
            about_told.append(answer)
    right = sum(answer.is_right for answer in about_told)
    lines = [Measure(f"{of}: right answers", right, f"of {len(about_told)}")]
    for kind in sorted(kinds):
        what = f"{of}: right answers, {kind}"
        lines.append(Measure(what, sum(kinds[kind]), f"of {len(kinds[kind])}"))
    if UNKNOWN in kinds:
        invented = kinds[UNKNOWN].count(False)
        unit = f"of {len(kinds[UNKNOWN])}"
        lines.append(Measure(f"{of}: invented answers", invented, unit))
    for problem in (NOT_RECALLED, OVERLOOKED, NOT_UNDERSTOOD):
        count = sum(answer.problem == problem for answer in about_told)
        lines.append(Measure(f"{of}: {problem}", count))
    tokens = mean(tokens_in(answer.prompt) for answer in answers)
    lines.append(Measure(f"{of}: a prompt", tokens, "tokens"))
    return lines


def costs_of(of: str, talks: Sequence[Talk], llm: AskedModel) -> list[Measure]:
    """Return what a memory has paid for learning."""
    sent, received = llm.tokens_of_learning()
    return [
        Measure(f"{of}: learning, sent", sent / len(talks), "tokens a conversation"),
        Measure(
            f"{of}: learning, received", received / len(talks), "tokens a conversation"
        ),
    ]


def memories_of_command() -> list[str]:
    """Return the memories that the command names, or else all but the slow ones."""
    names = option("only")
    if names:
        return names.split(",")
    return [name for name in SYSTEMS if name not in SLOW]


def result_of(name: str) -> str:
    """Return the name of the results that hold those of a memory."""
    if name in SLOW:
        return "answers_slow"
    return "answers" if name.startswith("CondensedMemory") else "answers_host"


async def measure(llm: AskedModel) -> dict[str, list[Measure]]:
    """Measure the memories and lengths of the command; return the measures of each of the results."""
    memories = memories_of_command()
    results: dict[str, list[Measure]] = {}
    for size, names in SIZES.items():
        if option("size", str(size)) != str(size):
            continue
        for name in names:
            if name in memories and (name != VECTORS or has_e5()):
                lines = results.setdefault(result_of(name), [])
                lines += await measure_memory(name, size, llm)
    return results


async def measure_memory(name: str, size: int, llm: AskedModel) -> list[Measure]:
    """Measure a memory with prompts of a mean length."""
    llm.learning.clear()
    talks = talks_for(name)
    of = f"{name}, {size:,} tokens"
    lines = measures_of(of, await answers_of(name, size, talks, llm))
    if name in LEARN:
        lines += costs_of(of, talks, llm)
    for line in lines:
        print(f"  {line.what}: {line.value:g} {line.unit}")
    return lines


def main() -> int:
    """Measure with the model of the command, and return the exit code."""
    llm = asked_model("answers")
    if llm is None:
        return NOT_MEASURED
    results = asyncio.run(measure(llm))
    return max(publish(name, lines, []) for name, lines in results.items())


if __name__ == "__main__":
    sys.exit(main())
