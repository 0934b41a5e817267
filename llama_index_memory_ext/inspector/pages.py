"""Makes pages of what they show: as a browser asks for them, or one that needs nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from llama_index_memory_ext.inspector.access import policy_for

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

_FOLDER = Path(__file__).parent / "templates"
STYLE = (_FOLDER / "style.css").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Pages:
    """The pages about one ``database``, at addresses that begin with ``root``; "" for a page that has no links."""

    database: str
    root: str = ""
    writes: bool = False

    def render(self, template: str, **context: Any) -> str:
        """Returns a page as HTML. Whatever it shows is escaped."""
        return self._environment.get_template(f"{template}.html").render(context)

    def url(self, page: str, query: Mapping[str, object] | None = None, /, **more: object) -> str:
        """Returns the address of a page, with the values that are not None in its query."""
        values = {name: value for name, value in {**(query or {}), **more}.items() if value is not None}
        return f"{self.root}/{page}?{urlencode(values)}" if values else f"{self.root}/{page}"

    @cached_property
    def _environment(self) -> Environment:
        made = Environment(
            loader=FileSystemLoader(_FOLDER),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        made.filters.update(time=_time, day=_day, number=_number, share=_share)
        shared = {"url": self.url, "links": bool(self.root), "writes": self.writes, "database": self.database}
        # Our own file, which holds no tag.
        made.globals.update(shared, style=Markup(STYLE), policy=policy_for(STYLE))  # noqa: S704
        return made


def _time(value: datetime | None) -> str:
    return f"{value:%Y-%m-%d %H:%M}" if value else "unknown"


def _day(value: datetime | None) -> str:
    return f"{value:%Y-%m-%d}" if value else "unknown"


def _number(value: int) -> str:
    """Returns a number with its thousands apart.

    >>> _number(12345)
    '12,345'
    """
    return f"{value:,}"


def _share(part: float, whole: float) -> str:
    """Returns a share in per cent, with one decimal place, as drawings use it; 0 of nothing.

    >>> _share(1, 3), _share(0, 0)
    ('33.3', '0.0')
    """
    return f"{100 * part / whole if whole else 0:.1f}"
