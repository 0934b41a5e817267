"""Makes text from a database or a model safe to print: nothing in it moves the cursor or changes the screen."""

from __future__ import annotations

import re

# Control characters but for line ends and tabs, lone surrogates, and what turns the direction of a line around.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_LONGEST = 500


def plain(text: str) -> str:
    r"""The text with each unsafe character made visible: by its control picture, or by U+FFFD.

    >>> plain("\x1b[31mred")
    '␛[31mred'
    """
    return _UNSAFE.sub(_picture, text)


def one_line(text: str, longest: int = _LONGEST) -> str:
    """The text safe to print, on one line, and of a very long one only the beginning."""
    line = plain(" ".join(text.split()))
    return line if len(line) <= longest else f"{line[: longest - 3]}..."


def _picture(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x20:  # noqa: PLR2004 - the first printable character
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else "\ufffd"  # noqa: PLR2004 - DEL
