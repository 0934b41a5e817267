"""Long texts of the kinds that make a search slow, and a limit on the time for each."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_LENGTH = 100_000
# In seconds of this process, far above what a linear search needs.
_MOST_SECONDS = 10.0
LONG = {
    kind: (part * _LENGTH)[:_LENGTH]
    for kind, part in {
        "sentences": "I have lived in Oslo with Bob and 3 cats since May. ",
        "one word": "a",
        "one number": "1",
        "numbers": "1 ",
        "names": "Ab ",
        "commas": "1,",
        "Chinese": "我在北京有三只猫",
        "Chinese numbers": "三百",
        "dashes": "a-",
        "quotation marks": "'a ",
        "months": "May ",
        "slashes": "1/2/",
        "addresses": "http://a:",
        "keys": "aA1",
        "passwords": "password for a ",
        "accounts": "DE89 ",
        "papers": "passport number ",
        "papers in one word": "Ausweis",
        "codes": "code of the door, ",
        "codes in one word": "Türcode",
        "logins": "login=a",
        "spaces": " ",
        "lines": "\n",
        "questions": "?",
        "supposed": "wenn ich ",
    }.items()
} | {"other words": " ".join(f"w{i}y" for i in range(15_000)), "other names": " ".join(f"N{i}e" for i in range(15_000))}


def check_time(check: Callable[[str], object], kind: str) -> None:
    """Runs a check of a long text, and fails if its time grows faster than the text."""
    check("A short text")
    start = time.process_time()
    check(LONG[kind])
    assert time.process_time() - start < _MOST_SECONDS
