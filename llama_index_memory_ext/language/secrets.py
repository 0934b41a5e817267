"""Finds secrets in texts: a key by its format, a card by its digits, a password or a passport by its name."""

from __future__ import annotations

import re
import unicodedata
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

from llama_index_memory_ext.language import phrases
from llama_index_memory_ext.language.words import sentences_in

if TYPE_CHECKING:
    from collections.abc import Callable

_LONG_WORD = r"[A-Za-z0-9_+/=-]{20,}"
# A card has 13 to 19 digits; the longest are not phone numbers, dates or amounts, whatever their check digit.
_CARD = r"(?<![\d.])\d(?:[ -]?\d){12,18}(?!\.?\d)"
_ACCOUNT_DIGITS = 16
_IBAN = r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]){11,30}\b"
_SEED_WORDS = 8
_SHORTEST_SECRET = 4
_SHORTEST_CODE = 3
_SHORTEST_KEY = 10
_PRIVATE_KEY = r"(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*-----|\Z)"
# What stands in place of a secret.
_LEFT_OUT = "[secret]"
# A random token changes between letters and digits at least once in so many characters.
_LETTERS_A_CHANGE = 6


def holds_secret(text: str) -> bool:
    """Return whether a text holds a key, the number of a card or an account, a password, a PIN or a recovery phrase.

    >>> holds_secret("My PIN is 4711"), holds_secret("Card 4111 1111 1111 1111"), holds_secret("The secret is patience")
    (True, True, False)
    """
    plain = unicodedata.normalize("NFKC", text)
    undated = phrases("secrets", "date").sub(" ", plain)
    if phrases("secrets", "keys").search(plain) or phrases("secrets", "papers").search(
        undated
    ):
        return True
    if phrases("secrets", "seed").search(plain) and len(plain.split()) >= _SEED_WORDS:
        return True
    private = phrases("secrets", "public").sub(" ", plain)
    if any(
        is_secret(found)
        for kind, is_secret in _NUMBERS
        for found in re.findall(kind, private)
    ):
        return True
    # A password, a key, a login or what a code opens is named, with a word that looks like it.
    others = phrases("secrets", "named").sub(" ", undated)
    chosen = phrases("secrets", "login").findall(undated) + phrases(
        "secrets", "pair"
    ).findall(undated)
    if phrases("secrets", "key").search(undated):
        chosen += [word for word in others.split() if len(word) >= _SHORTEST_KEY]
    opens = bool(phrases("secrets", "opening").search(undated))
    if others != undated or opens:
        chosen += re.sub(r"(?<=\d)[ -](?=\d)", "", others).split()
    # Locks have shorter codes than passwords are.
    return any(
        _is_chosen(word, _SHORTEST_CODE if opens else _SHORTEST_SECRET)
        for word in chosen
    )


def redact_secrets(text: str) -> str:
    """Return a text with ``[secret]`` in place of each number of a card or an account, and of each long random key.

    Where only the words tell a secret, a password for example, it stands in place of the sentence, or of the whole text
    if the secret is in another sentence than its name. A text without a secret comes back as it is. What has neither a
    name nor a known form is not found: see the guide "Leaving out".

    >>> redact_secrets("Pay with 4111 1111 1111 1111. My PIN is 4711. Thanks!")
    'Pay with [secret]. [secret] Thanks!'
    """
    if not holds_secret(text):
        return text
    plain = re.sub(_PRIVATE_KEY, _LEFT_OUT, unicodedata.normalize("NFKC", text))
    for kind, is_secret in _NUMBERS:
        plain = re.sub(kind, partial(_without, is_secret), plain)
    kept = []
    for sentence in sentences_in(plain):
        end = sentence[len(sentence.rstrip()) :]
        kept.append(f"{_LEFT_OUT}{end}" if holds_secret(sentence) else sentence)
    if holds_secret("".join(kept)):
        return _LEFT_OUT
    return "".join(kept)


def _without(is_secret: Callable[[str], bool], found: re.Match[str]) -> str:
    if is_secret(found[0]):
        return _LEFT_OUT
    return found[0]


def _is_random(token: str) -> bool:
    """Return whether a long token mixes letters and digits as no word, name or path does."""
    changes = sum(
        1 for one, other in pairwise(token) if one.isdigit() != other.isdigit()
    )
    has_letters = any(character.isalpha() and character != "T" for character in token)
    return has_letters and changes >= len(token) // _LETTERS_A_CHANGE


def _is_card(found: str) -> bool:
    """Return whether digits are an account's or a card's, by the check of Luhn (ISO/IEC 7812).

    Every second digit from the right is doubled, and the sum of all digits ends in 0.
    """
    digits = re.sub(r"\D", "", found)
    doubled = (int(digit) * (1 + i % 2) for i, digit in enumerate(reversed(digits)))
    total = sum(value - 9 if value > 9 else value for value in doubled)  # noqa: PLR2004 - the digits of a decimal
    return len(digits) >= _ACCOUNT_DIGITS or total % 10 == 0


def _is_iban(number: str) -> bool:
    """Return whether an IBAN (ISO 13616) as a number, with its beginning put last, leaves 1 when divided by 97."""
    plain = number.replace(" ", "")
    return (
        int("".join(str(int(character, 36)) for character in plain[4:] + plain[:4]))
        % 97
        == 1
    )


def _is_chosen(word: str, fewest_digits: int) -> bool:
    """Return whether a word beside the name of a secret looks like one: digits, or digits or marks among letters."""
    plain = word.strip("\"'`.,;:()[]<>=。、「」").rstrip("#*")
    if plain.isdigit():
        return fewest_digits <= len(plain) <= _ACCOUNT_DIGITS
    has_letter = any(map(str.isalpha, plain))
    has_digit = any(map(str.isdigit, plain))
    has_mark = not set("!$%^*~#@&").isdisjoint(plain.rstrip("!"))
    return len(plain) >= _SHORTEST_SECRET and has_letter and (has_digit or has_mark)


# The secrets that are told by themselves, each with its check.
_NUMBERS = ((_LONG_WORD, _is_random), (_CARD, _is_card), (_IBAN, _is_iban))
