"""Ctrl-C in tests, also where it is ignored."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C reaches this process and those that it starts, also where SIGINT is ignored, as under nohup."""
    earlier = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, earlier)
