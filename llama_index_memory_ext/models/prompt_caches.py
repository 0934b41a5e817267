"""Prompt caches: which families of models find the record only at cache points."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llama_index.core.llms.llm import LLM


logger = logging.getLogger(__name__)

_GPT = "OpenAI's GPT-5.6 and later"
_CLAUDE = "Anthropic's Claude"
_NOVA = "Amazon's Nova"
# A provider, a gateway or a region may stand in front of a model's name
# ("openrouter/openai/", "us.anthropic."). "openai." may not: OpenAI on Bedrock has no
# documented cache points.
_GPT_NAME = re.compile(r"(?<![\w.-])gpt-(\d+)(?:\.(\d+))?(?!\w)")
_CLAUDE_NAME = re.compile(r"(?<![\w-])claude(?!-(?:2(?!\d)|v\d|instant))(?!\w)")
_NOVA_NAME = re.compile(r"(?<![\w-])nova-(?:micro|lite|pro|premier)(?!\w)")
_OPENAI_NAME = re.compile(r"(?<![\w-])(?:gpt-(?!oss)|o[134](?!\w))")
_warned: set[str] = set()


def needs_cache_points(model_name: str) -> str | None:
    """Return the model family if its prompt cache finds a growing record only at cache points, else None.

    OpenAI's models before GPT-5.6, DeepSeek, Gemini, vLLM and llama.cpp find the
    longest common beginning of two prompts. Claude finds nothing without marks (Claude
    2 and older has no cache), and Nova charges less only with them.

    Examples:
        >>> needs_cache_points("us.anthropic.claude-sonnet-4-5-20250929-v1:0")
        "Anthropic's Claude"
        >>> needs_cache_points("openai/gpt-5.10-mini")
        "OpenAI's GPT-5.6 and later"
        >>> needs_cache_points("gpt-5-2025-08-07") is None
        True
    """
    name = model_name.lower()
    for major, minor in _GPT_NAME.findall(name):
        # Azure writes GPT-3.5 without its point.
        if (int(major), int(minor or 0)) >= (5, 6) and major != "35":
            return _GPT
    if _CLAUDE_NAME.search(name):
        return _CLAUDE
    return _NOVA if _NOVA_NAME.search(name) else None


def takes_cache_points(model_name: str) -> bool:
    """Return False for OpenAI's models before GPT-5.6, which need no cache points and refuse them; else True."""
    return needs_cache_points(model_name) is not None or not _OPENAI_NAME.search(
        model_name.lower()
    )


def how_to_mark(family: str) -> str:
    """Return the settings with which a family of models finds the record in its cache."""
    marks = "CondensedMemory.from_defaults(cache_points=True)"
    if family == _GPT:
        return f"{marks}, with CachingOpenAI or CachingOpenAIResponses as the model"
    bedrock = "CondensedMemory.from_defaults(cache_points=CacheControl(type='default'))"
    if family == _NOVA:
        return bedrock
    return f"{marks}, or {bedrock} for BedrockConverse"


def warn_without_cache_points(llm: LLM | None) -> None:
    """Log one warning in a process for each family of models that needs cache points, for a memory without them."""
    if llm is None:
        return
    family = needs_cache_points(name_of(llm))
    if family is not None and family not in _warned:
        _warned.add(family)
        logger.warning(
            "The prompt caches of %s find the conversation of a CondensedMemory only at cache points, and this memory "
            "sends none. If such a model answers, each turn pays the whole conversation in full. Pass %s.",
            family,
            how_to_mark(family),
        )


def name_of(llm: LLM) -> str:
    """Return the name of a model, "" if it does not know it."""
    try:
        return llm.metadata.model_name
    except Exception:  # noqa: BLE001 - a model that is newer than its class has no metadata, and a hint must not fail
        return str(getattr(llm, "model", ""))
