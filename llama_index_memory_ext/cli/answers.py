"""Prints an answer as it comes: rendered Markdown on a terminal, the text as it is through a pipe."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.live import Live
from rich.markdown import Markdown
from rich.segment import Segment

from llama_index_memory_ext.cli import plain

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import ConsoleOptions, RenderResult

# How often the block that is not finished yet is drawn again, at most.
_REDRAW_SECONDS = 0.05


class Answer:
    """Prints the parts of an answer. On a terminal each block of its Markdown is printed for good when it is finished.

    Below them the last block, which may still change, is drawn again as it grows.
    """

    def __init__(self) -> None:
        self._is_rendered = sys.stdout.isatty()
        self._console = Console(highlight=False, markup=False, emoji=False)
        self._text, self._blocks, self._drawn_at = "", 0, 0.0
        self._live: Live | None = None

    def add(self, part: str) -> None:
        """Prints the next part of the answer, without what could control the terminal."""
        part = plain(part)
        if not self._is_rendered:
            print(part, end="", flush=True)
            return
        finished, self._text = split_blocks(self._text + part)
        self._print(finished, self._text)

    def pause(self) -> None:
        """Prints for good what has come, so that something else can be printed below it."""
        text, self._text = self._text, ""
        if self._live is not None:
            self._print(text, "")
            live, self._live = self._live, None
            live.stop()

    def end(self) -> None:
        """Ends the answer."""
        if self._is_rendered:
            self.pause()
        else:
            print(flush=True)

    def _print(self, finished: str, rest: str) -> None:
        """Prints finished blocks above what is drawn, and draws the rest: both in one go, so that nothing flickers."""
        if self._live is None:
            # Not redirected: whoever prints something else calls ``pause`` before.
            self._live = Live(
                console=self._console,
                auto_refresh=False,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()
        is_finished, gap = bool(finished.strip()), [""] if self._blocks else []
        self._blocks += is_finished
        self._live.update(_Tail(rest, gap=bool(self._blocks)))
        if is_finished:
            self._console.print(*gap, markdown(finished), sep="\n")
        elif time.monotonic() - self._drawn_at > _REDRAW_SECONDS:
            self._live.refresh()
            self._drawn_at = time.monotonic()


class _Tail:
    """The last lines of a block that is not finished, as many as the screen has: Rich cannot redraw others.

    At least one line, empty if need be: Rich leaves a line behind where it has drawn none.
    """

    def __init__(self, text: str, *, gap: bool) -> None:
        self._text, self._gap = text, gap

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(markdown(self._text), options, pad=False) if self._text.strip() else []
        if self._gap or not lines:
            lines.insert(0, [])
        for line in lines[-max(1, console.size.height - 2) :]:
            yield from line
            yield Segment.line()


def split_blocks(text: str) -> tuple[str, str]:
    r"""Returns the finished blocks of Markdown, and the rest: the last block, which may still change.

    Only whole lines tell what a block is.

    >>> split_blocks("One.\n\n- two\n- thr")
    ('One.\n\n', '- two\n- thr')
    """
    whole = text[: text.rfind("\n") + 1]
    starts = [token.map[0] for token in Markdown(whole).parsed if token.level == 0 and token.map and token.nesting >= 0]
    # Not splitlines, which knows more ends of lines than Markdown.
    length = sum(len(line) + 1 for line in whole.split("\n")[: starts[-1]]) if starts else 0
    return text[:length], text[length:]


def markdown(text: str) -> Markdown:
    """Returns Markdown in which nothing is lost: tags stay, lines end where they end, links and images are named."""
    made = Markdown(text, hyperlinks=False)
    _keep(made.parsed)
    return made


# What Rich leaves out, or joins to one line, and what it shows.
_SHOWN_AS = {"html_inline": "text", "html_block": "code_block", "softbreak": "hardbreak", "image": "text"}


# The tokens are those of a dependency of Rich.
def _keep(tokens: Iterable[Any]) -> None:
    for token in tokens:
        if token.type == "image":
            token.content = f"{token.content} ({token.attrs.get('src', '')})"
        token.type = _SHOWN_AS.get(token.type, token.type)
        _keep(token.children or ())
