"""OpenAI's models, which cache a prompt up to each ``CachePoint`` in its messages.

How GPT-5.6 and later models match:
https://developers.openai.com/api/docs/guides/prompt-caching
"""

from __future__ import annotations

from contextlib import contextmanager
from hashlib import sha256
from typing import TYPE_CHECKING, Any, ClassVar

from llama_index.core.base.llms.types import (
    CachePoint,
    ChatMessage,
    LLMMetadata,
    MessageRole,
    TextBlock,
)
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.llms.openai import OpenAI, OpenAIResponses
from llama_index.llms.openai.utils import (
    to_openai_message_dict,
    to_openai_responses_message_dict,
)
from openai import APIStatusError
from pydantic import Field

from llama_index_memory_ext.errors import SettingError
from llama_index_memory_ext.models.prompt_caches import takes_cache_points

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

    from llama_index.core.base.llms.types import ChatResponse


_MARK = "prompt_cache_breakpoint"
_OPTIONS = "prompt_cache_options"
_KEY = "prompt_cache_key"
# OpenAI refuses a mark in an answer of the model.
_MARKED_ROLES = (
    MessageRole.SYSTEM,
    MessageRole.DEVELOPER,
    MessageRole.USER,
    MessageRole.TOOL,
)
# What servers say that do not know the fields, or that take no list of parts where a
# mark needs one.
_REFUSALS = (
    "prompt_cache",
    "extra inputs",
    "extra fields",
    "additional propert",
    "a string",
    "valid string",
)


def _with_fields(
    arguments: dict[str, Any], fields: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a request with these fields in its body, unless the caller has set them."""
    if not fields:
        return arguments
    unset = {name: value for name, value in fields.items() if name not in arguments}
    return {**arguments, "extra_body": {**unset, **(arguments.get("extra_body") or {})}}


if TYPE_CHECKING:
    # Either of LlamaIndex's classes: what is used of it here is the same.
    _Parent = OpenAI
else:
    _Parent = object


class _Caching(_Parent):
    """What is added to LlamaIndex's class: requests with marks."""

    # What differs between the two APIs: the name of the messages, that of a text, and
    # which roles have only texts.
    _place: ClassVar[str]
    _text: ClassVar[str]
    _text_only: ClassVar[tuple[MessageRole, ...]]

    def _items(self, message: ChatMessage) -> list[dict[str, Any]]:
        """Convert a message to items of the request, as LlamaIndex does."""
        raise NotImplementedError

    def __repr_args__(self) -> list[tuple[str | None, Any]]:
        # Tracebacks with local variables show the model of each frame of this file.
        return [
            one
            for one in super().__repr_args__()
            if one[0] not in ("api_key", "default_headers")
        ]

    def _split(
        self, messages: Sequence[ChatMessage]
    ) -> tuple[Sequence[ChatMessage], dict[str, Any]]:
        """Return the messages without cache points, and what the request says in their place; {} if nothing."""
        if not any(
            isinstance(block, CachePoint)
            for message in messages
            for block in message.blocks
        ):
            return messages, {}
        if takes_cache_points(self.model):
            roles = _MARKED_ROLES
        else:
            roles = ()
        plain = list[ChatMessage]()
        items = list[dict[str, Any]]()
        fields = dict[str, Any]()
        for message in messages:
            blocks = [
                block for block in message.blocks if not isinstance(block, CachePoint)
            ]
            has_points = len(blocks) < len(message.blocks)
            plain.append(
                message.model_copy(update={"blocks": blocks}) if has_points else message
            )
            if has_points and message.role in roles:
                parts = self._parts(message)
            else:
                parts = []
            if any(_MARK in part for part in parts):
                (item,) = self._items(
                    message.model_copy(update={"blocks": [TextBlock(text="")]})
                )
                items.append(
                    {**item, "output" if "output" in item else "content": parts}
                )
                fields[self._place] = items
            else:
                items += self._items(plain[-1])
            session_id = message.additional_kwargs.get("session_id")
            if has_points and session_id:
                fields.setdefault(
                    _KEY,
                    sha256(str(session_id).encode("utf-8", "replace")).hexdigest()[:32],
                )
        if self._place in fields and messages[-1].role != MessageRole.TOOL:
            # Else the end of the prompt, which the next one will not have, would be
            # written to the cache as well.
            fields[_OPTIONS] = {"mode": "explicit"}
        own = {
            name: value
            for name, value in self.additional_kwargs.items()
            if name in (_KEY, _OPTIONS)
        }
        return plain, {**fields, **own} if fields else {}

    def _parts(self, message: ChatMessage) -> list[dict[str, Any]]:
        """Return the parts of a message, each text one of its own, with a mark on those before a cache point."""
        parts: list[dict[str, Any]] = []
        for block in message.blocks:
            if isinstance(block, CachePoint):
                if parts:
                    parts[-1][_MARK] = {"mode": "explicit"}
            elif isinstance(block, TextBlock):
                parts.append({"type": self._text, "text": block.text})
            elif message.role not in self._text_only:
                # In a message of the user's no conversion joins or drops parts.
                (item,) = self._items(
                    ChatMessage(role=MessageRole.USER, blocks=[block])
                )
                parts += map(dict, item["content"])
        return parts

    @contextmanager
    def _explaining(self, fields: Mapping[str, Any]) -> Iterator[None]:
        """Raise a SettingError where a server refuses these fields; any other error as it is."""
        try:
            yield
        except APIStatusError as error:
            said = str(error).lower()
            if (
                not fields
                or error.status_code not in (400, 422)
                or not any(one in said for one in _REFUSALS)
            ):
                raise
        else:
            return
        # Nothing of what the server said, and outside of the handler: some servers
        # repeat the prompt in it.
        raise SettingError(
            f"expected a server that takes cache breakpoints and keys; the one of {self.model} refuses them. OpenAI's "
            "takes them; for any other say cache_points=False, and leave CachePoint blocks out of your messages."
        )

    def _get_model_kwargs(
        self, prompt_cache: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        return _with_fields(super()._get_model_kwargs(**kwargs), prompt_cache or {})

    def _chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> Any:
        plain, fields = self._split(messages)
        with self._explaining(fields):
            return super()._chat(plain, prompt_cache=fields, **kwargs)

    async def _achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> Any:
        plain, fields = self._split(messages)
        with self._explaining(fields):
            return await super()._achat(plain, prompt_cache=fields, **kwargs)

    def _stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> Any:
        plain, fields = self._split(messages)
        # A server refuses a stream when it is opened: before its first response.
        with self._explaining(fields):
            yield from super()._stream_chat(plain, prompt_cache=fields, **kwargs)

    async def _astream_chat(
        self, messages: Sequence[ChatMessage], **kwargs: Any
    ) -> Any:
        plain, fields = self._split(messages)
        answered = await super()._astream_chat(plain, prompt_cache=fields, **kwargs)

        async def responses() -> AsyncIterator[ChatResponse]:
            with self._explaining(fields):
                async for response in answered:
                    yield response

        return responses()


class CachingOpenAI(_Caching, OpenAI):
    """LlamaIndex's ``OpenAI``, which also takes ``CachePoint`` blocks: the prompt is cached up to each of them.

    GPT-5.6 and later models find in their cache only what ends at a mark. A
    ``CachePoint`` marks the text, image or file before it in a message of the system,
    the developer, the user or a tool; in an answer, or with nothing before it, it says
    nothing. The texts of such a message go out as separate parts. OpenAI writes up to
    the last four marks: a token that is written costs a quarter more, one that is found
    a tenth. Nothing is written at the end of the prompt, unless a tool's result stands
    there, because the next request goes on from it.

    The ``session_id`` in ``additional_kwargs`` of a message is sent as a digest,
    ``prompt_cache_key``. What those of the model say of the key, and of
    ``prompt_cache_options``, is sent instead.

    OpenAI's models before GPT-5.6 refuse marks and need none, so that they get the key
    alone. A request without a ``CachePoint`` is that of ``OpenAI``. If the server of
    another model refuses what is new in one, a SettingError says that it needs
    ``cache_points=False``.

    Args:
        **kwargs: Those of ``OpenAI``.
    """

    if TYPE_CHECKING:
        # Else a type checker takes only the fields.
        def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    _place: ClassVar[str] = "messages"
    _text: ClassVar[str] = "text"
    _text_only: ClassVar[tuple[MessageRole, ...]] = (
        MessageRole.SYSTEM,
        MessageRole.DEVELOPER,
        MessageRole.TOOL,
    )

    def _items(self, message: ChatMessage) -> list[dict[str, Any]]:
        return [dict(to_openai_message_dict(message, model=self.model))]


class CachingOpenAIResponses(_Caching, OpenAIResponses):  # type: ignore[misc]  # for mypy it has both of them
    """LlamaIndex's ``OpenAIResponses``, which also takes ``CachePoint`` blocks, as ``CachingOpenAI`` does.

    A structured answer is asked for by a call of a tool.

    Args:
        **kwargs: Those of ``OpenAIResponses``.
    """

    if TYPE_CHECKING:

        def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    _place: ClassVar[str] = "input"
    _text: ClassVar[str] = "input_text"
    _text_only: ClassVar[tuple[MessageRole, ...]] = (
        MessageRole.SYSTEM,
        MessageRole.DEVELOPER,
    )

    def _items(self, message: ChatMessage) -> list[dict[str, Any]]:
        # The parent also names this model always, so that the instructions come from a
        # "developer".
        converted = to_openai_responses_message_dict(message, model="o3-mini")
        if isinstance(converted, str):
            return [{"role": "user", "content": converted}]
        if isinstance(converted, list):
            return converted
        return [converted]

    # The parent's own way sends a structured answer's prompt past `_chat`, and refuses
    # cache points.
    structured_predict = FunctionCallingLLM.structured_predict
    astructured_predict = FunctionCallingLLM.astructured_predict


class AnyOpenAI(CachingOpenAI):
    """``CachingOpenAI`` for models of any name, also those of other servers; each may call tools."""

    context_window: int | None = Field(None, alias="OPENAI_CONTEXT_WINDOW", gt=0)

    @property
    def metadata(self) -> LLMMetadata:
        """The metadata of the model. A model that LlamaIndex's class does not know is taken for a chat model."""
        try:
            metadata = super().metadata
        except ValueError:
            metadata = LLMMetadata(is_chat_model=True, model_name=self.model)
        window = self.context_window or metadata.context_window
        return metadata.model_copy(
            update={"context_window": window, "is_function_calling_model": True}
        )
