"""An index is that of its documents, whatever came, went and was asked before."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.search.operations import QUESTIONS, SENTENCES, WORDS, Index, Operation

TEXTS = st.one_of(
    st.sampled_from(SENTENCES),
    st.lists(st.sampled_from(WORDS), max_size=5).map(" ".join),
)
NUMBERS = st.integers(0, 9)
CHANGES = st.builds(Operation, st.lists(TEXTS, max_size=2).map(tuple), NUMBERS, NUMBERS)
ASKED = st.one_of(st.sampled_from(QUESTIONS), TEXTS)
LANGUAGES = st.sampled_from([None, ("de",), ("en", "fr"), ("ru", "fi", "es")])
# Two forms of a word, one of which goes with its last document; and documents that tell a language, and go.
DOGS = "Has dogs named Pepper and Panda", "Considers a dog in the city"
PREFERS = "Prefers tea", "Ela prefere chá", "Ele prefere café"
PREFERRED = "¿Qué prefiere?"


def asked_between(
    texts: tuple[str, ...], question: str, first: int, last: int
) -> list[Operation]:
    """Documents are made, a question is asked, and some of the documents are removed."""
    made = Operation(texts, 0, len(texts) - 1)
    return [made, Operation(question=question), Operation((), first, last)]


NEW_DOG = Operation(("Has a dog",), 2, 2)
HOUSES = [
    Operation(("Renoviert alte Häuser",), 1, 1),
    Operation(("Ich wohne nicht bei dem Händler",), 2, 8),
]


@given(
    st.lists(CHANGES | st.builds(Operation, question=ASKED), max_size=30),
    ASKED,
    LANGUAGES,
)
@example([*asked_between(DOGS, "Wo wohne ich?", 0, 1), NEW_DOG], "Which dogs?", None)
@example([*asked_between(DOGS, "I'm vegan now.", 0, 1), NEW_DOG], "Which dogs?", None)
@example(asked_between(PREFERS, PREFERRED, 1, 1), PREFERRED, ("es",))
@example(asked_between(PREFERS, PREFERRED, 1, 2), PREFERRED, ("es",))
@example([*HOUSES, Operation(question="Haus?"), Operation((), 2, 8)], "Haus?", None)
@settings(max_examples=50)
def test_an_index_is_as_one_made_anew_whatever_was_added_removed_and_asked(
    operations: list[Operation], question: str, languages: tuple[str, ...] | None
) -> None:
    index = Index(languages)
    for operation in operations:
        index.does(operation)
    assert index.differences(question) == 0
