"""The web application: answers the requests of a browser on this machine."""

from __future__ import annotations

import logging
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
)

from llama_index_memory_ext import FactError, MemoryExtError
from llama_index_memory_ext.apps.inspector.actions import do, target_of
from llama_index_memory_ext.apps.inspector.pages import (
    HEADERS,
    Access,
    NotFoundError,
    Pages,
)
from llama_index_memory_ext.apps.inspector.views import Views

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.types import Receive, Scope, Send

    from llama_index_memory_ext import MemoryStore

logger = logging.getLogger(__name__)

_LONGEST_FORM = 100_000
_PAGES = ("sessions", "users", "session", "messages", "facts", "fact")


@dataclass
class Inspector:
    """An ASGI application that shows a database: pages use ``reader``, and actions use ``writer``.

    The path of each address begins with ``access.token``. Requests to other addresses are refused.
    """

    reader: MemoryStore
    writer: MemoryStore
    limits: Mapping[str, Any]
    access: Access

    def __post_init__(self) -> None:
        self._views = Views(self.reader, self.limits)
        self._pages = Pages(self.writer.address, self.access, self._views.zone)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request of ASGI."""
        if scope["type"] != "http":
            return
        response = await self._respond(Request(scope, receive))
        response.headers.update(HEADERS)
        await response(scope, receive, send)

    async def _respond(self, request: Request) -> Response:
        token, _, page = request.url.path.removeprefix("/").partition("/")
        if not self.access.allows(request.method, token, request.headers):
            return _forbidden()
        try:
            if request.method != "POST":
                return await self._show(page, request.query_params)
            form = await _form(request)
            if page != "do" or not form:
                return _forbidden()
            return await self._act(form)
        except Exception as error:  # noqa: BLE001 - the server's own log of an error would hold words of users
            return self._show_error(error)

    async def _act(self, form: Mapping[str, str]) -> Response:
        """Carry out the action of a form, and lead to the page that follows."""
        target = target_of(form)
        try:
            await do(self.writer, form)
        except FactError as error:
            context: Any = {"entered": form, "error": str(error)}
            return await self._show(target.page, target.query, 400, **context)
        return RedirectResponse(self._pages.url(target.page, target.query), 303)

    def _show_error(self, error: Exception) -> Response:
        name = type(error).__name__
        if isinstance(error, NotFoundError):
            status = 404
            title = "There is nothing of this name."
            text = "It may have been deleted meanwhile."
        # An error of the database has a cause.
        elif isinstance(error, MemoryExtError) and error.__cause__ is None:
            status = 400
            title = "This cannot be shown."
            text = str(error)
        else:
            status = 500
            title = "Something went wrong."
            text = f"A {name} was raised."
            logger.warning("A page of the inspector failed with %s; status 500.", name)
        return self._html("error", status, title=title, text=text)

    async def _show(
        self, page: str, query: Mapping[str, str], status: int = 200, **more: Any
    ) -> Response:
        if page == "":
            return RedirectResponse(self._pages.url("sessions"), 303)
        if page not in _PAGES:
            raise NotFoundError
        view = getattr(self._views, page)
        context: dict[str, Any] = await view(defaultdict(str, query))
        return self._html(page, status, **context, **more)

    def _html(self, template: str, status: int, **context: Any) -> HTMLResponse:
        return HTMLResponse(self._pages.render(template, **context), status)


def _forbidden() -> Response:
    # The same text for each reason, so that it tells nothing about the token.
    return PlainTextResponse(
        "Forbidden. Open the address that `inspect` printed; forms need --write and a browser of 2023 or later.\n",
        403,
    )


async def _form(request: Request) -> defaultdict[str, str]:
    """Return the fields of a form, "" for a field that it leaves out; none of a form longer than these pages send."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _LONGEST_FORM:
            return defaultdict(str)
    fields = parse_qsl(body.decode(errors="replace"), keep_blank_values=True)
    return defaultdict(str, fields)
