"""Finds secrets in texts: keys, cards and accounts by format, papers and passwords by name."""

from __future__ import annotations

import re
import unicodedata

from llama_index_memory_ext.words import pattern, phrases, sentences_in

# A card has 14 to 19 digits. No phone number, ISBN, date or amount has so many.
_CARD = r"(?<![A-Za-z\d.])\d(?:[ -]?\d){13,18}(?!\.?\d)"
_IBAN = r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?\b"
_SEED_WORDS = 8
_SHORTEST_SECRET = 4
_SHORTEST_CODE = 3
_SHORTEST_KEY = 10
_PRIVATE_KEY = r"(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*-----|\Z)"
# The secrets that need no name beside them, and are replaced alone.
_ALONE = f"{_PRIVATE_KEY}|{_CARD}|{_IBAN}"
_LEFT_OUT = "[secret]"


def holds_secret(text: str) -> bool:
    """Return whether a text holds a secret.

    Secrets are keys, passwords, PINs, recovery phrases, and numbers of cards, accounts
    and papers.

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
    return bool(pattern(_ALONE).search(plain)) or _holds_named_secret(undated)


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
    plain = pattern(_ALONE).sub(_LEFT_OUT, unicodedata.normalize("NFKC", text))
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
