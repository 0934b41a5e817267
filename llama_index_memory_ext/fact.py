"""A fact about a user: its fields, states and changes."""

from __future__ import annotations

import json
import re
import unicodedata
from datetime import date, datetime, timezone
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeAlias
from uuid import uuid4

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)

from llama_index_memory_ext.errors import FactError
from llama_index_memory_ext.settings import build_checked, optional
from llama_index_memory_ext.text.messages import clean, in_zone
from llama_index_memory_ext.words import visible

if TYPE_CHECKING:
    from collections.abc import Mapping

# The kinds of facts that a model is asked for, unless the program names its own.
CATEGORIES = ("preference", "knowledge", "context", "behavior", "goal", "correction")
DEFAULT_CATEGORY = "knowledge"

# The longest fact that is learned, in characters.
MAX_FACT = 500
# The least confidence with which an extracted fact is stored.
DEFAULT_MIN_CONFIDENCE = 0.7
# The weights of similarity and confidence in a fact's score for a question.
SIMILARITY_WEIGHT = 0.6
CONFIDENCE_WEIGHT = 0.4
# The weight of recency for the question of a conversation; 0: age does not matter.
RECENCY_WEIGHT = 0.4

# Any mark but a minus before a number, and but the marks that make one fact different
# from another, as in C#, 50%, R&D, a@b and 1/2.
_MARK = re.compile(r"(?!(?<!\S)-\d)[^\w\s#%&@/*]|_")


def utc_now() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(timezone.utc)


def _not_blank(value: str) -> str:
    if not value.strip():
        raise ValueError("expected text with a visible character, got none")
    return value


# Why a fact is retired. "change": it was true before. "correction": it never was
# true. "request": the user wants it forgotten. "hand": a person or a program decided.
# "limit": there were too many facts. "rejected": a person rejected it.
RetiredBy: TypeAlias = Literal[
    "change", "correction", "request", "hand", "limit", "rejected"
]
# How the user said a fact. Learning writes "stated" and "past"; programs may write any.
# A pending fact that only ends another fact is "denied".
SaidAs: TypeAlias = Literal[
    "stated", "confirmed", "planned", "past", "asked", "supposed", "denied", "quoted"
]
# The state of a fact at a time. "present": it holds. "past": it was true before.
# "retired": it is kept, but not shown. "expired": after ``expires_at``. "pending": not
# yet approved.
FactState: TypeAlias = Literal["present", "past", "retired", "expired", "pending"]

Text = Annotated[str, BeforeValidator(clean)]
# A model reads no character that a person cannot see.
Visible = Annotated[str, BeforeValidator(clean), AfterValidator(visible)]
Content = Annotated[Visible, AfterValidator(_not_blank)]


def _with_offset(moment: datetime) -> datetime:
    if moment.utcoffset():
        return in_zone(moment)
    # Most times are in UTC, and each stored fact has several times.
    return moment.astimezone(timezone.utc)


# A moment keeps its offset, which tells the user's day.
Moment = Annotated[AwareDatetime, AfterValidator(_with_offset)]
Tag = Annotated[
    Text, Field(max_length=100), AfterValidator(visible), AfterValidator(_not_blank)
]

_METADATA_BYTES = 2_048


def _as_stored(value: object) -> Any:
    """Return metadata as a database returns it; raise a ValueError if it is no JSON, or too long."""
    if not value:
        return value
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, RecursionError) as error:
        raise ValueError(
            f"expected values that JSON can hold ({type(error).__name__})"
        ) from None
    size = len(text.encode(errors="replace"))
    if size > _METADATA_BYTES:
        raise ValueError(
            f"expected at most {_METADATA_BYTES} bytes as JSON, got {size}"
        )
    return clean(json.loads(text))


Metadata = Annotated[dict[str, Any], AfterValidator(_as_stored)]


class SetAside(NamedTuple):
    """A turn whose extraction failed: its first and last row in the log, and the type of the error."""

    first: int
    last: int
    error: str


# The fields that say how a fact has ended.
ENDING = ("retired_at", "retired_reason", "replaced_by", "retired_by", "valid_until")


class Fact(BaseModel):
    """A statement about a user. It never changes; ``model_copy(update=...)`` makes a new fact.

    Only ``content`` is required. In texts, lone surrogates and NUL become U+FFFD, and a
    pair of surrogates becomes its character. Invisible characters (controls, zero-width
    and bidirectional characters, tags) are removed from all texts but ids. Datetimes
    need a time zone, whose offset decides the day.

    Raises:
        FactError: Blank content or category, an unknown field, a confidence outside
            0..1, or a datetime without a time zone. ``model_validate`` raises
            pydantic's own error, which contains the values.

    Examples:
        >>> fact = Fact(content="Prefers pytest", category="preference", pinned=True)
        >>> fact.retired
        False
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: Text = Field(
        default_factory=lambda: uuid4().hex,
        min_length=1,
        description="Its name in its namespace; default: a new id.",
    )
    namespace: Text = Field(
        default="", description="Its owner; facts of two namespaces are kept apart."
    )
    agent_id: Text | None = Field(
        default=None,
        min_length=1,
        description="The only agent that sees it; None: all agents of the user share it.",
    )
    content: Content = Field(description="The fact in one sentence.")
    category: Content = Field(
        default=DEFAULT_CATEGORY,
        description="preference, knowledge, context, behavior, goal or correction, or a category of the program.",
    )
    confidence: float = Field(
        default=1.0, ge=0.0, le=1.0, description="How certain it is, 0..1."
    )
    created_at: Moment = Field(
        default_factory=utc_now, description="When it became known; default: now."
    )
    updated_at: Moment = Field(
        default_factory=utc_now,
        description="When it last changed; default: when it was created.",
    )
    valid_from: date | None = optional(
        "The first day on which it is true, if that was said."
    )
    valid_until: date | None = optional(
        "The last day on which it was true, if that was said."
    )
    expires_at: Moment | None = optional("The time from which it is no longer shown.")
    session_id: Text | None = optional("The session in which the user stated it.")
    message_ids: tuple[int, ...] = Field(
        default=(), description="The rows of the log in which the user stated it."
    )
    quote: Visible = Field(
        default="", description="The words of the user that state it, verbatim."
    )
    said_as: SaidAs | None = optional(
        "stated or past, if learned; a program may set any kind; None: unknown, as by hand."
    )
    source: Visible = Field(
        default="", description="The text around the quote; it also finds the fact."
    )
    words_deleted_at: Moment | None = optional(
        "When words of its quote or source were deleted, with their messages."
    )
    imported_from: Visible | None = optional(
        "The program from whose export it was converted; None: not converted."
    )
    retired_at: Moment | None = optional("The time from which it is no longer true.")
    retired_reason: Visible | None = optional("Why it is no longer true.")
    replaced_by: Text | None = optional("The id of the fact that is true instead.")
    retired_by: RetiredBy | None = optional(
        "change (it was true until then), correction (it never was), request (the user wants it "
        "forgotten), hand, limit or rejected; None: the program gave no reason."
    )
    edited: bool = Field(
        default=False,
        description="Whether its content was changed by hand: then no message states it.",
    )
    pinned: bool = Field(
        default=False, description="Whether it is shown before facts that match better."
    )
    tags: tuple[Tag, ...] = Field(
        default=(),
        max_length=20,
        description="Labels to filter by, of at most 100 characters.",
    )
    metadata: Metadata = Field(
        default_factory=dict,
        description="Data of the program, as JSON of at most 2,048 bytes.",
    )
    pending: bool = Field(
        default=False, description="Whether a person must approve it before it counts."
    )
    ends_facts: dict[str, dict[str, str | None]] = Field(
        default_factory=dict,
        description="The facts that it ends when it is approved, and how.",
    )

    if not TYPE_CHECKING:  # With this method, a type checker would not know the fields.

        def __init__(self, **values: Any) -> None:
            build_checked(type(self), super().__init__, FactError, **values)

        # Without this mark, pydantic calls this method for each stored fact, and reading
        # takes half as long again.
        __init__.__pydantic_base_init__ = True

    @model_validator(mode="before")
    @classmethod
    def _with_time_of_change(cls, values: object) -> object:
        if not isinstance(values, dict) or "updated_at" in values:
            return values
        created_at = values.get("created_at", utc_now())
        return {**values, "created_at": created_at, "updated_at": created_at}

    def __hash__(self) -> int:
        return hash((self.namespace, self.id))

    @property
    def retired(self) -> bool:
        """Whether the fact is kept for ``arestore``, and never shown as if it were true.

        A retired fact has the state "past" if another fact has replaced it, or the user
        has said that it is over.
        """
        return self.retired_at is not None

    @property
    def began(self) -> date:
        """The first day on which the fact is known to be true."""
        return self.valid_from or self.created_at.date()

    @property
    def is_users_words(self) -> bool:
        """Whether the content is the user's own sentence, which pages and prompts show in quotation marks."""
        return self.content in self.quote

    @property
    def ends(self) -> date | None:
        """The last day on which the fact is true: ``valid_until`` or its retirement; None for no known end."""
        days = [self.valid_until, self.retired_at and self.retired_at.date()]
        return min(filter(None, days), default=None)

    def expired(self, now: datetime) -> bool:
        """Return whether ``expires_at`` has passed. An expired fact is neither shown nor searched."""
        return self.expires_at is not None and self.expires_at <= now

    def state(self, now: datetime) -> FactState:
        """Return the state of the fact at a time: "present", "past", "retired", "expired" or "pending".

        The zone of ``now`` decides which day is today. A fact is past after the day ``valid_until``,
        and after a change: another fact has replaced the fact, or the user has said
        that it is over. A fact is retired if it was forgotten, never true, retired by
        hand, or not approved.
        """
        if self.expired(now):
            return "expired"
        if self.retired:
            replaced = self.retired_by is None and self.replaced_by is not None
            if not self.pending and (replaced or self.retired_by == "change"):
                return "past"
            return "retired"
        if self.pending:
            return "pending"
        if self.valid_until is not None and self.valid_until < now.date():
            return "past"
        return "present"


def retire(
    fact: Fact,
    reason: str,
    now: datetime,
    replaced_by: str | None = None,
    *,
    by: RetiredBy | None = None,
) -> Fact:
    """Return the fact as a retired one, which can be restored. An earlier ``replaced_by`` stays."""
    return fact.model_copy(
        update={
            "retired_at": now,
            "updated_at": now,
            "retired_reason": visible(reason),
            "retired_by": by,
            "replaced_by": replaced_by or fact.replaced_by,
        }
    )


def restore(fact: Fact, now: datetime) -> Fact:
    """Return the fact as a present one without an end. A present or pending fact stays as it is."""
    if fact.state(now) in ("present", "pending"):
        return fact
    expires_at = fact.expires_at
    if fact.expired(now):
        expires_at = None
    return fact.model_copy(
        update={
            **dict.fromkeys(ENDING),
            **_NOT_PENDING,
            "expires_at": expires_at,
            "updated_at": now,
        }
    )


def edit(fact: Fact, now: datetime, fields: Mapping[str, Any]) -> Fact:
    """Return the fact with these fields."""
    new = Fact(**{**fact.model_dump(), "updated_at": now, **fields})
    return mark_edited(new, fact)


def mark_edited(fact: Fact, stored: Fact) -> Fact:
    """Return the fact as ``edited`` if its content differs from the stored one in more than case and punctuation."""
    if duplicate_key(fact.content) == duplicate_key(stored.content):
        return fact
    return fact.model_copy(update={"edited": True})


# A pending fact with this ``said_as`` only ends other facts, and states nothing itself.
ONLY_ENDS: SaidAs = "denied"
# Its content, by the content of the fact that it ends.
NO_LONGER_TRUE = "No longer true: {}"
_NOT_PENDING: dict[str, Any] = {"pending": False, "ends_facts": {}}


def approve(fact: Fact, facts: Mapping[str, Fact], now: datetime) -> list[Fact]:
    """Return a pending fact as approved, and the ``facts`` that it ends as retired."""
    holding = fact.model_copy(update={**_NOT_PENDING, "updated_at": now})
    if fact.said_as == ONLY_ENDS:
        reason = "approved: it has ended another fact"
        holding = retire(holding, reason, now, by="hand")
    changed = [holding]
    for name, ending in fact.ends_facts.items():
        old = facts.get(name)
        if old is not None and not old.retired:
            fields = {field: ending.get(field) for field in ENDING}
            changed.append(edit(old, now, fields))
    return changed


def confirm_again(fact: Fact, now: datetime) -> Fact:
    """Return a fact that the user has said again, with more confidence.

    ``confidence += (1 - confidence) * 0.3``

    >>> round(confirm_again(Fact(content="Likes tea", confidence=0.7), utc_now()).confidence, 2)
    0.79
    """
    confidence = fact.confidence + (1 - fact.confidence) * 0.3
    return fact.model_copy(
        update={"confidence": confidence, "updated_at": max(fact.updated_at, now)}
    )


# Cached, because each new fact is compared with all facts.
@lru_cache(maxsize=10_000)
def duplicate_key(content: str) -> str:
    """Return the key of a content, which duplicates share: NFKC, casefolded, punctuation and white space as one space.

    Marks such as # and a minus before a number stay. A text of punctuation alone stays
    as it is.

    >>> duplicate_key("Prefers  PyTest - for testing!") == duplicate_key("prefers pytest for testing")
    True
    >>> duplicate_key("Likes C#") == duplicate_key("Likes C")
    False
    """
    folded = unicodedata.normalize("NFKC", content).casefold()
    text = unicodedata.normalize("NFKC", folded)
    key = _MARK.sub(_space_or_mark, text)
    if not key.strip():
        key = text
    return " ".join(key.split())


def _space_or_mark(match: re.Match[str]) -> str:
    mark = match[0]
    return " " if unicodedata.category(mark).startswith("P") else mark
