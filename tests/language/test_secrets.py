"""Which texts hold a secret."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_memory_ext.language.secrets import holds_secret
from tests.language.texts import LONG, check_time


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
        "Redis://default:pw@h:1",
        "mongodb+srv://:p%40ss@cluster0.example",
        "My locker code's 4711",
        "The safe's combination is 12-34-56",
        "Mein Spindcode ist 0815",
        "La combinación de la caja fuerte es 9 4 2 1",
        "El código de la alarma: 8812#",
        "codes de secours: 1234-5678, 2345-6789",
        "Wiederherstellungscodes: ab12-cd34",
        "The recovery key is 4711-9922",
        "金庫の番号は4821です",
        "门禁码是 4821#",
        "Passport no. X4RTBPFW4",
        "護照號碼 312345678",
        "SSN 536 22 8746",
        "NINO: AB123456C",
        "Steuernummer 21/815/08150",
        "Numéro INSEE 185057800608436",
        "身份证号 11010519491231002X",
        "주민등록번호 900101-1234567",
        "CPF 123.456.789-09",
        "codice fiscale RSSMRA85T10A562S",
        "credentials: admin/hunter2",
        "Logs in with ann@example.com, hunter22",
        "Unlocks the tablet by 2580",
        "2FA seed jbsw y3dp ehpk 3pxp",
        "The key of the API is 550e8400-e29b-41d4-a716-446655440000",
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
        "Passport valid 2017-2027",
        "Passport expires 12.05.2027",
        "Call the embassy about the passport: +49 30 1234567",
        "The safe weighs 1200 kg",
        "Error code 5021 on the garage door opener",
        "My postal code is 28013, door B",
        "Has 120000 followers on social media",
        "Steuerberater ist Herr Maier, Tel. 030 1234567",
        "Login is via OAuth2",
        "The login page is localhost:8080/app",
        "Username is ann_1985",
        "Alarm rings at 0630",
        "sha256: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "门牌号 1204",
        "Ich war nie in 1000000 Städten",
        "Mein Schloss hat 1200 Zimmer",
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
