"""Answers the requests of a browser on this machine."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
)

from llama_index_memory_ext.errors import MemoryExtError
from llama_index_memory_ext.inspector.actions import ask, do
from llama_index_memory_ext.inspector.pages import HEADERS, Access, NotFoundError, Pages
from llama_index_memory_ext.inspector.views import Views

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.types import Receive, Scope, Send

    from llama_index_memory_ext.store import MemoryStore

logger = logging.getLogger(__name__)

_LONGEST_FORM = 100_000
_PAGES = ("sessions", "users", "session", "messages", "facts", "fact", "tidy")


@dataclass
class Inspector:
    """An ASGI application that shows a database: ``reader`` is read, and ``writer`` only for what a form asks.

    Every address begins with ``path``. Whoever does not know it learns nothing.
    """

    reader: MemoryStore
    writer: MemoryStore
    limits: Mapping[str, Any]
    access: Access = field(default_factory=Access)

    def __post_init__(self) -> None:
        self._views = Views(self.reader, self.limits)
        self._pages = Pages(self.writer.address, self.path, self.access.writes)

    @property
    def path(self) -> str:
        """What the path of each address begins with."""
        return f"/{self.access.token}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, as ASGI asks."""
        if scope["type"] != "http":
            return
        response = await self._respond(Request(scope, receive))
        response.headers.update(HEADERS)
        await response(scope, receive, send)

    async def _respond(self, request: Request) -> Response:
        token, _, page = request.url.path.removeprefix("/").partition("/")
        if not self.access.allows(request.method, token, request.headers):
            return PlainTextResponse("Forbidden\n", 403)
        try:
            if request.method != "POST":
                return await self._show(page, dict(request.query_params))
            form = await _form(request)
            deed = _deed_of(form)
            if page != "do" or not self.access.is_proven(form.get("proof", ""), *deed):
                return PlainTextResponse("Forbidden\n", 403)
            question = await ask(self.reader, *deed)
            await do(self.writer, *deed, form.get("text", ""))
            return RedirectResponse(self._pages.url(*question["target"]), 303)
        except NotFoundError:
            status = 404
            title = "There is nothing of this name."
            text = "It may have been deleted meanwhile."
        except Exception as error:  # noqa: BLE001 - the server's own log of an error would hold words of users
            # What the database has refused has a cause.
            if isinstance(error, MemoryExtError) and error.__cause__ is None:
                status = 400
                title = "This cannot be shown."
                text = str(error)
            else:
                logger.warning("A page was not made (%s).", type(error).__name__)
                status = 500
                title = "Something went wrong."
                text = f"A {type(error).__name__} was raised."
        return self._html("error", status, title=title, text=text)

    async def _show(self, page: str, query: Mapping[str, str]) -> Response:
        if page == "":
            return RedirectResponse(self._pages.url("sessions"), 303)
        if page == "really" and self.access.writes:
            deed = _deed_of(query)
            question = await ask(self.reader, *deed)
            return self._html(
                "really", question=question, proof=self.access.proof(*deed)
            )
        if page not in _PAGES:
            raise NotFoundError
        context: dict[str, Any] = await getattr(self._views, page)(query)
        return self._html(page, **context)

    def _html(self, template: str, status: int = 200, **context: Any) -> HTMLResponse:
        return HTMLResponse(self._pages.render(template, **context), status)


def _deed_of(values: Mapping[str, str]) -> tuple[str, str, str]:
    return values.get("deed", ""), values.get("user", ""), values.get("thing", "")


async def _form(request: Request) -> dict[str, str]:
    """Return the fields of a form; none of one that is too long to be ours."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _LONGEST_FORM:
            return {}
    return dict(parse_qsl(body.decode(errors="replace"), keep_blank_values=True))
