"""The turns of a conversation, and where they end."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from llama_index.core.base.llms.types import ChatMessage, MessageRole

from llama_index_memory_ext.text.messages import (
    ASSISTANT_ROLES,
    RESULT_ROLES,
    calls_of,
    clean,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

# The role of a line by another user, in a session of several users.
OTHER_ROLE = "other user"

# A CodeActAgent runs the code within these tags, and stores the output behind this
# heading, as a message of the user.
_CODE = re.compile(r"<execute>(.*?)</execute>", re.DOTALL)
_OUTPUT_HEADING = "Result of executing the code given:"
# A message of a ReActAgent, with its last answer if there is one.
_REACT = re.compile(
    r"\s*(?:Thought|Action|Action Input|Observation):(?:.*\sAnswer:(?P<answer>.*))?",
    re.DOTALL,
)


class Utterance(NamedTuple):
    """The spoken text of a message, with its role and its row in the log.

    The role is user, assistant, a tool, or ``OTHER_ROLE`` for another user.

    ``row_id``: 0 for a message that is not in the log.
    ``speaker``: in a session of several users, the user whose turn it is.
    """

    row_id: int
    role: str
    text: str
    speaker: str = ""

    @property
    def is_users(self) -> bool:
        """Whether the user wrote it."""
        return self.role == MessageRole.USER


class Question(NamedTuple):
    """The newest question of a conversation, "" if there is none, and the texts of earlier turns, oldest first."""

    text: str
    context: list[str]


def spoken(message: ChatMessage) -> str:
    """Return the text of a user's message or of a final answer; "" for any other message.

    Of a final answer of ReAct, return the text after the last ``Answer:``.
    """
    text: str = clean(message.content or "").strip()
    if message.role == MessageRole.USER:
        return text
    if message.role not in ASSISTANT_ROLES or calls_of(message) or runs_code(message):
        return ""
    thoughts = _REACT.match(text)
    if thoughts:
        return (thoughts["answer"] or "").strip()
    return text


def is_answer(message: ChatMessage) -> bool:
    """Return whether a message is a final answer: the assistant says something in it, and calls no tool."""
    return message.role in ASSISTANT_ROLES and bool(spoken(message))


def runs_code(message: ChatMessage) -> bool:
    """Return whether a CodeActAgent runs code that the assistant has written in this message."""
    return message.role in ASSISTANT_ROLES and any(
        code.strip() for code in _CODE.findall(message.content or "")
    )


def is_code_output(message: ChatMessage) -> bool:
    """Return whether a user's message reads like the output that a CodeActAgent stores; a user may write that, too."""
    return message.role == MessageRole.USER and (message.content or "").startswith(
        _OUTPUT_HEADING
    )


def with_code_results(messages: Iterable[ChatMessage]) -> list[ChatMessage]:
    """Return the messages, with the output of a CodeActAgent's programs as results of a tool instead of the user's.

    Output directly follows the assistant's code. Its messages are copies; all other
    messages are the same objects.

    >>> code = ChatMessage("<execute>print(1)</execute>", role="assistant")
    >>> result = ChatMessage("Result of executing the code given: 1")
    >>> [message.role.value for message in with_code_results([code, result])]
    ['assistant', 'tool']
    """
    conversation = []
    awaits_output = False
    for message in messages:
        if awaits_output and is_code_output(message):
            result = message.model_copy(update={"role": MessageRole.TOOL})
            conversation.append(result)
        else:
            conversation.append(message)
        # The result of a call at the same time may stand between code and output.
        awaits_output = runs_code(message) or (
            awaits_output and conversation[-1].role in RESULT_ROLES
        )
    return conversation


def turns_in(
    messages: Iterable[ChatMessage], turns_before: Iterable[list[str]] = ()
) -> list[list[str]]:
    """Return the spoken texts of each turn, oldest first, behind ``turns_before``.

    Texts before the first question form a turn, or belong to the last turn before.
    """
    lines = []
    for message in messages:
        text = spoken(message)
        if text:
            lines.append(Utterance(0, message.role, text))
    return turns_of(lines, turns_before)


def turns_of(
    lines: Iterable[Utterance], turns_before: Iterable[list[str]] = ()
) -> list[list[str]]:
    """Return the texts of each turn of spoken lines, as ``turns_in``."""
    turns = [list(texts) for texts in turns_before]
    for line in lines:
        if line.is_users or not turns:
            turns.append([])
        turns[-1].append(line.text)
    return turns


def question_in(
    messages: Sequence[ChatMessage], turns_before: Sequence[list[str]], max_turns: int
) -> Question:
    """Return the newest question, and the texts of up to ``max_turns - 1`` turns before it."""
    end = len(messages)
    while end and messages[end - 1].role != MessageRole.USER:
        end -= 1
    turns = [*turns_before, *turns_in(messages[:end])]
    context = ["\n".join(turn) for turn in turns[-max_turns:-1]]
    return Question(turns[-1][0] if turns else "", context)


# At this share of the token limit or less, every turn but the newest leaves short-term
# memory, however short it is.
FLUSH_EVERY_TURN = 0.0001


def count_leaving(
    messages: Sequence[ChatMessage],
    limit: int = 0,
    tokens: Callable[[ChatMessage], int] = lambda _: 1,
) -> int:
    """Return how many of the oldest messages leave, so that the rest fits into a limit.

    Only whole turns leave. ``tokens`` counts the tokens of a message. The newest turn
    always stays; by default, all earlier turns leave.
    """
    starts = [
        i for i, message in enumerate(messages) if message.role == MessageRole.USER
    ]
    counts = [tokens(message) for message in messages]
    remaining = sum(counts)
    if remaining <= limit or not starts:
        return 0
    position = 0
    for start in starts:
        remaining -= sum(counts[position:start])
        position = start
        if remaining <= limit:
            break
    return position


def ends_with_answer(turn: Sequence[ChatMessage]) -> bool:
    """Return whether a turn ends with an answer; False for no messages."""
    return bool(turn) and turn[-1].role in ASSISTANT_ROLES and not calls_of(turn[-1])


def leaving_at_end(messages: Sequence[ChatMessage]) -> int:
    """Return how many of the oldest messages leave when a memory is closed: all but an open turn."""
    if ends_with_answer(messages):
        return len(messages)
    return count_leaving(messages)


def extract_conversation_context(
    messages: Iterable[ChatMessage], max_turns: int = 3
) -> str:
    """Return the texts of the last turns, oldest first, with a blank line between turns; "" if there are none.

    Args:
        messages: Any messages. Tool calls and results are left out.
        max_turns: Maximum number of turns, including the current turn.

    Examples:
        >>> chat = [ChatMessage("I live in Rome."), ChatMessage("Noted.", role="assistant")]
        >>> extract_conversation_context(chat)
        'I live in Rome. Noted.'
    """
    turns = turns_in(with_code_results(messages))
    first = max(len(turns) - max_turns, 0)
    return "\n\n".join(" ".join(" ".join(texts).split()) for texts in turns[first:])
