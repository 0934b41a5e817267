"""The command ``chat``: a conversation with an agent that remembers."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, ExitStack, aclosing, suppress
from dataclasses import dataclass
from datetime import datetime
from importlib import import_module
from secrets import token_hex
from typing import TYPE_CHECKING, Annotated

import typer

import llama_index_memory_ext as ext
from llama_index_memory_ext.background.loop import BackgroundLoop
from llama_index_memory_ext.cli import DEFAULT_TIMEOUT, TerminalError, describe_error, one_line
from llama_index_memory_ext.cli import app as cli
from llama_index_memory_ext.cli.answers import Answer
from llama_index_memory_ext.cli.facts import explanation_table, facts_table, find_fact

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from llama_index.core.agent.workflow import FunctionAgent

_MODEL_HELP = "One of OpenAI's, or any at OPENAI_API_BASE; default: OPENAI_MODEL, or gpt-4o-mini."
_Model = Annotated[str | None, typer.Option("--model", metavar="NAME", help=_MODEL_HELP)]

_COMMANDS = (
    ("/facts", "what is known about you"),
    ("/why [QUESTION]", "which facts the last question showed the model, or another one would, and why"),
    (
        "/forget ID|WORDS",
        "delete a fact, by the beginning of its id or by words of it; what was said stays in its session",
    ),
    ("/stats", "how many messages, facts and tokens there are"),
    ("/help", "this"),
    ("/quit", "end the conversation; so does Ctrl-D. Ctrl-C interrupts an answer."),
)


@cli.app.command()
def chat(
    *,
    session: cli.Session = None,
    user: cli.User = None,
    db: cli.Db = None,
    model: _Model = None,
    timeout: cli.Timeout = DEFAULT_TIMEOUT,
) -> None:
    """Talk with an agent that remembers.

    With OPENAI_API_KEY set a model of OpenAI's answers (OPENAI_API_BASE for another address), else a small offline one.
    Type /help for what else can be done. Ctrl-C interrupts an answer, Ctrl-D or /quit ends the conversation. Lines that
    come through a pipe are answered one by one.
    """
    unanswered = 0
    session = session or f"chat-{datetime.now().astimezone():%Y-%m-%d-%H%M%S}-{token_hex(2)}"
    resources = AsyncExitStack()
    with BackgroundLoop() as loop, ExitStack() as end:
        end.callback(lambda: loop.run(resources.aclose()))
        with cli.waiting("Starting"):
            agent, memory = loop.run(_open(resources, db, session, user, (model, timeout)))
        conversation = _Conversation(loop, agent, memory)
        try:
            for line in filter(None, iter(_read_line, "/quit")):
                unanswered += not conversation.respond(line)
        finally:
            conversation.wait_for_facts(memory.aclose())
    if unanswered and not cli.is_terminal():
        raise typer.Exit(1)


async def _open(
    resources: AsyncExitStack, db: str | None, session: str, user: str | None, wanted: tuple[str | None, float]
) -> tuple[FunctionAgent, ext.CondensedMemory]:
    """Makes the agent and its memory, and prints its model, its database and whose facts it keeps."""
    # Imported here: LlamaIndex takes seconds to start, and the help does not need it.
    from llama_index.core.agent.workflow import FunctionAgent
    from openai import DefaultAsyncHttpxClient

    from llama_index_memory_ext.cli.demo import TOOLS, choose_model, describe_model
    from llama_index_memory_ext.memory.prompt_caches import needs_cache_points

    store, file = cli.find_store(db)
    await resources.enter_async_context(aclosing(store))
    await cli.check_store(store, file, create=True)
    await cli.check_writable(store, file)
    # OpenAI's clients leave connections open unless they are given a client.
    name, timeout = wanted
    llm = choose_model(name, await resources.enter_async_context(DefaultAsyncHttpxClient()), timeout)
    messages = await store.count_messages(session, None)
    so_far = f"{messages} messages so far" if messages else "new"
    whose = f"{user}, in all sessions" if user else "this session's; --user NAME keeps them for all sessions"
    _note(
        f"/help lists the commands, /quit ends.\nmodel    {describe_model(llm)}\ndatabase {file or store.address}\n"
        f"session  {session}, {so_far}\nfacts    {whose}"
    )
    marks = needs_cache_points(llm.metadata.model_name) is not None
    memory = ext.CondensedMemory.from_defaults(session, user_id=user, llm=llm, chat_store=store, cache_points=marks)
    return FunctionAgent(tools=list(TOOLS), llm=llm), memory


@dataclass
class _Conversation:
    """An agent, its memory, and the loop in which they work."""

    loop: BackgroundLoop
    agent: FunctionAgent
    memory: ext.CondensedMemory

    def respond(self, line: str) -> bool:
        """Answers a question or obeys a command; returns False for a question without an answer."""
        is_command = line.startswith("/")
        try:
            if is_command:
                name, _, text = line.partition(" ")
                self._obey(name, text.strip())
            else:
                self.loop.run(self._answer(line))
        except KeyboardInterrupt:
            if not cli.is_terminal():
                raise
            _note("\n(interrupted)")
        except BrokenPipeError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever failed, the conversation goes on
            failed = "That failed" if is_command else "No answer"
            cli.say(f"{failed}: {describe_error(error).rstrip('.')}.", style="red", stderr=True)
        else:
            return True
        return is_command

    def wait_for_facts(self, work: Coroutine[None, None, None]) -> None:
        """Waits for the extraction from the last turn, unless Ctrl-C is pressed."""
        try:
            with cli.waiting("Extracting facts from the last turn (Ctrl-C leaves that for later)"):
                self.loop.run(work)
        except KeyboardInterrupt:
            _note("Facts that are missing are extracted when this session is next used.")

    async def _answer(self, question: str) -> None:
        """Prints the answer as it comes. The question is in the memory even if there is no answer."""
        # Imported here: LlamaIndex takes seconds to start, and the help does not need it.
        from llama_index.core.agent.workflow import AgentStream, ToolCallResult

        from llama_index_memory_ext.cli.demo import describe_call

        async with self.memory.turn():
            run, answer = self.agent.run(question, memory=self.memory), Answer()
            try:
                async for event in run.stream_events():
                    if isinstance(event, AgentStream):
                        answer.add(event.delta)
                    elif isinstance(event, ToolCallResult) and cli.is_terminal():
                        answer.pause()
                        _note(one_line(describe_call(event)))
                await run
                answer.end()
            except BaseException as error:
                answer.pause()
                if isinstance(error, (asyncio.CancelledError, BrokenPipeError)):
                    await run.cancel_run()
                    with suppress(asyncio.CancelledError, Exception):
                        await run
                raise

    def _obey(self, name: str, text: str) -> None:
        facts = self.memory.facts
        if name in ("/facts", "/forget"):
            self.wait_for_facts(self.memory.aflush())
        if name == "/facts":
            cli.say(facts_table(self.loop.run(facts.alist()), facts.namespace))
        elif name == "/why":
            self._explain(text)
        elif name == "/forget":
            self._forget(text)
        elif name == "/stats":
            cli.say(str(self.loop.run(self.memory.astats())))
        elif name == "/help":
            cli.say(cli.table(["command", "what it does"], _COMMANDS))
        else:
            cli.say(f"There is no {name}. /help lists the commands.", stderr=True)

    def _explain(self, text: str) -> None:
        """Explains a question, by default the last one, with the turns before it."""
        # Imported here: it imports LlamaIndex.
        from llama_index_memory_ext.text.messages import question_in

        messages = self.loop.run(self.memory.aget_all())
        messages += ext.messages_from_json([{"role": "user", "content": text}] if text else [])
        block = self.memory.facts_block
        question, context = question_in(messages, [], block.context_turns)
        if not question:
            raise TerminalError("nothing was asked yet. Say /why QUESTION to look at a question of your own.")
        cli.say(f"Facts that the model would be shown now for {one_line(question)!r}, and why:")
        explanation = self.loop.run(block.aexplain(question, session_id=self.memory.session_id, context=context))
        cli.say(explanation_table(explanation, self.memory.facts.namespace))

    def _forget(self, text: str) -> None:
        if not text:
            raise TerminalError("say which: /forget ID, or /forget WORDS. /facts lists them.")
        facts = self.memory.facts
        fact = find_fact(self.loop.run(facts.alist(with_retired=True, with_expired=True)), text, by_words=True)
        if not cli.is_terminal():
            raise TerminalError("nobody can be asked here. Use `facts forget ID --yes`.")
        cli.say(facts_table([fact], facts.namespace))
        if fact.session_id:
            _note(_what_stays(fact.session_id, self.memory.session_id))
        with suppress(typer.Exit):
            cli.confirm("Delete this fact for good?")
            self.loop.run(facts.aforget(fact.id))
            cli.say("Deleted.")


def _what_stays(session: str, here: str) -> str:
    """Says which words a deletion of a fact leaves, and how to delete those."""
    where = "this session, whose record shows them to the model" if session == here else f"the session {session}"
    return (
        f"Only the fact is deleted. The words in which it was said stay in the messages of {where}. "
        f"`llama-index-memory forget --session {session}` deletes that session."
    )


def _read_line() -> str:
    """Returns what is typed or comes next through the pipe, "" after Ctrl-C, "/quit" at the end."""
    prompt = "\nyou> " if cli.is_terminal() else ""
    if prompt:
        with suppress(ImportError):
            # Gives input() arrow keys and a history, where Python has it. For a pipe it would print control characters.
            import_module("readline")
    try:
        return input(prompt).strip()
    except EOFError:
        print(end=prompt[:1])
        return "/quit"
    except KeyboardInterrupt:
        if not prompt:
            raise
        _note("\n/quit or Ctrl-D ends the conversation.")
        return ""


def _note(text: str) -> None:
    cli.say(text, style="dim", stderr=True)
