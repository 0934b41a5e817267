"""Encryption at rest: encrypts the texts and vectors of a store with the keys of the program, and decrypts them."""

from __future__ import annotations

from base64 import b64decode, b64encode, urlsafe_b64decode
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from json import dumps, loads
from os import urandom
from typing import Any, TypeAlias

from llama_index_memory_ext.errors import EncryptionError, SettingError

# A key, or a list with the newest key first.
EncryptionKey: TypeAlias = str | bytes | Sequence[str | bytes] | None
TextFunction: TypeAlias = Callable[[str], str] | None

# The field of an encrypted value. No message, fact or state has it.
TOKEN = "$encrypted"  # noqa: S105 - a name
# The text that marks a database, encrypted.
MARK = ""
_KEY_BYTES = 32
# The length that AES-GCM takes. With random nonces, a key may encrypt 2**32 texts.
_NONCE_BYTES = 12
_OPENING = f'{{"{TOKEN}":'


class Cipher:
    """Encrypts the values of a store, and decrypts them.

    An encrypted value is a JSON object with the encrypted text. Without keys and
    functions, ``is_set`` is false, and values are stored as they are.
    """

    def __init__(
        self,
        key: EncryptionKey = None,
        encrypt: TextFunction = None,
        decrypt: TextFunction = None,
    ) -> None:
        has_one_function = (encrypt is None) != (decrypt is None)
        if has_one_function or (key is not None and encrypt is not None):
            raise SettingError(
                "Expected encryption_key, or encrypt and decrypt together; got another combination of the three. "
                "Leave out encryption_key, or both functions."
            )
        if key is not None:
            ciphers = _ciphers_of(key)
            encrypt = partial(_encrypt_by, ciphers[0])
            decrypt = partial(_decrypt_by, ciphers)
        self.is_set = encrypt is not None
        # The last mark that was checked; most calls see it again.
        self._checked_mark = ""
        self._functions = {"encrypt": encrypt, "decrypt": decrypt}

    def encrypt(self, value: Any) -> dict[str, str]:
        """Return a JSON value as it is stored, encrypted with the newest key.

        Raises:
            EncryptionError: The function of the program fails.
        """
        return {TOKEN: self._convert("encrypt", dumps(value))}

    def decrypt(self, value: dict[str, str]) -> Any:
        """Return an encrypted value.

        Raises:
            EncryptionError: The key is missing or wrong.
        """
        if not self.is_set:
            raise EncryptionError(
                "The database is encrypted, and this store has no key; nothing was read or changed. Pass the key as "
                "encryption_key, or set LLAMA_INDEX_MEMORY_KEY for the command line."
            )
        return self._convert("decrypt", str(value[TOKEN]))

    def check_mark(self, mark: str | None) -> None:
        """Raise an EncryptionError if the ``mark`` of a database was made without one of these keys; None: no mark."""
        if mark is None or mark == self._checked_mark:
            return
        if self.decrypt_digest(mark) != MARK:
            raise EncryptionError(
                "The function decrypt does not fit this database; nothing was read or changed. Pass the encrypt "
                "and decrypt with which the texts were stored."
            )
        self._checked_mark = mark

    def encrypt_digest(self, digest: str) -> str:
        """Return the digest of a text as it is stored."""
        return dumps(self.encrypt(digest))

    def decrypt_digest(self, digest: str) -> Any:
        """Return a digest from its stored form."""
        return self.decrypt(loads(digest)) if digest.startswith(_OPENING) else digest

    def encrypt_vector(self, vector: bytes) -> bytes:
        """Return a vector as it is stored."""
        return self.encrypt_digest(b64encode(vector).decode()).encode()

    def decrypt_vector(self, vector: bytes) -> bytes:
        """Return a vector from its stored form. No vector of length 1 has a number whose bytes begin like JSON."""
        if vector[: len(_OPENING)] == _OPENING.encode():
            return b64decode(self.decrypt_digest(vector.decode()))
        return vector

    def _convert(self, name: str, text: str) -> Any:
        """Return the text encrypted, or the JSON value of the decrypted text. ``name``: "encrypt" or "decrypt"."""
        try:
            function: Any = self._functions[name]
            # A TypeError for bytes.
            converted = function(text) + ""
            if name == "decrypt":
                # Here, because the wrong key of a function may make any text.
                converted = loads(converted)
        except Exception as error:  # noqa: BLE001 - functions of the program may raise any error
            reason = type(error).__name__
        else:
            return converted
        # Raised outside the except block, so that the error has no context, which would
        # hold a text or a key.
        raise EncryptionError(
            f"A text could not be {name}ed ({reason}); nothing was changed. encryption_key must hold the key "
            "with which the text was stored; a list holds the newest key first, and older keys. Functions take and "
            "return texts."
        )


def _ciphers_of(key: str | bytes | Sequence[str | bytes]) -> list[Any]:
    """Return a cipher for each key; an EncryptionError for a value that is no key."""
    if find_spec("cryptography") is None:
        raise SettingError(
            'encryption_key needs one more package: pip install "llama-index-memory-ext[encryption]"'
        )
    # Imported here: it is an extra.
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    keys: Any = [key] if isinstance(key, str | bytes) else key
    ciphers = []
    with suppress(ValueError, TypeError):
        decoded = [urlsafe_b64decode(encoded) for encoded in keys]
        if all(len(part) == _KEY_BYTES for part in decoded):
            ciphers = [AESGCM(part) for part in decoded]
    if not ciphers:
        raise EncryptionError(
            f"encryption_key must be {_KEY_BYTES} bytes in base64, 44 characters, or a list of such keys, the newest "
            f"first; got {type(key).__name__}. Make a key by base64.urlsafe_b64encode(os.urandom({_KEY_BYTES}))."
        )
    return ciphers


def _encrypt_by(cipher: Any, text: str) -> str:
    """Return an encrypted text."""
    nonce = urandom(_NONCE_BYTES)
    encrypted = cipher.encrypt(nonce, text.encode(), None)
    return b64encode(nonce + encrypted).decode()


def _decrypt_by(ciphers: Sequence[Any], token: str) -> str:
    """Return the text of a token by the first cipher with its key; an InvalidTag if there is none."""
    from cryptography.exceptions import InvalidTag

    encrypted = b64decode(token)
    for cipher in ciphers:
        with suppress(InvalidTag):
            text: bytes = cipher.decrypt(
                encrypted[:_NONCE_BYTES], encrypted[_NONCE_BYTES:], None
            )
            return text.decode()
    raise InvalidTag
