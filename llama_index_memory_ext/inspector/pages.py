"""Decides which requests are answered, and what a browser may do with the answers."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
from base64 import b64encode
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from llama_index_memory_ext.errors import MemoryExtError
from llama_index_memory_ext.store.tables import name_of
from llama_index_memory_ext.text.messages import body_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime


class NotFoundError(MemoryExtError):
    """There is nothing of this name in the database."""


# The names by which a browser on this machine reaches us. Any other one is a web page's
# that leads here by its DNS.
_HOST = re.compile(
    r"(?:127\.0\.0\.1|localhost)(?::[0-9]{1,5})?", re.ASCII | re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Access:
    """Who may ask: whoever knows the ``token``, which is the first part of the path of each address.

    A cookie would be sent to all other servers of this machine, too.
    """

    writes: bool = False
    # 43 characters that need no escape in an address.
    token: str = field(default_factory=partial(secrets.token_urlsafe, 32), repr=False)
    _key: str = field(default_factory=partial(secrets.token_urlsafe, 32), repr=False)

    def allows(self, method: str, token: str, headers: Mapping[str, str]) -> bool:
        """Return whether a request is answered at all. Reading is all that is done for GET and HEAD."""
        if not _HOST.fullmatch(headers.get("host", "")) or not _same(token, self.token):
            return False
        if method in {"GET", "HEAD"}:
            return True
        # Older browsers do not say where a form comes from; the proof in the form is
        # what counts.
        return (
            method == "POST"
            and self.writes
            and headers.get("sec-fetch-site", "same-origin") == "same-origin"
        )

    def proof(self, *deed: str) -> str:
        """Return what a form proves with that it comes from one of our pages, and is about this deed alone."""
        return hmac.new(
            self._key.encode(), json.dumps(deed).encode(), hashlib.sha256
        ).hexdigest()

    def is_proven(self, proof: str, *deed: str) -> bool:
        """Return whether a form has the proof for its deed."""
        return _same(proof, self.proof(*deed))


def _same(given: str, wanted: str) -> bool:
    # In a time that does not depend on how much of it is right.
    return hmac.compare_digest(given.encode(errors="replace"), wanted.encode())


_FOLDER = Path(__file__).parent / "templates"
STYLE = (_FOLDER / "style.css").read_text(encoding="utf-8")
_DIGEST = b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
# Nothing but the one style sheet is loaded or run, and nothing is kept.
_POLICY = (
    f"default-src 'none'; style-src 'sha256-{_DIGEST}'; img-src data:; base-uri 'none'"
)
HEADERS = {
    "Content-Security-Policy": f"{_POLICY}; form-action 'self'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def _time(value: datetime | None) -> str:
    if value:
        return f"{value:%Y-%m-%d %H:%M}"
    return "unknown"


def _share(part: float, whole: float) -> str:
    """Return a share in per cent, with one decimal place, as drawings use it; 0 of nothing.

    >>> _share(1, 3), _share(0, 0)
    ('33.3', '0.0')
    """
    return f"{100 * part / whole if whole else 0:.1f}"


_ENVIRONMENT = Environment(
    loader=FileSystemLoader(_FOLDER),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.filters.update(
    time=_time,
    day="{:%Y-%m-%d}".format,
    number="{:,}".format,
    share=_share,
    body=body_of,
)
_ENVIRONMENT.filters.update(whose=name_of)
# Our own file, which holds no tag.
_ENVIRONMENT.globals.update(style=Markup(STYLE), policy=_POLICY)  # noqa: S704


@dataclass(frozen=True)
class Pages:
    """The pages about one ``database``, at addresses that begin with ``root``; "" for a page that has no links."""

    database: str
    root: str = ""
    writes: bool = False

    def render(self, template: str, **context: Any) -> str:
        """Return a page as HTML. Whatever it shows is escaped."""
        shared = {
            "url": self.url,
            "links": bool(self.root),
            "writes": self.writes,
            "database": self.database,
        }
        return _ENVIRONMENT.get_template(f"{template}.html").render(shared | context)

    def url(
        self, page: str, query: Mapping[str, object] | None = None, /, **more: object
    ) -> str:
        """Return the address of a page, with the values that are not None in its query."""
        values = {
            name: value
            for name, value in {**(query or {}), **more}.items()
            if value is not None
        }
        if values:
            return f"{self.root}/{page}?{urlencode(values)}"
        return f"{self.root}/{page}"
