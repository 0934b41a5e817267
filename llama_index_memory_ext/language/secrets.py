"""Tells which texts hold a secret: a key by its format, a card by its digits, a password or a passport by its name."""

from __future__ import annotations

import re
import unicodedata
from itertools import pairwise

from llama_index_memory_ext.language import pattern

# Keys that begin as those of well-known services do, private keys, and passwords in addresses and headers.
_KEYS = (
    r"\b(?:sk|pk|rk|ak|key|tok|secret|token|whsec|shpat|pat|api)[-_][A-Za-z0-9_-]{12,}|\b(?:AKIA|ASIA)[0-9A-Z]{12,}"
    r"|\bgh[opsur]_\w{16,}|\bgithub_pat_\w{16,}|\bglpat-[\w-]{16,}|\bxox[a-z]-[\w-]{8,}|\bxapp-[\w-]{8,}"
    r"|\bAIza[\w-]{20,}|\bya29\.[\w-]{16,}|\bhf_[A-Za-z0-9]{16,}|\bnpm_[A-Za-z0-9]{16,}|\bpypi-[\w-]{16,}"
    r"|\bSG\.[\w-]{10,}\.[\w-]{10,}|\beyJ[\w-]{10,}\.|-----BEGIN [A-Z ]*PRIVATE KEY|\bBearer\s+[\w.~+/-]{16,}"
    r"|(?i:\bcv[vc]2?\W{1,3}(?:is )?\d{3,4}\b)|\b[A-Za-z][A-Za-z0-9+.-]{0,20}://[^\s/:@]{0,200}:[^\s/@]{1,200}@"
    # A secret key of AWS has 40 characters, and no mark of its own.
    r"|(?<![\w/+=.-])(?=[A-Za-z0-9/+]{40}(?![\w/+=.-]))(?=.{0,39}[a-z])(?=.{0,39}[A-Z])(?=.{0,39}\d)"
)
_LONG_WORD = r"[A-Za-z0-9_+/=-]{20,}"
# Random, and known to everybody: a UUID, and what names a version or a file by its content.
_PUBLIC = r"(?i)\b(?:(?:commit|sha-?\d+)\W{1,3}(?:is )?[\da-f]{7,64}|[\da-f]{8}(?:-[\da-f]{4,12}){4})\b"
# A card has 13 to 19 digits; the longest are not phone numbers, dates or amounts, whatever their check digit.
_CARD, _ACCOUNT_DIGITS = r"(?<![\d.])\d(?:[ -]?\d){12,18}(?![\d.])", 16
_IBAN = r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]){11,30}\b"
# Numbers of social security in the US, the UK and Germany.
_SOCIAL_SECURITY = r"\b(?:\d{3}-\d\d-\d{4}|[A-Z]{2} ?(?:\d\d ?){3}[A-D]|\d\d ?\d{6} ?[A-Z] ?\d{3})\b"
# Papers and other numbers of a person, by name in the languages that have most users.
_PAPERS = (
    r"(?i)(?:(?<![a-z])(?:pass(?:e?port|aporto)|pasaporte|ssn|[ai]tin|nino|ni(?: no| number|f|r)|insee|dni|cpf|bsn|curp"
    r"|(?:social|national)(?: security| insurance| is|:)|(?:tax|identity|national)(?: id| card)? (?:id|no|number)"
    r"|tax id|pesel|codice fiscale|aadhaar|personnummer|ahv|s[eé]cu)(?![a-z])|s[eé]curit[eé] sociale|reisepass|ausweis"
    r"|паспорт|steuer-?(?:id|n)|versicherungs-?n|снилс|инн\b|パスポート|旅券|マイナンバー|個人番号|[护護]照|身份[证證]|여권|주민등록)"
    r"[^\d\n+]{0,30}?(?:(?=(?:[a-z]{0,7}\d){2})[a-z\d]{8}|\d(?:[ ./-]?[a-z]?[ ./-]?\d){5})"
)
# The word "password" in the languages that have most users, and what is said instead of it.
_NAMES = """pass password passwd passphrase passcode passwort kennwort pw pwd pin pin-code cvv cvc cvv2 otp secret
    senha contrase\u00f1a wachtwoord has\u0142o \u015fifre l\u00f6senord \u043f\u0430\u0440\u043e\u043b\u044c"""
_NAMED = (
    rf"(?i)(?<![A-Za-z])(?:{'|'.join(_NAMES.split())}|mot de passe"
    # Codes that open something; not the code of a place, an error or a program.
    "|(?:2fa|access|alarm|backup|door|entry|gate|lock|login|mfa|recovery|security|totp|unlock|verification|voicemail)"
    "[ -](?:codes?|key|seed)|(?:zugangs|sicherheits|t\u00fcr|alarm|freischalt|digi)[ -]?codes?)(?![A-Za-z])"
    "|密码|密碼|口令|密钥|验证码|暗証番号|パスワード|合言葉|(?:リカバリー|バックアップ)コード|비밀번호"
)
# What a code opens, beside what such a code is called; and what is unlocked with a number.
_OPENED = (
    r"(?:(?<![a-z])(?:lockers?|safes?|vaults?|(?:pad)?locks?|doors?|gates?|garages?|suitcases?|backup|recovery)(?![a-z])"
    r"|alarm|tresor|spind|schloss|tür|wiederherstellungs?|coffre|casier|cadenas|port(?:e|ail|al|one)\b|secours|récupération"
    r"|caja fuerte|taquilla|puerta|respaldo|cassaforte|сейф|замк|двер|金庫|ロッカー|保险[柜箱]|门[锁禁])"
)
_CODE = r"(?:(?<!error |promo )codes?\b|[ck]ombina\w{1,6}|c[oó]di(?:go|ce)s?|код|コード|番号|码|opens? with|번호)"
_BESIDE = r"(?:[^\w.,;!?]+\w+){0,3}?[^\w.,;!?]*の?"
_OPENING = (
    rf"(?i){_CODE}{_BESIDE}{_OPENED}|{_OPENED}{_BESIDE}(?:{_CODE}|\d\d?-\d\d?-\d\d?\b)"
    r"|(?:unlock|entsperr|déverrouill|desbloque)\w{0,4}\W+(?:\w+\W+){0,4}?(?:with|by|mit|avec|con|com)\W+\d"
)
# A name, and the word that follows it.
_LOGIN = (
    r"(?i)(?<![a-z])(?:logs?[ -]?in|user ?name|credentials|zugangsdaten|anmeld\w{1,9}|identifiants?|usuario|логин)"
    r"(?![a-z])[^\n:=,/]{0,30}?(?:[:=]|\b(?:is|are|as|with|ist|sind|als|mit|est|sont|es)\b)\s*(?!https?:)"
    r"[^\s,/|:.]{1,60}(?:[.@][^\s,/|:]{1,60}(?=[, ]))?\s?(?:[,/|]|:(?![\d/]))\s*(\S+)"
)
# Beside these a long word is one.
_KEY_NAMED = r"(?i)(?<![A-Za-z])(?:key|token|schl\u00fcssel)(?![A-Za-z])"
# What is called a password, in whatever words: it is one even where it is a word of the language.
_IS = (
    r"(?i)(?<![A-Za-z])(?:password|passwd|passphrase|passcode|passwort|kennwort|senha|contrase\u00f1a)(?![A-Za-z])"
    r"(?:\s+(?:for|to|of|f\u00fcr)\s+(?:\S+\s+){1,4}?)?\s*(?:is|was|are|ist|lautet|es|\u00e9|:|=)\s*[^\s.!?]"
)
_DATE = (
    r"(?i)\b(?:(?:from|in|since|of|until|seit|aus|von) (?:1[5-9]|20)\d\d"
    r"|\d\d?[./]\d\d?[./]\d\d+|(?:19|20)\d\d-(?:20\d\d|\d\d(?:-\d\d)?))\b"
)
_SEED = r"(?i)\b(?:seed|recovery|mnemonic|backup|wallet)[ -]?(?:phrase|words?|key)\b"
_SEED_WORDS = 8
_WORD = r"\S+"
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
    if any(pattern(one).search(plain) for one in (_KEYS, _IS, _SOCIAL_SECURITY)) or _has_long_secret(plain):
        return True
    if pattern(_SEED).search(plain) and len(pattern(_WORD).findall(plain)) >= _SEED_WORDS:
        return True
    undated = pattern(_DATE).sub(" ", plain)
    return bool(pattern(_PAPERS).search(undated)) or _has_named_secret(undated)


def _has_long_secret(text: str) -> bool:
    """Whether a text has a random token, or the digits of a card or an account."""
    checks = ((_LONG_WORD, _is_random), (_CARD, _is_card), (_IBAN, _is_iban))
    return any(
        is_secret(found)
        for kind, is_secret in checks
        for found in pattern(kind).findall(pattern(_PUBLIC).sub(" ", text))
    )


def _has_named_secret(text: str) -> bool:
    """Whether a text names a password, a key, a login or what a code opens, and has a word that looks like one."""
    others = pattern(_NAMED).sub(" ", text)
    has_key = any(len(word) >= _SHORTEST_KEY and _is_chosen(word) for word in pattern(_WORD).findall(others))
    is_code = pattern(_NAMED).search(text) or pattern(_OPENING).search(text)
    codes = pattern(_WORD).findall(re.sub(r"(?<=\d)[ -](?=\d)", "", others)) if is_code else []
    return bool(has_key and pattern(_KEY_NAMED).search(text)) or any(
        map(_is_chosen, [*codes, *pattern(_LOGIN).findall(text)])
    )


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
    plain = word.strip("\"'`.,;:()[]<>=。、「」").rstrip("#*")
    if plain.isdigit():
        return _SHORTEST_SECRET <= len(plain) <= _ACCOUNT_DIGITS
    has_digit, has_letter = any(map(str.isdigit, plain)), any(map(str.isalpha, plain))
    has_mark = any(mark in plain.rstrip("!") for mark in _MARKS)
    return len(plain) >= _SHORTEST_SECRET and has_letter and (has_digit or has_mark)
