"""Reads the LoCoMo conversations that are replayed, and writes a prompt down as the model gets it.

The file is LoCoMo's own ``locomo10.json``, of which the first five conversations are taken, or holds them in the form
in which they are used here, as ``conversations -> pools -> turns``. The first speaker is the user, the second the
assistant. A text is as a memory stores it: without the name of its speaker in front. A question is asked as the user
asks it: the names of the speakers are "I" and "you". ``named`` keeps the question with the names.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from llama_index.core.base.llms.types import ChatMessage, MessageRole, TextBlock

from benchmarks.command import named_path
from benchmarks.recipe import o200k

DEFAULT_FOLDER = Path("../shared/recall")
FILES = ("locomo_dev.json", "locomo10.json")
CONVERSATIONS = 5
ADVERSARIAL = 5

# The forms of a verb behind a name, and before "I" and "you".
VERBS = {
    "does": ("do", "do"),
    "has": ("have", "have"),
    "is": ("am", "are"),
    "was": ("was", "were"),
}
BEFORE_OBJECTS = "about|after|between|by|for|from|help|like|of|than|to|with"

Conversation = dict[str, Any]


def file_in(folder: Path) -> Path:
    """The file with the conversations in a folder; the name of LoCoMo's own if there is none."""
    return next(
        (folder / name for name in FILES if (folder / name).is_file()),
        folder / FILES[-1],
    )


def load_conversations(name: str, *before: str) -> list[Conversation]:
    """The conversations of the file that the command names; [] if there is none, and a line says so.

    ``before`` are the arguments of the command that stand before this file.
    """
    file = named_path(file_in(DEFAULT_FOLDER), len(before))
    if not file.is_file():
        arguments = " ".join([*before, "LOCOMO_JSON"])
        print(
            f"There is no {file}. docs/figures.md says where LoCoMo is. Name the file: "
            f"python -m benchmarks.{name} {arguments}",
            file=sys.stderr,
        )
        return []
    return conversations_in(file)


def conversations_in(file: Path) -> list[Conversation]:
    """The conversations of a file in one of the two forms."""
    content = json.loads(file.read_text(encoding="utf-8"))
    if isinstance(content, list):
        conversations = [converted(one) for one in content[:CONVERSATIONS]]
    else:
        conversations = content["conversations"]
        for conversation in conversations:
            for turn in conversation["pools"]["turns"]:
                turn["text"] = turn["text"].removeprefix(f"{turn['speaker']}: ")
    for conversation in conversations:
        for question in conversation["questions"]:
            question["named"] = question["text"]
            question["text"] = asked_as_user(question["text"], conversation["speakers"])
    return conversations


def asked_as_user(question: str, speakers: Sequence[str]) -> str:
    """The question with "I" for the first speaker, who asks it, and "you" for the second.

    >>> asked_as_user("When did Ann visit Ben's farm?", ("Ann", "Ben"))
    'When did I visit your farm?'
    >>> asked_as_user("What is Ben planning with Ann?", ("Ann", "Ben"))
    'What are you planning with me?'
    """
    pronouns = (("I", "me", "my"), ("you", "you", "your"))
    for place, name in enumerate(map(re.escape, speakers)):
        subject, thing, own = pronouns[place]
        question = re.sub(rf"\b{name}['\u2019]s?\b", own, question)
        for verb, forms in VERBS.items():
            pair = rf"\b{verb} {name}\b", f"{forms[place]} {subject}"
            question = re.sub(*pair, question, flags=re.IGNORECASE)
            question = re.sub(
                rf"\b{name} {verb}\b", f"{subject} {forms[place]}", question
            )
        question = re.sub(rf"\b({BEFORE_OBJECTS}) {name}\b", rf"\1 {thing}", question)
        question = re.sub(rf"\b{name}\b", subject, question)
    return question[:1].upper() + question[1:]


def converted(one: dict[str, Any]) -> Conversation:
    """A conversation of LoCoMo's own file in the form that is used here; all facts are equally certain."""
    said = one["conversation"]
    sessions = sorted(
        int(key.split("_")[1])
        for key, turns in said.items()
        if re.fullmatch(r"session_\d+", key) and turns
    )
    turns, facts = list[dict[str, Any]](), list[dict[str, Any]]()
    for session in sessions:
        day = said[f"session_{session}_date_time"].partition(" on ")[2]
        for turn in said[f"session_{session}"]:
            picture = (
                f" [shares {turn['blip_caption']}]" if turn.get("blip_caption") else ""
            )
            turns.append(
                _item(turn["dia_id"], turn["speaker"], f"{turn['text']}{picture}", day)
            )
        known = {turn["id"] for turn in turns}
        observed = one["observation"].get(f"session_{session}_observation", {})
        cited = [
            (speaker, text, [turn for turn in _cited(source) if turn in known])
            for speaker, entries in observed.items()
            for text, source in entries
        ]
        in_order = sorted(
            (entry for entry in cited if entry[2]),
            key=lambda entry: _place(entry[2][0]),
        )
        facts += [
            _item(f"O{session}:{i}", speaker, text, day, source)
            for i, (speaker, text, source) in enumerate(in_order)
        ]
    known = {turn["id"] for turn in turns}
    asked = [
        (i, entry, [turn for turn in _cited(entry["evidence"]) if turn in known])
        for i, entry in enumerate(one["qa"])
    ]
    questions = [
        {
            "id": f"{one['sample_id']}-{i}",
            "text": entry["question"],
            "evidence": evidence,
            "adversarial": entry["category"] == ADVERSARIAL,
        }
        for i, entry, evidence in asked
        if evidence
    ]
    speakers = [said["speaker_a"], said["speaker_b"]]
    pools = {"turns": turns, "observations": facts}
    return {
        "id": one["sample_id"],
        "speakers": speakers,
        "pools": pools,
        "questions": questions,
    }


def _item(
    name: str, speaker: str, text: str, day: str, source: list[str] | None = None
) -> dict[str, Any]:
    tokens = len(o200k().encode_ordinary(f"- ({day}) {text}\n"))
    more = {"tokens": tokens, "source": source or [name], "confidence": 1.0}
    return {"id": name, "speaker": speaker, "text": text, "time": day, **more}


def _cited(source: str | list[str]) -> list[str]:
    """The turns that are cited ("D1:3", or several in one text), each once."""
    return list(
        dict.fromkeys(
            re.findall(
                r"D\d+:\d+", source if isinstance(source, str) else " ".join(source)
            )
        )
    )


def _place(turn: str) -> list[int]:
    return list(map(int, turn[1:].split(":")))


def messages_of(conversation: Conversation) -> list[ChatMessage]:
    """What was said, oldest first."""
    user = conversation["speakers"][0]
    return [
        ChatMessage(
            role=MessageRole.USER if said["speaker"] == user else MessageRole.ASSISTANT,
            content=said["text"],
        )
        for said in conversation["pools"]["turns"]
    ]


def text_of(message: ChatMessage) -> str:
    """The text blocks of a message, joined without anything between them."""
    return "".join(
        block.text for block in message.blocks if isinstance(block, TextBlock)
    )


def prompt_text(messages: Iterable[ChatMessage]) -> str:
    """The texts of the messages, each with its role before it."""
    return "".join(
        f"<|{message.role.value}|>\n{text_of(message)}\n" for message in messages
    )
