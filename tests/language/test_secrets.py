"""Which texts hold a secret."""

from __future__ import annotations

import pytest

from llama_index_memory_ext.language.secrets import holds_secret
from tests.language import cases


@pytest.mark.parametrize(
    "text",
    cases("secrets.txt")["secret"],
)
def test_secrets_are_found(text: str) -> None:
    assert holds_secret(text)


@pytest.mark.parametrize(
    "text",
    cases("secrets.txt")["harmless"],
)
def test_what_only_looks_like_a_secret_is_none(text: str) -> None:
    assert not holds_secret(text)
