"""Uses the installed package as a stranger would, without the repository."""

import asyncio
import tempfile
from pathlib import Path

from llama_index.core.llms import ChatMessage

import llama_index_memory_ext
from llama_index_memory_ext import CondensedMemory


async def main() -> None:
    """Two turns, a restart, and the record of both."""
    with tempfile.TemporaryDirectory() as folder:
        uri = f"sqlite+aiosqlite:///{Path(folder) / 'memory.db'}"
        async with CondensedMemory.from_defaults(
            "chat", async_database_uri=uri, extract_facts=False
        ) as memory:
            await memory.aput(ChatMessage(role="user", content="My name is Logan."))
            await memory.aput(ChatMessage(role="assistant", content="Hello Logan."))
        async with CondensedMemory.from_defaults(
            "chat", async_database_uri=uri, extract_facts=False
        ) as memory:
            await memory.aput(ChatMessage(role="user", content="What is my name?"))
            (message,) = await memory.aget()
    assert '<message role="user">My name is Logan.</message>' in str(message), message


assert (Path(llama_index_memory_ext.__file__).parent / "py.typed").is_file()
asyncio.run(main())
print("it works:", llama_index_memory_ext.__file__)
