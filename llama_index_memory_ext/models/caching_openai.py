"""OpenAI's models with cache points: a prompt is cached up to each ``CachePoint`` in its messages.

How the cache of GPT-5.6 and later models finds a prompt:
https://developers.openai.com/api/docs/guides/prompt-caching
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Any, ClassVar

from llama_index.core.base.llms.types import (
    CachePoint,
    ChatMessage,
    MessageRole,
    TextBlock,
)
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.llms.openai import OpenAI, OpenAIResponses
from llama_index.llms.openai.utils import (
    to_openai_message_dict,
    to_openai_responses_message_dict,
)

from llama_index_memory_ext.models.ask import takes_cache_points

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


_MARK = "prompt_cache_breakpoint"
# OpenAI refuses a mark in an answer of the model.
_MARKED_ROLES = (
    MessageRole.SYSTEM,
    MessageRole.DEVELOPER,
    MessageRole.USER,
    MessageRole.TOOL,
)


if TYPE_CHECKING:
    # Or ``OpenAIResponses``, which has the same methods.
    _Parent = OpenAI
else:
    _Parent = object


def _has_points(message: ChatMessage) -> bool:
    return any(isinstance(block, CachePoint) for block in message.blocks)


def _without_points(message: ChatMessage) -> ChatMessage:
    """Return a copy of a message without its cache points."""
    blocks = [block for block in message.blocks if not isinstance(block, CachePoint)]
    return message.model_copy(update={"blocks": blocks})


def _request_by(name: str) -> Callable[..., Any]:
    """Return a method that calls the parent's method of this name, with fields in place of cache points."""

    def request(self: _Caching, messages: Sequence[ChatMessage], **kwargs: Any) -> Any:
        plain = [_without_points(message) for message in messages]
        fields = self._cache_fields(messages)
        method = getattr(super(_Caching, self), name)
        return method(plain, prompt_cache=fields, **kwargs)

    return request


class _Caching(_Parent):
    """Requests with marks, for both of OpenAI's APIs."""

    # The names of the messages and of a text in a request, and the roles that have only
    # texts.
    _place: ClassVar[str]
    _text: ClassVar[str]
    _text_only: ClassVar[tuple[MessageRole, ...]] = (
        MessageRole.SYSTEM,
        MessageRole.DEVELOPER,
    )

    def _items(self, message: ChatMessage) -> list[dict[str, Any]]:
        """Convert a message to items of the request, as LlamaIndex does."""
        raise NotImplementedError

    def __repr_args__(self) -> list[tuple[str | None, Any]]:
        # Tracebacks with local variables show the model, which must not show a key.
        return [
            (name, value)
            for name, value in super().__repr_args__()
            if name not in ("api_key", "default_headers")
        ]

    def _cache_fields(self, messages: Sequence[ChatMessage]) -> dict[str, Any]:
        """Return the fields of a request that stand for the cache points of its messages; {} for none."""
        pointed = [message for message in messages if _has_points(message)]
        fields = {}
        if pointed and takes_cache_points(self.model):
            fields = self._marks(messages)
        for message in pointed:
            session_id = message.additional_kwargs.get("session_id")
            if session_id:
                digest = sha256(str(session_id).encode("utf-8", "replace"))
                fields.setdefault("prompt_cache_key", digest.hexdigest()[:32])
        return fields

    def _marks(self, messages: Sequence[ChatMessage]) -> dict[str, Any]:
        """Return the fields of a request that hold the messages with marks; {} if no message gets a mark."""
        items = []
        has_marks = False
        for message in messages:
            converted = self._items(_without_points(message))
            if message.role in _MARKED_ROLES and _has_points(message):
                parts = self._parts(message)
                if any(_MARK in part for part in parts):
                    place = "output" if "output" in converted[0] else "content"
                    converted[0][place] = parts
                    has_marks = True
            items += converted
        if not has_marks:
            return {}
        fields: dict[str, Any] = {self._place: items}
        if messages[-1].role != MessageRole.TOOL:
            # In the implicit mode the end of the prompt would be written to the cache,
            # too, which the next prompt will not have.
            fields["prompt_cache_options"] = {"mode": "explicit"}
        return fields

    def _parts(self, message: ChatMessage) -> list[dict[str, Any]]:
        """Return the parts of a message, with a mark on each part before a cache point.

        Each text is a part. Where a role has only texts, other blocks are left out.
        """
        parts: list[dict[str, Any]] = []
        for block in message.blocks:
            if isinstance(block, CachePoint):
                if parts:
                    parts[-1][_MARK] = {"mode": "explicit"}
            elif isinstance(block, TextBlock):
                parts.append({"type": self._text, "text": block.text})
            elif message.role not in self._text_only:
                # In a message of the user no conversion joins or drops parts.
                (item,) = self._items(
                    ChatMessage(role=MessageRole.USER, blocks=[block])
                )
                parts += map(dict, item["content"])
        return parts

    def _get_model_kwargs(
        self, prompt_cache: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        arguments = super()._get_model_kwargs(**kwargs)
        # A field of the caller, or of the model's additional_kwargs, is kept.
        unset = {
            name: value
            for name, value in (prompt_cache or {}).items()
            if name not in arguments
        }
        if unset:
            arguments["extra_body"] = {**unset, **(arguments.get("extra_body") or {})}
        return arguments

    _chat = _request_by("_chat")
    _achat = _request_by("_achat")
    _stream_chat = _request_by("_stream_chat")
    _astream_chat = _request_by("_astream_chat")


class CachingOpenAI(_Caching, OpenAI):
    """LlamaIndex's ``OpenAI``, which also takes ``CachePoint`` blocks: the prompt is cached up to each of them.

    GPT-5.6 and later models find only prompts in their cache that end at a mark. A
    ``CachePoint`` marks the text, image or file before it in a message of the system,
    the developer, the user or a tool. In an answer, or with nothing before it, it has
    no effect. The texts of such a message go out as separate parts. OpenAI writes up to
    the last four marks: a token that is written costs a quarter more, a token that is
    read from the cache a tenth. Nothing is written at the end of the prompt, unless a
    tool's result stands there, because the next request continues it.

    The ``session_id`` in ``additional_kwargs`` of a message is sent as a digest,
    ``prompt_cache_key``. A key, or ``prompt_cache_options``, in ``additional_kwargs``
    of the model is sent instead.

    OpenAI's models before GPT-5.6 refuse marks and need none: they get the key alone. A
    request without a ``CachePoint`` is sent as ``OpenAI`` sends it. A server of another
    model may refuse the marks or the key: use LlamaIndex's ``OpenAI`` for it.

    Args:
        **kwargs: The arguments of ``OpenAI``.
    """

    if TYPE_CHECKING:
        # A type checker would accept only the fields.
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

    A structured answer is requested as a tool call.

    Args:
        **kwargs: The arguments of ``OpenAIResponses``.
    """

    if TYPE_CHECKING:

        def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    _place: ClassVar[str] = "input"
    _text: ClassVar[str] = "input_text"

    def _items(self, message: ChatMessage) -> list[dict[str, Any]]:
        # The parent names this model, too: then the instructions come from a
        # "developer".
        converted = to_openai_responses_message_dict(message, model="o3-mini")
        if isinstance(converted, str):
            return [{"role": "user", "content": converted}]
        if isinstance(converted, list):
            return converted
        return [converted]

    # The parent's methods do not call `_chat` for a structured answer, and refuse cache
    # points.
    structured_predict = FunctionCallingLLM.structured_predict
    astructured_predict = FunctionCallingLLM.astructured_predict
