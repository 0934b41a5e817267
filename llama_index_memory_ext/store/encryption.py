"""Encryption at rest: encrypts the texts and vectors of a store with the keys of the program, and decrypts them."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from json import dumps, loads
from typing import Any, TypeAlias

from llama_index_memory_ext.errors import EncryptionError, SettingError

# The newest key first.
Keys: TypeAlias = str | bytes | Sequence[str | bytes]
# Keys, or a function from a user to the keys of this user.
EncryptionKey: TypeAlias = Keys | Callable[[str | None], Keys] | None
TextFunction: TypeAlias = Callable[[str], str] | None

# The fields of an encrypted value. No message, fact or state has the first one.
_TOKEN = "$encrypted"  # noqa: S105 - a name
_USER = "user"
_OPENING = f'{{"{_TOKEN}":'


class Cipher:
    """Encrypts the values of a store, and decrypts them.

    An encrypted value is a JSON object with the encrypted text, and with the user if
    each user has a key. Without keys and functions, ``is_set`` is false, and values are
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
        self._encrypt = encrypt
        self._decrypt = decrypt
        self.is_set = not (key is None and encrypt is None)
        self.by_user = callable(key)
        self._library: Any = None
        if key is not None:
            self._library = _fernet_library()
            if not self.by_user:
                # A malformed key is an error at once.
                self.encrypt("")

    def encrypt(self, value: Any, user: str | None = None) -> dict[str, str]:
        """Return a JSON value as it is stored, encrypted with the newest key of the user.

        ``user`` is None for a session without a user, or of several users. An
        EncryptionError if the user has no key, or the function of the program fails.
        """
        encrypted = {_TOKEN: self._call(self._token_of, value, user)}
        if user is not None:
            encrypted[_USER] = user
        return encrypted

    def decrypt(self, value: Any) -> Any:
        """Return the value of a column of JSON, which psycopg alone has parsed; a plain value stays as it is.

        Raises:
            EncryptionError: The key is missing or wrong.
        """
        if isinstance(value, str):
            value = loads(value)
        if not isinstance(value, dict) or _TOKEN not in value:
            return value
        if not self.is_set:
            raise EncryptionError(
                "The database is encrypted, and this store has no key; nothing was read or changed. Pass the key as "
                "encryption_key, to the command line in LLAMA_INDEX_MEMORY_KEY."
            )
        return self._call(self._value_of, value[_TOKEN], value.get(_USER))

    def encrypt_digest(self, digest: str, user: str | None = None) -> str:
        """Return the digest of a text as it is stored."""
        return dumps(self.encrypt(digest, user))

    def decrypt_digest(self, digest: str) -> str:
        """Return a digest from its stored form."""
        if digest.startswith(_OPENING):
            return str(self.decrypt(digest))
        return digest

    def encrypt_vector(self, vector: bytes, user: str | None = None) -> bytes:
        """Return a vector as it is stored."""
        return self.encrypt_digest(b64encode(vector).decode(), user).encode()

    def decrypt_vector(self, vector: bytes) -> bytes:
        """Return a vector from its stored form. No vector of length 1 has a number whose bytes begin like JSON."""
        if vector[: len(_OPENING)] == _OPENING.encode():
            return b64decode(self.decrypt_digest(vector.decode()))
        return vector

    def _token_of(self, value: Any, user: str | None) -> str:
        text = dumps(value)
        if self._encrypt is None:
            return str(self._fernet_for(user).encrypt(text.encode()).decode())
        token = self._encrypt(text)
        if not isinstance(token, str):
            raise TypeError
        return token

    def _value_of(self, token: str, user: str | None) -> Any:
        if self._decrypt is None:
            return loads(self._fernet_for(user).decrypt(token))
        return loads(self._decrypt(token))

    def _fernet_for(self, user: str | None) -> Any:
        keys = self._key(user) if self.by_user else self._key
        if isinstance(keys, str | bytes):
            keys = [keys]
        return self._library.MultiFernet([self._library.Fernet(key) for key in keys])

    def _call(
        self, function: Callable[[Any, str | None], Any], value: Any, user: str | None
    ) -> Any:
        """Call a function whose errors may hold a text or a key."""
        try:
            return function(value, user)
        except Exception as error:  # noqa: BLE001 - functions of the program may raise any error
            reason = type(error).__name__
        owner = "" if user is None else f" of user {user!r}"
        # Raised outside the except block, so that the error has no context.
        raise EncryptionError(
            f"A text{owner} could not be encrypted or decrypted ({reason}); nothing was changed. encryption_key must "
            "hold the key with which the text was stored, 44 characters as Fernet.generate_key() of cryptography "
            "makes them. A list holds the newest key first, and older keys."
        )


def _fernet_library() -> Any:
    try:
        # Imported here: it is an extra.
        from cryptography import fernet
    except ModuleNotFoundError as error:
        raise SettingError(
            'encryption_key needs one more package: pip install "llama-index-memory-ext[encryption]"'
        ) from error
    return fernet
