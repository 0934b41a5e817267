"""The command ``chat``: a conversation with an agent that remembers."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from datetime import datetime
from secrets import token_hex
from typing import TYPE_CHECKING, Annotated

import typer

import llama_index_memory_ext as ext
from llama_index_memory_ext.background.locks import BackgroundLoop
from llama_index_memory_ext.cli import TerminalError, describe_error, one_line, plain
from llama_index_memory_ext.cli import app as cli
from llama_index_memory_ext.cli.facts import explanation_table, facts_table, only_one, with_id

if TYPE_CHECKING:
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
    place, unanswered = cli.find_place(db), 0
    session = session or f"chat-{datetime.now().astimezone():%Y-%m-%d-%H%M%S}-{token_hex(2)}"
    with BackgroundLoop() as loop:
        with cli.waiting("Starting"):
            conversation = loop.run(_open(loop, place, session, user, model))
        try:
            for line in filter(None, iter(_read_line, "/quit")):
                unanswered += not conversation.respond(line)
        finally:
            conversation.close()
    if unanswered and not cli.is_terminal():
        raise typer.Exit(1)


async def _open(
    loop: BackgroundLoop, place: cli.Place, session: str, user: str | None, model_name: str | None
) -> _Conversation:
    """Opens the conversation, and prints its model, its database and whose facts it keeps."""
    # Imported here: LlamaIndex takes seconds to start, and the help does not need it.
    from llama_index.core.agent.workflow import FunctionAgent
    from openai import DefaultAsyncHttpxClient

    from llama_index_memory_ext.cli.demo import TOOLS, choose_model, describe_model

    async with AsyncExitStack() as resources:
        # OpenAI's clients leave connections open unless they are given a client.
        http = await resources.enter_async_context(DefaultAsyncHttpxClient())
        store = await resources.enter_async_context(cli.open_store(place, create=True))
        llm = choose_model(model_name, async_http_client=http)
        memory = ext.CondensedMemory.from_defaults(session, user_id=user, llm=llm, chat_store=store)
        messages = await store.count_messages(session, None)
        so_far = f"{messages} messages so far" if messages else "new"
        alone = "this session's alone; --user NAME keeps facts for all of your sessions"
        _note(f"model    {describe_model(llm)}\ndatabase {place.name}\nsession  {session}, {so_far}")
        _note(f"facts    {f'{user}, in all sessions' if user else alone}")
        if cli.is_terminal():
            _note("/help lists the commands, /quit ends.")
        return _Conversation(loop, FunctionAgent(tools=list(TOOLS), llm=llm), memory, resources.pop_all())


@dataclass
class _Conversation:
    """An agent, its memory, and what is to be closed at the end."""

    loop: BackgroundLoop
    agent: FunctionAgent
    memory: ext.CondensedMemory
    resources: AsyncExitStack

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
            _note("\n(interrupted)" if is_command else "\n(interrupted; the question is kept)")
        except BrokenPipeError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever failed, the conversation goes on
            failed, outcome = ("That failed", "") if is_command else ("No answer", " The question is kept.")
            cli.say(f"{failed}: {describe_error(error).rstrip('.')}.{outcome}", style="red", stderr=True)
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

        from llama_index_memory_ext.cli.demo import describe_call

        async with self.memory.turn():
            run = self.agent.run(question, memory=self.memory)
            try:
                async for event in run.stream_events():
                    if isinstance(event, AgentStream):
                        print(plain(event.delta), end="", flush=True)
                    elif isinstance(event, ToolCallResult) and cli.is_terminal():
                        _note(one_line(describe_call(event)))
                await run
            except (asyncio.CancelledError, BrokenPipeError):
                await run.cancel_run()
                with suppress(asyncio.CancelledError, Exception):
                    await run
                raise
        print(flush=True)

    def _obey(self, name: str, text: str) -> None:
        facts = self.memory.facts
        if name in ("/facts", "/forget"):
            self._extract_facts()
        if name == "/facts":
            cli.say(facts_table(self.loop.run(facts.alist()), facts.namespace))
        elif name == "/why":
            self._explain(text.strip())
        elif name == "/forget":
            self._forget(text.strip())
        elif name == "/stats":
            cli.say(str(self.loop.run(self.memory.astats())))
        elif name == "/help":
            cli.say(cli.table(["command", "what it does"], _COMMANDS))
        else:
            cli.say(f"There is no {name}. /help lists the commands.", stderr=True)

    def _extract_facts(self) -> None:
        """Extracts facts from the last turn, as the next question would."""
        try:
            with cli.waiting("Extracting facts from the last turn"):
                self.loop.run(self.memory.aflush())
        except KeyboardInterrupt:
            _note("(the extraction goes on in the background)")

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
        cli.say(f"For {one_line(question)!r}, as things are now:")
        explanation = self.loop.run(block.aexplain(question, session_id=self.memory.session_id, context=context))
        cli.say(explanation_table(explanation, self.memory.facts.namespace))

    def _forget(self, text: str) -> None:
        if not text:
            raise TerminalError("say which: /forget ID, or /forget WORDS. /facts lists them.")
        facts = self.memory.facts
        known = self.loop.run(facts.alist(with_retired=True))
        found = with_id(known, text) or [fact for fact in known if text.casefold() in fact.content.casefold()]
        missing = f"no fact is called {text!r} or has these words. /facts lists them."
        fact = only_one(found, f"facts contain {text!r}", missing)
        if not cli.is_terminal():
            raise TerminalError("nobody can be asked here. Use `facts forget ID --yes`.")
        cli.say(facts_table([fact], facts.namespace))
        with suppress(typer.Exit):
            cli.confirm("Delete this fact for good?")
            self.loop.run(facts.aforget(fact.id))
            cli.say("Deleted.")


def _read_line() -> str:
    """Returns what is typed or comes next through the pipe, "" after Ctrl-C, "/quit" at the end."""
    prompt = "\nyou> " if cli.is_terminal() else ""
    if prompt:
        with suppress(ImportError):
            # Arrow keys and a history, where Python has it. For a pipe it would only print control characters.
            import readline  # noqa: F401 - input() uses it
    try:
        line = input(prompt).strip()
    except EOFError:
        print(end="\n" if prompt else "")
        return "/quit"
    except KeyboardInterrupt:
        if not prompt:
            raise
        _note("\n/quit or Ctrl-D ends the conversation.")
        return ""
    return "/quit" if line == "/exit" else line


def _note(text: str) -> None:
    cli.say(text, style="dim", stderr=True)
