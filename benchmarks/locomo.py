"""Reads the LoCoMo conversations that are replayed, and writes a prompt down as the model gets it.

The file holds them as ``conversations -> pools -> turns``. The first speaker is the user, the second the assistant.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from llama_index.core.base.llms.types import ChatMessage, MessageRole, TextBlock

from benchmarks.command import named_path

DEFAULT_FILE = Path("../shared/recall/locomo_dev.json")

Conversation = dict[str, Any]


def load_conversations(name: str, *before: str) -> list[Conversation]:
    """The conversations of the file that the command names; [] if there is none, and a line says so.

    ``before`` are the arguments of the command that stand before this file.
    """
    file = named_path(DEFAULT_FILE, len(before))
    if not file.is_file():
        arguments = " ".join([*before, "LOCOMO_JSON"])
        print(f"There is no {file}. Name the file: python -m benchmarks.{name} {arguments}", file=sys.stderr)
        return []
    conversations: list[Conversation] = json.loads(file.read_text(encoding="utf-8"))["conversations"]
    return conversations


def messages_of(conversation: Conversation) -> list[ChatMessage]:
    """What was said, oldest first."""
    user = conversation["speakers"][0]
    return [
        ChatMessage(role=MessageRole.USER if said["speaker"] == user else MessageRole.ASSISTANT, content=said["text"])
        for said in conversation["pools"]["turns"]
    ]


def text_of(message: ChatMessage) -> str:
    """The text blocks of a message, joined without anything between them."""
    return "".join(block.text for block in message.blocks if isinstance(block, TextBlock))


def prompt_text(messages: Iterable[ChatMessage]) -> str:
    """The texts of the messages, each with its role before it."""
    return "".join(f"<|{message.role.value}|>\n{text_of(message)}\n" for message in messages)
