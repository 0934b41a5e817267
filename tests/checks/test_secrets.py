"""Which texts hold a secret."""

from __future__ import annotations

import pytest

from llama_index_memory_ext.checks.secrets import holds_secret
from tests.words import cases

CASES = [(kind, text) for kind, texts in cases("secrets.txt").items() for text in texts]


@pytest.mark.parametrize(("kind", "text"), CASES)
def test_secrets_are_found_and_what_only_looks_like_one_is_not(
    kind: str, text: str
) -> None:
    assert holds_secret(text) is (kind == "secret")


def test_a_secret_in_wide_letters_is_found() -> None:
    assert holds_secret(
        "My \uff50\uff41\uff53\uff53\uff57\uff4f\uff52\uff44 is kutya12"
    )
    assert not holds_secret("My \uff43\uff41\uff54 is kutya12")
