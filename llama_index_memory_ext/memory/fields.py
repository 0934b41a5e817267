"""The fields of a memory: their checks, and the state that copies and pickles of a memory have."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from llama_index.core.bridge.pydantic import Field, PrivateAttr, model_validator
from llama_index.core.memory import InsertMethod, Memory
from llama_index.core.prompts import RichPromptTemplate
from pydantic import ConfigDict
from typing_extensions import Self

from llama_index_memory_ext.background.locks import lock_for
from llama_index_memory_ext.blocks import Counter, LogBlock
from llama_index_memory_ext.errors import SettingError, StoreError
from llama_index_memory_ext.events import MemoryFailure, failure_handler
from llama_index_memory_ext.memory.search import MemorySearchResult
from llama_index_memory_ext.memory.template import MemoryBlocksTemplate
from llama_index_memory_ext.record.cache_points import CachePoints
from llama_index_memory_ext.settings import Switch, TimeZone, build_checked
from llama_index_memory_ext.store import MemoryStore
from llama_index_memory_ext.text.entries import MEDIA_TOKENS
from llama_index_memory_ext.text.limits import DEFAULT_TOKEN_LIMIT
from llama_index_memory_ext.text.tokens import TokenCounter
from llama_index_memory_ext.text.turns import FLUSH_EVERY_TURN

if TYPE_CHECKING:
    import asyncio

    from llama_index_memory_ext.blocks.facts import RelevantFactsBlock
    from llama_index_memory_ext.blocks.record import CondensedMemoryBlock

# None stores texts unchanged.
Redact: TypeAlias = Callable[[str], str] | None


ErrorHandler: TypeAlias = Callable[[MemoryFailure], object] | None


class MemoryFields(Memory):
    """A LlamaIndex ``Memory`` with a condensed block, a facts block and their store."""

    # Only CondensedMemory has objects. Building a validator takes milliseconds.
    model_config = ConfigDict(defer_build=True)

    # Fields of the host with different defaults.
    token_limit: int = DEFAULT_TOKEN_LIMIT
    chat_history_token_ratio: float = Field(default=FLUSH_EVERY_TURN, ge=0, le=1)
    image_token_size_estimate: int = Field(default=MEDIA_TOKENS["image"], ge=0)
    audio_token_size_estimate: int = Field(default=256, ge=0)
    video_token_size_estimate: int = Field(default=256, ge=0)
    memory_blocks_template: RichPromptTemplate = Field(
        default_factory=MemoryBlocksTemplate
    )
    insert_method: InsertMethod = InsertMethod.USER
    tokenizer_fn: Counter = Field(
        default_factory=TokenCounter, exclude=True, repr=False
    )
    sql_store: MemoryStore = Field(
        default_factory=MemoryStore, exclude=True, repr=False
    )
    user_id: str | None = Field(
        default=None,
        description="The owner of the session and of its facts. The facts are shown in all sessions of this user, and "
        "no other user may open the session. Default: each session has an anonymous user, until its first user with an "
        "id takes it over.",
    )
    shared: Switch = Field(
        default=False,
        description="Whether other users may read the session and write to it, with memories that are also shared. "
        "Facts come from each user's own words. A message of a further user names that user in "
        '``additional_kwargs["user_id"]``.',
    )
    cache_points: CachePoints = Field(
        default=False,
        description="Whether the prompt has LlamaIndex's cache points. Some models reuse a prompt only where it is "
        "marked: models of Anthropic and on Bedrock, and with ``CachingOpenAI`` GPT-5.6 and later. A "
        "``CacheControl`` sets type and ttl. Other integrations refuse cache points.",
    )
    redact: Redact = Field(
        default=None,
        exclude=True,
        repr=False,
        description="A function from each text of a message, and of the arguments of its tool calls, to the text that "
        "is stored; ``redact_secrets`` is such a function. The model sees the stored text. If the function fails, "
        "nothing is stored, and the call that puts the message raises a ``SettingError``.",
    )
    on_error: ErrorHandler = Field(
        default=None,
        exclude=True,
        repr=False,
        description="A function that is called once for each failed extraction, summary, embedding or recall, with a "
        "``MemoryFailure``: the work that failed, and the next step. It runs in the event loop, must return quickly, "
        "and cannot be an ``async def``. Default: failures are logged.",
    )
    temporary: Switch = Field(
        default=False,
        description="Whether nothing is stored. The facts are read from the database, which must exist, and the "
        "session is in memory. No facts are extracted, and adding a fact raises a ``StoreError``.",
    )
    time_zone: TimeZone = Field(
        default=None,
        description='The time zone of the user, such as "Europe/Paris", or a ``tzinfo``. It decides on which day a '
        "message was said or a fact became known, and which day is today. Facts keep the day on which they were "
        "stored. Default: the offset of each message's own time, or else UTC.",
    )

    _owns_store: bool = PrivateAttr(default=False)
    _opened: bool = PrivateAttr(default=False)
    # Whether a program has called anything of this memory but close.
    _is_used: bool = PrivateAttr(default=False)
    # A hash of the last question: a pickle must not hold the words of users. The
    # sources of the last prompt stay out of pickles, too.
    _question_hash: int = PrivateAttr(default=0)
    _last_sources: MemorySearchResult | None = PrivateAttr(default=None)

    if not TYPE_CHECKING:  # With this method, a type checker would not know the fields.

        def __init__(self, **values: Any) -> None:
            build_checked(type(self), super().__init__, **values)

    @model_validator(mode="before")
    @classmethod
    def _check_blocks(cls, values: dict[str, Any]) -> dict[str, Any]:
        blocks = values.get("memory_blocks", ())
        kinds = {b.class_name() for b in blocks if isinstance(b, LogBlock)}
        if not {"CondensedMemoryBlock", "RelevantFactsBlock"} <= kinds:
            raise SettingError(
                "A CondensedMemory needs a CondensedMemoryBlock and a RelevantFactsBlock on the same store. Build it "
                "with CondensedMemory.from_defaults(...)."
            )
        # The host's validators run later and would take a tokenizer of another model.
        return {
            "token_limit": DEFAULT_TOKEN_LIMIT,
            "tokenizer_fn": TokenCounter(),
            **values,
        }

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.shared and self.user_id is None:
            raise SettingError(
                "shared=True needs a user_id, which names the speaker; got none. Pass the user's id."
            )
        if self.time_zone is not None:
            for block in self._log_blocks:
                block.time_zone = self.time_zone
        return self

    @property
    def condensed_block(self) -> CondensedMemoryBlock:
        """The block that shows the record."""
        block: CondensedMemoryBlock = self._block_of("CondensedMemoryBlock")
        return block

    @property
    def facts_block(self) -> RelevantFactsBlock:
        """The block that keeps and shows facts about the user."""
        block: RelevantFactsBlock = self._block_of("RelevantFactsBlock")
        return block

    def _block_of(self, class_name: str) -> Any:
        """Return the block of this class, by the name under which LlamaIndex serialises it."""
        self._is_used = True
        blocks = self._log_blocks
        return next(block for block in blocks if block.class_name() == class_name)

    @property
    def _log_blocks(self) -> list[LogBlock]:
        return [block for block in self.memory_blocks if isinstance(block, LogBlock)]

    def _calls(self) -> asyncio.Lock:
        """Return the lock that lets one call at a time read or write the session, per event loop.

        The lock is not shared across loops: a synchronous call inside a running loop
        would wait for the loop that it blocks.
        """
        self._is_used = True
        # A copy from a pickle may have lost the function.
        failure_handler.set(vars(self).get("on_error"))
        return lock_for("calls", self.session_id, *self.sql_store.database.identity)

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        # A workflow copies its start event, and has to write to this conversation.
        return self

    def __getstate__(self) -> dict[str, Any]:
        if self.sql_store.database.in_memory:
            raise StoreError(
                "This memory cannot be pickled: its database is in memory, and the copy would be empty. Use a file or "
                'a server, such as async_database_uri="sqlite+aiosqlite:///memory.db", or pass on the memory itself.'
            )
        state = super().__getstate__()
        state["__pydantic_private__"]["_last_sources"] = None
        # LlamaIndex leaves out fields that cannot be pickled.
        if "redact" not in state["__dict__"]:
            raise SettingError(
                "This memory cannot be pickled: redact is not a function of a module, and the copy would store texts "
                "unredacted. Define redact in a module, or pass on the memory itself."
            )
        return state

    def __setstate__(self, state: dict[Any, Any]) -> None:
        super().__setstate__(state)
        # The unpickled store has its own connections, which only this memory closes.
        self._owns_store = True
