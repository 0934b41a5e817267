"""Which texts hold a secret."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_memory_ext.grounding.secrets import holds_secret
from tests.grounding.texts import LONG, check_time


@pytest.mark.parametrize(
    "text",
    [
        "My password is swordfish",
        "Passwort: Hase!99",
        "La contraseña es girasol77",
        "mon mot de passe : soleil2022",
        "密码是123456",
        "パスワードはneko2020",
        "пароль: zima2020",
        "the PIN for my card is 1234",
        "Our alarm code is 9917",
        "My 2FA code 493021",
        "My recovery codes are abcd-1234 efgh-5678",
        "seed phrase: legal winner thank year wave sausage worth useful legal winner thank yellow",
        "sk-proj-abcdefghijkl",
        "AKIAIOSFODNN7EXAMPLE",
        "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc",
        "client secret is 8Q~abcDEF123ghiJKL456mno",
        "-----BEGIN RSA PRIVATE KEY-----",
        "mysql://root:toor@10.0.0.5/db",
        "Amex 3782 822463 10005",
        "SSN is 078-05-1120",
        "IBAN GB29 NWBK 6016 1331 9268 19",
    ],
)
def test_secrets_are_found(text: str) -> None:
    assert holds_secret(text)


@pytest.mark.parametrize(
    "text",
    [
        "I use a password manager, 1Password",
        "Changes the password every 90 days",
        "The secret is patience",
        "Studies secret societies of 1780",
        "Works on token-based authentication",
        "Phone +49 170 1234567",
        "My zip code is 94110",
        "I see error code 5021",
        "Has a meeting 2025-11-20T10:30:00Z",
        "Uses https://github.com/run-llama/llama_index/issues/12345",
        "Commits on branch feature/PROJ-1234-login-page-2",
        "做面包的秘诀:密码是时间",
    ],
)
def test_what_only_looks_like_a_secret_is_none(text: str) -> None:
    assert not holds_secret(text)


@given(st.text())
def test_no_text_is_too_strange(text: str) -> None:
    assert holds_secret(text) in {True, False}


@pytest.mark.parametrize("kind", LONG)
def test_a_long_text_takes_no_longer(kind: str) -> None:
    check_time(holds_secret, kind)
