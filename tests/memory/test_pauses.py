"""Other tasks of the event loop go on while long texts are read."""

from __future__ import annotations

import pytest

from tests.conversation import assistant, user
from tests.memories import OpenMemory
from tests.ticks import ticking

TEXTS = {"words": "some words and a <tag> of a long text. " * 30_000, "one word": "x7Qz" * 250_000}


@pytest.mark.parametrize("ratio", [0.0001, 0.5])
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
async def test_a_message_of_megabytes_holds_up_nobody(open_memory: OpenMemory, text: str, ratio: float) -> None:
    """It is counted, escaped and clipped as a question, as one of the record, and as an answer."""
    memory = open_memory(chat_history_token_ratio=ratio)
    async with ticking() as ticks:
        for said in (user(text), assistant("Long."), user("And?"), assistant(text + "."), user("Well?")):
            await memory.aput(said)
            shown = await memory.aget()
    assert shown[-1].blocks[-1].text == "Well?"  # type: ignore[union-attr]
    assert ticks.longest < ticks.seconds / 5
