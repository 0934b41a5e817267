"""A provider's client, when it is asked for the first time."""

from __future__ import annotations

import subprocess
import sys

from tests.openai_server import say, serve

FIRST = """
import asyncio, sys
from functools import partial

from llama_index.core.base.llms.types import ChatMessage
from llama_index.llms.openai import OpenAI

from llama_index_memory_ext.models.ask import ask_with
from tests.search.test_embeddings import in_event_loop

loaded = {True: set(), False: set()}


class Watch:
    def find_spec(self, name, path=None, target=None):
        loaded[in_event_loop()].add(name.partition(".")[0])


async def main(address):
    llm = OpenAI(model="gpt-4o", api_base=address, api_key="x", max_retries=0)
    sys.meta_path.insert(0, Watch())
    response = await ask_with(llm, {}, partial(llm.achat, [ChatMessage("Hello")]), [])
    late = {"openai", "httpcore", "h11"}
    print(response.message.content, sorted(late & loaded[False]), sorted(late & loaded[True]))


asyncio.run(main(sys.argv[1]))
"""


def test_its_modules_are_not_loaded_in_the_event_loop() -> None:
    """These are 500, which take a second."""
    with serve(lambda messages, tools: say("Hello.")) as server:
        command = [sys.executable, "-c", FIRST, server.api_base]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "Hello. ['h11', 'httpcore', 'openai'] []\n"
