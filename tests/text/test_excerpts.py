"""The part of a long text that has the words of a question."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from llama_index_memory_ext import TokenCounter
from llama_index_memory_ext.search.tokenization import terms_of
from llama_index_memory_ext.text.excerpts import excerpt
from llama_index_memory_ext.text.tokens import as_counter

COUNTER = TokenCounter()
DULL = " ".join(f"Sentence {i} is about nothing much." for i in range(300))
LONG = f"{DULL} The order number is 4711. {DULL}"


def asked(text: str, question: str, limit: int = 60) -> str:
    return excerpt(text, limit, COUNTER, set(terms_of(question)), terms_of)


def test_a_short_text_comes_back_whole() -> None:
    assert asked("The order number is 4711.", "anything") == "The order number is 4711."


def test_the_sentences_with_the_words_of_the_question_are_shown() -> None:
    """Wherever they stand; marks say where the text goes on."""
    shown = asked(LONG, "What was my order number?")
    assert "The order number is 4711." in shown
    assert shown.startswith("[...] ")
    assert shown.endswith(" [...]")
    assert asked(f"The order number is 4711. {DULL}", "order").startswith("The order number is 4711.")
    assert asked(f"{DULL} The order number is 4711.", "order").endswith("The order number is 4711.")


def test_more_words_of_the_question_are_better() -> None:
    text = f"An order came. {DULL} The order number is 4711. {DULL} A number was called."
    assert "4711" in asked(text, "order number")


def test_lines_and_chinese_sentences_are_parts_too() -> None:
    code = "\n".join(f"def function_{i}(): pass" for i in range(200))
    assert "def function_77(): pass" in asked(code, "what does function_77 do? 77")
    chinese = "这句话没有意思。" * 300 + "护照在蓝色的抽屉里。" + "这句话没有意思。" * 300
    assert "护照在蓝色的抽屉里。" in asked(chinese, "护照在哪里?")


def test_without_a_word_in_common_the_two_ends_are_shown() -> None:
    assert "tokens left out" in asked(LONG, "sunshine")
    assert "tokens left out" in asked("x" * 9_000, "")


@given(
    parts=st.lists(st.sampled_from(["tea. ", "milk\n", "coffee ", "x" * 900, "日本。", " ", "a\n\n"]), max_size=40),
    limit=st.integers(-3, 120),
    question=st.sampled_from(["tea", "milk coffee", "日本", "", "nothing"]),
    per_character=st.booleans(),
)
def test_it_never_exceeds_the_limit(parts: list[str], limit: int, question: str, per_character: bool) -> None:
    counter = as_counter(lambda text: [0, *map(ord, text)]) if per_character else COUNTER
    shown = excerpt("".join(parts), limit, counter, set(terms_of(question)), terms_of)
    assert not shown or counter.count(shown) <= limit
