"""Asks a model with the options that it takes, within its window."""

from __future__ import annotations

import asyncio
import re
import sys
import weakref
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

from llama_index.core.constants import DEFAULT_CONTEXT_WINDOW

from llama_index_memory_ext.errors import is_about_words, status_of
from llama_index_memory_ext.models.responses import was_truncated

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from llama_index.core.base.llms.types import ChatMessage, ChatResponse
    from llama_index.core.llms import LLM


# The share of a window that our tokenizer may fill: 4,000 tokens of o200k_base were
# 4,531 of SmolLM2's.
_FILLED = 0.85


def context_window(llm: LLM) -> int | None:
    """Return the tokens of a model's window; None if it does not say, or says what LlamaIndex says for those that do not."""
    try:
        window = llm.metadata.context_window
    except Exception:  # noqa: BLE001 - LlamaIndex's classes refuse names that they do not know, each in its way
        return None
    if window > 0 and window != DEFAULT_CONTEXT_WINDOW:
        return window
    return None


def tokens_left(window: int | None, fixed: int) -> int | None:
    """Return the tokens of a window that are left beside ``fixed`` ones, by any tokenizer; None for an unknown window.

    >>> tokens_left(8_192, 1_000)
    5963
    """
    if window is None:
        return None
    return max(int(window * _FILLED) - fixed, 0)


# How a server names what it refuses.
_NAMED = {
    "max_tokens": re.compile(
        r"(?i)max_?(?:completion_?|output_?|new_?)?tokens|completion"
    ),
    "response_format": re.compile(r"(?i)response_?format|json_?schema|grammar"),
}
_TOOLS_REFUSED = re.compile(
    r"(?i)tool_?choice|(?:tools?\b|function.?call).{0,60}(?:support|require|enable|permit|allow)"
    r"|(?:support|unknown|unrecognized|unexpected).{0,60}(?:tools?\b|function)"
)
# By which servers answer to a field of a request that they do not take, or cannot use.
_REFUSED = frozenset({400, 422})
_NOT_ABLE = frozenset({400, 404, 422, 500, 501})
# Models whose thoughts count among the tokens of an answer, by their names.
_THINKS = re.compile(r"(?i)(?:^|[/:])(?:o[1-9]|gpt-[5-9])(?![^\W_])")

# What clients import at their first call, by the packages that do so; those of OpenAI
# are some 500 modules, which take a second.
_LATE = {
    "openai": ("openai.resources",),
    "httpx": ("httpcore", "anyio._backends._asyncio"),
}
_imported: set[str] = set()

# What each model is known to take, by the ids of the models, because models have no
# hash.
_known: dict[int, dict[str, bool]] = {}


def takes(llm: LLM, option: str) -> bool | None:
    """Return whether the server of a model has taken an option; None before it is known."""
    return _known.get(id(llm), {}).get(option)


def remember(llm: LLM, options: Sequence[str], *, taken: bool) -> None:
    """Remember, as long as the model lives, that its server has taken options, or has refused them."""
    if id(llm) not in _known:
        _known[id(llm)] = {}
        weakref.finalize(llm, _known.pop, id(llm), None)
    _known[id(llm)].update(dict.fromkeys(options, taken))


def is_openai_like(llm: LLM) -> bool:
    """Return whether this is LlamaIndex's class for OpenAI's chats, or derived from it; whoever has one has imported it."""
    module = sys.modules.get("llama_index.llms.openai")
    return (
        module is not None
        and isinstance(llm, module.OpenAI)
        and llm.metadata.is_chat_model
    )


def token_bound(llm: Any, tokens: int) -> dict[str, Any]:
    """Return the option that bounds an answer to so many tokens; {} for models of which it is not known that they take it.

    And for those that have a limit of their own, and those that count their thoughts.
    """
    if (
        not is_openai_like(llm)
        or llm.max_tokens is not None
        or _THINKS.search(llm.model)
    ):
        return {}
    if {"max_tokens", "max_completion_tokens"} & llm.additional_kwargs.keys():
        return {}
    return {"max_tokens": tokens}


async def ask_with(
    llm: LLM,
    options: Mapping[str, Any],
    ask: Callable[..., Awaitable[ChatResponse]],
    heard: list[ChatResponse],
) -> ChatResponse:
    """Return the answer when the model is asked with these options, but for those that the server refuses, now or before.

    All responses are added to ``heard``: a model whose thoughts have filled its answer
    is asked again without a bound.
    """
    left = {
        name: value for name, value in options.items() if takes(llm, name) is not False
    }
    refused = list[str]()
    await import_clients()
    while True:
        try:
            response = await ask(**left)
        except Exception as error:
            # What the server names, or else may mean: what was taken before is not
            # refused unnamed.
            named = [name for name in left if _NAMED[name].search(str(error))]
            # One that leaves no room for the words is no option that the server does
            # not know.
            if is_about_words(error):
                unknown = []
            else:
                unknown = [name for name in left if not takes(llm, name)]
            if status_of(error) not in _REFUSED or not (named or unknown):
                raise
            name = [*named, *unknown][0]
            refused += [] if is_about_words(error) else [name]
            del left[name]
            continue
        heard.append(response)
        if "max_tokens" not in left or not (
            was_truncated(response) and _has_thoughts(response.message)
        ):
            break
        refused.append("max_tokens")
        del left["max_tokens"]
    remember(llm, list(left), taken=True)
    remember(llm, refused, taken=False)
    return response


def _has_thoughts(message: ChatMessage) -> bool:
    return "<think" in (message.content or "") or any(
        block.block_type == "thinking" for block in message.blocks
    )


def refuses_tools(llm: LLM, error: BaseException) -> bool:
    """Return whether a server that has taken no tools so far refuses them with this error."""
    is_named = (
        status_of(error) in _NOT_ABLE and _TOOLS_REFUSED.search(str(error)) is not None
    )
    return is_named and not takes(llm, "tools")


async def import_clients() -> None:
    """Import what is still missing of the clients whose packages the program has imported."""
    names = [
        name for package in _LATE.keys() & sys.modules.keys() for name in _LATE[package]
    ]
    # A module is known to the interpreter before it is whole, and whoever imports it
    # then waits in the event loop.
    for name in names:
        if name not in _imported:
            # Of another version there may be no such module.
            with suppress(ImportError):
                await asyncio.to_thread(import_module, name)
            _imported.add(name)
