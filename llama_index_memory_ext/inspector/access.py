"""Decides which requests are answered, and what a browser may do with the answers."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
from base64 import b64encode
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

# The names by which a browser on this machine reaches us. Any other one is a web page's that leads here by its DNS.
_HOST = re.compile(r"(?:127\.0\.0\.1|localhost)(?::[0-9]{1,5})?", re.ASCII | re.IGNORECASE)


def new_secret() -> str:
    """Returns a text that nobody can guess, of 43 characters that need no escape in an address."""
    return secrets.token_urlsafe(32)


@dataclass(frozen=True, slots=True)
class Access:
    """Who may ask: whoever knows the ``token``, which is the first part of the path of each address.

    A cookie would be sent to all other servers of this machine, too.
    """

    writes: bool = False
    token: str = field(default_factory=new_secret, repr=False)
    _key: str = field(default_factory=new_secret, repr=False)

    def allows(self, method: str, token: str, headers: Mapping[str, str]) -> bool:
        """Returns whether a request is answered at all. Reading is all that is done for GET and HEAD."""
        if not _HOST.fullmatch(headers.get("host", "")) or not _same(token, self.token):
            return False
        if method in {"GET", "HEAD"}:
            return True
        # Older browsers do not say where a form comes from; the proof in the form is what counts.
        return method == "POST" and self.writes and headers.get("sec-fetch-site", "same-origin") == "same-origin"

    def proof(self, *deed: str) -> str:
        """Returns what a form proves with that it comes from one of our pages, and is about this deed alone."""
        return hmac.new(self._key.encode(), json.dumps(deed).encode(), hashlib.sha256).hexdigest()

    def is_proven(self, proof: str, *deed: str) -> bool:
        """Returns whether a form has the proof for its deed."""
        return _same(proof, self.proof(*deed))


def headers_for(style: str) -> dict[str, str]:
    """Returns the headers of each page: nothing but its one style sheet is loaded or run, and nothing is kept."""
    return {
        "Content-Security-Policy": f"{policy_for(style)}; form-action 'self'; frame-ancestors 'none'",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-store",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
    }


def policy_for(style: str) -> str:
    """Returns the content security policy of a page with this style sheet in it, and no script."""
    digest = b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'"


def _same(given: str, wanted: str) -> bool:
    # In a time that does not depend on how much of it is right.
    return hmac.compare_digest(given.encode(errors="replace"), wanted.encode())
