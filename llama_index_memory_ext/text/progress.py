"""Shows a bar while something long is under way, where somebody has asked for one."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def progress(desc: str, total: int, *, shown: bool) -> Iterator[Callable[[int], object]]:
    """What to call with a number of messages each time that so many more are done; it is silent unless ``shown``.

    The bar is closed at the end of the block, however that comes.
    """
    if not shown:
        yield lambda _: None
        return
    # It looks for a notebook around it, which takes a while.
    from tqdm.auto import tqdm  # type: ignore[import-untyped]

    with tqdm(desc=desc, total=total, unit=" messages") as bar:
        yield bar.update
