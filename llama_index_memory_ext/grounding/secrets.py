"""Tells which texts hold a secret: a key by its format, a card or an account by its digits, a password by its name."""

from __future__ import annotations

import re
import unicodedata
from itertools import pairwise

# Keys that begin as those of well-known services do, private keys, and passwords in addresses and headers.
_KEYS = re.compile(
    r"\b(?:sk|pk|rk|ak|key|tok|secret|token|whsec|shpat|pat|api)[-_][A-Za-z0-9_-]{12,}|\b(?:AKIA|ASIA)[0-9A-Z]{12,}"
    r"|\bgh[opsur]_\w{16,}|\bgithub_pat_\w{16,}|\bglpat-[\w-]{16,}|\bxox[a-z]-[\w-]{8,}|\bxapp-[\w-]{8,}"
    r"|\bAIza[\w-]{20,}|\bya29\.[\w-]{16,}|\bhf_[A-Za-z0-9]{16,}|\bnpm_[A-Za-z0-9]{16,}|\bpypi-[\w-]{16,}"
    r"|\bSG\.[\w-]{10,}\.[\w-]{10,}|\beyJ[\w-]{10,}\.|-----BEGIN [A-Z ]*PRIVATE KEY|\bBearer\s+[\w.~+/-]{16,}"
    r"|(?i:\bcv[vc]2?\W{1,3}(?:is )?\d{3,4}\b)|\b[a-z][a-z0-9+.-]{0,20}://[^\s/:@]{1,200}:[^\s/@]{1,200}@"
)
_TOKEN = re.compile(r"[A-Za-z0-9_+/=-]{20,}")
# A card has 13 to 19 digits; the longest are not phone numbers, dates or amounts, whatever their check digit.
_CARD, _ACCOUNT_DIGITS = re.compile(r"(?<![\d.])\d(?:[ -]?\d){12,18}(?![\d.])"), 16
_IBAN = re.compile(r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]){11,30}\b")
_SOCIAL_SECURITY = re.compile(r"\b\d{3}-\d{2}-\d{4}\b")
# The word "password" in the languages that have most users, and what is said instead of it.
_NAMES = """pass password passwd passphrase passcode passwort kennwort pw pwd pin pin-code cvv cvc cvv2 otp secret
    senha contrase\u00f1a wachtwoord has\u0142o \u015fifre l\u00f6senord \u043f\u0430\u0440\u043e\u043b\u044c"""
# Codes that open something; not the code of a place, an error or a program.
_CODES = (
    "(?:2fa|access|alarm|backup|door|entry|gate|lock|login|mfa|recovery|security|unlock|verification)"
    "[ -](?:codes?|key)|(?:zugangs|sicherheits|t\u00fcr|alarm|freischalt)[ -]?codes?"
)
_NAMED = re.compile(
    rf"(?i)(?<![A-Za-z])(?:{'|'.join(_NAMES.split())}|mot de passe|{_CODES})(?![A-Za-z])"
    "|密码|密碼|口令|密钥|验证码|暗証番号|パスワード|合言葉|비밀번호"
)
# Beside these a long word is one.
_KEY_NAMED = re.compile(r"(?i)(?<![A-Za-z])(?:key|token|schl\u00fcssel)(?![A-Za-z])")
# What is called a password, in whatever words: it is one even where it is a word of the language.
_IS = re.compile(
    r"(?i)(?<![A-Za-z])(?:password|passwd|passphrase|passcode|passwort|kennwort|senha|contrase\u00f1a)(?![A-Za-z])"
    r"(?:\s+(?:for|to|of|f\u00fcr)\s+(?:\S+\s+){1,4}?)?\s*(?:is|was|are|ist|lautet|es|\u00e9|:|=)\s*\S"
)
_YEAR = re.compile(r"(?i)\b(?:from|in|since|of|until|seit|aus|von) (?:1[5-9]|20)\d\d\b")
_SEED = re.compile(r"(?i)\b(?:seed|recovery|mnemonic|backup)[ -]?(?:phrase|words?|key)\b")
_SEED_WORDS = 8
_WORD = re.compile(r"\S+")
_SHORTEST_SECRET, _SHORTEST_KEY = 4, 10
# A random token changes between letters and digits at least once in so many characters.
_LETTERS_A_CHANGE = 6
_MARKS = "!$%^*~#@&"


def holds_secret(text: str) -> bool:
    """Whether a text holds a key, the number of a card or an account, a password, a PIN or a recovery phrase.

    >>> holds_secret("My PIN is 4711"), holds_secret("Card 4111 1111 1111 1111"), holds_secret("The secret is patience")
    (True, True, False)
    """
    plain = unicodedata.normalize("NFKC", text)
    if any(pattern.search(plain) for pattern in (_KEYS, _IS, _SOCIAL_SECURITY)) or _has_long_secret(plain):
        return True
    if _SEED.search(plain):
        return len(_WORD.findall(plain)) >= _SEED_WORDS
    return _has_named_secret(plain)


def _has_long_secret(text: str) -> bool:
    """Whether a text has a random token, or the digits of a card or an account."""
    checks = ((_TOKEN, _is_random), (_CARD, _is_card), (_IBAN, _is_iban))
    return any(is_secret(found) for pattern, is_secret in checks for found in pattern.findall(text))


def _has_named_secret(text: str) -> bool:
    """Whether a text names a password or a key, and has a word that looks like one."""
    chosen = list(filter(_is_chosen, _WORD.findall(_YEAR.sub(" ", _NAMED.sub(" ", text)))))
    has_key = any(len(word) >= _SHORTEST_KEY for word in chosen) and _KEY_NAMED.search(text)
    return bool(has_key or (chosen and _NAMED.search(text)))


def _is_random(token: str) -> bool:
    """Whether a long token mixes letters and digits as no word, name or path does."""
    changes = sum(1 for one, other in pairwise(token) if one.isdigit() != other.isdigit())
    has_letters = any(character.isalpha() and character != "T" for character in token)
    return has_letters and changes >= len(token) // _LETTERS_A_CHANGE


def _is_card(found: str) -> bool:
    digits = re.sub(r"\D", "", found)
    return len(digits) >= _ACCOUNT_DIGITS or _luhn(digits)


def _luhn(digits: str) -> bool:
    """The check of Luhn (ISO/IEC 7812): every second digit from the right is doubled, and the sum ends in 0."""
    doubled = (int(digit) * (1 + i % 2) for i, digit in enumerate(reversed(digits)))
    return sum(value - 9 * (value > 9) for value in doubled) % 10 == 0  # noqa: PLR2004 - the digits of a decimal


def _is_iban(number: str) -> bool:
    """The check of an IBAN (ISO 13616): as a number, with its beginning put last, it leaves 1 when divided by 97."""
    plain = number.replace(" ", "")
    return int("".join(str(int(character, 36)) for character in plain[4:] + plain[:4])) % 97 == 1


def _is_chosen(word: str) -> bool:
    """Whether a word beside the name of a secret looks like one: digits alone, or digits or marks among letters."""
    plain = word.strip("\"'`.,;:()[]<>=。、「」")
    if plain.isdigit():
        return _SHORTEST_SECRET <= len(plain) <= _ACCOUNT_DIGITS
    has_digit, has_letter = any(map(str.isdigit, plain)), any(map(str.isalpha, plain))
    has_mark = any(mark in plain.rstrip("!") for mark in _MARKS)
    return len(plain) >= _SHORTEST_SECRET and has_letter and (has_digit or has_mark)
