"""Holds a conversation between a person and an agent that has a memory."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from llama_index.core.agent.workflow import AgentStream, FunctionAgent, ToolCallResult
from openai import DefaultAsyncHttpxClient

from llama_index_memory_ext.cli.demo import add, divide, multiply, subtract
from llama_index_memory_ext.cli.offline_model import OfflineModel
from llama_index_memory_ext.cli.terminal_model import terminal_model
from llama_index_memory_ext.memory.condensed_memory import CondensedMemory

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from llama_index.core.llms.function_calling import FunctionCallingLLM

    from llama_index_memory_ext.cli.database import Place
    from llama_index_memory_ext.facts.explanation import Explanation


@dataclass
class Conversation:
    """An agent, its memory, and what has been said since the program started: questions and answers, oldest first."""

    agent: FunctionAgent
    memory: CondensedMemory
    model: FunctionCallingLLM
    http: DefaultAsyncHttpxClient
    said: list[tuple[str, str]] = field(default_factory=list)

    @property
    def is_offline(self) -> bool:
        """Whether a few rules answer instead of a model."""
        return isinstance(self.model, OfflineModel)

    async def answer(self, question: str) -> AsyncIterator[AgentStream | ToolCallResult]:
        """The pieces of the answer as they come, and the results of tools in between.

        The question is in the memory whatever happens to the answer.
        """
        answer = ""
        self.said.append((question, answer))
        async with self.memory.turn():
            run = self.agent.run(question, memory=self.memory)
            try:
                async for event in run.stream_events():
                    if isinstance(event, AgentStream):
                        answer += event.delta
                    if isinstance(event, AgentStream | ToolCallResult):
                        yield event
                await run
            except (asyncio.CancelledError, GeneratorExit):
                await run.cancel_run()
                await asyncio.gather(_ended(run), return_exceptions=True)
                raise
        self.said[-1] = (question, answer)

    async def explain(self, question: str) -> Explanation:
        """Which facts are shown for a question, and why; one that was asked stands behind the turns before it."""
        asked = [i for i, (earlier, _) in enumerate(self.said) if earlier == question]
        end = asked[-1] if asked else len(self.said)
        block = self.memory.facts_block
        before = ["\n".join(turn) for turn in self.said[max(end - block.context_turns + 1, 0) : end]]
        return await block.aexplain(question, session_id=self.memory.session_id, context=before)

    async def close(self) -> None:
        """Take the last turn into the record, extract its facts, and close the database."""
        await self.memory.aclose()
        await self.http.aclose()

    async def leave(self) -> None:
        """Close the database at once; what was not extracted is, when this user next talks."""
        await self.memory.condensed_block.aclose()
        await self.memory.facts_block.aclose()
        await self.memory.sql_store.aclose()
        await self.http.aclose()


async def opened(
    model_name: str | None, place: Place, *, session_id: str, user_id: str | None
) -> tuple[Conversation, int]:
    """A conversation, begun or taken up again, and how many messages it has so far."""
    # Clients of OpenAI's that nobody has given them a connection for leave theirs open.
    http = DefaultAsyncHttpxClient()
    model = terminal_model(model_name, async_http_client=http)
    memory = CondensedMemory.from_defaults(
        session_id=session_id,
        user_id=user_id,
        llm=model,
        async_database_uri=place.address,
        table_name=place.table,
        db_schema=place.schema,
    )
    agent = FunctionAgent(tools=[add, subtract, multiply, divide], llm=model)
    conversation = Conversation(agent, memory, model, http)
    try:
        return conversation, await memory.sql_store.count_messages(session_id, None)
    except BaseException:
        await conversation.leave()
        raise


async def _ended(run: Any) -> None:
    await run
