"""Requests to a model and its responses: windows, options that a server takes, cache points and used tokens."""

from __future__ import annotations

import logging
import re
import sys
import weakref
from dataclasses import astuple, dataclass
from functools import cache
from operator import add
from typing import TYPE_CHECKING, Any

from llama_index.core.base.llms.types import ChatMessage, ChatResponse, ToolCallBlock
from llama_index.core.constants import DEFAULT_CONTEXT_WINDOW
from llama_index.core.llms.mock import MockLLM
from llama_index.core.settings import Settings

from llama_index_memory_ext.errors import is_about_words, status_of
from llama_index_memory_ext.text.entries import message_tokens
from llama_index_memory_ext.text.messages import is_longer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from llama_index.core.llms.llm import LLM

    from llama_index_memory_ext.text.tokens import TokenCounter


logger = logging.getLogger(__name__)

# A provider, a gateway or a region may stand in front of a model's name
# ("openrouter/openai/", "us.anthropic."). "openai." may not: OpenAI on Bedrock has no
# documented cache points.
_GPT_NAME = re.compile(r"(?<![\w.-])gpt-(\d+)(?:\.(\d+))?(?!\w)")
_CLAUDE_NAME = re.compile(r"(?<![\w-])claude(?!-(?:2(?!\d)|v\d|instant))(?!\w)")
_NOVA_NAME = re.compile(r"(?<![\w-])nova-(?:micro|lite|pro|premier)(?!\w)")
_OPENAI_NAME = re.compile(r"(?<![\w-])(?:gpt-(?!oss)|o[134](?!\w))")


@cache
def _warn_once(warning: str, model_name: str) -> None:
    """Log a warning about a model once in a process for each name of a model."""
    logger.warning(warning, model_name)


def needs_cache_points(model_name: str) -> bool:
    """Return whether the prompt cache of a model finds a growing record only at cache points.

    OpenAI's models before GPT-5.6, DeepSeek, Gemini, vLLM and llama.cpp find the
    longest common beginning of two prompts. Claude finds nothing without marks (Claude
    2 and older has no cache), and Nova charges less only with them.

    Examples:
        >>> needs_cache_points("us.anthropic.claude-sonnet-4-5-20250929-v1:0")
        True
        >>> needs_cache_points("openai/gpt-5.10-mini"), needs_cache_points("gpt-5-2025-08-07")
        (True, False)
    """
    name = model_name.lower()
    for major, minor in _GPT_NAME.findall(name):
        # Azure writes GPT-3.5 without its point.
        if (int(major), int(minor or 0)) >= (5, 6) and major != "35":
            return True
    return bool(_CLAUDE_NAME.search(name) or _NOVA_NAME.search(name))


def takes_cache_points(model_name: str) -> bool:
    """Return False for OpenAI's models before GPT-5.6, which need no cache points and refuse them; else True."""
    return needs_cache_points(model_name) or not _OPENAI_NAME.search(model_name.lower())


def warn_without_cache_points(llm: LLM | None) -> None:
    """Log one warning in a process for each model that needs cache points, for a memory without them."""
    if llm is not None and needs_cache_points(name_of(llm)):
        _warn_once(
            "The prompt cache of %s finds the conversation of a CondensedMemory only at cache points, and this memory "
            "sends none. If such a model answers, each turn pays the whole conversation in full. Pass "
            "CondensedMemory.from_defaults(cache_points=True), for OpenAI with CachingOpenAI or CachingOpenAIResponses "
            "as the model, and for BedrockConverse cache_points=CacheControl(type='default').",
            name_of(llm),
        )


def llm_of_settings() -> LLM | None:
    """Return the model that the program has set as ``Settings.llm``; None if it has set none."""
    # The property would make an OpenAI model, which the program has not chosen.
    llm = Settings._llm  # noqa: SLF001
    # LlamaIndex stores a MockLLM for None.
    if type(llm) is MockLLM:
        return None
    return llm


def name_of(llm: LLM) -> str:
    """Return the name of a model, "" if it does not know it."""
    try:
        return llm.metadata.model_name
    except Exception:  # noqa: BLE001 - a model that is newer than its class has no metadata, and a hint must not fail
        return str(getattr(llm, "model", ""))


# OpenAI's names (Chat Completions, Responses), which other providers use, too, and the
# names of Bedrock, Gemini and Ollama.
_PROMPT = (
    "prompt_tokens",
    "input_tokens",
    "inputTokens",
    "prompt_token_count",
    "prompt_eval_count",
)
_COMPLETION = (
    "completion_tokens",
    "output_tokens",
    "outputTokens",
    "candidates_token_count",
    "eval_count",
)
# Anthropic and Bedrock count the tokens that their caches read or wrote apart from the
# tokens of the prompt.
_CACHED = (
    "cache_creation_input_tokens",
    "cache_read_input_tokens",
    "cacheWriteInputTokens",
    "cacheReadInputTokens",
)

# The names of OpenAI, Anthropic, Bedrock, Google, Mistral, Cohere and Ollama.
_REASONS = (
    "finish_reason",
    "stop_reason",
    "stopReason",
    "finishReason",
    "done_reason",
    "status",
)
_TRUNCATION_REASONS = frozenset(
    {
        "length",
        "max_tokens",
        "max_output_tokens",
        "model_length",
        "model_context_window_exceeded",
    }
)
_REFUSAL_REASONS = frozenset(
    {"content_filter", "refusal", "safety", "guardrail_intervened", "content_filtered"}
)
# Longer answers without reported tokens count as if they ended here: to count more
# would block the event loop.
_MOST_COUNTED = 50_000
_CHARACTERS_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class Usage:
    """Calls of a model and their tokens; two can be added.

    ``prompt_tokens``: cached tokens included.
    ``counted``: the calls whose provider reported no tokens. Our tokenizer has counted
    their texts.
    """

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    counted: int = 0

    def __add__(self, usage: Usage) -> Usage:
        return Usage(*map(add, astuple(self), astuple(usage)))


def usage_of(
    prompt: Sequence[ChatMessage], response: ChatResponse, counter: TokenCounter
) -> Usage:
    """Return the tokens of a call: from ``raw``, or counted by our tokenizer if the provider does not report them."""
    raw = response.raw
    for report in (
        _field(raw, "usage"),
        _field(raw, "usage_metadata"),
        raw,
        response.additional_kwargs,
    ):
        prompt_tokens = _first_count(report, _PROMPT)
        completion_tokens = _first_count(report, _COMPLETION)
        if prompt_tokens is not None and completion_tokens is not None:
            for name in _CACHED:
                prompt_tokens += _first_count(report, (name,)) or 0
            return Usage(1, prompt_tokens, completion_tokens)
    prompt_tokens = sum(message_tokens(message, counter) for message in prompt)
    answer = response.message
    arguments = [
        block.tool_kwargs for block in answer.blocks if isinstance(block, ToolCallBlock)
    ]
    if is_longer([answer.content, arguments, answer.additional_kwargs], _MOST_COUNTED):
        completion_tokens = _MOST_COUNTED // _CHARACTERS_PER_TOKEN
    else:
        completion_tokens = message_tokens(answer, counter)
    return Usage(1, prompt_tokens, completion_tokens, counted=1)


def finish_reason(response: ChatResponse) -> str:
    """Return why the model stopped, in lower case, in the provider's words; "" if the response does not say.

    The reason is looked for in ``raw``, then in the ``additional_kwargs`` of the
    response and of its message.
    """
    for place in (
        response.raw,
        response.additional_kwargs,
        response.message.additional_kwargs,
    ):
        reasons = [_field(_field(place, "incomplete_details"), "reason")]
        for part in (_choice(place), place):
            reasons += [_field(part, key) for key in _REASONS]
        reason = next(filter(None, reasons), None)
        if reason:
            # Google's reasons are members of an enumeration.
            return str(getattr(reason, "name", reason)).lower()
    return ""


def was_truncated(response: ChatResponse) -> bool:
    """Return whether a limit of tokens has cut the answer."""
    return finish_reason(response) in _TRUNCATION_REASONS


def was_refused(response: ChatResponse) -> bool:
    """Return whether the provider reports a ``refusal``, or a ``content_filter`` that stopped the model."""
    return finish_reason(response) in _REFUSAL_REASONS or bool(
        _field(_field(_choice(response.raw), "message"), "refusal")
    )


def _first_count(report: Any, names: Sequence[str]) -> int | None:
    for name in names:
        count = _field(report, name)
        if isinstance(count, int) and not isinstance(count, bool):
            return count
    return None


def _choice(place: Any) -> Any:
    """Return the first choice of a response; None if there is none."""
    choices = _field(place, "choices") or _field(place, "candidates")
    if isinstance(choices, list) and choices:
        return choices[0]
    return None


def _field(value: Any, name: str) -> Any:
    """Return a field of an object or an entry of a dict; None if there is none."""
    if isinstance(value, dict):
        return value.get(name)
    return getattr(value, name, None)


# OpenAI's server puts the conversation that these fields name in front of a request.
_EARLIER = frozenset({"previous_response_id", "conversation"})


def without_history(llm: LLM) -> LLM:
    """Return a copy of a model whose requests neither continue earlier ones nor are continued.

    Any other model is returned itself. An agent would see a question about facts in the
    chain of its responses. The tool call of that question has no result, so that the
    server would refuse the agent's next request.
    """
    options = getattr(llm, "additional_kwargs", None) or {}
    previous = getattr(llm, "_previous_response_id", None)
    if not (_tracks(llm) or previous or _EARLIER & options.keys()):
        return llm
    plain = {name: value for name, value in options.items() if name not in _EARLIER}
    changes: dict[str, Any] = {"additional_kwargs": plain}
    if _tracks(llm):
        # LlamaIndex makes the server store responses when it tracks them.
        changes |= {"track_previous_responses": False, "store": False}
    copy: Any = llm.model_copy(update=changes)
    if previous:
        copy._previous_response_id = None  # noqa: SLF001 - it is no field
    return copy  # type: ignore[no-any-return]


def warn_of_server_history(llm: LLM | None) -> None:
    """Log one warning in a process for each model whose server keeps the conversation, too."""
    if llm is not None and _tracks(llm):
        _warn_once(
            "With track_previous_responses=True the server of %s keeps the conversation, too: each prompt has it "
            "twice, and nothing that a CondensedMemory forgets or deletes is deleted there. Leave "
            "track_previous_responses out.",
            name_of(llm),
        )


def _tracks(llm: LLM) -> bool:
    """Return whether a model continues its last response, as LlamaIndex's ``OpenAIResponses`` can."""
    return bool(getattr(llm, "track_previous_responses", False))


# The share of a window that our tokenizer may fill: 4,000 tokens of o200k_base were
# 4,531 of SmolLM2's.
_WINDOW_SHARE = 0.85


def context_window(llm: LLM) -> int | None:
    """Return the tokens of a model's window; None if it is unknown, or LlamaIndex's default for unknown windows."""
    try:
        window = llm.metadata.context_window
    except Exception:  # noqa: BLE001 - LlamaIndex's classes refuse names that they do not know, each in its way
        return None
    if window > 0 and window != DEFAULT_CONTEXT_WINDOW:
        return window
    return None


def tokens_left(window: int | None, fixed: int) -> int | None:
    """Return the tokens of a window that remain beside ``fixed`` tokens, by any tokenizer; None for an unknown window.

    >>> tokens_left(8_192, 1_000)
    5963
    """
    if window is None:
        return None
    return max(int(window * _WINDOW_SHARE) - fixed, 0)


# The words of a server that refuses a limit of tokens.
_BOUND_REFUSED = re.compile(
    r"(?i)max_?(?:completion_?|output_?|new_?)?tokens|completion"
)
_TOOLS_REFUSED = re.compile(
    r"(?i)tool_?choice|(?:tools?\b|function.?call).{0,60}(?:support|require|enable|permit|allow)"
    r"|(?:support|unknown|unrecognized|unexpected).{0,60}(?:tools?\b|function)"
)
# Servers answer with these to a field of a request that they do not take.
_REFUSED = frozenset({400, 422})
# Servers answer with these to a tool that they cannot use.
_NOT_ABLE = frozenset({400, 404, 422, 500, 501})
# The names of models whose thoughts count among the tokens of an answer.
_THINKS = re.compile(r"(?i)(?:^|[/:])(?:o[1-9]|gpt-[5-9])(?![^\W_])")

_BOUND = "max_tokens"
# Whether a model's server takes an option, by the ids of the models: models have no
# hash.
_taken_options: dict[int, dict[str, bool]] = {}


def takes(llm: LLM, option: str) -> bool | None:
    """Return whether the server of a model takes an option; None before a request has shown it."""
    return _taken_options.get(id(llm), {}).get(option)


def remember(llm: LLM, option: str, *, accepted: bool) -> None:
    """Store, as long as the model lives, whether its server takes an option."""
    if id(llm) not in _taken_options:
        _taken_options[id(llm)] = {}
        weakref.finalize(llm, _taken_options.pop, id(llm), None)
    _taken_options[id(llm)][option] = accepted


def token_bound(llm: Any, tokens: int) -> dict[str, Any]:
    """Return the option that limits an answer to so many tokens; {} if the model may not take it.

    Only chat models of LlamaIndex's class ``OpenAI`` take it, and classes derived from it. {}
    also for a model with a limit in its settings, and for a model that counts its
    thoughts.
    """
    # A program with such a model has imported the class.
    module = sys.modules.get("llama_index.llms.openai")
    if module is None or not isinstance(llm, module.OpenAI):
        return {}
    if (
        not llm.metadata.is_chat_model
        or takes(llm, _BOUND) is False
        or llm.max_tokens is not None
        or _THINKS.search(llm.model)
        or {"max_tokens", "max_completion_tokens"} & llm.additional_kwargs.keys()
    ):
        return {}
    return {_BOUND: tokens}


async def ask_with(
    llm: LLM,
    ask: Callable[..., Awaitable[ChatResponse]],
    answer_tokens: int,
    responses: list[ChatResponse],
) -> ChatResponse:
    """Return the answer to a request, of at most so many tokens if the server takes such a limit.

    A model whose thoughts have filled its answer is asked again without a limit. All
    responses are added to ``responses``.
    """
    bound = token_bound(llm, answer_tokens)
    is_refused = False
    while True:
        try:
            response = await ask(**bound)
        except Exception as error:
            if not (bound and _refuses_bound(llm, error)):
                raise
            # A limit that leaves no room for these words is refused only this time.
            is_refused = not is_about_words(error)
        else:
            responses.append(response)
            if not (bound and _is_filled_by_thoughts(response)):
                break
            is_refused = True
        bound = {}
    # The server may refuse without a reason. The second request shows whether the bound
    # was the reason.
    if bound or is_refused:
        remember(llm, _BOUND, accepted=not is_refused)
    return response


def _refuses_bound(llm: LLM, error: Exception) -> bool:
    """Return whether a server may refuse a limit of tokens with this error, also without naming it."""
    if status_of(error) not in _REFUSED:
        return False
    if _BOUND_REFUSED.search(str(error)):
        return True
    return not (is_about_words(error) or takes(llm, _BOUND))


def _is_filled_by_thoughts(response: ChatResponse) -> bool:
    message = response.message
    return was_truncated(response) and (
        "<think" in (message.content or "")
        or any(block.block_type == "thinking" for block in message.blocks)
    )


def refuses_tools(llm: LLM, error: BaseException) -> bool:
    """Return whether a server that has taken no tools so far refuses them with this error."""
    return (
        status_of(error) in _NOT_ABLE
        and _TOOLS_REFUSED.search(str(error)) is not None
        and not takes(llm, "tools")
    )
