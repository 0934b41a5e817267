"""The command ``chat``: a conversation with an agent that remembers."""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack, ExitStack, aclosing, suppress
from dataclasses import dataclass
from datetime import datetime
from importlib import import_module
from secrets import token_hex
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.markdown import Markdown

import llama_index_memory_ext as ext
from llama_index_memory_ext.background.loop import BackgroundLoop
from llama_index_memory_ext.cli import DEFAULT_TIMEOUT, TerminalError, describe_error, one_line, plain
from llama_index_memory_ext.cli import app as cli
from llama_index_memory_ext.cli.facts import explanation_table, facts_table, find_fact

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable

    from llama_index.core.agent.workflow import FunctionAgent


class Answer:
    """Prints the parts of an answer: through a pipe as they come, on a terminal as rendered Markdown.

    Finished blocks are printed for good; below them the last block, which may still change, is drawn as it grows.
    """

    def __init__(self) -> None:
        self._is_rendered = sys.stdout.isatty()
        self._text = ""
        self._live: Live | None = None

    def add(self, part: str) -> None:
        """Prints the next part of the answer, without what could control the terminal."""
        if self._is_rendered:
            finished, self._text = split_blocks(self._text + plain(part))
            self._print(finished)
        else:
            print(plain(part), end="", flush=True)

    def pause(self) -> None:
        """Prints for good what has come, so that something else can be printed below it."""
        finished, self._text = self._text, ""
        if self._live is not None:
            self._print(finished)
            self._live.stop()
            self._live = None

    def _print(self, finished: str) -> None:
        if self._live is None:
            # Not redirected: what prints something else calls ``pause`` before.
            redirected: Any = {"redirect_stdout": False, "redirect_stderr": False}
            self._live = Live(console=cli.new_console(), refresh_per_second=20, transient=True, **redirected)
            self._live.start()
        self._live.update(Group("", markdown(self._text)))
        if finished.strip():
            self._live.console.print("", markdown(finished), sep="\n")


def split_blocks(text: str) -> tuple[str, str]:
    r"""Returns the finished blocks of Markdown, and the rest: the last block, which may still change.

    Only whole lines tell what a block is.

    >>> split_blocks("One.\n\n- two\n- thr")
    ('One.\n\n', '- two\n- thr')
    """
    whole = text[: text.rfind("\n") + 1]
    starts = [token.map[0] for token in Markdown(whole).parsed if token.level == 0 and token.map and token.nesting >= 0]
    # Not splitlines, which knows more ends of lines than Markdown.
    length = sum(len(line) + 1 for line in whole.split("\n")[: starts[-1]]) if starts else 0
    return text[:length], text[length:]


def markdown(text: str) -> Markdown:
    """Returns Markdown in which nothing is lost: tags stay, lines end where they end, links and images are named."""
    made = Markdown(text, hyperlinks=False)
    _keep(made.parsed)
    return made


# What Rich leaves out, or joins to one line, and what it shows.
_SHOWN_AS = {"html_inline": "text", "html_block": "code_block", "softbreak": "hardbreak", "image": "text"}


# The tokens are those of a dependency of Rich.
def _keep(tokens: Iterable[Any]) -> None:
    for token in tokens:
        if token.type == "image":
            token.content = f"{token.content} ({token.attrs.get('src', '')})"
        token.type = _SHOWN_AS.get(token.type, token.type)
        _keep(token.children or ())


_MODEL_HELP = "One of OpenAI's, or any at OPENAI_API_BASE; default: OPENAI_MODEL, or gpt-4o-mini."
_Model = Annotated[str | None, typer.Option("--model", metavar="NAME", help=_MODEL_HELP)]

_FORGET_HELP = "delete a fact, by the beginning of its id or by words of it; what was said stays in its session"
_COMMANDS = (
    ("/facts", "what is known about you"),
    ("/why [QUESTION]", "which facts the last question showed the model, or another one would, and why"),
    ("/forget ID|WORDS", _FORGET_HELP),
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
            agent, memory = loop.run(_open(resources, db, session, user, model=model, timeout=timeout))
        conversation = _Conversation(loop, agent, memory)
        try:
            for line in filter(None, iter(_read_line, "/quit")):
                unanswered += not conversation.respond(line)
        finally:
            conversation.wait_for_facts(memory.aclose())
    if unanswered and not cli.is_terminal():
        raise typer.Exit(1)


async def _open(
    resources: AsyncExitStack, db: str | None, session: str, user: str | None, *, model: str | None, timeout: float
) -> tuple[FunctionAgent, ext.CondensedMemory]:
    """Makes the agent and its memory, and prints its model, its database and whose facts it keeps."""
    # Imported here: LlamaIndex takes seconds to start, and the help does not need it.
    from llama_index.core.agent.workflow import FunctionAgent
    from openai import DefaultAsyncHttpxClient

    from llama_index_memory_ext.cli.demo import TOOLS, choose_model, describe_model
    from llama_index_memory_ext.models.prompt_caches import needs_cache_points

    store = await resources.enter_async_context(aclosing(cli.find_store(db)))
    await cli.check_store(store, create=True)
    # Where nothing can be kept no conversation begins.
    await cli.try_writing(store)
    # OpenAI's clients leave connections open unless they are given a client.
    llm = choose_model(model, await resources.enter_async_context(DefaultAsyncHttpxClient()), timeout)
    messages = await store.count_messages(session, None)
    so_far = f"{messages} messages so far" if messages else "new"
    whose = f"{user}, in all sessions" if user else "this session's; --user NAME keeps them for all sessions"
    _note(
        f"/help lists the commands, /quit ends.\nmodel    {describe_model(llm)}\n"
        f"database {cli.file_of(store) or store.address}\nsession  {session}, {so_far}\nfacts    {whose}"
    )
    # Servers that give other families OpenAI's API refuse OpenAI's marks.
    marks = (needs_cache_points(llm.metadata.model_name) or "").startswith("OpenAI")
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
                self._obey(*line.partition(" ")[::2])
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
                if not sys.stdout.isatty():
                    print(flush=True)
            except (asyncio.CancelledError, BrokenPipeError):
                await run.cancel_run()
                with suppress(asyncio.CancelledError, Exception):
                    await run
                raise
            finally:
                answer.pause()

    def _obey(self, name: str, text: str) -> None:
        facts, text = self.memory.facts, text.strip()
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
        # Imported here: they import LlamaIndex.
        from llama_index.core.base.llms.types import ChatMessage

        from llama_index_memory_ext.text.messages import question_in

        messages, block = self.loop.run(self.memory.aget_all()), self.memory.facts_block
        question, context = question_in([*messages, *([ChatMessage(text)] if text else [])], [], block.context_turns)
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
        if session := fact.session_id:
            is_here = session == self.memory.session_id
            where = "this session, whose record shows them to the model" if is_here else f"the session {session}"
            _note(
                f"Only the fact is deleted. The words in which it was said stay in the messages of {where}. "
                f"`llama-index-memory forget --session {session}` deletes that session."
            )
        with suppress(typer.Exit):
            cli.confirm("Delete this fact for good?")
            self.loop.run(facts.aforget(fact.id))
            cli.say("Deleted.")


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
