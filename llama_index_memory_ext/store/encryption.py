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
        # Of the keys that are the same for all users.
        self._fernet: Any = None
        if key is not None:
            self._library = _fernet_library()
            if not self.by_user:
                # A malformed key is an error at once.
                self.encrypt("")
                self._fernet = self._fernet_for(None)

    def encrypt(self, value: Any, user: str | None = None) -> dict[str, str | None]:
        """Return a JSON value as it is stored, encrypted with the newest key of the user.

        ``user`` is None for a session without a user, or of several users. An
        EncryptionError if the user has no key, or the function of the program fails.
        """
        return {_TOKEN: self._convert("encrypt", dumps(value), user), _USER: user}

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
        return self._convert("decrypt", value[_TOKEN], value[_USER])

    def encrypt_digest(self, digest: str, user: str | None = None) -> str:
        """Return the digest of a text as it is stored."""
        return dumps(self.encrypt(digest, user))

    def decrypt_digest(self, digest: str) -> Any:
        """Return a digest from its stored form."""
        return self.decrypt(digest) if digest.startswith(_OPENING) else digest

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
                function = getattr(self._fernet_for(user), name)
                converted: Any = function(text.encode()).decode()
            else:
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
            "with which the text was stored, 44 characters as Fernet.generate_key() of cryptography makes them; a "
            "list holds the newest key first, and older keys. Functions take and return texts."
        )

    def _fernet_for(self, user: str | None) -> Any:
        if self._fernet is not None:
            return self._fernet
        keys = self._key(user) if self.by_user else self._key
        if isinstance(keys, str | bytes):
            keys = [keys]
        return self._library.MultiFernet([self._library.Fernet(key) for key in keys])


def _fernet_library() -> Any:
    try:
        # Imported here: it is an extra.
        from cryptography import fernet
    except ModuleNotFoundError as error:
        raise SettingError(
            'encryption_key needs one more package: pip install "llama-index-memory-ext[encryption]"'
        ) from error
    return fernet
