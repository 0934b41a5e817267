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

# The newest key first.
Keys: TypeAlias = str | bytes | Sequence[str | bytes]
# Keys, or a function from a user to the keys of this user.
EncryptionKey: TypeAlias = Keys | Callable[[str | None], Keys] | None
TextFunction: TypeAlias = Callable[[str], str] | None

# The fields of an encrypted value. No message, fact or state has the first one.
TOKEN = "$encrypted"  # noqa: S105 - a name
_USER = "user"
# What AES-GCM takes. A key may encrypt 2**32 texts with random ones.
_NONCE_BYTES = 12
_OPENING = f'{{"{TOKEN}":'


class Cipher:
    """Encrypts the values of a store, and decrypts them.

    An encrypted value is a JSON object with the encrypted text and the user. The user
    is None if all users have one key. Without keys and functions, ``is_set`` is false, and values are
    stored as they are. ``by_user``: each user has a key.
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
                "Expected encryption_key, or encrypt and decrypt together; saw another combination of the three. "
                "Leave out encryption_key, or both functions."
            )
        self._key: Any = key
        self._functions = {"encrypt": encrypt, "decrypt": decrypt}
        self.is_set = not (key is None and encrypt is None)
        self.by_user = callable(key)
        if key is not None and find_spec("cryptography") is None:
            raise SettingError(
                'encryption_key needs one more package: pip install "llama-index-memory-ext[encryption]"'
            )
        if key is not None and not self.by_user:
            # A malformed key is an error at once.
            self.encrypt("")

    def encrypt(self, value: Any, user: str | None = None) -> dict[str, str | None]:
        """Return a JSON value as it is stored, encrypted with the newest key of the user.

        ``user`` is None for a session without a user, or of several users. An
        EncryptionError if the user has no key, or the function of the program fails.
        """
        return {TOKEN: self._convert("encrypt", dumps(value), user), _USER: user}

    def decrypt(self, value: dict[str, str | None]) -> Any:
        """Return an encrypted value.

        Raises:
            EncryptionError: The key is missing or wrong.
        """
        if not self.is_set:
            raise EncryptionError(
                "The database is encrypted, and this store has no key; nothing was read or changed. Pass the key as "
                "encryption_key, to the command line in LLAMA_INDEX_MEMORY_KEY."
            )
        return self._convert("decrypt", str(value[TOKEN]), value[_USER])

    def encrypt_digest(self, digest: str, user: str | None = None) -> str:
        """Return the digest of a text as it is stored."""
        return dumps(self.encrypt(digest, user))

    def decrypt_digest(self, digest: str) -> Any:
        """Return a digest from its stored form."""
        return self.decrypt(loads(digest)) if digest.startswith(_OPENING) else digest

    def encrypt_vector(self, vector: bytes, user: str | None = None) -> bytes:
        """Return a vector as it is stored."""
        return self.encrypt_digest(b64encode(vector).decode(), user).encode()

    def decrypt_vector(self, vector: bytes) -> bytes:
        """Return a vector from its stored form. No vector of length 1 has a number whose bytes begin like JSON."""
        if vector[: len(_OPENING)] == _OPENING.encode():
            return b64decode(self.decrypt_digest(vector.decode()))
        return vector

    def _convert(self, name: str, text: str, user: str | None) -> Any:
        """Return an encrypted text, or the JSON value of one that is decrypted."""
        try:
            function = self._functions[name]
            if function is None:
                by_keys = _encrypt_by if name == "encrypt" else _decrypt_by
                function = partial(by_keys, self._ciphers_for(user))
            # A TypeError for bytes.
            converted = function(text) + ""
            if name == "decrypt":
                # Here, because the wrong key of a function may make any text.
                converted = loads(converted)
        except Exception as error:  # noqa: BLE001 - functions of the program may raise any error
            reason = type(error).__name__
        else:
            return converted
        owner = "" if user is None else f" of user {user!r}"
        # Raised outside the except block, so that the error has no context, which would
        # hold a text or a key.
        raise EncryptionError(
            f"A text{owner} could not be {name}ed ({reason}); nothing was changed. encryption_key must hold the key "
            "with which the text was stored, 44 characters as base64.urlsafe_b64encode(os.urandom(32)) makes them; "
            "a list holds the newest key first, and older keys. Functions take and return texts."
        )

    def _ciphers_for(self, user: str | None) -> list[Any]:
        # Imported here: it is an extra.
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        keys = self._key(user) if self.by_user else self._key
        if isinstance(keys, str | bytes):
            keys = [keys]
        return [AESGCM(urlsafe_b64decode(key)) for key in keys]


def _encrypt_by(ciphers: Sequence[Any], text: str) -> str:
    """Return a text encrypted by the first cipher."""
    nonce = urandom(_NONCE_BYTES)
    encrypted = ciphers[0].encrypt(nonce, text.encode(), None)
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
