"""The command ``mcp``: serves a user's memory to other programs."""

from __future__ import annotations

import signal
from typing import Annotated

import typer

import llama_index_memory_ext as ext
from llama_index_memory_ext.cli import app as cli
from llama_index_memory_ext.cli import needs_extra
from llama_index_memory_ext.cli.facts import whose

_WAITING = "Waiting for an MCP client on stdin. Programs start this command themselves; Ctrl-C ends it."
_SESSION_HELP = "A conversation that another program writes: its messages are searched, and quotes must be in it."

_Session = Annotated[str | None, cli.option("--session", "ID", _SESSION_HELP, cli.check_id)]
_ReadOnly = Annotated[bool, typer.Option("--read-only", help="Only search and list.")]


@cli.app.command()
def mcp(*, user: cli.User = None, session: _Session = None, db: cli.Db = None, read_only: _ReadOnly = False) -> None:
    """Serve what is known about a user over the Model Context Protocol, on stdin and stdout.

    The tools are search_memory, list_memories, remember and forget. A database that does not exist is created.
    """
    name = session or whose(user, session)
    with needs_extra("mcp", "mcp", "mcp_types"):
        # Imported here: it is optional, and takes a second.
        from llama_index_memory_ext.agents.mcp import memory_server
    if cli.is_terminal():
        cli.say(_WAITING, stderr=True)

    async def serve(store: ext.MemoryStore) -> None:
        # A thread waits for stdin, for which Python would wait after a Ctrl-C; the database takes any end.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        memory = cli.memory_on(store, name, user)
        await memory_server(memory, in_session=session is not None, read_only=read_only).run_stdio_async()

    cli.run(db, serve, create=not read_only)
