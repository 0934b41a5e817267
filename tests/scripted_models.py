"""LlamaIndex's OpenAI clients, connected to the server of ``tests/openai_server.py``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from copy import deepcopy
from functools import cache, partial
from typing import Any

import httpx
import pytest
from llama_index.core.tools.types import ToolMetadata
from llama_index.llms.openai import OpenAI
from pydantic import BaseModel

from llama_index_memory_ext.background.waiting import running_jobs
from tests.openai_server import Model, OpenAIServer, serve

describe_arguments = ToolMetadata.get_parameters_dict


@cache
def arguments_of(schema: type[BaseModel] | None) -> dict[str, Any]:
    """Return what LlamaIndex tells a model about the arguments of a tool."""
    return describe_arguments(ToolMetadata("", fn_schema=schema))


def copy_arguments(tool: ToolMetadata) -> dict[str, Any]:
    """Return the description of a tool's arguments, which a client may change."""
    return deepcopy(arguments_of(tool.fn_schema))


# LlamaIndex describes the same arguments several times for each request, which took a fifth of the time of tests
# about learning.
ToolMetadata.get_parameters_dict = copy_arguments  # type: ignore[assignment, method-assign]

StartModel = Callable[[Model], tuple[OpenAI, OpenAIServer]]
# The class of the client, the model, and what else the class takes.
StartClient = Callable[..., tuple[Any, OpenAIServer]]


@pytest.fixture
async def start_client() -> AsyncIterator[StartClient]:
    """Starts an OpenAI server around a model, and gives a client for it of the class that is named."""
    async with starting() as start:
        yield start


@pytest.fixture
async def start_model() -> AsyncIterator[StartModel]:
    """Starts an OpenAI server around a model, and gives LlamaIndex's usual client for it."""
    async with starting() as start:
        yield partial(start, OpenAI)


@asynccontextmanager
async def starting() -> AsyncIterator[StartClient]:
    """What starts servers and clients, which all end with the block."""
    async with AsyncExitStack() as stack:

        def start(
            client: type[Any], model: Model, /, **settings: Any
        ) -> tuple[Any, OpenAIServer]:
            server = stack.enter_context(serve(model))
            http_client, async_http_client = (
                stack.enter_context(httpx.Client()),
                httpx.AsyncClient(),
            )
            stack.push_async_callback(async_http_client.aclose)
            stack.push_async_callback(cancel_jobs)
            return client_of(
                server, http_client, async_http_client, client, **settings
            ), server

        yield start


async def cancel_jobs() -> None:
    """Cancel the jobs that a test leaves: a client that closes while a job connects leaves the connection open."""
    loop = asyncio.get_running_loop()
    jobs = [job for job in running_jobs if job.get_loop() is loop]
    for job in jobs:
        job.cancel()
    await asyncio.gather(*jobs, return_exceptions=True)


def client_without_connections(server: OpenAIServer) -> OpenAI:
    """The real client, for calls in several event loops: nothing stays open between two requests."""
    none = httpx.Limits(max_keepalive_connections=0)
    llm: OpenAI = client_of(
        server, httpx.Client(limits=none), httpx.AsyncClient(limits=none)
    )
    return llm


def client_of(
    server: OpenAIServer,
    http_client: httpx.Client,
    async_http_client: httpx.AsyncClient,
    client: type[Any] = OpenAI,
    **settings: Any,
) -> Any:
    usual = {"model": "gpt-4o-mini", "api_key": "sk-test-key", "max_retries": 0}
    return client(
        api_base=server.api_base,
        http_client=http_client,
        async_http_client=async_http_client,
        **{**usual, **settings},
    )
