"""One fact about a user, and which of a user's facts an agent sees."""

from __future__ import annotations

import json
import unicodedata
from dataclasses import dataclass
from datetime import date, datetime, timezone
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
from llama_index_memory_ext.language.words import visible
from llama_index_memory_ext.settings import check_id, checked
from llama_index_memory_ext.text.messages import cleaned

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

# What kinds of facts a model is asked for, unless the program names its own.
CATEGORIES = ("preference", "knowledge", "context", "behavior", "goal", "correction")
DEFAULT_CATEGORY = "knowledge"

# The least confidence with which an extracted fact is stored.
DEFAULT_MIN_CONFIDENCE = 0.7
# Their shares of a fact's score for a question.
SIMILARITY_WEIGHT = 0.6
CONFIDENCE_WEIGHT = 0.4
# The weight of recency beside them for the question of a conversation; 0 leaves it out.
RECENCY_WEIGHT = 0.4

# Marks that make one fact different from another: C# and C, 50% and 50, R&D, a@b, 1/2.
_DISTINGUISHING = frozenset("#%&@/*")


def new_id() -> str:
    """Return an id that no other fact has."""
    return uuid4().hex


def utc_now() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(timezone.utc)


def _not_blank(value: str) -> str:
    if not value.strip():
        raise ValueError(
            "a fact needs words: expected content with a visible character, saw none"
        )
    return value


# By what a fact was retired: it was true until then; it never was; the user wants it
# forgotten; a person or a program has retired it; there were too many facts, or nobody
# has approved it in time; a person has rejected it.
RetiredBy: TypeAlias = Literal[
    "change", "correction", "request", "hand", "limit", "rejected"
]
# How the user said it, by the model that extracted it. Facts of the last four are not
# stored.
SaidAs: TypeAlias = Literal[
    "stated", "confirmed", "planned", "past", "asked", "supposed", "denied", "quoted"
]
# Whom a fact is about: the user, or somebody whom its content names.
About: TypeAlias = Literal["user", "other"]
# What a fact is at a time: it holds; it was true before; it is not shown any more, but
# kept; its time is up; it waits for somebody's yes.
FactState: TypeAlias = Literal["present", "past", "retired", "expired", "pending"]

Text = Annotated[str, BeforeValidator(cleaned)]
# What a model reads holds nothing that a person does not see.
Visible = Annotated[str, BeforeValidator(cleaned), AfterValidator(visible)]
Content = Annotated[
    str, BeforeValidator(cleaned), AfterValidator(visible), AfterValidator(_not_blank)
]
Utc = Annotated[
    AwareDatetime, AfterValidator(lambda value: value.astimezone(timezone.utc))
]
Tag = Annotated[
    Text, Field(max_length=100), AfterValidator(visible), AfterValidator(_not_blank)
]

_METADATA_BYTES = 2_048
# Facts that earlier versions have stored or exported may have these fields; a pending
# fact has no deadline any more.
_REMOVED_FIELDS = frozenset({"review_until", "review_then"})


def _as_stored(value: object) -> Any:
    """Return metadata as a database gives them back; a ValueError for what is no JSON, or too long."""
    if not value:
        return value
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, RecursionError) as error:
        raise ValueError(
            f"expected what can be written as JSON ({type(error).__name__})"
        ) from None
    if (size := len(text.encode(errors="replace"))) > _METADATA_BYTES:
        raise ValueError(
            f"expected at most {_METADATA_BYTES} bytes as JSON, saw {size}"
        )
    return cleaned(json.loads(text))


Metadata = Annotated[dict[str, Any], AfterValidator(_as_stored)]


class SetAside(NamedTuple):
    """A turn from which no facts could be extracted: its first and last row in the log, and the type of the error."""

    first: int
    last: int
    error: str


class PastRetirement(BaseModel):
    """That a fact was retired once, and holds again since ``restored_at``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    retired_at: Utc
    retired_reason: Visible | None = None
    replaced_by: Text | None = None
    retired_by: RetiredBy | None = None
    restored_at: Utc


_RETIREMENT = ("retired_at", "retired_reason", "replaced_by", "retired_by")
# The fields that say how a fact has ended.
ENDING = (*_RETIREMENT, "valid_until")


class Fact(BaseModel):
    """One thing that is known about a user. It never changes; ``model_copy(update=...)`` makes a new one.

    Only ``content`` is required. In texts, lone surrogates and NUL become U+FFFD, and a
    pair of surrogates becomes its character. Other characters that nobody sees
    (controls, zero-width and bidirectional ones, tags) are taken out of all texts but
    ids. Datetimes need a time zone and are converted to UTC.

    Raises:
        FactError: Blank content or category, an unknown field, a confidence outside
            0..1, or a datetime without a time zone. ``model_validate`` raises
            pydantic's own error, in which the values stand.

    Examples:
        >>> Fact(content="Prefers pytest for testing", confidence=0.9, category="preference").retired
        False
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: Text = Field(
        default_factory=new_id,
        min_length=1,
        description="Names it in its namespace; default: a new one.",
    )
    namespace: Text = Field(
        default="", description="Whose fact it is: facts of two namespaces never meet."
    )
    agent_id: Text | None = Field(
        default=None,
        min_length=1,
        description="The agent that alone sees it; None: all agents of the user share it.",
    )
    content: Content = Field(description="The fact in one sentence.")
    category: Content = Field(
        default=DEFAULT_CATEGORY,
        description="preference, knowledge, context, behavior, goal or correction, or one of the program's own.",
    )
    confidence: float = Field(
        default=1.0, ge=0.0, le=1.0, description="How certain it is, 0..1."
    )
    created_at: Utc = Field(
        default_factory=utc_now, description="When it became known; default: now."
    )
    updated_at: Utc = Field(
        default_factory=utc_now,
        description="When it last changed; default: when it was created.",
    )
    valid_from: date | None = Field(
        default=None, description="Since when it is true, as far as that was said."
    )
    valid_until: date | None = Field(
        default=None, description="The last day on which it was true, if that was said."
    )
    expires_at: Utc | None = Field(
        default=None, description="From when on it is not shown any more."
    )
    session_id: Text | None = Field(
        default=None, description="The session in which the user stated it."
    )
    message_ids: tuple[int, ...] = Field(
        default=(), description="The rows of the log in which the user stated it."
    )
    quote: Visible = Field(
        default="", description="The words of the user that state it, verbatim."
    )
    said_as: SaidAs | None = Field(
        default=None,
        description="stated, confirmed (a yes to the assistant), planned or past; None: nobody has told, as by hand.",
    )
    about: About | None = Field(
        default=None,
        description="user, or other: somebody whom the content names; None: nobody has told.",
    )
    source: Visible = Field(
        default="", description="The text around the quote, by which it is found too."
    )
    words_deleted_at: Utc | None = Field(
        default=None,
        description="When messages that state it, or are around it, were deleted, and their words here.",
    )
    imported_from: Visible | None = Field(
        default=None,
        description="The program whose export it was converted from; None: none.",
    )
    retired_at: Utc | None = Field(
        default=None, description="Since when it is no longer true."
    )
    retired_reason: Visible | None = Field(
        default=None, description="Why it is no longer true."
    )
    replaced_by: Text | None = Field(
        default=None, description="The id of the fact that is true instead."
    )
    retired_by: RetiredBy | None = Field(
        default=None,
        description="change (it was true until then), correction (it never was), request (the user wants it "
        "forgotten), hand or limit; None: of an earlier version.",
    )
    past_retirements: tuple[PastRetirement, ...] = Field(
        default=(),
        description="When it was retired before it was restored, oldest first.",
    )
    pinned: bool = Field(
        default=False, description="Whether it is shown before facts that match better."
    )
    tags: tuple[Tag, ...] = Field(
        default=(),
        max_length=20,
        description="To find it by, of 100 characters at most.",
    )
    metadata: Metadata = Field(
        default_factory=dict,
        description="A program's own, as JSON of at most 2,048 bytes.",
    )
    pending: bool = Field(
        default=False, description="Whether somebody must approve it before it counts."
    )
    ends_facts: dict[str, dict[str, str | None]] = Field(
        default_factory=dict, description="What it ends, and how."
    )

    if not TYPE_CHECKING:  # With this method, a type checker would not know the fields.

        def __init__(self, **values: Any) -> None:
            checked(type(self), super().__init__, FactError, **values)

        # So that pydantic does not read each stored fact by this method, which takes
        # half as long again.
        __init__.__pydantic_base_init__ = True

    @model_validator(mode="before")
    @classmethod
    def _as_this_version_has_it(cls, values: object) -> object:
        if not isinstance(values, dict):
            return values
        if not _REMOVED_FIELDS.isdisjoint(values):
            values = {
                name: value
                for name, value in values.items()
                if name not in _REMOVED_FIELDS
            }
        if "updated_at" in values:
            return values
        created_at = values.get("created_at", utc_now())
        return {**values, "created_at": created_at, "updated_at": created_at}

    def __hash__(self) -> int:
        return hash((self.namespace, self.id))

    @property
    def retired(self) -> bool:
        """Whether it is no longer true. A retired fact is kept for undo and is never shown as if it held."""
        return self.retired_at is not None

    @property
    def began(self) -> date:
        """The first day on which it is known to be true, in UTC."""
        return self.valid_from or self.created_at.date()

    @property
    def ends(self) -> date | None:
        """The last day on which it is true, None if no end is known: ``valid_until``, or the retirement's day."""
        days = [self.valid_until, self.retired_at and self.retired_at.date()]
        return min(filter(None, days), default=None)

    def expired(self, now: datetime) -> bool:
        """Return whether its time is up: from ``expires_at`` on it is neither shown nor searched."""
        return self.expires_at is not None and self.expires_at <= now

    def state(self, now: datetime) -> FactState:
        """What it is at a time: "present", "past", "retired", "expired" or "pending".

        It is past after the day ``valid_until``, and if a change has ended it: another
        fact has replaced it, or the user has said that it is no longer true. What was
        forgotten, was never true, was retired by hand, or was not approved is retired.
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
        is_over = (
            self.valid_until is not None
            and self.valid_until < now.astimezone(timezone.utc).date()
        )
        return "past" if is_over else "present"


def retire(
    fact: Fact,
    reason: str,
    now: datetime,
    replaced_by: str | None = None,
    *,
    by: RetiredBy | None = None,
) -> Fact:
    """Return the fact as a retired one, which is kept and can be restored. What had replaced it before stays."""
    fields = {
        "retired_at": now,
        "updated_at": now,
        "retired_reason": visible(reason),
        "retired_by": by,
    }
    return fact.model_copy(
        update={**fields, "replaced_by": replaced_by or fact.replaced_by}
    )


def restored(fact: Fact, now: datetime) -> Fact:
    """Return the fact as one that holds without an end; that it was retired is kept in ``past_retirements``.

    What holds, or is pending, stays as it is.
    """
    if fact.state(now) in ("present", "pending"):
        return fact
    kept = fact.past_retirements
    if fact.retired_at is not None:
        kept += (
            PastRetirement(
                **{name: getattr(fact, name) for name in _RETIREMENT}, restored_at=now
            ),
        )
    if fact.expired(now):
        expires_at = None
    else:
        expires_at = fact.expires_at
    fields = {"expires_at": expires_at, "past_retirements": kept, "updated_at": now}
    return fact.model_copy(update={**dict.fromkeys(ENDING), **_DECIDED, **fields})


# A person or a limit has retired a fact by these; by all others it was words, and a
# model has said why.
_WITHOUT_WORDS = ("hand", "limit", "rejected")


def without_reasons(fact: Fact, gone: Collection[str], *, is_team: bool) -> Fact:
    """Return a fact without the reasons that may quote a user who was deleted, and itself if there are none.

    Those are why a fact that is ``gone`` has replaced it, and in the facts of a team
    all that words have ended.
    """

    def may_quote(ending: Mapping[str, Any]) -> bool:
        is_of_words = is_team or ending.get("replaced_by") in gone
        return (
            bool(ending.get("retired_reason"))
            and is_of_words
            and ending.get("retired_by") not in _WITHOUT_WORDS
        )

    if may_quote(vars(fact)):
        fields: dict[str, Any] = {"retired_reason": None}
    else:
        fields = {}
    nothing = {"retired_reason": None}
    if any(may_quote(vars(one)) for one in fact.past_retirements):
        past = [
            one.model_copy(update=nothing) if may_quote(vars(one)) else one
            for one in fact.past_retirements
        ]
        fields["past_retirements"] = tuple(past)
    if any(may_quote(end) for end in fact.ends_facts.values()):
        fields["ends_facts"] = {
            name: {**end, **nothing} for name, end in fact.ends_facts.items()
        }
    if fields:
        return fact.model_copy(update=fields)
    return fact


# A pending fact of this kind of saying ends facts, and is none itself.
ONLY_ENDS: SaidAs = "denied"
_DECIDED: dict[str, Any] = {"pending": False, "ends_facts": {}}


def approved(fact: Fact, facts: Mapping[str, Fact], now: datetime) -> list[Fact]:
    """Return a pending fact as one that counts, and those of the ``facts`` that it ends, retired."""
    held = fact.model_copy(update={**_DECIDED, "updated_at": now})
    if fact.said_as == ONLY_ENDS:
        held = retire(held, "approved: it has ended another fact", now, by="hand")
    ended = [
        (facts[name], end)
        for name, end in fact.ends_facts.items()
        if name in facts and not facts[name].retired
    ]
    values = [
        {**old.model_dump(), **{name: end.get(name) for name in ENDING}}
        for old, end in ended
    ]
    return [held, *(Fact(**{**old, "updated_at": now}) for old in values)]


def raised(fact: Fact, now: datetime) -> Fact:
    """Return a fact that was said again, which is surer then: 0.3 of what is missing to 1 is added.

    >>> round(raised(Fact(content="Likes tea", confidence=0.7), utc_now()).confidence, 2)
    0.79
    """
    confidence = fact.confidence + (1 - fact.confidence) * 0.3
    return fact.model_copy(
        update={"confidence": confidence, "updated_at": max(fact.updated_at, now)}
    )


def normalised(content: str) -> str:
    """Return the key by which duplicates are found: NFKC, casefolded, punctuation and white space as one space.

    Marks such as # and a minus before a number stay, and so does a text of nothing but
    punctuation.

    >>> normalised("Prefers  PyTest - for testing!") == normalised("prefers pytest for testing")
    True
    >>> normalised("Likes C#") == normalised("Likes C")
    False
    """
    text = unicodedata.normalize(
        "NFKC", unicodedata.normalize("NFKC", content).casefold()
    )
    kept = []
    for i, character in enumerate(text):
        is_sign = (
            character == "-"
            and text[i + 1 : i + 2].isdigit()
            and not text[:i][-1:].strip()
        )
        is_mark = (
            unicodedata.category(character).startswith("P")
            and character not in _DISTINGUISHING
        )
        kept.append(" " if is_mark and not is_sign else character)
    folded = "".join(kept)
    return " ".join((folded if folded.strip() else text).split())


# The facts that all agents share, those of one agent alone, or both.
Scope: TypeAlias = Literal["user", "agent", "both"]


@dataclass(frozen=True, slots=True)
class AgentView:
    """Which of a user's facts are seen: those of these ``agents``, None among them for the shared ones.

    ``own`` is the agent of a new fact; None: it is shared. ``agents`` is None for a
    view of everybody's facts.
    """

    agents: tuple[str | None, ...] | None = (None,)
    own: str | None = None

    @property
    def names(self) -> tuple[str, ...] | None:
        """The agents as the database names them, "" for the shared facts; None for everybody's facts."""
        if self.agents is None:
            return None
        return tuple(agent or "" for agent in self.agents)

    def sees(self, agent_id: str | None) -> bool:
        """Return whether a fact of this agent, None for a shared one, is seen."""
        return self.agents is None or agent_id in self.agents

    def check(self, agent_id: str | None) -> None:
        """Raise a FactError for an agent, None for all of them, whose facts are not seen."""
        if not self.sees(agent_id):
            raise FactError(
                f"Expected {' or '.join(map(_described, self.agents or ()))}; saw {_described(agent_id)}. "
                "Use a memory of that agent, or an agent_id and a scope that see such facts."
            )

    def owner(self, agent_id: str | None) -> str | None:
        """Whose a fact from elsewhere is here: a shared one is the agent's own where no shared ones are seen.

        Raises a FactError for another agent's.
        """
        if agent_id is None and not self.sees(None):
            return self.own
        self.check(agent_id)
        return agent_id


# What one sees who is no agent of a name.
SHARED = AgentView()
ALL = AgentView(None)


def view_of(agent_id: str | None, scope: str | None) -> AgentView:
    """Return what an agent sees; without a ``scope`` both, or without an ``agent_id`` the shared facts.

    The scope "all" shows everybody's facts. Raises a FactError where a scope lacks its
    agent, and for an unknown scope; a SettingError for an ``agent_id`` that is no id.

    >>> view_of("travel", None), view_of(None, None) == SHARED
    (AgentView(agents=(None, 'travel'), own='travel'), True)
    """
    if agent_id is None and scope in (None, "user"):
        return SHARED
    check_id("agent_id", agent_id)
    if scope == "all":
        return ALL
    name = cleaned(agent_id)
    views = {
        "user": SHARED,
        "agent": AgentView((name,), name),
        "both": AgentView((None, name), name),
    }
    view = views.get(scope or "both")
    if view is None:
        raise FactError(f'Expected the scope "user", "agent" or "both"; saw {scope!r}.')
    if name is None:
        raise FactError(
            f'The scope "{scope}" needs to know the agent, and agent_id is None. Name it, agent_id="travel", or leave '
            "out the scope for facts that all agents share."
        )
    return view


def _described(agent_id: str | None) -> str:
    if agent_id is None:
        return "a shared fact (agent_id None)"
    return f"a fact of agent {agent_id!r}"
