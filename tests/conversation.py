"""Short names for messages of every kind, and for looking into what the model is shown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

from llama_index.core.base.llms.types import TextBlock, ToolCallBlock
from llama_index.core.llms import ChatMessage

# What stands between the record and the question.
BEFORE_QUESTION = "</memory>\n\n"


def user(text: str) -> ChatMessage:
    return ChatMessage(role="user", content=text)


def assistant(text: str) -> ChatMessage:
    return ChatMessage(role="assistant", content=text)


def named(message: ChatMessage, message_id: str) -> ChatMessage:
    message.additional_kwargs["message_id"] = message_id
    return message


def calling(
    *calls: tuple[str, str, dict[str, Any] | str], text: str = ""
) -> ChatMessage:
    """An assistant's message with a block for each call: (id, name, arguments)."""
    said = [TextBlock(text=text)] if text else []
    blocks = [
        ToolCallBlock(tool_call_id=call_id, tool_name=name, tool_kwargs=kwargs)
        for call_id, name, kwargs in calls
    ]
    return ChatMessage(role="assistant", blocks=[*said, *blocks])


def result(call_id: str, text: str) -> ChatMessage:
    return ChatMessage(
        role="tool", content=text, additional_kwargs={"tool_call_id": call_id}
    )


def sent_text(messages: Sequence[ChatMessage]) -> str:
    """All text of the messages, joined as OpenAI joins the blocks of a message: without a separator."""
    return "".join(
        block.text
        for message in messages
        for block in message.blocks
        if isinstance(block, TextBlock)
    )


def of_today() -> str:
    """What stands above the messages of today, before a record's first one."""
    return f"<message date>{datetime.now(timezone.utc).date()}\n"


def record(text: str) -> list[tuple[str, str]]:
    """The (role, text) of each entry that a prompt shows."""
    return re.findall(
        r'<message role="(\w+)"[^>]*>(.*?)</message>\n', text, flags=re.DOTALL
    )


def split_record(text: str) -> list[str]:
    """The parts of a record, which no text can forge: entries, the summary, headings and tags."""
    tags = r"<message |<conversation_summary>|</?earlier_messages(?: note=[^>]*)?>\n"
    return [part for part in re.split(rf"(?m)^(?={tags})", text) if part]


def recalled(text: str) -> list[tuple[str, str]]:
    """The (role, text) of each earlier message that a prompt shows."""
    earlier = text.partition("<earlier_messages ")[2].partition("</earlier_messages>")[
        0
    ]
    found = re.findall(
        r"<message (\w+)[^>]*>(.*?)\n(?=<message |\Z)", earlier, flags=re.DOTALL
    )
    changes = text.partition("What has changed since then:\n")[2]
    changed = re.findall(r"^- (.*?)(?: \(\d{4}-.*\))?$", changes, flags=re.MULTILINE)
    messages = [(role, said) for role, said in found if role != "date"]
    return [*messages, *[("user", said) for said in changed]]
