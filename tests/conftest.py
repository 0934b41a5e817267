"""What holds for every test. The fixtures of a folder are named in its own conftest."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.forked import SHARED, start_server

# The first example of a property may load a vocabulary, and a busy machine draws slowly: times say nothing.
settings.register_profile(
    "thorough",
    deadline=None,
    max_examples=400,
    suppress_health_check=[HealthCheck.too_slow],
)
# The same examples each time, so that a test says the same of the same code; "thorough" draws others.
settings.register_profile(
    "here",
    deadline=None,
    max_examples=40,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("here")


# Python collects garbage behind 700 new objects, or 2,000, which took a twentieth of the time of the tests.
gc.set_threshold(20_000, 10, 10)

# No test speaks TLS. With a folder, certificates are read when a server shows one; otherwise each client of OpenAI
# reads the file of all of them, which takes longer than most tests.
os.environ.pop("SSL_CERT_FILE", None)
os.environ["SSL_CERT_DIR"] = str(Path(__file__).parent)


# Each commit waits for a real disk, and PostgreSQL makes 300 files for each database.
MEMORY_DISK = Path("/dev/shm")  # noqa: S108 - it holds folders of the tests
# Room for a PostgreSQL in each worker, and for the folders of the tests that run.
ENOUGH_BYTES = 4_000_000_000


def put_temporary_files_into_memory() -> None:
    """Let tests, their programs and PostgreSQL use a disk in memory with enough room; else keep the usual folder."""
    if "TMPDIR" in os.environ or not os.access(MEMORY_DISK, os.W_OK):
        return
    if shutil.disk_usage(MEMORY_DISK).free > ENOUGH_BYTES:
        os.environ["TMPDIR"] = str(MEMORY_DISK)
        # Libraries have asked for the folder already.
        tempfile.tempdir = None


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """No further process when files alone are named; else one more than there are cores, because tests also wait."""
    if all(".py" in argument for argument in config.args):
        return 0
    return (os.cpu_count() or 1) + 1


def pytest_configure(config: pytest.Config) -> None:
    """Let all workers of a run fork programs from one process, which is ready when they need it."""
    # A run in the background of a shell ignores it, and so would the programs that tests interrupt.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    put_temporary_files_into_memory()
    is_worker = hasattr(config, "workerinput")
    if config.getoption("numprocesses", None) and not is_worker:
        os.environ[SHARED] = start_server()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector away from modules and tests; going through them took a third of a second each time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
