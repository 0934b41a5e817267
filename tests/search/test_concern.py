"""How much a text concerns a question."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_memory_ext.search.tfidf import Asked

DEPLOYS = "Deploys services to a Kubernetes cluster with Helm charts"


@pytest.mark.parametrize(
    ("question", "text"),
    [
        ("How do I roll out a change on kubernetes?", DEPLOYS),
        ("ok so I have been thinking about this and honestly I am not sure, should we do Kubernetes updates?", DEPLOYS),
        ("When did Caroline move?", "Caroline lives in Graz"),
        ("Which guitars do I own?", "Bought a guitar"),
        ("我喜欢喝什么茶", "喜欢绿茶"),
        ("Womit deploye ich auf Kubernetes?", DEPLOYS),
    ],
)
def test_a_rare_word_in_common_is_enough(question: str, text: str) -> None:
    assert Asked(question).concern(text) >= 0.5


@pytest.mark.parametrize(
    ("question", "text"),
    [
        ("What are my writing preferences?", "Prefers composition over inheritance"),
        ("What do you think of my work?", "Works at a school, and thinks of moving"),
        ("How is the weather?", "Is allergic to nuts"),
        ("", DEPLOYS),
        ("?", ""),
        ("你好吗", "喜欢绿茶"),
    ],
)
def test_common_words_in_common_are_not(question: str, text: str) -> None:
    assert Asked(question).concern(text) < 0.5


def test_words_of_the_turns_before_count_half() -> None:
    before, now = Asked("And then?", ["Kubernetes is down."]), Asked("And then? Kubernetes is down.")
    assert 0 < before.concern("Uses Kubernetes") < now.concern("Uses Kubernetes")
    assert Asked("Kubernetes?", ["Kubernetes is down."]).concern("Uses Kubernetes") == Asked("Kubernetes?").concern(
        "Uses Kubernetes"
    )


@given(question=st.text(), text=st.text(), other=st.text())
def test_any_texts_can_be_compared(question: str, text: str, other: str) -> None:
    """More words have no less in common."""
    asked = Asked(question)
    assert 0 <= asked.concern(text) <= 1
    assert asked.concern(f"{text}\n{other}") >= asked.concern(text)
