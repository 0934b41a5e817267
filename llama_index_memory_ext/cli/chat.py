"""The command ``chat``: a conversation with an agent that remembers."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, ExitStack, aclosing, suppress
from datetime import datetime
from secrets import token_hex
from typing import TYPE_CHECKING, Annotated, Any

import typer

import llama_index_memory_ext as ext
from llama_index_memory_ext.background.loop import BackgroundLoop
from llama_index_memory_ext.cli import TIMEOUT, describe_error, one_line, plain
from llama_index_memory_ext.cli import app as cli
from llama_index_memory_ext.cli.app import (
    Db,
    Embed,
    Model,
    Session,
    Timeout,
    TimeZone,
    User,
)
from llama_index_memory_ext.cli.facts import explanation_table, facts_table

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from llama_index.core.agent.workflow import FunctionAgent

_HELP = """\
/facts           list the facts about you; the command `facts forget ID` deletes a fact
/why [QUESTION]  show why each fact is in the prompt for QUESTION (default: the last question), or not
/help            show this help
/quit            end the conversation, as Ctrl-D does. Ctrl-C interrupts an answer."""


@cli.app.command(epilog=cli.example("chat --user ann"))
def chat(
    *,
    session: Session = None,
    user: User = None,
    db: Db = None,
    model: Model = None,
    embed: Embed = None,
    timeout: Timeout = TIMEOUT,
    temporary: Annotated[
        bool, typer.Option("--temporary", help="Store nothing; facts are read.")
    ] = False,
    time_zone: TimeZone = None,
) -> None:
    """Talk with an agent that remembers.

    With OPENAI_API_KEY set, a model of OpenAI answers, or a model of the server at
    OPENAI_API_BASE. Without the key, a small offline model answers. /help lists the
    commands. Ctrl-C interrupts an answer; Ctrl-D or /quit ends the conversation. From a
    pipe, each line is a question.
    """
    unanswered = 0
    if session is None:
        session = f"chat-{datetime.now().astimezone(time_zone):%Y-%m-%d-%H%M%S}-{token_hex(2)}"
    resources = AsyncExitStack()
    options = {
        "user_id": user,
        "embed_model": embed,
        "temporary": temporary,
        "time_zone": time_zone,
    }
    with BackgroundLoop() as loop, ExitStack() as end:
        end.callback(lambda: loop.run(resources.aclose()))
        with cli.new_console(stderr=True).status("Starting"):
            agent, memory = loop.run(
                _open(resources, db, session, model, timeout, **options)
            )
        try:
            for line in filter(None, iter(_read_line, "/quit")):
                if not _respond(loop, agent, memory, line):
                    unanswered += 1
        finally:
            _wait_for_facts(loop, memory.aclose())
    if unanswered and not cli.is_terminal():
        raise typer.Exit(1)


async def _open(
    resources: AsyncExitStack,
    db: str | None,
    session: str,
    model: str | None,
    timeout: float,
    **options: Any,
) -> tuple[FunctionAgent, ext.CondensedMemory]:
    """Return an agent and its memory; print its model, its database, its session and the owner of its facts."""
    # Imported here: LlamaIndex takes seconds to start, and the help does not need it.
    from llama_index.core.agent.workflow import FunctionAgent
    from openai import DefaultAsyncHttpxClient

    from llama_index_memory_ext.cli.demo import TOOLS, choose_model, describe_model
    from llama_index_memory_ext.models.ask import needs_cache_points

    store = cli.find_store(db)
    user = options["user_id"]
    temporary = options["temporary"]
    await resources.enter_async_context(aclosing(store))
    await cli.check_store(store, create=not temporary)
    if not temporary:
        # Without a database that can be written, no conversation begins.
        await cli.try_writing(store)
    # OpenAI's library leaves connections open unless it gets a client.
    client = await resources.enter_async_context(DefaultAsyncHttpxClient())
    llm = choose_model(model, client, timeout)
    # Other models behind OpenAI's API refuse OpenAI's cache points.
    provider = needs_cache_points(llm.metadata.model_name) or ""
    memory = ext.CondensedMemory.from_defaults(
        session,
        chat_store=store,
        llm=llm,
        cache_points=provider.startswith("OpenAI"),
        **options,
    )
    messages = await memory.sql_store.count_messages(session, None)
    if temporary:
        state = "temporary: nothing is stored"
    elif messages:
        state = f"{messages} messages so far"
    else:
        state = "new"
    owner = "of this session; --user NAME keeps them for all sessions"
    if user:
        owner = f"{user}, in all sessions"
    _note(
        "/help lists the commands, /quit ends.\n"
        f"model    {describe_model(llm)}\n"
        f"database {cli.file_of(store) or store.address}\n"
        f"session  {session}, {state}\n"
        f"facts    {owner}"
    )
    return FunctionAgent(tools=list(TOOLS), llm=llm), memory


def _respond(
    loop: BackgroundLoop, agent: FunctionAgent, memory: ext.CondensedMemory, line: str
) -> bool:
    """Answer a question or run a command; return False for a question without an answer."""
    is_command = line.startswith("/")
    try:
        if is_command:
            _run_command(loop, memory, line)
        else:
            loop.run(_answer(agent, memory, line))
    except KeyboardInterrupt:
        if not cli.is_terminal():
            raise
        _note("\n(interrupted)")
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001 - the conversation goes on after any error
        failure = "The command failed" if is_command else "No answer"
        text = f"{failure}: {describe_error(error).rstrip('.')}."
        cli.say(text, style="red", stderr=True)
        return is_command
    return True


def _run_command(loop: BackgroundLoop, memory: ext.CondensedMemory, line: str) -> None:
    name, _, text = line.partition(" ")
    if name == "/facts":
        _wait_for_facts(loop, memory.aflush())
        cli.say(facts_table(loop.run(memory.facts.alist()), cli.whose(memory)))
    elif name == "/why":
        _explain(loop, memory, text.strip())
    elif name == "/help":
        cli.say(_HELP)
    else:
        cli.say(f"There is no {name}. /help lists the commands.", stderr=True)


def _explain(loop: BackgroundLoop, memory: ext.CondensedMemory, text: str) -> None:
    """Print why each fact would be shown for a question, or not; for the last question, if the text is ""."""
    # Imported here: they import LlamaIndex.
    from llama_index.core.base.llms.types import ChatMessage

    from llama_index_memory_ext.text.messages import question_in

    messages = loop.run(memory.aget_all())
    if text:
        messages = [*messages, ChatMessage(text)]
    block = memory.facts_block
    question, context = question_in(messages, [], block.context_turns)
    if not question:
        cli.say("There is no question yet. Type /why QUESTION.", stderr=True)
        return
    cli.say(
        f"Facts that the model would be shown now for {one_line(question)!r}, and why:"
    )
    explaining = block.aexplain(question, session_id=memory.session_id, context=context)
    cli.say(explanation_table(loop.run(explaining), cli.whose(memory)))


def _wait_for_facts(loop: BackgroundLoop, work: Coroutine[None, None, None]) -> None:
    """Wait for the extraction from the last turn, unless Ctrl-C is pressed."""
    try:
        with cli.new_console(stderr=True).status(
            "Extracting facts from the last turn (Ctrl-C postpones it)"
        ):
            loop.run(work)
    except KeyboardInterrupt:
        _note(
            "The facts of the last turn are extracted when this session is next used."
        )


async def _answer(
    agent: FunctionAgent, memory: ext.CondensedMemory, question: str
) -> None:
    """Print the answer while it is streamed; the memory keeps the question even without an answer."""
    # Imported here: LlamaIndex takes seconds to start, and the help does not need it.
    from llama_index.core.agent.workflow import AgentStream, ToolCallResult

    from llama_index_memory_ext.cli.demo import describe_call

    async with memory.turn():
        run = agent.run(question, memory=memory)
        try:
            async for event in run.stream_events():
                if isinstance(event, AgentStream):
                    print(plain(event.delta), end="", flush=True)
                elif isinstance(event, ToolCallResult) and cli.is_terminal():
                    _note(one_line(describe_call(event)))
            await run
            print(flush=True)
        except (asyncio.CancelledError, BrokenPipeError):
            await run.cancel_run()
            with suppress(asyncio.CancelledError, Exception):
                await run
            raise


def _read_line() -> str:
    """Return the next line of the terminal or the pipe; "" after Ctrl-C, "/quit" at the end."""
    prompt = "\nyou> " if cli.is_terminal() else ""
    if prompt:
        with suppress(ImportError):
            # Adds arrow keys and a history to input(), where Python has it. For a pipe
            # it would print control characters.
            import readline  # noqa: F401 - the import alone changes input()
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
