"""The command ``inspect``: shows what a database holds in a browser, or writes a session as a page."""

from __future__ import annotations

import asyncio
import socket
import webbrowser
from contextlib import aclosing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llama_index_memory_ext.cli import TerminalError
from llama_index_memory_ext.cli import app as cli
from llama_index_memory_ext.cli.app import Db, Session

if TYPE_CHECKING:
    from llama_index_memory_ext.inspector.prompt import Limits

_LIBRARIES = {"starlette", "uvicorn", "jinja2"}

_Port = Annotated[
    int, typer.Option(min=0, max=65_535, metavar="NUMBER", help="The port on 127.0.0.1; 0: any that is free.")
]
_Write = Annotated[bool, typer.Option("--write", help="Also retire, restore and forget; each asks before it does.")]
_Open = Annotated[
    bool, typer.Option("--open/--no-open", help="Open it; the list of processes shows the address to others then.")
]
_Html = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write --session as one page, and end.")]
_Question = Annotated[str, typer.Option(metavar="TEXT", help="With --html: what the user might ask next.")]
_Limit = Annotated[int | None, typer.Option(metavar="TOKENS", help="As in your program. Default: the preset's.")]


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
) -> None:
    """Show in a browser what is stored, and what the model sees of it.

    Only this machine, and only who knows the address that is printed, can see it. Nothing is changed without --write.
    """
    if (html is None) != (session is None):
        raise typer.BadParameter("--html FILE and --session ID belong together.")
    try:
        # Imported here: an extra, and LlamaIndex takes seconds to start.
        from llama_index_memory_ext.inspector.prompt import Limits
        from llama_index_memory_ext.inspector.server import Inspector  # noqa: F401
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in _LIBRARIES:
            raise
        raise TerminalError(
            'The command inspect needs Starlette, uvicorn and Jinja: pip install "llama-index-memory-ext[inspect]"'
        ) from None
    limits = Limits(token_limit, condensed_token_limit, facts_token_limit, recall_token_limit)
    limits.check()
    if html is None:
        asyncio.run(_serve(db, limits, port, writes=write, opens=open_))
    else:
        _write(html, asyncio.run(_page(db, str(session), question, limits)))


async def _serve(db: str | None, limits: Limits, port: int, *, writes: bool, opens: bool) -> None:
    from llama_index_memory_ext.inspector.access import Access
    from llama_index_memory_ext.inspector.server import Inspector, serve
    from llama_index_memory_ext.store.read_only import read_only

    store, file = cli.find_store(db)
    async with aclosing(store):
        await cli.check_store(store, file)
        async with read_only(store) as reader:
            inspector = Inspector(reader, store, limits, Access(writes))
            with _listening(port) as listening:
                address = f"http://127.0.0.1:{listening.getsockname()[1]}{inspector.path}/"
                cli.say(f"{address}\nWhoever has this address sees all of it until you end this with Ctrl-C.")
                if opens:
                    webbrowser.open(address)
                # The server sends itself the signal that has ended it once more, when it has closed its connections.
                with suppress(KeyboardInterrupt, asyncio.CancelledError):
                    await serve(inspector, listening)
                    await asyncio.sleep(0)


def _listening(port: int) -> socket.socket:
    try:
        return socket.create_server(("127.0.0.1", port))
    except OSError as error:
        raise TerminalError(f"Port {port} cannot be used: {error.strerror}. Name another one, or none.") from None


async def _page(db: str | None, session: str, question: str, limits: Limits) -> str:
    from llama_index_memory_ext.inspector.report import report
    from llama_index_memory_ext.inspector.views import NotFoundError
    from llama_index_memory_ext.store.read_only import read_only

    store, file = cli.find_store(db)
    async with aclosing(store):
        await cli.check_store(store, file)
        async with read_only(store) as reader:
            try:
                return await report(reader, session, question, limits)
            except NotFoundError:
                raise TerminalError(f"There is no session {session!r}. `sessions` lists those there are.") from None


def _write(html: Path, text: str) -> None:
    try:
        html.expanduser().write_text(text, encoding="utf-8")
    except OSError as error:
        raise TerminalError(f"{html} cannot be written: {error.strerror}.") from None
    cli.say(f"Written to {html}.", stderr=True)
