"""The commands ``inspect`` and ``mcp``: show a database in a browser, and a user's memory to other programs."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import socket
import sys
from contextlib import suppress
from typing import Annotated, Any, Literal

import typer

import llama_index_memory_ext as ext
from llama_index_memory_ext.cli import TerminalError, UsageError, needs_extra
from llama_index_memory_ext.cli import app as cli
from llama_index_memory_ext.cli.app import (
    Agent,
    Db,
    Embed,
    Session,
    User,
    file_of,
    find_store,
)
from llama_index_memory_ext.cli.facts import check_whose

_PORT_HELP = "The port on 127.0.0.1; 0: any that is free."
_SESSION_HELP = "A conversation that another program writes: its messages are searched, and quotes must be in it."
_Port = Annotated[
    int, typer.Option(min=0, max=65_535, metavar="NUMBER", help=_PORT_HELP)
]
_Write = Annotated[
    bool,
    typer.Option(
        "--write",
        help="Also add, edit, pin, approve, retire, restore and forget; each asks.",
    ),
]
_To = typer.Option(
    "--html", metavar="FILE", help="Write --session as one page, and end."
)
_Html = Annotated[typer.FileBinaryWrite | None, _To]
_Question = Annotated[
    str, typer.Option(metavar="TEXT", help="With --html: what the user might ask next.")
]
_Limit = Annotated[
    int | None,
    typer.Option(metavar="TOKENS", help="As in your program. Default: the preset's."),
]
_OtherSession = Annotated[str | None, cli.option("--session", "ID", _SESSION_HELP)]
_ReadOnly = Annotated[bool, typer.Option("--read-only", help="Only search and list.")]
_Program = Literal["claude-desktop", "claude-code", "cursor", "vscode"]
_CONFIG_HELP = "Print what this program needs to start this command, and end."
_Config = Annotated[
    _Program | None, cli.option("--print-config", "PROGRAM", _CONFIG_HELP)
]
_HTTP_HELP = "Serve over streamable HTTP at this port instead, at /mcp; 0: any that is free. It needs a token."
_Http = Annotated[
    int | None, cli.option("--http", "PORT", _HTTP_HELP, min=0, max=65_535)
]
_HOST_HELP = "With --http: the address of this machine to listen at. Others than 127.0.0.1 need TLS in front of them."
_Host = Annotated[str, typer.Option("--host", metavar="HOST", help=_HOST_HELP)]
# Not an option: the list of processes would show it to others.
_TOKEN = "LLAMA_INDEX_MEMORY_MCP_TOKEN"
_SHORTEST_TOKEN = 16
# No request is logged: addresses hold words of users.
_SILENT: dict[str, Any] = {
    "access_log": False,
    "log_config": None,
    "server_header": False,
}
# Where each program reads its servers from.
_CONFIG_FILES: dict[str, str] = {
    "claude-desktop": "Settings > Developer > Edit Config: claude_desktop_config.json",
    "cursor": "~/.cursor/mcp.json, or .cursor/mcp.json of a project",
    "vscode": ".vscode/mcp.json of a project",
    "claude-code": "a terminal",
}


@cli.app.command()
def inspect(
    *,
    db: Db = None,
    port: _Port = 0,
    write: _Write = False,
    html: _Html = None,
    session: Session = None,
    question: _Question = "",
    token_limit: _Limit = None,
    condensed_token_limit: _Limit = None,
    facts_token_limit: _Limit = None,
    recall_token_limit: _Limit = None,
    embed: Embed = None,
    agent: Agent = None,
) -> None:
    """Show in a browser what is stored, and what the model sees of it.

    Only this machine, and only who knows the address that is printed, can see it.
    Nothing is changed without --write.
    """
    if (html is None) != (session is None):
        raise UsageError("--html FILE and --session ID belong together.")
    with needs_extra("inspect", "starlette", "uvicorn", "jinja2"):
        # Imported here: an extra, and LlamaIndex takes seconds to start.
        from uvicorn import Config, Server

        from llama_index_memory_ext.inspector.pages import Access
        from llama_index_memory_ext.inspector.server import Inspector
        from llama_index_memory_ext.inspector.views import memory_on, report
        from llama_index_memory_ext.store import read_only
    asked: dict[str, Any] = {
        "token_limit": token_limit,
        "condensed_token_limit": condensed_token_limit,
        "facts_token_limit": facts_token_limit,
        "recall_token_limit": recall_token_limit,
        "embed_model": embed,
        "agent_id": agent,
    }
    limits = {name: value for name, value in asked.items() if value is not None}
    # Limits that do not fit into each other are told at once.
    memory_on(ext.MemoryStore(), "", "", limits)

    async def show(store: ext.MemoryStore) -> None:
        async with read_only(store) as reader:
            if html is not None:
                html.write(
                    (await report(reader, str(session), question, limits)).encode()
                )
                return
            inspector = Inspector(reader, store, limits, Access(write))
            note = "Whoever has this address sees all of it until you end this with Ctrl-C."
            server = Server(Config(inspector, lifespan="off", **_SILENT))
            await _serve(server, "127.0.0.1", port, f"{inspector.path}/", note)

    cli.run(db, show)


async def _serve(server: Any, host: str, port: int, path: str, note: str) -> None:
    """Answer at a port until Ctrl-C, and says at which address."""
    try:
        listening = socket.create_server((host, port))
    except OSError as error:
        raise TerminalError(
            f"Port {port} cannot be used: {error.strerror}. Name another one, or 0."
        ) from None
    cli.say(f"http://{host}:{listening.getsockname()[1]}{path}\n{note}")
    # The server sends itself the signal that has ended it once more, when it has closed
    # its connections.
    with listening, suppress(KeyboardInterrupt, asyncio.CancelledError):
        await server.serve(sockets=[listening])
        await asyncio.sleep(0)


@cli.app.command()
def mcp(
    *,
    user: User = None,
    session: _OtherSession = None,
    db: Db = None,
    read_only: _ReadOnly = False,
    embed: Embed = None,
    print_config: _Config = None,
    http: _Http = None,
    host: _Host = "127.0.0.1",
) -> None:
    """Serve what is known about a user over the Model Context Protocol, on stdin and stdout or over HTTP.

    The tools are search_memory, list_memories, remember and forget. A database that
    does not exist is created. With --http, clients send the token of
    LLAMA_INDEX_MEMORY_MCP_TOKEN as "Authorization: Bearer TOKEN".
    """
    check_whose(user, session)
    if print_config:
        options = {
            "--user": user,
            "--session": session,
            "--embed": embed,
            "--read-only": "" if read_only else None,
        }
        _print_config(print_config, find_store(db), options)
        return
    token = os.environ.get(_TOKEN, "")
    if http is not None and len(token) < _SHORTEST_TOKEN:
        how = 'python -c "import secrets; print(secrets.token_urlsafe())" prints one'
        raise UsageError(
            f"--http needs a token of {_SHORTEST_TOKEN} characters or more in {_TOKEN}: {how}."
        )
    with needs_extra("mcp", "mcp", "mcp_types", "uvicorn"):
        # Imported here: it is optional, and takes a second.
        from uvicorn import Config, Server

        from llama_index_memory_ext.agents.mcp import http_app, memory_server
    if http is None and cli.is_terminal():
        waiting = "Waiting for an MCP client on stdin. Programs start this command themselves; Ctrl-C ends it."
        cli.say(waiting, stderr=True)

    async def answer(store: ext.MemoryStore) -> None:
        memory = cli.memory_on(store, session, user, embed=embed)
        server = memory_server(
            memory, in_session=session is not None, read_only=read_only
        )
        if http is None:
            # A thread waits for stdin, for which Python would wait after a Ctrl-C; the
            # database takes any end.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            await server.run_stdio_async()
            return
        answering = Server(Config(http_app(server, token, host), **_SILENT))
        await _serve(answering, host, http, "/mcp", "Ctrl-C ends it.")

    cli.run(db, answer, create=not read_only)


def _print_config(
    program: _Program, store: ext.MemoryStore, options: dict[str, str | None]
) -> None:
    """Print what a program reads to start the command, with absolute paths; where it reads it, on stderr."""
    file = file_of(store)
    before = ["-m", "llama_index_memory_ext"]
    before += (
        [f"--table={store.table_name}"]
        if store.table_name != ext.MemoryStore().table_name
        else []
    )
    before += [f"--schema={store.db_schema}"] if store.db_schema else []
    given = [
        part
        for name, value in options.items()
        if value is not None
        for part in (name, value)
        if part
    ]
    arguments = [*before, "mcp", *given, *(["--db", str(file)] if file else [])]
    if program == "claude-code":
        print(
            shlex.join(
                ["claude", "mcp", "add", "memory", "--", sys.executable, *arguments]
            )
        )
    else:
        server: dict[str, Any] = {"command": sys.executable, "args": arguments}
        if not file:
            server["env"] = {"LLAMA_INDEX_MEMORY_DB": store.address}
        if program == "vscode":
            top = "servers"
        else:
            top = "mcpServers"
        print(json.dumps({top: {"memory": server}}, indent=2))
    cli.say(f"This belongs into {_CONFIG_FILES[program]}.", stderr=True)
    if not file:
        cli.say(
            "Set LLAMA_INDEX_MEMORY_DB to the database's address with its password.",
            stderr=True,
        )
