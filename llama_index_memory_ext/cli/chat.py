"""The command ``chat``: a conversation with an agent that remembers."""

from __future__ import annotations

import asyncio
import io
import logging
import sys
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from datetime import datetime
from secrets import token_hex
from typing import TYPE_CHECKING, Annotated

import typer

import llama_index_memory_ext as ext
from llama_index_memory_ext.background.locks import BackgroundLoop
from llama_index_memory_ext.cli import TerminalError, describe_error, model_host, one_line, plain
from llama_index_memory_ext.cli import app as cli
from llama_index_memory_ext.cli.facts import find_fact, show_explanation, show_facts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from llama_index.core.agent.workflow import FunctionAgent

_MODEL_HELP = "One of OpenAI's; default: OPENAI_MODEL, or gpt-4o-mini."
_Model = Annotated[str | None, typer.Option("--model", metavar="NAME", help=_MODEL_HELP)]

_COMMANDS = (
    ("/facts", "what is known about you"),
    ("/why [QUESTION]", "which facts the last question showed the model, or another one would, and why"),
    ("/forget ID|WORDS", "delete a fact, by the beginning of its id or by words of it; asks before it does"),
    ("/stats", "how much is remembered"),
    ("/help", "this"),
    ("/quit", "end the conversation; so does Ctrl-D. Ctrl-C interrupts an answer."),
)


@cli.app.command()
def chat(*, session: cli.Session = None, user: cli.User = None, db: cli.Db = None, model: _Model = None) -> None:
    """Talk with an agent that remembers.

    With OPENAI_API_KEY set a model of OpenAI's answers (OPENAI_API_BASE for another address), else a small offline one.
    Type /help for what else can be done. Ctrl-C interrupts an answer, Ctrl-D or /quit ends the conversation. Lines that
    come through a pipe are answered one by one.
    """
    place = cli.find_place(db)
    session = session or f"chat-{datetime.now().astimezone():%Y-%m-%d-%H%M%S}-{token_hex(2)}"
    logger, warnings, unanswered = logging.getLogger(ext.__name__), _Warnings(), 0
    with BackgroundLoop() as loop:
        with cli.waiting("Starting"):
            conversation, start = loop.run(_open(loop, place, session, user, model))
        logger.addHandler(warnings)
        try:
            _note(start)
            for line in _lines(warnings):
                if line.split()[0] in ("/quit", "/exit"):
                    break
                unanswered += not conversation.respond(line)
        finally:
            conversation.close()
            warnings.flush()
            logger.removeHandler(warnings)
    if unanswered and not cli.is_terminal():
        raise typer.Exit(1)


async def _open(
    loop: BackgroundLoop, place: cli.Place, session: str, user: str | None, model_name: str | None
) -> tuple[_Conversation, str]:
    """Returns the conversation, and the text that tells its model, its database and whose facts it keeps."""
    # Imported here: LlamaIndex takes seconds to start, and the help does not need it.
    from llama_index.core.agent.workflow import FunctionAgent
    from openai import DefaultAsyncHttpxClient

    from llama_index_memory_ext.cli.demo import TOOLS, choose_model

    async with AsyncExitStack() as resources:
        # OpenAI's clients leave connections open unless they are given a client.
        http = await resources.enter_async_context(DefaultAsyncHttpxClient())
        store = await resources.enter_async_context(cli.open_store(place, create=True))
        llm = choose_model(model_name, async_http_client=http)
        memory = ext.CondensedMemory.from_defaults(session, user_id=user, llm=llm, chat_store=store)
        messages = await store.count_messages(session, None)
        conversation = _Conversation(loop, FunctionAgent(tools=list(TOOLS), llm=llm), memory, resources.pop_all())
    model = f"{llm.metadata.model_name} at {model_host()}"
    if llm.metadata.model_name == "offline":
        model = "a small offline one that answers by rules, because OPENAI_API_KEY is not set"
    so_far = f"{messages} messages so far" if messages else "new"
    facts = "this session's alone; --user NAME keeps facts for all of your sessions"
    facts = f"{user}, in all sessions" if user else facts
    start = f"model    {model}\ndatabase {place.name}\nsession  {session}, {so_far}\nfacts    {facts}"
    return conversation, start + ("\n/help lists the commands, /quit ends." if cli.is_terminal() else "")


@dataclass
class _Conversation:
    """An agent, its memory, and the turns since the program started: questions and answers, oldest first."""

    loop: BackgroundLoop
    agent: FunctionAgent
    memory: ext.CondensedMemory
    resources: AsyncExitStack
    turns: list[tuple[str, str]] = field(default_factory=list)

    def respond(self, line: str) -> bool:
        """Answers a question or obeys a command; returns False for a question without an answer."""
        is_command = line.startswith("/")
        try:
            if is_command:
                self._obey(*line.partition(" ")[::2])
            else:
                self.loop.run(self._answer(line))
        except KeyboardInterrupt:
            if not cli.is_terminal():
                raise
            _note("(interrupted)" if is_command else "\n(interrupted; the question is kept)")
        except BrokenPipeError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever failed, the conversation goes on
            reason = describe_error(error)
            text = f"That failed: {reason}" if is_command else f"No answer: {reason.rstrip('.')}. The question is kept."
            cli.say(text, style="red", stderr=True)
        else:
            return True
        return is_command

    def close(self) -> None:
        """Extracts facts from the last turn, unless Ctrl-C is pressed, and closes the database."""
        try:
            with cli.waiting("Extracting facts from the last turn (Ctrl-C leaves that for the next time)"):
                self.loop.run(self.memory.aclose())
        except KeyboardInterrupt:
            _note("The facts of the last turn are extracted when this session is next used.")
        finally:
            self.loop.run(self.resources.aclose())

    async def _answer(self, question: str) -> None:
        """Prints the answer as it comes. The question is in the memory even if there is no answer."""
        # Imported here: LlamaIndex takes seconds to start, and the help does not need it.
        from llama_index.core.agent.workflow import AgentStream, ToolCallResult

        answer = ""
        self.turns.append((question, answer))
        async with self.memory.turn():
            run = self.agent.run(question, memory=self.memory)
            try:
                async for event in run.stream_events():
                    if isinstance(event, AgentStream):
                        answer += event.delta
                        print(plain(event.delta), end="", flush=True)
                    elif isinstance(event, ToolCallResult) and cli.is_terminal():
                        arguments = ", ".join(f"{name}={value}" for name, value in event.tool_kwargs.items())
                        result = one_line(str(event.tool_output.content))
                        _note(f"{event.tool_name}({one_line(arguments)}) -> {result}")
                await run
            except (asyncio.CancelledError, BrokenPipeError):
                await run.cancel_run()
                with suppress(asyncio.CancelledError, Exception):
                    await run
                raise
        if answer and not answer.endswith("\n"):
            print(flush=True)
        self.turns[-1] = (question, answer)

    def _obey(self, name: str, rest: str) -> None:
        facts, rest = self.memory.facts, rest.strip()
        if name == "/facts":
            self._extract_facts()
            show_facts(self.loop.run(facts.alist()), facts.namespace)
        elif name == "/why":
            self._explain(rest)
        elif name == "/forget":
            self._forget(rest)
        elif name == "/stats":
            cli.say(str(self.loop.run(self.memory.astats())))
        elif name == "/help":
            cli.show_table(("command", "what it does"), _COMMANDS, folded="what it does")
        else:
            cli.say(f"There is no {name}. /help lists the commands.", stderr=True)

    def _extract_facts(self) -> None:
        """Extracts facts from the last turn, as the next question would."""
        try:
            with cli.waiting("Extracting facts from the last turn"):
                self.loop.run(self.memory.aflush())
        except KeyboardInterrupt:
            _note("(the extraction goes on in the background)")

    def _explain(self, question: str) -> None:
        questions = [asked for asked, _ in self.turns]
        if not (question or questions):
            raise TerminalError("nothing was asked yet. Say /why QUESTION to look at a question of your own.")
        question = question or questions[-1]
        # A question that was asked is explained with the turns before it.
        end = max((i for i, asked in enumerate(questions) if asked == question), default=len(questions))
        block, session_id = self.memory.facts_block, self.memory.session_id
        context = ["\n".join(turn) for turn in self.turns[max(end - block.context_turns + 1, 0) : end]]
        cli.say(f"For {one_line(question)!r}, as things are now:")
        explanation = self.loop.run(block.aexplain(question, session_id=session_id, context=context))
        show_explanation(explanation, self.memory.facts.namespace)

    def _forget(self, text: str) -> None:
        if not text:
            raise TerminalError("say which: /forget ID, or /forget WORDS. /facts lists them.")
        self._extract_facts()
        facts = self.memory.facts
        fact = find_fact(self.loop.run(facts.alist(with_retired=True)), text, in_content=True)
        if not cli.is_terminal():
            raise TerminalError("nobody can be asked here. Use `facts forget ID --yes`.")
        show_facts([fact], facts.namespace)
        with suppress(typer.Exit):
            cli.confirm("Delete this fact for good?")
            self.loop.run(facts.aforget(fact.id))
            cli.say("Deleted.")


class _Warnings(logging.Handler):
    """Collects the warnings of the package until no answer is being printed, each text once."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._texts: dict[str, None] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Collects a warning."""
        self._texts[one_line(record.getMessage())] = None

    def flush(self) -> None:
        """Prints what was collected since the last call."""
        texts, self._texts = self._texts, {}
        for text in texts:
            _note(f"({text})")


def _lines(warnings: _Warnings) -> Iterator[str]:
    """Yields what is typed or comes through the pipe, without empty lines."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    if not cli.is_terminal():
        yield from (line.strip() for line in sys.stdin if line.strip())
        return
    with suppress(ImportError):
        # Arrow keys and a history, where Python has it.
        import readline  # noqa: F401
    while True:
        warnings.flush()
        try:
            line = input("\nyou> ").strip()
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            _note("\n/quit or Ctrl-D ends the conversation.")
            continue
        if line:
            yield line


def _note(text: str) -> None:
    cli.say(text, style="dim", stderr=True)
