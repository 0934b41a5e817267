"""The drawn pictures of the pages fit their frames in any font, and show the words that the memory sends."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from llama_index.core.base.llms.types import ChatMessage, ToolCallBlock

from benchmarks.locomo import prompt_text
from llama_index_memory_ext import CondensedMemory

DOCS = Path(__file__).parents[2] / "docs"
PICTURES = sorted(DOCS.glob("*.svg"))
SVG = "{http://www.w3.org/2000/svg}"
# A letter of DejaVu Sans, the widest of the fonts in which the pictures were looked at.
EM_PER_LETTER = {"head": 0.6, "label": 0.6, "mono": 0.61}
EM_PER_PLAIN_LETTER = 0.56
LEAST_GAP = 6.0
# At 390 pixels a picture of 520 is drawn at three quarters.
MOST_WIDTH = 520
LEAST_FONT = 15.0


@dataclass(frozen=True)
class Area:
    """A text or a box, by its left and right ends and, of a text, its baseline at the top and the bottom."""

    left: float
    right: float
    top: float
    bottom: float

    def holds(self, x: float, y: float) -> bool:
        return self.left <= x <= self.right and self.top <= y <= self.bottom


def sizes_of(root: ET.Element) -> dict[str, float]:
    """The size of the font of each class of texts, and of all others by the empty name."""
    style = root.findtext(f"{SVG}style") or ""
    sizes = {"": 0.0}
    for selector, rules in re.findall(
        r"^ {4}(\S+) \{([^}]*)\}", style, flags=re.MULTILINE
    ):
        size = re.search(r"font(?:-size)?: ([\d.]+)px", rules)
        if size:
            sizes["" if selector == "text" else selector.removeprefix(".")] = float(
                size[1]
            )
    return sizes


def texts_of(root: ET.Element) -> list[Area]:
    """Where each text is, if its letters are wide."""
    sizes = sizes_of(root)
    areas = []
    for text in root.iter(f"{SVG}text"):
        kind = text.get("class", "")
        width = (
            EM_PER_LETTER.get(kind, EM_PER_PLAIN_LETTER)
            * sizes[kind]
            * len(text.text or "")
        )
        x = float(text.get("x", ""))
        left = {"end": x - width, "middle": x - width / 2}.get(
            text.get("text-anchor", ""), x
        )
        y = float(text.get("y", ""))
        areas.append(Area(left, left + width, y, y))
    return areas


def boxes_of(root: ET.Element) -> list[Area]:
    """The boxes, from the outer ones to the inner ones."""
    boxes = []
    for box in root.iter(f"{SVG}rect"):
        x, y, width, height = (
            float(box.get(name, "")) for name in ("x", "y", "width", "height")
        )
        boxes.append(Area(x, x + width, y, y + height))
    return boxes


@pytest.mark.parametrize("file", PICTURES, ids=lambda file: file.stem)
def test_every_text_stays_in_its_box_and_touches_no_other_one(file: Path) -> None:
    root = ET.parse(file).getroot()  # noqa: S314 - it is our own
    texts = texts_of(root)
    boxes = boxes_of(root)
    assert texts
    for text in texts:
        middle = (text.left + text.right) / 2
        box = [box for box in boxes if box.holds(middle, text.bottom)][-1]
        assert (
            box.left + LEAST_GAP <= text.left < text.right <= box.right - LEAST_GAP
        ), text
        assert text.bottom <= box.bottom - LEAST_GAP, text
    for text in texts:
        beside = [
            other for other in texts if other.top == text.top and other.left > text.left
        ]
        assert [
            other for other in beside if other.left - text.right < LEAST_GAP
        ] == [], text


@pytest.mark.parametrize("file", PICTURES, ids=lambda file: file.stem)
def test_a_picture_can_be_read_on_a_phone_and_by_a_screen_reader(file: Path) -> None:
    root = ET.parse(file).getroot()  # noqa: S314 - it is our own
    assert float(root.get("width", "")) <= MOST_WIDTH
    assert min(size for size in sizes_of(root).values()) >= LEAST_FONT
    assert root.get("role") == "img"
    assert root.get("aria-label")


async def test_the_picture_of_one_message_shows_what_is_sent() -> None:
    """The same words, in the same order."""
    call = ToolCallBlock(
        tool_call_id="call_1", tool_name="multiply", tool_kwargs={"a": 3214, "b": 322}
    )
    turns = [
        ChatMessage("I am Logan. I must not eat nuts."),
        ChatMessage("Noted.", role="assistant"),
        ChatMessage("And so on."),
        ChatMessage("Yes.", role="assistant"),
        ChatMessage("What is 3214 * 322?"),
        ChatMessage(role="assistant", blocks=[call]),
        ChatMessage(
            "1034908", role="tool", additional_kwargs={"tool_call_id": "call_1"}
        ),
        ChatMessage("It is 1034908.", role="assistant"),
        ChatMessage("May I have the nut cake?"),
    ]
    async with CondensedMemory.from_defaults(
        extract_facts=False, max_messages=6, keep_messages=5
    ) as memory:
        await memory.facts.aadd("Must not eat nuts")
        for message in turns:
            await memory.aput(message)
        sent = await memory.aget()
    assert len(sent) == 1
    prompt = prompt_text(sent)
    words = [
        "Must not eat nuts",
        "What is 3214 * 322?",
        "multiply",
        "1034908",
        "I am Logan. I must not eat nuts.",
    ]
    places = [prompt.index(text) for text in [*words, "May I have the nut cake?"]]
    assert places == sorted(places)
    drawn = "".join(ET.parse(DOCS / "one-message.svg").getroot().itertext())  # noqa: S314 - it is our own
    card = drawn.partition("one message")[2]
    assert [
        text for text in [*words, "May I have the nut cake?"] if text not in card
    ] == []
