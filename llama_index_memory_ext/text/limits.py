"""The limits of a list of messages: what is left of one that is over them, and where it may begin and end."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from llama_index.core.base.llms.types import MessageRole

from llama_index_memory_ext.errors import LimitError, RoleError

if TYPE_CHECKING:
    from collections.abc import Sequence

# Names that other libraries have for these roles.
_OTHER_NAMES = {"human": "user", "ai": "assistant"}


@dataclass(frozen=True, slots=True)
class Limits:
    """Most tokens and messages, and how many are left of more; ``sys.maxsize`` for any number."""

    tokens: int
    keep_ratio: float
    messages: int
    keep_messages: int

    @property
    def keep_tokens(self) -> int:
        """Tokens that are left of more; at least one where there may be any."""
        return max(int(self.tokens * self.keep_ratio), min(self.tokens, 1))

    @property
    def kept(self) -> Limits:
        """What holds once there was more: what is left then is the most there may be."""
        return Limits(self.keep_tokens, 1.0, self.keep_messages, self.keep_messages)

    def behind(self, tokens: int, messages: int) -> Limits:
        """What is left for the messages behind others that stay in any case; at least one message."""
        return replace(
            self,
            tokens=self.tokens - tokens,
            messages=max(self.messages - messages, 1),
            keep_messages=max(self.keep_messages - messages, 1),
        )


def limits_of(
    token_limit: int | None, max_messages: int | None, keep_messages: int | None, keep_ratio: float
) -> Limits:
    """The limits that a caller asks for.

    Raises:
        LimitError: One is below 1, or they contradict each other.
    """
    for name, limit in (("token_limit", token_limit), ("max_messages", max_messages), ("keep_messages", keep_messages)):
        if limit is not None and (not isinstance(limit, int) or limit < 1):
            raise LimitError(f"{name} must be a whole number of at least 1, or None for no limit; it is {limit!r}.")
    if not isinstance(keep_ratio, int | float) or not 0 < keep_ratio <= 1:
        raise LimitError(f"keep_ratio must be above 0 and at most 1; it is {keep_ratio!r}. 0.75 keeps three quarters.")
    check_keep_messages(keep_messages, max_messages)
    most = sys.maxsize if max_messages is None else max_messages
    return Limits(
        tokens=sys.maxsize if token_limit is None else token_limit,
        keep_ratio=keep_ratio,
        messages=most,
        keep_messages=keep_messages or kept_of(most, keep_ratio),
    )


def kept_of(max_messages: int, keep_ratio: float) -> int:
    """How many messages are left of more than so many, where nobody says it."""
    return max(1, int(max_messages * keep_ratio))


def check_keep_messages(keep_messages: int | None, max_messages: int | None) -> None:
    """Refuse, by a LimitError, to keep more messages than there may be."""
    if keep_messages is not None and keep_messages > (max_messages or 0):
        raise LimitError(
            f"keep_messages={keep_messages} needs a max_messages of at least as many; it is {max_messages}. "
            "Raise that one, or lower keep_messages."
        )


def check_room_for_system(max_messages: int | None) -> None:
    """Refuse, by a LimitError, to keep the system's message and nothing else."""
    if max_messages == 1:
        raise LimitError(
            "include_system=True needs a max_messages of at least 2, for the system's message and one more; it is 1. "
            "Raise it, or leave include_system out."
        )


def roles_of(option: str, roles: str | Sequence[str] | None) -> frozenset[MessageRole]:
    """The roles that an option names: one, several, or none.

    Raises:
        RoleError: There is no such role.
    """
    names = [] if roles is None else [roles] if isinstance(roles, str) or not isinstance(roles, Iterable) else roles
    known = [role.value for role in MessageRole]
    for name in names:
        if name not in known:
            other = _OTHER_NAMES.get(str(name).lower())
            hint = f"Use {other!r} instead." if other else "Use one of these."
            raise RoleError(f"{option} must name roles of messages: {', '.join(known)}; it names {name!r}. {hint}")
    return frozenset(map(MessageRole, names))
