"""The commands ``inspect`` and ``mcp``: serve a database to a browser, and a user's memory to other programs."""

from __future__ import annotations

import asyncio
import signal
import socket
from contextlib import aclosing, suppress
from typing import Annotated, Any

import typer

import llama_index_memory_ext as ext
from llama_index_memory_ext.apps.cli import TerminalError, UsageError, needs_extra
from llama_index_memory_ext.apps.cli import app as cli
from llama_index_memory_ext.apps.cli.app import (
    Agent,
    Db,
    Embed,
    TimeZone,
    User,
)


@cli.app.command(epilog=cli.example("inspect --db memory.db --port 8000"))
def inspect(
    *,
    db: Db = None,
    port: Annotated[
        int, cli.option("--port PORT", "Default: 0, any free port.", min=0, max=65_535)
    ] = 0,
    write: Annotated[
        bool, typer.Option("--write", help="Let the pages make changes.")
    ] = False,
    embed: Embed = None,
    agent: Agent = None,
    time_zone: TimeZone = None,
    token_limit: Annotated[
        int | None,
        cli.option("--token-limit TOKENS", "Of the prompt. Default: 60000."),
    ] = None,
) -> None:
    """Show the database and the next prompt in a browser.

    Only this machine can open the pages, at the printed address. With --write, the pages
    can change facts, and forget facts, sessions and users. Without it, they change
    nothing.
    """
    with needs_extra("inspect", "starlette", "uvicorn", "jinja2"):
        # Imported here: an extra, and LlamaIndex takes seconds to start.
        import uvicorn  # noqa: F401

        from llama_index_memory_ext.apps.inspector.pages import Access
        from llama_index_memory_ext.apps.inspector.server import Inspector
    limits = cli.without_none(
        {
            "token_limit": token_limit,
            "embed_model": embed,
            "agent_id": agent,
            "time_zone": time_zone,
        }
    )
    # Raises an error at once for a wrong limit.
    ext.CondensedMemory.from_defaults(extract_facts=False, **limits)

    async def show(store: ext.MemoryStore) -> None:
        async with aclosing(store.read_only()) as reader:
            inspector = Inspector(reader, store, limits, Access(write))
            await _serve(inspector, port)

    cli.run(db, show)


async def _serve(inspector: Any, port: int) -> None:
    """Answer requests at a port of this machine until Ctrl-C, and print the address."""
    from uvicorn import Config, Server

    try:
        listening = socket.create_server(("127.0.0.1", port))
    except OSError as error:
        raise TerminalError(
            f"Port {port} cannot be used: {error.strerror}. Pass another port, or 0 for any free port."
        ) from None
    cli.say(
        f"http://127.0.0.1:{listening.getsockname()[1]}/{inspector.access.token}/\n"
        "Anyone on this machine with this address can see all data, until you press Ctrl-C."
    )
    server = Server(
        Config(
            inspector,
            lifespan="off",
            # Addresses hold words of users.
            access_log=False,
            log_config=None,
            server_header=False,
        )
    )
    # When the server has closed its connections, it raises the signal that ended it once
    # more.
    with listening, suppress(KeyboardInterrupt, asyncio.CancelledError):
        await server.serve(sockets=[listening])
        await asyncio.sleep(0)


@cli.app.command(epilog=cli.example("mcp --user ann --embed local"))
def mcp(
    *,
    user: User = None,
    session: Annotated[
        str | None, cli.option("--session ID", "A session that holds the quotes.")
    ] = None,
    db: Db = None,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Offer only tools that search and list.")
    ] = False,
    embed: Embed = None,
    time_zone: TimeZone = None,
) -> None:
    """Serve the facts of a user over the Model Context Protocol.

    The tools are search_memory, list_memories, remember and forget, on stdin and stdout.
    With --session, the tools also search a session that another program writes, and
    quotes must be in it. A database that does not exist is created.
    """
    if not (user or session):
        raise UsageError(
            "pass --user ID, or --session ID for the facts of a session without a user."
        )
    with needs_extra("mcp", "mcp", "mcp_types"):
        # Imported here: it is optional, and takes a second.
        from llama_index_memory_ext.apps.mcp import memory_server
    if cli.is_terminal():
        cli.say(
            "Waiting for an MCP client on stdin. Programs start this command themselves; Ctrl-C ends it.",
            stderr=True,
        )

    async def answer(store: ext.MemoryStore) -> None:
        memory = cli.memory_on(
            store, session, user, embed_model=embed, time_zone=time_zone
        )
        server = memory_server(
            memory, in_session=session is not None, read_only=read_only
        )
        # After Ctrl-C Python would wait for the thread that reads stdin. The database
        # survives a kill.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        await server.run_stdio_async()

    cli.run(db, answer, create=not read_only)
