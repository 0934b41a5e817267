"""Which names of a statement were not said."""

from __future__ import annotations

import pytest

from llama_index_memory_ext.checks.additions import missing_names, shares_word
from tests.words import rows

SAID = (
    "I live in new york with Anna, our three kids and a fish. At work I use Next.js, k8s, postgres and R&D budgets, "
    "we all speak german there and like Beyonce."
)


@pytest.mark.parametrize(
    "statement",
    [
        "Lives in New York", "Knows Anna's taste", "Builds Next.js-based sites", "Uses Kubernetes and PostgreSQL",
        "Works in R&D",
        "Speaks German", "Knows Germans", "Listens to Beyoncé", "Meets on Monday", "Anna is a friend", "Sings. Dances",
        "Knows what I'd say", "Birthday is in May", "Hobby is a game",
    ],
)  # fmt: skip
def test_names_that_were_said_in_some_form_stand(statement: str) -> None:
    assert missing_names(statement, SAID) == []


@pytest.mark.parametrize(
    ("statement", "source", "invented"),
    [
        ("Lives in New York with Bob", SAID, ["Bob"]),
        ("Works for ACME in Boston", SAID, ["ACME", "Boston"]),
        ("Has a dog named Rex", "I have a dog", ["Rex"]),
        ("Arbeitet bei BMW", "Ich arbeite bei einem Autobauer", ["BMW"]),
        ("在腾讯上班", "我在一家互联网公司上班", ["腾讯"]),
        ("妹妹叫小红", "我有一个妹妹", ["小红"]),
        ("妹の名前は花子", "妹がいます", ["花子"]),
        ("トヨタで働いている", "自動車会社で働いています", ["トヨタ"]),
        ("在Google工作", "我在一家公司工作", ["Google"]),
        ("Живёт в Париже", "Я живу в Москве", ["Париже"]),
    ],
)
def test_invented_names_are_missing(
    statement: str, source: str, invented: list[str]
) -> None:
    missing = missing_names(statement, source)
    assert missing[: len(invented)] == invented


@pytest.mark.parametrize(("statement", "source"), rows("names"))
def test_names_may_be_shortened_inflected_or_in_another_language(
    statement: str, source: str
) -> None:
    assert missing_names(statement, source) == []


def test_a_name_may_be_known_from_before() -> None:
    assert (
        missing_names("Visits Bob", "I visit my brother", "Has a brother named Bob")
        == []
    )


def test_a_name_is_shared_in_any_form() -> None:
    assert shares_word("Moved to Geneva", "Ich bin nach Genf gezogen")
    assert not shares_word("Moved to Geneva", "Ich bin nach Rom gezogen")
