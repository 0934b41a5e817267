"""The commands ``inspect`` and ``mcp``: show a database in a browser, and a user's memory to other programs."""

from __future__ import annotations

import asyncio
import signal
import socket
import webbrowser
from contextlib import suppress
from typing import Annotated

import typer

import llama_index_memory_ext as ext
from llama_index_memory_ext.cli import TerminalError, UsageError, needs_extra
from llama_index_memory_ext.cli import app as cli
from llama_index_memory_ext.cli.app import Db, Embed, Session, User
from llama_index_memory_ext.cli.facts import check_whose

_PORT_HELP = "The port on 127.0.0.1; 0: any that is free."
_OPEN_HELP = "Open it; the list of processes shows the address to others then."
_SESSION_HELP = "A conversation that another program writes: its messages are searched, and quotes must be in it."
_Port = Annotated[int, typer.Option(min=0, max=65_535, metavar="NUMBER", help=_PORT_HELP)]
_Write = Annotated[bool, typer.Option("--write", help="Also retire, restore and forget; each asks before it does.")]
_Open = Annotated[bool, typer.Option("--open/--no-open", help=_OPEN_HELP)]
_To = typer.Option("--html", metavar="FILE", help="Write --session as one page, and end.")
_Html = Annotated[typer.FileBinaryWrite | None, _To]
_Question = Annotated[str, typer.Option(metavar="TEXT", help="With --html: what the user might ask next.")]
_Limit = Annotated[int | None, typer.Option(metavar="TOKENS", help="As in your program. Default: the preset's.")]
_OtherSession = Annotated[str | None, cli.option("--session", "ID", _SESSION_HELP)]
_ReadOnly = Annotated[bool, typer.Option("--read-only", help="Only search and list.")]


@cli.app.command()
def inspect(
    *,
    db: Db = None,
    port: _Port = 0,
    write: _Write = False,
    open_: _Open = False,
    html: _Html = None,
    session: Session = None,
    question: _Question = "",
    token_limit: _Limit = None,
    condensed_token_limit: _Limit = None,
    facts_token_limit: _Limit = None,
    recall_token_limit: _Limit = None,
    embed: Embed = None,
) -> None:
    """Show in a browser what is stored, and what the model sees of it.

    Only this machine, and only who knows the address that is printed, can see it. Nothing is changed without --write.
    """
    if (html is None) != (session is None):
        raise UsageError("--html FILE and --session ID belong together.")
    with needs_extra("inspect", "starlette", "uvicorn", "jinja2"):
        # Imported here: an extra, and LlamaIndex takes seconds to start.
        from llama_index_memory_ext.inspector.pages import Access
        from llama_index_memory_ext.inspector.server import Inspector, serve
        from llama_index_memory_ext.inspector.views import memory_on, report
        from llama_index_memory_ext.store import read_only
    asked = {
        "token_limit": token_limit,
        "condensed_token_limit": condensed_token_limit,
        "facts_token_limit": facts_token_limit,
        "recall_token_limit": recall_token_limit,
        "embed_model": embed,
    }
    limits = {name: value for name, value in asked.items() if value is not None}
    # Limits that do not fit into each other are told at once.
    memory_on(ext.MemoryStore(), "", "", limits)

    async def show(store: ext.MemoryStore) -> None:
        async with read_only(store) as reader:
            if html is not None:
                html.write((await report(reader, str(session), question, limits)).encode())
                return
            inspector = Inspector(reader, store, limits, Access(write))
            try:
                listening = socket.create_server(("127.0.0.1", port))
            except OSError as error:
                problem = f"Port {port} cannot be used: {error.strerror}."
                raise TerminalError(f"{problem} Name another one, or none.") from None
            with listening:
                address = f"http://127.0.0.1:{listening.getsockname()[1]}{inspector.path}/"
                cli.say(f"{address}\nWhoever has this address sees all of it until you end this with Ctrl-C.")
                if open_:
                    webbrowser.open(address)
                # The server sends itself the signal that has ended it once more, when it has closed its connections.
                with suppress(KeyboardInterrupt, asyncio.CancelledError):
                    await serve(inspector, listening)
                    await asyncio.sleep(0)

    cli.run(db, show)


@cli.app.command()
def mcp(
    *,
    user: User = None,
    session: _OtherSession = None,
    db: Db = None,
    read_only: _ReadOnly = False,
    embed: Embed = None,
) -> None:
    """Serve what is known about a user over the Model Context Protocol, on stdin and stdout.

    The tools are search_memory, list_memories, remember and forget. A database that does not exist is created.
    """
    check_whose(user, session)
    with needs_extra("mcp", "mcp", "mcp_types"):
        # Imported here: it is optional, and takes a second.
        from llama_index_memory_ext.agents.mcp import memory_server
    if cli.is_terminal():
        waiting = "Waiting for an MCP client on stdin. Programs start this command themselves; Ctrl-C ends it."
        cli.say(waiting, stderr=True)

    async def answer(store: ext.MemoryStore) -> None:
        # A thread waits for stdin, for which Python would wait after a Ctrl-C; the database takes any end.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        memory = cli.memory_on(store, session, user, embed=embed)
        await memory_server(memory, in_session=session is not None, read_only=read_only).run_stdio_async()

    cli.run(db, answer, create=not read_only)
