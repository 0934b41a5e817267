"""How much a text concerns a question."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_memory_ext.facts.concern import question_shares

OTHERS = {
    str(i): text
    for i, text in enumerate(
        (
            "Works in Oslo",
            "Writes letters by hand",
            "Prefers to think aloud",
            "Likes short walks",
        )
    )
}
DEPLOYS = "Deploys services to a Kubernetes cluster with Helm charts"


def concern_of(question: str, text: str, *context: str) -> float:
    """How much a text concerns a question, without others beside it."""
    return question_shares({"": text, **OTHERS}, question, context).get("", 0.0)


@pytest.mark.parametrize(
    ("question", "text"),
    [
        ("How do I roll out a change on kubernetes?", DEPLOYS),
        (
            "ok so I have been thinking about this and honestly I am not sure, should we do Kubernetes updates?",
            DEPLOYS,
        ),
        ("When did Caroline move?", "Caroline lives in Graz"),
        ("Which guitars do I own?", "Bought a guitar"),
        ("我喜欢喝什么茶", "喜欢绿茶"),
        ("Womit deploye ich auf Kubernetes?", DEPLOYS),
        # Common words, which are most of a short question.
        ("Where do I live?", "Lives in Graz"),
        ("When do I sleep?", "Sleeps late"),
    ],
)
def test_a_rare_word_or_most_words_in_common_are_enough(
    question: str, text: str
) -> None:
    assert concern_of(question, text) >= 0.5


@pytest.mark.parametrize(
    ("question", "text"),
    [
        ("What are my writing preferences?", "Prefers composition over inheritance"),
        ("What do you think of my work?", "Works at a school"),
        ("Write it once more, but this time shorter", "The API is written in Go"),
        ("How is the weather?", "Is allergic to nuts"),
        ("", DEPLOYS),
        ("?", ""),
        ("你好吗", "喜欢绿茶"),
    ],
)
def test_common_words_in_common_are_not(question: str, text: str) -> None:
    assert concern_of(question, text) < 0.5


def test_words_of_the_turns_before_count_for_a_question_without_words() -> None:
    down = "Kubernetes is down."
    assert concern_of("And then?", "Uses Kubernetes", down) > 0
    assert concern_of("Kubernetes?", "Uses Kubernetes", down) == concern_of(
        "Kubernetes?", "Uses Kubernetes"
    )


def test_a_part_of_what_another_text_has_in_common_is_not_enough() -> None:
    texts = {
        "runs": "The server heron runs Ubuntu",
        "memory": "The server heron has 128 GB",
        "other": "Runs at dawn",
    }
    assert set(question_shares(texts, "What runs on heron?")) == {"runs"}
    assert set(question_shares(texts, "Tell me all about heron")) == {"runs", "memory"}
    del texts["runs"]
    assert set(question_shares(texts, "What runs on heron?")) == {"memory", "other"}


def test_a_word_that_no_text_has_finds_what_is_related_to_it() -> None:
    texts = {"ill": "Has asthma", "home": "Lives in Graz"}
    question = "Which illnesses do I have?"
    assert question_shares(texts, question)["ill"] >= 0.5
    assert set(question_shares(texts | {"word": "Her illness is over"}, question)) == {
        "word"
    }


@given(question=st.text(), text=st.text(), other=st.text())
def test_any_texts_can_be_compared(question: str, text: str, other: str) -> None:
    """More words have no less in common."""
    assert 0 <= concern_of(question, text) <= 1
    both = question_shares({"": text, "more": f"{text}\n{other}"}, question)
    assert both.get("more", 0) >= both.get("", 0)
