"""Counts what the package makes of broken replies, of answers that are no summary, and of what tools are asked for."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llama_index.core.base.llms.types import ChatMessage, ChatResponse, ToolCallBlock
from llama_index.core.bridge.pydantic import Field
from llama_index.core.types import PydanticProgramMode

from benchmarks.command import shown
from benchmarks.honesty_cases import SAID_AT, cases_of, load
from llama_index_memory_ext import CondensedMemory, Fact, MemoryToolSpec, TokenCounter
from llama_index_memory_ext.errors import FactReplyError, SummaryReplyError
from llama_index_memory_ext.fact import CATEGORIES
from llama_index_memory_ext.learning.budget import RequestBudget
from llama_index_memory_ext.learning.prompt import extraction_prompt
from llama_index_memory_ext.learning.report import ask_for_facts
from llama_index_memory_ext.learning.validation import validate_reply
from llama_index_memory_ext.models.offline import OfflineModel
from llama_index_memory_ext.record.summary import ask_for_summary
from llama_index_memory_ext.text.entries import entry_of
from llama_index_memory_ext.text.turns import Utterance

SUMMARY_TOKENS = 1_000
# The classes of true facts that are given to the tool, by their beginnings: others are translated by the model alone.
_REMEMBERED = ("fact in English,", "German,", "Chinese,", "Japanese,")
_MESSAGE = re.compile(r'<message role="(\w+)">(.*?)</message>', re.DOTALL)


class ScriptedModel(OfflineModel):
    """Gives one answer to whatever it is asked, and another one from the second request on."""

    answer: ChatResponse = Field(description="The answer.")
    second: str = Field(
        default="", description='The text of the second answer; "" for the same.'
    )
    requests: int = Field(default=0, description="How often it was asked.")

    @classmethod
    def class_name(cls) -> str:
        return "ScriptedModel"

    def chat(self, *_: Any, **__: Any) -> ChatResponse:
        return self.answer

    async def achat(self, *_: Any, **__: Any) -> ChatResponse:
        self.requests += 1
        if self.second and self.requests > 1:
            return ChatResponse(message=ChatMessage(self.second, role="assistant"))
        return self.answer


def model_that_says(
    answer: str | Sequence[Sequence[str]], finish_reason: str = "stop"
) -> ScriptedModel:
    """A model whose answer is a text, or tool calls with names and arguments."""
    raw = {"choices": [{"finish_reason": finish_reason}]}
    if isinstance(answer, str):
        response = ChatResponse(message=ChatMessage(answer, role="assistant"), raw=raw)
        return ScriptedModel(
            answer=response, pydantic_program_mode=PydanticProgramMode.LLM
        )
    calls = [
        ToolCallBlock(tool_name=name, tool_kwargs=arguments)
        for name, arguments in answer
    ]
    return ScriptedModel(
        answer=ChatResponse(
            message=ChatMessage(role="assistant", blocks=list(calls)), raw=raw
        )
    )


async def malformed_read(folder: Path) -> tuple[int, int, int]:
    """The number of replies of which as many facts are stored as are whole in them, of second requests, and of all.

    A model that is asked once more answers in plain JSON, if it had facts to report; a refusal it repeats.
    """
    read = load(folder, "malformed_replies")
    lines = [Utterance(1, "user", read["said"])]
    replies = [*read["text"].values(), *read["tool"].values()]
    found, again = 0, 0
    for answer, whole, *finish_reason in replies:
        llm = model_that_says(answer, *finish_reason)
        llm.second = read["text"].get("plain JSON", [""])[0] if whole else ""
        found += await _stored(llm, lines) == whole
        again += llm.requests - 1
    return found, again, len(replies)


async def _stored(llm: ScriptedModel, lines: Sequence[Utterance]) -> int:
    try:
        reply = await ask_for_facts(
            llm,
            extraction_prompt(lines, [], said_on=SAID_AT.date()),
            categories=CATEGORIES,
            answer_tokens=RequestBudget().answer,
            responses=[],
        )
    except FactReplyError:
        return 0
    return len(validate_reply(reply, lines, [], now=SAID_AT).accepted)


async def summaries_taken(folder: Path) -> tuple[Counter[str], Counter[str]]:
    """The number of answers that change the summary, and of all, by class."""
    read = load(folder, "summary_replies")
    counter, previous = TokenCounter(), read["previous"]
    said = next(
        found for one in read["replies"] if (found := _MESSAGE.findall(one["text"]))
    )
    messages = [ChatMessage(text, role=role) for role, text in said]
    entries = [
        entry for message in messages if (entry := entry_of(1, message, counter))
    ]
    taken, all_of = Counter[str](), Counter[str]()
    for one in read["replies"]:
        llm = model_that_says(one["text"], one.get("finish_reason", "stop"))
        all_of[one["cls"]] += 1
        try:
            summary = await ask_for_summary(
                llm,
                previous,
                entries,
                token_limit=SUMMARY_TOKENS,
                counter=counter,
                count_usage=lambda _: None,
                answer_tokens=2_100,
            )
        except SummaryReplyError:
            continue
        taken[one["cls"]] += summary != previous
    return taken, all_of


async def attacks_that_change(folder: Path) -> tuple[int, int]:
    """The number of tool calls after which other facts are stored than before, and of all."""
    attacks = load(folder, "tool_attacks")
    names = [
        name for one in attacks if one["call"][0] == "forget" for name in one["call"][1]
    ]
    changed = 0
    for one in shown(attacks, "attacks"):
        async with CondensedMemory.from_defaults(extract_facts=False) as memory:
            for content in dict.fromkeys(names):
                await memory.facts.aadd(content)
            await _say(memory, one["lines"])
            before = await memory.facts.alist()
            tool, *arguments = one["call"]
            await getattr(MemoryToolSpec(memory), f"a{tool}")(*arguments)
            changed += _contents(before) != _contents(await memory.facts.alist())
    return changed, len(attacks)


async def remembered(folder: Path) -> tuple[int, int]:
    """The number of true facts that an agent may remember, in the user's language or in English, and of all."""
    cases = [
        case
        for case in cases_of(folder, "false_rejections")
        if case.kind.startswith(_REMEMBERED)
    ]
    found = 0
    for case in shown(cases, "facts to remember"):
        async with CondensedMemory.from_defaults(extract_facts=False) as memory:
            await _say(memory, [(line.role, line.text) for line in case.lines])
            new = case.reply["new_facts"][0]
            await MemoryToolSpec(memory).aremember(new["content"], new["quote"])
            found += bool(await memory.facts.alist())
    return found, len(cases)


async def _say(memory: CondensedMemory, lines: Sequence[Sequence[str]]) -> None:
    for role, text in lines:
        kwargs = {"tool_call_id": "call_1"} if role == "tool" else {}
        await memory.aput(ChatMessage(text, role=role, additional_kwargs=kwargs))


def _contents(facts: Sequence[Fact]) -> list[str]:
    return sorted(fact.content for fact in facts)
