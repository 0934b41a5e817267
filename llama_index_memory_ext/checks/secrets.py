"""Secrets in texts: keys by format, cards by digits, passwords and passports by name."""

from __future__ import annotations

import re
import unicodedata
from functools import partial
from typing import TYPE_CHECKING

from llama_index_memory_ext.words import phrases, sentences_in

if TYPE_CHECKING:
    from collections.abc import Callable

# A card has 13 to 19 digits. From 16 digits on, digits are no phone number, date or
# amount, and count as a secret without a valid check digit.
_CARD = r"(?<![\d.])\d(?:[ -]?\d){12,18}(?!\.?\d)"
_ACCOUNT_DIGITS = 16
_IBAN = r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]){11,30}\b"
_SEED_WORDS = 8
_SHORTEST_SECRET = 4
_SHORTEST_CODE = 3
_SHORTEST_KEY = 10
_PRIVATE_KEY = r"(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*-----|\Z)"
_LEFT_OUT = "[secret]"


def holds_secret(text: str) -> bool:
    """Return whether a text holds a secret.

    Secrets are keys, numbers of cards and accounts, passwords, PINs, and recovery
    phrases.

    >>> holds_secret("My PIN is 4711"), holds_secret("Card 4111 1111 1111 1111"), holds_secret("The secret is patience")
    (True, True, False)
    """
    plain = unicodedata.normalize("NFKC", text)
    undated = phrases("secrets", "date").sub(" ", plain)
    if phrases("secrets", "keys").search(plain):
        return True
    if phrases("secrets", "papers").search(undated):
        return True
    if phrases("secrets", "seed").search(plain) and len(plain.split()) >= _SEED_WORDS:
        return True
    private = phrases("secrets", "public").sub(" ", plain)
    for format_pattern, is_secret in _FORMATS:
        if any(map(is_secret, re.findall(format_pattern, private))):
            return True
    return _holds_named_secret(undated)


def _holds_named_secret(text: str) -> bool:
    """Return whether a text names a password, key, login or lock beside a fitting word."""
    without_names = phrases("secrets", "named").sub(" ", text)
    candidates = phrases("secrets", "login").findall(text)
    candidates += phrases("secrets", "pair").findall(text)
    words = without_names.split()
    if phrases("secrets", "key").search(text):
        candidates += [word for word in words if len(word) >= _SHORTEST_KEY]
    opens_lock = bool(phrases("secrets", "opening").search(text))
    if without_names != text or opens_lock:
        candidates += re.sub(r"(?<=\d)[ -](?=\d)", "", without_names).split()
    # The codes of locks are shorter than passwords.
    fewest_digits = _SHORTEST_CODE if opens_lock else _SHORTEST_SECRET
    return any(_looks_chosen(word, fewest_digits) for word in candidates)


def redact_secrets(text: str) -> str:
    """Return a text with ``[secret]`` in place of each secret.

    A card or an account is replaced alone. A secret that only words
    name, such as a password, is replaced together with its sentence. If the secret and
    its name stand in two sentences, the whole text is replaced. A text without a secret is
    returned unchanged. A secret with neither a name nor a known format is not found:
    see the guide "Store less".

    Examples:
        >>> redact_secrets("Pay with 4111 1111 1111 1111. My PIN is 4711. Thanks!")
        'Pay with [secret]. [secret] Thanks!'
    """
    if not holds_secret(text):
        return text
    plain = re.sub(_PRIVATE_KEY, _LEFT_OUT, unicodedata.normalize("NFKC", text))
    for format_pattern, is_secret in _FORMATS:
        plain = re.sub(format_pattern, partial(_redacted, is_secret), plain)
    redacted = ""
    for sentence in sentences_in(plain):
        if holds_secret(sentence):
            white_space = sentence[len(sentence.rstrip()) :]
            redacted += _LEFT_OUT + white_space
        else:
            redacted += sentence
    if holds_secret(redacted):
        return _LEFT_OUT
    return redacted


def _redacted(is_secret: Callable[[str], bool], match: re.Match[str]) -> str:
    if is_secret(match[0]):
        return _LEFT_OUT
    return match[0]


def _is_card(number: str) -> bool:
    """Return whether a number belongs to an account or a card, by Luhn's check digit (ISO/IEC 7812).

    Every second digit from the right is doubled, and the sum of all digits ends in 0.
    """
    digits = re.sub(r"\D", "", number)
    doubled = (int(digit) * (1 + i % 2) for i, digit in enumerate(reversed(digits)))
    total = sum(sum(divmod(value, 10)) for value in doubled)
    return len(digits) >= _ACCOUNT_DIGITS or total % 10 == 0


def _is_iban(number: str) -> bool:
    """Return whether a number is an IBAN (ISO 13616).

    Its first four characters are put last, and its letters become numbers. Divided by
    97, the result leaves 1.
    """
    plain = number.replace(" ", "")
    rotated = plain[4:] + plain[:4]
    digits = "".join(str(int(character, 36)) for character in rotated)
    return int(digits) % 97 == 1


def _looks_chosen(word: str, fewest_digits: int) -> bool:
    """Return whether a word beside the name of a secret looks like a secret.

    Such a word has digits, or digits or marks among its letters.
    """
    plain = word.strip("\"'`.,;:()[]<>=。、「」").rstrip("#*")
    if plain.isdigit():
        return len(plain) >= fewest_digits
    has_letter = any(map(str.isalpha, plain))
    has_digit = any(map(str.isdigit, plain))
    has_mark = not set("!$%^*~#@&").isdisjoint(plain.rstrip("!"))
    return len(plain) >= _SHORTEST_SECRET and has_letter and (has_digit or has_mark)


# The formats of secrets that need no name beside them, each with its check.
_FORMATS = ((_CARD, _is_card), (_IBAN, _is_iban))
