"""The fixtures of these tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any, TypeAlias

import pytest

from llama_index_memory_ext import CondensedMemoryBlock
from tests.databases import lasting_store
from tests.fixtures import *

store = lasting_store

OpenBlock: TypeAlias = Callable[..., CondensedMemoryBlock]


@pytest.fixture
async def open_block() -> AsyncIterator[OpenBlock]:
    """Opens blocks with stores of their own, which are closed at the end."""
    async with AsyncExitStack() as stack:

        def open_one(**options: Any) -> CondensedMemoryBlock:
            block = CondensedMemoryBlock(**options)
            stack.push_async_callback(block.aclose)
            return block

        yield open_one
