"""LlamaIndex's OpenAI client, connected to the server of ``tests/openai_server.py``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import httpx
import pytest
from llama_index.llms.openai import OpenAI

from tests.openai_server import Model, OpenAIServer, serve

StartModel = Callable[[Model], tuple[OpenAI, OpenAIServer]]


@pytest.fixture
async def start_model() -> AsyncIterator[StartModel]:
    """Starts an OpenAI server around a model, and gives the real client for it."""
    async with AsyncExitStack() as stack:

        def start(model: Model) -> tuple[OpenAI, OpenAIServer]:
            server = stack.enter_context(serve(model))
            http_client = stack.enter_context(httpx.Client())
            async_http_client = httpx.AsyncClient()
            stack.push_async_callback(async_http_client.aclose)
            return client_of(server, http_client, async_http_client), server

        yield start


def client_without_connections(server: OpenAIServer) -> OpenAI:
    """The real client, for calls in several event loops: nothing stays open between two requests."""
    none = httpx.Limits(max_keepalive_connections=0)
    return client_of(server, httpx.Client(limits=none), httpx.AsyncClient(limits=none))


def client_of(server: OpenAIServer, http_client: httpx.Client, async_http_client: httpx.AsyncClient) -> OpenAI:
    return OpenAI(
        model="gpt-4o-mini",
        api_base=server.api_base,
        api_key="sk-test-key",
        max_retries=0,
        http_client=http_client,
        async_http_client=async_http_client,
    )
