"""Reads JSON as language models write it: other quotation marks, comments, bare keys, missing commas, cut short.

One pass over the text, so that its time grows with the length alone. Nothing is guessed: a value that cannot be read
becomes None, and of what was cut off only the parts that were complete are kept.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from llama_index_memory_ext.text.messages import cleaned

if TYPE_CHECKING:
    from collections.abc import Iterator

# A closing mark of the same row ends a string.
_MARKS = ('"', "'", "`", "\u201c\u201d\u201e\u201f", "\u2018\u2019\u201a", "\u00ab\u00bb", "\u300c\u300d")
_ROW_OF = {mark: row for row in _MARKS for mark in row}
_Q = "[" + "".join(_MARKS) + "]"
_COLON, _COMMA = r"(?:[:\uff1a]|=>?)", r"[,;\uff0c]"
_KEY = rf"(?:{_Q}[\w .\\-]{{1,60}}{_Q}|[A-Za-z_]\w{{0,60}})\s*{_COLON}"
_QUOTED_KEY = re.compile(rf"{_Q}([\w .\\-]{{1,60}}){_Q}\s*{_COLON}")
_BARE_KEY = re.compile(rf"([A-Za-z_][\w\\-]{{0,60}})\s*{_COLON}")
_CONSTANT = r"(?i:true|false|null|none|nan)\b"
_COMMENT = r"//|/\*|\#\s"
# What follows the last quotation mark of a value. Inner marks, which should have been escaped, are followed by words.
_AFTER_MEMBER = re.compile(rf"\s*(?:[}}\]]|{_COMMA}\s*(?:[}}\]]|{_KEY}|{_COMMENT})|{_KEY}|{_COMMENT}|\Z)")
_AFTER_ELEMENT = re.compile(rf"\s*(?:[}}\]]|{_COMMA}\s*(?:[}}\]{{\[\d-]|{_Q}|{_COMMENT}|{_CONSTANT})|{_COMMENT}|\Z)")
_STRING_MARKS = {row: re.compile(rf"\\.|[{row}]", re.DOTALL) for row in _MARKS}
_SWALLOWED_KEY = re.compile(rf"{_Q}\s*{_COLON}")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
_OPENING = re.compile(r"[\[{]")
_SPACE = re.compile(r"\s+|//[^\n]*|/\*.*?(?:\*/|\Z)|#\s[^\n]*", re.DOTALL)
_WORD = re.compile(r"[^\s,;:{}\[\]\"\uff0c\uff1a\u201c-\u201f\u00ab\u00bb\u300c\u300d]+")
_CONSTANTS = {"true": True, "false": False, "null": None, "none": None, "nan": float("nan")}
# No reply is as deep, or as long.
_MAX_DEPTH, _MAX_TOKENS = 60, 60_000


class Found(NamedTuple):
    """An outermost object or list of a text, and where it starts and ends.

    It is ``clean`` if every value in it could be read, and ``cut`` if the text ends within it.
    """

    value: Any
    start: int
    end: int
    clean: bool
    cut: bool


@dataclass
class _Frame:
    """An object or a list that is being read."""

    is_object: bool
    members: dict[str, Any] = field(default_factory=dict)
    elements: list[Any] = field(default_factory=list)
    key: str | None = None

    def add(self, value: Any) -> None:
        if self.is_object:
            self.members[f"#{len(self.members)}" if self.key is None else self.key] = value
            self.key = None
        else:
            self.elements.append(value)

    def value(self, *, cut: bool = False) -> Any:
        """Returns what was read. Where an object was cut, the values in it that stand alone may belong to others."""
        if self.is_object and cut:
            return {key: value for key, value in self.members.items() if isinstance(value, (dict, list))}
        return self.members if self.is_object else self.elements


def loose_values(text: str) -> Iterator[Found]:
    """Yields the outermost objects and lists of a text.

    >>> [found.value for found in loose_values("Sure: {facts: ['a', True, ], // two" + chr(10) + "'n': oops}")]
    [{'facts': ['a', True], 'n': None}]
    """
    position, tokens = 0, _MAX_TOKENS
    while start := _OPENING.search(text, position):
        reader = _Reader(text, start.start(), tokens)
        yield reader.read()
        position, tokens = reader.position, reader.tokens_left


class _Reader:
    """Reads one outermost value."""

    def __init__(self, text: str, start: int, tokens_left: int) -> None:
        self.text, self.start, self.position, self.tokens_left = text, start, start, tokens_left
        self.frames: list[_Frame] = []
        self.value: Any = None
        self.is_clean = True

    def read(self) -> Found:
        while self.position < len(self.text):
            self.tokens_left -= 1
            if self.tokens_left < 0 or len(self.frames) > _MAX_DEPTH:
                self.position = len(self.text)
                break
            self._read_token(self.text[self.position])
            if not self.frames:
                break
        is_cut = bool(self.frames)
        while self.frames:
            self._close(cut=True)
        return Found(self.value, self.start, self.position, self.is_clean and not is_cut, is_cut)

    def _read_token(self, character: str) -> None:
        if space := _SPACE.match(self.text, self.position):
            self.position = space.end()
        elif character in "[{":
            self.frames.append(_Frame(is_object=character == "{"))
            self.position += 1
        elif character in "]}":
            self.position += 1
            self._close_until(is_object=character == "}")
        elif character in ",;:\uff0c\uff1a":
            self.position += 1
            self._forget_key()
        elif not self._read_key():
            self._read_scalar(character)

    def _forget_key(self) -> None:
        if self.frames[-1].key is not None:
            self.frames[-1].add(None)
            self.is_clean = False

    def _read_key(self) -> bool:
        """Reads a quoted or bare key, if an object waits for one."""
        frame = self.frames[-1]
        if not frame.is_object or frame.key is not None:
            return False
        match = _QUOTED_KEY.match(self.text, self.position) or _BARE_KEY.match(self.text, self.position)
        if match:
            frame.key, self.position = match[1].strip(), match.end()
        return match is not None

    def _read_scalar(self, character: str) -> None:
        frame = self.frames[-1]
        known, value = self._string(_ROW_OF[character]) if character in _ROW_OF else self._word()
        # What an object has between its members is no value, such as the "..." of a form.
        is_lost = frame.is_object and frame.key is None
        self.is_clean &= known and not is_lost
        if not is_lost:
            frame.add(value)

    def _string(self, row: str) -> tuple[bool, str | None]:
        """Returns the string that begins here, up to a quotation mark behind which a string can end."""
        begin, after = self.position + 1, _AFTER_MEMBER if self.frames[-1].is_object else _AFTER_ELEMENT
        has_inner = False
        for mark in _STRING_MARKS[row].finditer(self.text, begin):
            if mark[0][0] == "\\":
                continue
            if after.match(self.text, mark.end()):
                raw, self.position = self.text[begin : mark.start()], mark.end()
                # A mark is missing, and the string goes on into other members.
                if has_inner and _SWALLOWED_KEY.search(raw):
                    return False, None
                return True, unescaped(raw)
            has_inner = True
        self.position = len(self.text)
        return False, None

    def _word(self) -> tuple[bool, Any]:
        match = _WORD.match(self.text, self.position)
        word = match[0] if match else self.text[self.position]
        self.position += len(word)
        if word.lower() in _CONSTANTS:
            return True, _CONSTANTS[word.lower()]
        try:
            # The last digits of a number may be cut off.
            return (True, json.loads(word)) if self.position < len(self.text) else (False, None)
        except (ValueError, RecursionError):
            return False, None

    def _close_until(self, *, is_object: bool) -> None:
        """Closes what this bracket closes, and what was opened in it and not closed; a stray bracket closes nothing."""
        if all(frame.is_object != is_object for frame in self.frames):
            self.is_clean = False
            return
        while self.frames[-1].is_object != is_object:
            self._close()
        self._close()

    def _close(self, *, cut: bool = False) -> None:
        frame = self.frames.pop()
        if frame.key is not None:
            frame.add(None)
            self.is_clean = False
        value = frame.value(cut=cut)
        if self.frames and not (cut and not value):
            self.frames[-1].add(value)
        elif not self.frames:
            self.value = value


def unescaped(text: str) -> str:
    r"""Returns a text with the escapes of JSON and Python as what they stand for.

    >>> unescaped(r"It\'s \u0041\n\"B\"") == "It's A" + chr(10) + '"B"'
    True
    """
    plain = _ESCAPE.sub(lambda match: _CONTROLS.get(match[3], match[3]) or chr(int(match[1] or match[2], 16)), text)
    unescaped_text: str = cleaned(plain)
    return unescaped_text
