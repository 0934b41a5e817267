"""The access to the pages, the headers of each answer, and the templates."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from base64 import b64encode
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined, pass_context
from markupsafe import Markup

from llama_index_memory_ext import MemoryExtError, body_of, display_name

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import tzinfo

    from llama_index_memory_ext import Fact


class NotFoundError(MemoryExtError):
    """The database has no session, user, fact or page of this name."""


# A browser on this machine uses these names. Any other name is of a web page whose DNS
# leads to this machine.
_HOST = re.compile(
    r"(?:127\.0\.0\.1|localhost)(?::[0-9]{1,5})?", re.ASCII | re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Access:
    """Access for the browser that knows the ``token``, the first part of the path of each address.

    A cookie would reach all other servers of this machine, too.
    """

    writes: bool = False
    # 43 characters that need no escape in an address.
    token: str = field(default_factory=secrets.token_urlsafe, repr=False)

    def allows(self, method: str, token: str, headers: Mapping[str, str]) -> bool:
        """Return whether a request is answered; POST alone may change the database."""
        if not _HOST.fullmatch(headers.get("host", "")):
            return False
        # The time must not depend on how many characters are right.
        if not hmac.compare_digest(token.encode(errors="replace"), self.token.encode()):
            return False
        if method in {"GET", "HEAD"}:
            return True
        # A page of another address cannot write this header.
        is_own = headers.get("sec-fetch-site") == "same-origin"
        return method == "POST" and self.writes and is_own


_FOLDER = Path(__file__).parent / "templates"
STYLE = (_FOLDER / "style.css").read_text(encoding="utf-8")
_DIGEST = b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
# The browser loads this style sheet alone, runs no script, and stores no page.
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


@pass_context
def _time(context: Mapping[str, Any], value: datetime | None) -> str:
    if value is None:
        return "unknown"
    return f"{value.astimezone(context['zone']):%Y-%m-%d %H:%M}"


@pass_context
def _day(context: Mapping[str, Any], value: datetime) -> str:
    return _time(context, value).partition(" ")[0]


@pass_context
def _state(context: Mapping[str, Any], fact: Fact) -> str:
    return fact.state(datetime.now(context["zone"]))


def _said(fact: Fact) -> str:
    """Return the content of a fact, in quotation marks if it is the user's own sentence."""
    if fact.is_users_words:
        return f"\u201c{fact.content}\u201d"
    return fact.content


def _share(part: float, whole: float) -> str:
    """Return a share in per cent, with one decimal place; 0 if the whole is 0.

    >>> _share(1, 3), _share(0, 0)
    ('33.3', '0.0')
    """
    if not whole:
        return "0.0"
    return f"{100 * part / whole:.1f}"


_ENVIRONMENT = Environment(
    loader=FileSystemLoader(_FOLDER),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.filters.update(
    time=_time,
    day=_day,
    number="{:,}".format,
    share=_share,
    body=body_of,
    whose=display_name,
    said=_said,
    state=_state,
)
# The file is part of the package and holds no tag.
_ENVIRONMENT.globals.update(style=Markup(STYLE), policy=_POLICY)  # noqa: S704


@dataclass(frozen=True)
class Pages:
    """The pages about a ``database`` for a browser with this access.

    ``zone``: the time zone of the times.
    """

    database: str
    access: Access
    zone: tzinfo

    def render(self, template: str, **context: Any) -> str:
        """Return a page as HTML, with each value of the ``context`` escaped."""
        shared = {
            "url": self.url,
            "writes": self.access.writes,
            "entered": {},
            "error": "",
            "database": self.database,
            "zone": self.zone,
        }
        return _ENVIRONMENT.get_template(f"{template}.html").render(shared | context)

    def url(
        self, page: str, query: Mapping[str, object] = {}, /, **more: object
    ) -> str:
        """Return the address of a page, with the values that are not None in its query."""
        fields = {**query, **more}.items()
        values = {name: value for name, value in fields if value is not None}
        address = f"/{self.access.token}/{page}"
        if values:
            return f"{address}?{urlencode(values)}"
        return address
