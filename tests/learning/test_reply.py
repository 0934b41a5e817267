"""How a model's reply is read, however untidy it is."""

from __future__ import annotations

import contextlib
import json
import pickle
import re
import time
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from llama_index_memory_ext.errors import FactReplyError
from llama_index_memory_ext.learning.categories import read_category
from llama_index_memory_ext.learning.reply import NewFact
from tests.learning.learning import parse_reply as facts_in

TEA: dict[str, Any] = {
    "message": 1,
    "quote": "I prefer tea",
    "fact": "Prefers tea",
    "category": "preference",
    "confidence": 0.8,
    "ends": 3,
}
CATS: dict[str, Any] = {"message": 2, "quote": "my 2 cats", "fact": "Has 2 cats"}
FACTS = [TEA, CATS]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


def test_an_entry_that_only_ends_a_known_fact_states_nothing() -> None:
    reply = facts_in(json.dumps([{"quote": "no more tea", "ends": 3}, TEA]))
    assert [(entry.content, entry.ends) for entry in reply] == [
        ("", 3),
        ("Prefers tea", 3),
    ]


def contents(facts: list[NewFact]) -> list[str]:
    return [fact.content for fact in facts]


def test_a_reply_is_read_whole() -> None:
    """What the form leaves to the model has a default."""
    tea, cats = facts_in(json.dumps(FACTS))
    assert (tea.quote, tea.content) == ("I prefer tea", "Prefers tea")
    assert (tea.category, tea.confidence, tea.ends) == ("preference", 0.8, 3)
    assert (cats.category, cats.confidence, cats.ends) == ("knowledge", 0.9, 0)


def test_a_fact_without_a_statement_says_what_its_quote_says() -> None:
    for statement in ({}, {"fact": ""}, {"fact": "none"}, {"fact": None}):
        (fact,) = facts_in(json.dumps([{"quote": "I prefer\n tea", **statement}]))
        assert fact.content == "I prefer tea"


LIST = json.dumps(FACTS)
WIDE = json.dumps(FACTS, indent=1)
REPLY = json.dumps({"facts": FACTS})


def renamed(**names: str) -> str:
    return json.dumps(
        [{names.get(key, key): value for key, value in fact.items()} for fact in FACTS]
    )


@pytest.mark.parametrize(
    "text",
    [
        LIST,
        f"```json\n{WIDE}\n```",
        f"Sure, here is what I found [1]:\n\n{WIDE}\n\nI left out {{secrets}}.",
        f'<think>The form is [{{"quote": "Bad"}}].</think>{WIDE}',
        f"<think>So far {LIST}",
        "\ufeff" + LIST,
        LIST[:-1],
        LIST[1:-1],
        f"{LIST}]",
        json.dumps(LIST),
        json.dumps(json.dumps(WIDE)),
        "\n".join(map(json.dumps, FACTS)),
        f"[]\n{LIST}",
        REPLY,
        REPLY[:-1],
        f"{REPLY}}}",
        json.dumps([{"facts": FACTS}]),
        json.dumps({"result": {"facts": FACTS}}),
        json.dumps({"arguments": json.dumps(REPLY)}),
        json.dumps({"facts": LIST}),
        json.dumps({"new_facts": FACTS, "confirmed": [], "retired": []}),
        json.dumps({"text": "Here are the facts:", "facts": FACTS}),
        json.dumps({"newFacts": dict(zip(("n1", "n2"), FACTS, strict=True))}),
        json.dumps({"facts": {"preference": [TEA], "context": [CATS]}}),
        f'<invoke name="report_facts"><parameter name="facts">{LIST}</parameter></invoke>',
        renamed(fact="statement", quote="source_quote", confidence="score"),
        renamed(fact="content", quote="evidence"),
        json.dumps([{**fact, "quote": [fact["quote"]]} for fact in FACTS]),
        json.dumps([{**fact, "said_as": "user", "about": 7} for fact in FACTS]),
    ],
)
def test_a_reply_is_read_in_the_forms_that_models_give_it(text: str) -> None:
    facts = facts_in(text)
    assert contents(facts) == ["Prefers tea", "Has 2 cats"]
    assert [fact.quote for fact in facts] == ["I prefer tea", "my 2 cats"]


@pytest.mark.parametrize(
    "text",
    [
        repr(FACTS),
        LIST.replace("}]", "},]"),
        LIST.replace("}, {", "} {"),
        re.sub(r'"(\w+)":', r"\1:", WIDE),
        WIDE.replace('"fact"', '// said\n"fact"'),
        f"report_facts(facts={FACTS!r})",
        json.dumps({"facts": repr(FACTS)}),
    ],
)
def test_broken_json_is_mended(text: str) -> None:
    assert contents(facts_in(text)) == ["Prefers tea", "Has 2 cats"]


@pytest.mark.parametrize(
    "frame", ["{}", "```json\n{}\n```", "Here they are: {} That is all."]
)
def test_a_long_reply_is_read_whole_with_text_around_it(frame: str) -> None:
    facts = []
    for number in range(180):
        bicycles = f"{number} red bicycles"
        facts.append({"quote": f"I own {bicycles}", "fact": f"Owns {bicycles}"})
    text = json.dumps(facts)
    assert len(text) > 12_000
    assert contents(facts_in(frame.format(text))) == [fact["fact"] for fact in facts]


@pytest.mark.parametrize(
    "cut",
    ['{"message": 2, "quo', '{"quote": "my 2', '{"quote": "my 2 cats", "fact": "Has 2 c', '{"quote": "my 2 cats"'],
)  # fmt: skip
def test_of_a_fact_that_was_cut_off_nothing_is_taken(cut: str) -> None:
    assert contents(facts_in(f"[{json.dumps(TEA)}, {cut}")) == ["Prefers tea"]
    for text in (f"[{cut}", json.dumps({"facts": f"[{cut}"})):
        with pytest.raises(FactReplyError):
            facts_in(text)


@pytest.mark.parametrize(
    "text",
    ["", "  \n", "{}", "[]", "```json\n[]\n```", "null", "None.", "No new facts.", "There are no new facts to report.",
     "Nothing new.", "<think>Hm.</think>", '{"facts": null}', '{"facts": "none"}', '{"new_facts": [], "retired": []}',
     "没有新的事实。", "新しい事実はありません。"],
)  # fmt: skip
def test_nothing_new_is_a_reply(text: str) -> None:
    assert facts_in(text) == []


@pytest.mark.parametrize(
    "text",
    ["I cannot help with that.", "No, I will not do that for you.", "{", "[1, 2]", '{"error": "overloaded"}',
     "[" * 50_000, '{"facts": [{"fact": "Pref', "[{" * 5_000, "7", '"text"', '{"error": {"message": 429}}'],
)  # fmt: skip
def test_what_is_no_reply_is_refused(text: str) -> None:
    """The error tells no word of it, and is the same in another process."""
    with pytest.raises(FactReplyError, match=r"there is none \(.+\)\.") as refused:
        facts_in(text)
    error = refused.value
    assert error.reply == text
    assert f"{len(text)} characters" in str(error)
    assert "overloaded" not in f"{error!s} {error!r} {error.args}"
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.problem, copy.reply) == (error.problem, text)


@pytest.mark.parametrize(
    "text",
    [
        '"\\' * 500_000, '{"a":' * 200_000, "[1," * 300_000, '"{' * 500_000, '{"' * 500_000,
        "[/*" * 300_000, "[{}," * 250_000, '{"a":"' + '", a' * 250_000, "{'a':'" + "'a:" * 300_000,
        '["' + "x" * 1_000_000, "[" * 900 + '"' + "x" * 1_000_000, '{"' * 3_900 + "}",
    ],
)  # fmt: skip
def test_a_reply_made_to_be_slow_to_read_is_refused_soon(text: str) -> None:
    before = time.process_time()
    with pytest.raises(FactReplyError):
        facts_in(text)
    assert time.process_time() - before < 6


NO_CONFIDENCES: list[Any] = [
    True, "", "sure", "NaN", "not high", "< 0.9", "9/0", -1, "-0.9", 10**400, 1e9, float("nan"),
    float("inf"), [0.9], {},
]  # fmt: skip


@pytest.mark.parametrize(
    ("written", "read"),
    [(0.9, 0.9), (1, 1.0), ("0.8", 0.8), ("90%", 0.9), (85, 0.85), ("high", 0.9), ("low", 0.3), ("0,95", 0.95),
     (".9", 0.9), (None, 0.9), ("None", 0.9), *((bad, 0.0) for bad in NO_CONFIDENCES)],
)  # fmt: skip
def test_confidence_is_read_in_the_ways_models_write_it(
    written: Any, read: float
) -> None:
    """A model that gives none means what it reports."""
    assert NewFact.model_validate({"confidence": written}).confidence == read
    assert NewFact.model_validate({}).confidence == 0.9


@pytest.mark.parametrize(
    "number", [None, True, -1, "-1", "one", 1.5, [], {}, "1 | 2", 10**30]
)
def test_what_names_no_fact_has_the_number_0(number: Any) -> None:
    assert NewFact.model_validate({"ends": number}).ends == 0


NOTHINGS = [
    "",
    " \n",
    "unknown",
    "Unknown.",
    "None",
    "null",
    "n/a",
    "N.A.",
    "not specified",
    "No facts.",
]
SAID = [
    "C#",
    "\U0001f375",
    "Is unknown to his neighbours",
    "None of her friends smoke",
    "User interface work is fun",
]


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("The user prefers tea", "Prefers tea"),
        ("User's name is Ann", "Name is Ann"),
        ("用户喜欢喝茶", "喜欢喝茶"),
        ("Prefers\n tea", "Prefers tea"),
        *((nothing, "") for nothing in NOTHINGS),
        *((said, said) for said in SAID),
    ],
)
def test_a_statement_is_one_line_without_a_subject_and_says_something(
    written: str, read: str
) -> None:
    assert NewFact.model_validate({"content": written}).content == read


@pytest.mark.parametrize(
    ("written", "read"),
    [("Goal", "goal"), ("hobby|habit", "knowledge"), ("goal | context", "knowledge"), ("behaviour", "behavior"),
     ("preferences", "preference"), (None, "knowledge"), (7, "knowledge"), (["goal"], "knowledge")],
)  # fmt: skip
def test_a_category_is_one_of_those_that_there_are(written: Any, read: str) -> None:
    """Alternatives, copied from a form, are none."""
    assert read_category(written) == read


@example(bad={"quote": "I wrote </think>"}, place=2)
@given(bad=json_values, place=st.integers(0, 2))
def test_no_entry_spoils_the_others(bad: Any, place: int) -> None:
    facts: list[Any] = [TEA, CATS]
    facts.insert(place, bad)
    assert {"Prefers tea", "Has 2 cats"} <= set(contents(facts_in(json.dumps(facts))))


manglings = st.one_of(
    st.tuples(st.just("cut"), st.integers(1, len(LIST)), st.just("")),
    st.tuples(
        st.just("insert"),
        st.integers(0, len(LIST)),
        st.text(max_size=5) | st.sampled_from('{}[]",:\\\n'),
    ),
    st.tuples(st.just("drop"), st.integers(0, len(LIST)), st.just("")),
)


@given(
    st.just(LIST) | json_values.map(json.dumps),
    st.lists(manglings, max_size=4),
    st.text(max_size=20),
    st.text(max_size=20),
)
def test_any_mangled_reply_is_read_or_refused(
    text: str, slips: list[tuple[str, int, str]], before: str, after: str
) -> None:
    for kind, place, inserted in slips:
        text = text[:place] + (
            "" if kind == "cut" else inserted + text[place + (kind == "drop") :]
        )
    with contextlib.suppress(FactReplyError):
        assert all(
            0 <= fact.confidence <= 1 for fact in facts_in(before + text + after)
        )


@given(st.integers(0, len(LIST)))
def test_a_cut_reply_gives_what_is_whole_or_is_refused(place: int) -> None:
    """It is never taken for nothing new, for then what was cut off would be lost for good."""
    if LIST[:place].strip():
        try:
            facts = facts_in(LIST[:place])
        except FactReplyError:
            return
        assert facts
        assert set(contents(facts)) <= {"Prefers tea", "Has 2 cats"}
