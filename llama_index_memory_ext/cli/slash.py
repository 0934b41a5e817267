"""Obeys what begins with a slash in a conversation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from llama_index_memory_ext.cli.fact_tables import show_explanation, show_facts
from llama_index_memory_ext.cli.plain import one_line
from llama_index_memory_ext.cli.reasons import TerminalError, reason_of
from llama_index_memory_ext.cli.screen import is_terminal, say, show_table, waiting

if TYPE_CHECKING:
    from collections.abc import Callable

    from llama_index_memory_ext.cli.beside import Beside
    from llama_index_memory_ext.cli.conversation import Conversation
    from llama_index_memory_ext.fact import Fact

_HELP = (
    ("/facts", "what is known about you"),
    ("/why [QUESTION]", "which facts the last question showed the model, or another one would, and why"),
    ("/forget ID|WORDS", "delete a fact, by the beginning of its id or by words of it; asks before it does"),
    ("/stats", "how much is remembered"),
    ("/help", "this"),
    ("/quit", "end the conversation; so does Ctrl-D. Ctrl-C interrupts an answer."),
)


def obey(line: str, beside: Beside, conversation: Conversation) -> bool:
    """Do what the line says; False if the conversation is to end."""
    name, _, rest = line.partition(" ")
    if name in ("/quit", "/exit"):
        return False
    command = _COMMANDS.get(name)
    if command is None:
        say(f"There is no {name}. /help lists the commands.", stderr=True)
        return True
    try:
        command(beside, conversation, rest.strip())
    except KeyboardInterrupt:
        say("(interrupted)", style="dim", stderr=True)
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever fails, the conversation goes on
        say(f"That failed: {reason_of(error)}", style="red", stderr=True)
    return True


def _facts(beside: Beside, conversation: Conversation, _: str) -> None:
    _learn(beside, conversation)
    show_facts(beside.run(conversation.memory.facts.alist()), _whose(conversation))


def _learn(beside: Beside, conversation: Conversation) -> None:
    """Extract what was said just now, as the next question would; who does not want to wait for it presses Ctrl-C."""
    try:
        with waiting("Reading what was said"):
            beside.run(conversation.memory.aflush())
    except KeyboardInterrupt:
        say("(not waiting for what is being read)", style="dim", stderr=True)


def _why(beside: Beside, conversation: Conversation, question: str) -> None:
    question = question or next((asked for asked, _ in reversed(conversation.said)), "")
    if not question:
        raise TerminalError("nothing was asked yet. Say /why QUESTION to look at a question of your own.")
    say(f"For {one_line(question)!r}, as things are now:")
    show_explanation(beside.run(conversation.explain(question)), _whose(conversation))


def _forget(beside: Beside, conversation: Conversation, words: str) -> None:
    if not words:
        raise TerminalError("say which: /forget ID, or /forget WORDS. /facts lists them.")
    _learn(beside, conversation)
    book = conversation.memory.facts
    fact = _meant(words, beside.run(book.alist(with_retired=True)))
    if not is_terminal():
        raise TerminalError("nobody can be asked here. Use `facts forget ID --yes`.")
    show_facts([fact], book.namespace)
    try:
        sure = typer.confirm("Delete this fact for good?")
    except typer.Abort:
        sure = False
    if sure:
        beside.run(book.aforget(fact.id))
    say("Deleted." if sure else "Nothing was deleted.")


def _meant(words: str, facts: list[Fact]) -> Fact:
    """The one fact whose id begins like this, or that has these words.

    Raises:
        TerminalError: There is none, or there are several.
    """
    found = [fact for fact in facts if fact.id.startswith(words)]
    found = found or [fact for fact in facts if words.casefold() in fact.content.casefold()]
    if not found:
        raise TerminalError(f"no fact is called {words!r} or has these words. /facts lists them.")
    if len(found) > 1:
        raise TerminalError(
            f"{len(found)} facts are called {words!r} or have these words. Say more of the one you mean."
        )
    return found[0]


def _stats(beside: Beside, conversation: Conversation, _: str) -> None:
    memory: Any = conversation.memory
    say(str(beside.run(memory.astats())))


def _help(*_: object) -> None:
    show_table(("command", "what it does"), _HELP, folded="what it does")


def _whose(conversation: Conversation) -> str:
    return conversation.memory.facts.namespace


_COMMANDS: dict[str, Callable[[Beside, Conversation, str], None]] = {
    "/facts": _facts,
    "/why": _why,
    "/forget": _forget,
    "/stats": _stats,
    "/help": _help,
}
