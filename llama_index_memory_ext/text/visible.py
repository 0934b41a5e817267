"""Takes out of a text what nobody sees, and a model reads."""

from __future__ import annotations

import re

# Controls that end a line, and the two separators that do the same.
_LINE_ENDS = re.compile("\r\n?|[\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
# Controls, and what Unicode calls default ignorable, without joiners and variation selectors. The Arabic and other
# signs for numbers are formats too (U+0600..U+0605, ...), but are seen. A Hangul filler is one beside another letter.
CONTROLS = (
    "\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u00ad\u034f\u061c\u17b4\u17b5\u180e\u200b\u200e\u200f\u202a-\u202e"
    "\u2060-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e00ff\U000e01f0-\U000e0fff"
)
_UNSEEN = re.compile(f"[{CONTROLS}]|(?<![\u1100-\u115e\u1161-\u11ff])[\u115f\u1160](?![\u1161-\u11ff])")
_SELECTORS = "\u180b-\u180d\u180f\ufe00-\ufe0f\U000e0100-\U000e01ef"
_SUSPECT = re.compile(f"[\x0b-\x0d\x1c-\x1f\x85\u115f\u1160\u200c\u200d\u2028\u2029{CONTROLS}{_SELECTORS}]")
# One selector changes how the character before it looks; more of them, or one after nothing, hide a message.
_STRAY_SELECTOR = re.compile(rf"(?<![^\s\u200c\u200d{_SELECTORS}])[{_SELECTORS}]+|(?<=[{_SELECTORS}])[{_SELECTORS}]+")
# Scripts whose letters change their form beside a joiner: Arabic, Syriac, N'Ko, those of India, Tibet, Indochina.
_JOINED = (
    "\u0600-\u074f\u0750-\u07ff\u0840-\u085f\u0870-\u0dff\u0f00-\u109f\u1780-\u18af\u1a20-\u1aaf\u1b00-\u1c4f"
    "\ua840-\ua8df\ua900-\ua9df\uaa00-\uaa5f\uabc0-\uabff\ufb50-\ufdff\ufe70-\ufefc\U00010d00-\U00010d3f"
    "\U00011000-\U00011aff\U00011c00-\U00011dff\U00011f00-\U00011f5f"
)
_EMOJI = "#*0-9\u00a9\u00ae\u203c-\u3299\U0001f000-\U0001faff"
_STRAY_JOINER = re.compile(
    rf"(?!(?:(?<=[{_JOINED}])[\u200c\u200d](?=[{_JOINED}]))"
    rf"|(?:(?<=[{_EMOJI}])|(?<=[{_EMOJI}]\ufe0f))\u200d(?=[{_EMOJI}]))[\u200c\u200d]"
)


def visible(text: str) -> str:
    r"""The text without what cannot be seen: controls, zero-width and bidirectional characters, tags.

    Line breaks of all kinds become "\n"; tabs stay. A joiner stays between two letters of a script that needs it, and
    between emoji; a variation selector stays behind the character that it belongs to.

    >>> visible("Likes\u200b tea\U000e0049\U000e0067\u202e")
    'Likes tea'
    >>> len(visible("\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645"))
    8
    """
    # The first way is ten times as fast; most texts go it.
    if (text.isascii() and text.replace("\n", "").isprintable()) or not _SUSPECT.search(text):
        return text
    text = _UNSEEN.sub("", _LINE_ENDS.sub("\n", text).replace("\x1f", " "))
    return _STRAY_JOINER.sub("", _STRAY_SELECTOR.sub("", text))
