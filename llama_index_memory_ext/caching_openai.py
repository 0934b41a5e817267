"""OpenAI's models, which cache a prompt up to each ``CachePoint`` in its messages.

How GPT-5.6 and later models match: https://developers.openai.com/api/docs/guides/prompt-caching
"""

from __future__ import annotations

import logging
import re
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

from llama_index.core.base.llms.types import CachePoint, ChatMessage, MessageRole, TextBlock
from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.llms.openai import OpenAI, OpenAIResponses
from llama_index.llms.openai.utils import to_openai_message_dict, to_openai_responses_message_dict
from openai import APIStatusError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence

    from llama_index.core.base.llms.types import ChatResponse, ContentBlock
    from llama_index.core.prompts import PromptTemplate

logger = logging.getLogger(__name__)

_MARK, _OPTIONS, _KEY = "prompt_cache_breakpoint", "prompt_cache_options", "prompt_cache_key"
_KEY_CHARACTERS = 32
# Fields that no repr shows.
_SECRET = ("api_key", "default_headers")
# OpenAI refuses a mark in an answer of the model.
_MARKED_ROLES = (MessageRole.SYSTEM, MessageRole.DEVELOPER, MessageRole.USER, MessageRole.TOOL)
# What servers say that do not know the fields, or that take no list of parts where a mark needs one.
_REFUSED = re.compile(
    r"prompt_cache|(unknown|unrecognized|unsupported|unexpected) (request )?(parameter|field|argument|key)"
    r"|extra (inputs|fields)|additional propert|expected a string|valid string|must be a string",
    re.IGNORECASE,
)
_NOT_SENT = "The server refuses cache breakpoints for %s. This model object sends none from now on."


class _Api(NamedTuple):
    """What differs between the two APIs: names, and how LlamaIndex converts a message to items of the request."""

    messages: str
    text: str
    text_only: tuple[MessageRole, ...]
    items: Callable[[ChatMessage], list[dict[str, Any]]]


def _chat_completions(model: str) -> _Api:
    def items(message: ChatMessage) -> list[dict[str, Any]]:
        return [dict(to_openai_message_dict(message, model=model))]

    return _Api("messages", "text", (MessageRole.SYSTEM, MessageRole.DEVELOPER, MessageRole.TOOL), items)


def _responses() -> _Api:
    def items(message: ChatMessage) -> list[dict[str, Any]]:
        # The parent also names this model always, so that the instructions come from a "developer".
        converted = to_openai_responses_message_dict(message, model="o3-mini")
        if isinstance(converted, str):
            return [{"role": "user", "content": converted}]
        return converted if isinstance(converted, list) else [converted]

    return _Api("input", "input_text", (MessageRole.SYSTEM, MessageRole.DEVELOPER), items)


def _without_points(message: ChatMessage) -> ChatMessage:
    """The message as the parent takes it; itself if it has no cache point."""
    blocks = [block for block in message.blocks if not isinstance(block, CachePoint)]
    return message if len(blocks) == len(message.blocks) else message.model_copy(update={"blocks": blocks})


def _parts(message: ChatMessage, api: _Api) -> list[dict[str, Any]]:
    """The parts of a message, each text one of its own, with a mark on those before a cache point."""
    parts: list[dict[str, Any]] = []
    for block in message.blocks:
        if isinstance(block, CachePoint):
            if parts:
                parts[-1][_MARK] = {"mode": "explicit"}
        elif isinstance(block, TextBlock):
            parts.append({"type": api.text, "text": block.text})
        elif message.role not in api.text_only:
            parts += _converted(block, api)
    return parts


def _converted(block: ContentBlock, api: _Api) -> list[dict[str, Any]]:
    """The parts of a block in a message of the user's, which no conversion joins or drops."""
    (item,) = api.items(ChatMessage(role=MessageRole.USER, blocks=[block]))
    return [dict(part) for part in item["content"]]


def _marked_item(message: ChatMessage, api: _Api) -> dict[str, Any] | None:
    """The item of a message with marks; None if it has none, or may have none."""
    if message.role not in _MARKED_ROLES or not any(isinstance(block, CachePoint) for block in message.blocks):
        return None
    parts = _parts(message, api)
    if not any(_MARK in part for part in parts):
        return None
    (item,) = api.items(message.model_copy(update={"blocks": [TextBlock(text="")]}))
    return {**item, "output" if "output" in item else "content": parts}


def _cache_fields(messages: Sequence[ChatMessage], api: _Api) -> dict[str, Any]:
    """What a request says of caches, with its messages, which have the marks; empty if they have none."""
    items, sessions, marked = list[dict[str, Any]](), list[str](), False
    for message in messages:
        item = _marked_item(message, api)
        if item is None:
            items += api.items(_without_points(message))
            continue
        items.append(item)
        marked = True
        if message.additional_kwargs.get("session_id"):
            sessions.append(str(message.additional_kwargs["session_id"]))
    if not marked:
        return {}
    fields: dict[str, Any] = {api.messages: items}
    if messages[-1].role != MessageRole.TOOL:
        # Else the end of the prompt, which the next one will not have, would be written to the cache as well.
        fields[_OPTIONS] = {"mode": "explicit"}
    if sessions:
        fields[_KEY] = sha256(sessions[0].encode("utf-8", "replace")).hexdigest()[:_KEY_CHARACTERS]
    return fields


def _with_fields(arguments: dict[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a request with these fields in its body, unless the caller has set them; the same for none."""
    if not fields:
        return arguments
    unset = {name: value for name, value in fields.items() if name not in arguments}
    return {**arguments, "extra_body": {**unset, **(arguments.get("extra_body") or {})}}


def _check_refused(error: APIStatusError) -> None:
    """Raise an error again that is not about marks."""
    if error.status_code not in (400, 422) or not _REFUSED.search(str(error)):
        raise error


class _Formatted:
    """A prompt that has been formatted already."""

    def __init__(self, messages: Sequence[ChatMessage]) -> None:
        self._messages = messages

    def format_messages(self, **_: Any) -> list[ChatMessage]:
        return list(self._messages)


if TYPE_CHECKING:

    class _Parent:
        """What both of LlamaIndex's classes have."""

        model: str
        additional_kwargs: dict[str, Any]

        def __repr_args__(self) -> Iterable[tuple[str | None, Any]]: ...
        def _get_model_kwargs(self, **kwargs: Any) -> dict[str, Any]: ...
        def _chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> Any: ...
        async def _achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> Any: ...
        def _stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> Any: ...
        async def _astream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> Any: ...
else:
    _Parent = object


class _Caching(_Parent):
    """What is added to LlamaIndex's class: requests with marks, and without them once a server has refused them."""

    _refused: bool

    def _api(self) -> _Api:
        raise NotImplementedError

    def _split(self, messages: Sequence[ChatMessage]) -> tuple[Sequence[ChatMessage], dict[str, Any]]:
        """The messages without cache points, and what the request says in their place."""
        plain = [_without_points(message) for message in messages]
        if all(one is other for one, other in zip(plain, messages, strict=True)):
            return messages, {}
        fields = {} if self._refused else _cache_fields(messages, self._api())
        own = {name: value for name, value in self.additional_kwargs.items() if name in (_KEY, _OPTIONS)}
        return plain, {**fields, **own} if fields else {}

    def __repr_args__(self) -> list[tuple[str | None, Any]]:
        # Tracebacks with local variables show the model of each frame of this file.
        return [(name, value) for name, value in super().__repr_args__() if name not in _SECRET]

    def _give_up(self) -> None:
        """Send no marks from now on: the request that was refused is answered without them."""
        if not self._refused:
            self._refused = True
            # Nothing of the error: some servers repeat the prompt in it.
            logger.warning(_NOT_SENT, self.model)

    def _get_model_kwargs(self, prompt_cache: Mapping[str, Any] | None = None, **kwargs: Any) -> dict[str, Any]:
        return _with_fields(super()._get_model_kwargs(**kwargs), prompt_cache or {})

    def _answer(self, fields: dict[str, Any], ask: Callable[[dict[str, Any]], Any]) -> Any:
        """The answer to a request with these fields, or without them if the server refuses them."""
        if not fields:
            return ask({})
        try:
            return ask(fields)
        except APIStatusError as error:
            _check_refused(error)
        answer = ask({})
        self._give_up()
        return answer

    async def _aanswer(self, fields: dict[str, Any], ask: Callable[[dict[str, Any]], Any]) -> Any:
        """As ``_answer``."""
        if not fields:
            return await ask({})
        try:
            return await ask(fields)
        except APIStatusError as error:
            _check_refused(error)
        answer = await ask({})
        self._give_up()
        return answer

    def _chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> Any:
        plain, fields = self._split(messages)
        parent = super()._chat
        return self._answer(fields, lambda fields: parent(plain, prompt_cache=fields, **kwargs))

    async def _achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> Any:
        plain, fields = self._split(messages)
        parent = super()._achat
        return await self._aanswer(fields, lambda fields: parent(plain, prompt_cache=fields, **kwargs))

    def _stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> Any:
        plain, fields = self._split(messages)
        parent = super()._stream_chat
        if not fields:
            return parent(plain, **kwargs)
        marked = parent(plain, prompt_cache=fields, **kwargs)

        def responses() -> Iterator[ChatResponse]:
            # A server refuses a stream when it is opened: before its first response.
            try:
                yield from marked
            except APIStatusError as error:
                _check_refused(error)
            else:
                return
            for response in parent(plain, **kwargs):
                self._give_up()
                yield response

        return responses()

    async def _astream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> Any:
        plain, fields = self._split(messages)
        parent = super()._astream_chat
        if not fields:
            return await parent(plain, **kwargs)
        marked = await parent(plain, prompt_cache=fields, **kwargs)

        async def responses() -> AsyncIterator[ChatResponse]:
            try:
                async for response in marked:
                    yield response
            except APIStatusError as error:
                _check_refused(error)
            else:
                return
            async for response in await parent(plain, **kwargs):
                self._give_up()
                yield response

        return responses()


class CachingOpenAI(_Caching, OpenAI):
    """LlamaIndex's ``OpenAI``, which also takes ``CachePoint`` blocks: the prompt is cached up to each of them.

    GPT-5.6 and later models find in their cache only what ends at a mark. A ``CachePoint`` marks the text, image or
    file before it in a message of the system, the developer, the user or a tool; in an answer, or with nothing before
    it, it says nothing. The texts of such a message go out as separate parts. OpenAI writes up to the last four marks:
    a token that is written costs a quarter more, one that is found a tenth. Nothing is written at the end of the
    prompt, unless a tool's result stands there, because the next request goes on from it.

    The ``session_id`` in ``additional_kwargs`` of a message is sent as a digest, ``prompt_cache_key``. What those
    of the model say of the key, and of ``prompt_cache_options``, is sent instead.

    A request without a ``CachePoint`` is that of ``OpenAI``. If the server refuses what is new in one, as it does for
    older models, the same request is sent without it, one warning is logged, and this object sends none any more.

    Args:
        **kwargs: Those of ``OpenAI``.
    """

    if TYPE_CHECKING:
        # Else a type checker takes only the fields.
        def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    _refused: bool = PrivateAttr(default=False)

    def _api(self) -> _Api:
        return _chat_completions(self.model)


class CachingOpenAIResponses(_Caching, OpenAIResponses):
    """LlamaIndex's ``OpenAIResponses``, which also takes ``CachePoint`` blocks, as ``CachingOpenAI`` does.

    Args:
        **kwargs: Those of ``OpenAIResponses``.
    """

    if TYPE_CHECKING:

        def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    _refused: bool = PrivateAttr(default=False)

    def _api(self) -> _Api:
        return _responses()

    def structured_predict(
        self,
        output_cls: type[Any],
        prompt: PromptTemplate,
        llm_kwargs: dict[str, Any] | None = None,
        **prompt_args: Any,
    ) -> Any:
        """As for ``OpenAIResponses``."""
        plain, fields = self._split(prompt.format_messages(**prompt_args))
        given, formatted = llm_kwargs or {}, _Formatted(plain)
        parent = super().structured_predict
        return self._answer(fields, lambda fields: parent(output_cls, formatted, _with_fields(given, fields)))

    async def astructured_predict(
        self,
        output_cls: type[Any],
        prompt: PromptTemplate,
        llm_kwargs: dict[str, Any] | None = None,
        **prompt_args: Any,
    ) -> Any:
        """As for ``OpenAIResponses``."""
        plain, fields = self._split(prompt.format_messages(**prompt_args))
        given, formatted = llm_kwargs or {}, _Formatted(plain)
        parent = super().astructured_predict
        return await self._aanswer(fields, lambda fields: parent(output_cls, formatted, _with_fields(given, fields)))
