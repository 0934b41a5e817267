"""How a model's reply is read, however untidy it is."""

from __future__ import annotations

import contextlib
import json
import pickle
import re
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_memory_ext.errors import FactReplyError
from llama_index_memory_ext.learning.reply import (
    ExtractionReply,
    NewFact,
    Retirement,
    parse_reply,
)

FIELDS = (
    "label",
    "content",
    "category",
    "confidence",
    "quote",
    "said_as",
    "about",
    "valid_from",
    "valid_until",
)
TEA: dict[str, Any] = dict(
    zip(
        FIELDS,
        (
            "n1",
            "Prefers tea",
            "preference",
            0.9,
            "I prefer tea",
            "stated",
            "user",
            "2019",
            "",
        ),
        strict=True,
    )
)
CATS: dict[str, Any] = dict(
    zip(
        FIELDS,
        (
            "n2",
            "Has 2 cats",
            "knowledge",
            0.8,
            "my 2 cats",
            "stated",
            "user",
            "",
            "2023-05-17",
        ),
        strict=True,
    )
)
RETIRED: dict[str, Any] = {
    "number": 3,
    "reason": "moved on",
    "replaced_by": "n1",
    "quote": "no longer coffee",
    "said_as": "denied",
    "valid_until": "2025-11",
}
FACTS = [TEA, CATS]
REPLY: dict[str, Any] = {"new_facts": FACTS, "confirmed": [1, 2], "retired": [RETIRED]}
NOTHING = ExtractionReply.model_validate({})

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


def contents(reply: ExtractionReply) -> list[str]:
    return [fact.content for fact in reply.new_facts if fact.content]


def test_a_reply_is_read_whole() -> None:
    reply = parse_reply(json.dumps(REPLY))
    assert [fact.model_dump() for fact in reply.new_facts] == [TEA, CATS]
    assert [entry.number for entry in reply.confirmed] == [1, 2]
    assert [entry.model_dump() for entry in reply.retired] == [RETIRED]


WHOLE = json.dumps(REPLY, indent=1)
TIGHT = json.dumps(REPLY)
LIST = json.dumps(FACTS)


@pytest.mark.parametrize(
    "text",
    [
        f"```json\n{WHOLE}\n```",
        f"Sure, here is what I found [1]:\n\n{WHOLE}\n\nI left out {{secrets}}.",
        f'<think>The form is {{"new_facts": [{{"content": "Bad"}}]}}.</think>{WHOLE}',
        json.dumps({"result": REPLY}),
        json.dumps({"input": TIGHT}),
        json.dumps([REPLY]),
        json.dumps({**REPLY, "new_facts": LIST}),
        json.dumps(
            {"facts": FACTS, "confirmations": ["1", "#2"], "retirements": [RETIRED]}
        ),
        json.dumps({**REPLY, "confirmed": ["1", {"number": 2}], "retired": RETIRED}),
        "\ufeff" + WHOLE,
    ],
)
def test_what_stands_around_a_reply_does_not_matter(text: str) -> None:
    assert parse_reply(text) == parse_reply(WHOLE)


def renamed(**names: str) -> str:
    return json.dumps(
        {
            "new_facts": [
                {names.get(key, key): value for key, value in fact.items()}
                for fact in FACTS
            ]
        }
    )


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(TIGHT),
        json.dumps(json.dumps(WHOLE)),
        json.dumps({"arguments": json.dumps(TIGHT)}),
        TIGHT[:-1],
        TIGHT[1:-1],
        f"{TIGHT}}}",
        f"<think>So far {TIGHT}",
        f'<invoke name="report_facts"><parameter name="new_facts">{LIST}</parameter></invoke>',
        f"<tool_call>report_facts <arg_key>newFacts</arg_key> <arg_value>{LIST}</arg_value></tool_call>",
        f"I use {{new_facts: [...]}}:\n{TIGHT}",
        f'{{"new_facts": []}}\n{TIGHT}',
        LIST,
        "\n".join(map(json.dumps, FACTS)),
        json.dumps({"newFacts": FACTS}),
        json.dumps({"items": FACTS}),
        json.dumps({"data": {"memories": FACTS}}),
        json.dumps({"new_facts": dict(zip(("n1", "n2"), FACTS, strict=True))}),
        json.dumps({"facts": {"preference": [TEA], "context": [CATS]}}),
        renamed(content="statement", quote="sourceQuote", confidence="score"),
        renamed(content="fact", quote="evidence"),
        json.dumps(
            {"new_facts": [{**fact, "quote": [fact["quote"]]} for fact in FACTS]}
        ),
    ],
)
def test_a_reply_is_read_in_the_forms_that_models_give_it(text: str) -> None:
    reply = parse_reply(text)
    facts = [fact.model_dump(exclude={"label", "category"}) for fact in reply.new_facts]
    assert facts == [
        {key: fact[key] for key in fact if key not in ("label", "category")}
        for fact in FACTS
    ]
    assert len({fact.label for fact in reply.new_facts}) == 2


@pytest.mark.parametrize(
    "text",
    [
        repr(REPLY),
        TIGHT.replace('"', "\u201d"),
        TIGHT.replace("}]", "},]"),
        TIGHT.replace("}, {", "} {"),
        re.sub(r'"(\w+)":', r"\1:", WHOLE),
        WHOLE.replace('"content"', '// said\n"content"'),
        TIGHT.replace("Prefers tea", 'Prefers "tea"'),
        TIGHT.replace('"Prefers tea"', '"Prefers tea'),
        f"report_facts(new_facts={FACTS!r})",
        json.dumps({**REPLY, "new_facts": repr(FACTS)}),
    ],
)
def test_of_a_reply_that_is_no_json_nothing_is_taken_and_the_error_says_where_it_is_none(
    text: str,
) -> None:
    with pytest.raises(FactReplyError, match=r"there is none \(.+\)\.") as refused:
        parse_reply(text)
    error = refused.value
    assert f"{len(text)} characters" in str(error)
    assert "tea" not in f"{error!s} {error!r} {error.args}"
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.problem, copy.reply) == (error.problem, text)


@pytest.mark.parametrize(
    "cut",
    [
        '{"content": "Has 2 c',
        '{"content": "Has 2 cats"',
        '{"content": "Has 2 cats", "quote": "my 2',
    ],
)
def test_of_a_fact_that_was_cut_off_nothing_is_taken(cut: str) -> None:
    assert contents(parse_reply(f'{{"new_facts": [{json.dumps(TEA)}, {cut}')) == [
        "Prefers tea"
    ]
    for text in (
        f'{{"new_facts": [{cut}',
        json.dumps({"new_facts": f"[{cut}"}),
        f'{{"new_facts": []}} {{"new_facts": [{cut}',
    ):
        with pytest.raises(FactReplyError):
            parse_reply(text)


@pytest.mark.parametrize(
    "text",
    ["", "  \n", "{}", "[]", "```json\n[]\n```", "null", "None.", "No new facts.", "There are no new facts to report.",
     "Nothing new.", "<think>Hm.</think>", '{"new_facts": null}', '{"new_facts": "none"}', '{"new_facts": []}',
     "没有新的事实。", "新しい事実はありません。"],
)  # fmt: skip
def test_nothing_new_is_a_reply(text: str) -> None:
    assert parse_reply(text) == NOTHING


@pytest.mark.parametrize(
    "text",
    ["I cannot help with that.", "No, I will not do that for you.", "{", "[1, 2]", '{"error": "overloaded"}',
     "[" * 50_000,
     '{"retired": [], "new_facts": [{"content": "Pref', "[{" * 5_000, "7", '"text"'],
)  # fmt: skip
def test_what_is_no_reply_is_refused(text: str) -> None:
    with pytest.raises(FactReplyError) as refused:
        parse_reply(text)
    assert refused.value.reply == text


@pytest.mark.parametrize(
    "text",
    [
        '"\\' * 500_000, '{"a":' * 200_000, "[1," * 300_000, '"{' * 500_000, '{"' * 500_000,
        "[/*" * 300_000, "[{}," * 250_000, '{"a":"' + '", a' * 250_000, "{'a':'" + "'a:" * 300_000,
        '["' + "x" * 1_000_000, "[" * 900 + '"' + "x" * 1_000_000,
    ],
)  # fmt: skip
def test_a_reply_made_to_be_slow_to_read_is_refused_at_once(text: str) -> None:
    before = time.process_time()
    with pytest.raises(FactReplyError):
        parse_reply(text)
    assert time.process_time() - before < 3


def test_a_fact_without_a_label_has_that_of_its_place() -> None:
    facts = [{"content": f"Fact {i}"} for i in range(3)]
    assert [
        fact.label for fact in parse_reply(json.dumps({"new_facts": facts})).new_facts
    ] == ["n1", "n2", "n3"]


LABELS: list[Any] = ["n2", "N2", "2", 2, " new fact 2 ", "#2"]
NO_LABELS: list[Any] = [None, "", "none", "null", False, [], {}]


@pytest.mark.parametrize(
    ("written", "read"),
    [*((label, "n2") for label in LABELS), *((none, "") for none in NO_LABELS)],
)
def test_a_label_is_known_in_every_spelling(written: Any, read: str) -> None:
    reply = parse_reply(
        json.dumps({"retired": [{"number": 1, "replaced_by": written}]})
    )
    assert reply.retired[0].replaced_by == read


def test_several_replies_in_one_text_keep_their_labels_apart() -> None:
    one = {"new_facts": [TEA], "retired": [{"number": 1, "replaced_by": "n1"}]}
    other = {
        "new_facts": [{**CATS, "label": "n1"}],
        "retired": [{"number": 2, "replaced_by": "n1"}],
    }
    reply = parse_reply(json.dumps(one) + "\n" + json.dumps(other))
    labels = {fact.content: fact.label for fact in reply.new_facts}
    assert labels["Prefers tea"] != labels["Has 2 cats"]
    assert [entry.replaced_by for entry in reply.retired] == [
        labels["Prefers tea"],
        labels["Has 2 cats"],
    ]


NO_CONFIDENCES: list[Any] = [
    True, "", "sure", "None", "NaN", "not high", "< 0.9", "11/10", "9/0", -1, "-0.9", 10**400, 1e9, float("nan"),
    float("inf"), [0.9], {},
]  # fmt: skip


@pytest.mark.parametrize(
    ("written", "read"),
    [(0.9, 0.9), (1, 1.0), ("0.8", 0.8), ("90%", 0.9), (85, 0.85), ("high", 0.9), ("low", 0.3), ("9/10", 0.9),
     ("0,95", 0.95), (".9", 0.9), ("\u2265 0.9", 0.9), ("very high confidence", 0.9), ("~0.8 (said)", 0.8), (None, 0.8),
     *((bad, 0.0) for bad in NO_CONFIDENCES)],
)  # fmt: skip
def test_confidence_is_read_in_the_ways_models_write_it(
    written: Any, read: float
) -> None:
    """A model that gives none means what it reports."""
    assert (
        NewFact.model_validate({"content": "x", "confidence": written}).confidence
        == read
    )
    assert NewFact.model_validate({"content": "x"}).confidence == 0.8


@pytest.mark.parametrize(
    "number", [None, True, -1, "-1", "one", 1.5, [], {}, "fact", 10**30]
)
def test_what_names_no_fact_has_the_number_0(number: Any) -> None:
    reply = ExtractionReply.model_validate(
        {"confirmed": [number], "retired": [{"number": number}]}
    )
    assert reply.confirmed[0].number == 0
    assert reply.retired[0].number == 0


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


@pytest.mark.parametrize("written", ["2023", "2023-05", "2023-05-17", 2023])
@pytest.mark.parametrize(
    "other",
    [
        None,
        "",
        "last year",
        "2023-13",
        "2023-02-30",
        "17.5.2023",
        "0000",
        True,
        5,
        ["2023"],
    ],
)
def test_a_date_is_a_year_a_month_or_a_day_and_any_other_is_empty(
    written: Any, other: Any
) -> None:
    assert NewFact.model_validate({"valid_from": written}).valid_from == str(written)
    assert Retirement.model_validate({"valid_until": other}).valid_until == ""


@pytest.mark.parametrize(
    ("written", "read"),
    [("Goal", "goal"), ("hobby|habit", "knowledge"), ("work, preferences", "preference"), (["behaviour"], "behavior"),
     (None, "knowledge"), (7, "knowledge")],
)  # fmt: skip
def test_a_category_is_one_of_those_that_there_are(written: Any, read: str) -> None:
    assert NewFact.model_validate({"category": written}).category == read


@given(bad=json_values, place=st.integers(0, 2))
def test_no_entry_spoils_the_others(bad: Any, place: int) -> None:
    facts: list[Any] = [TEA, CATS]
    facts.insert(place, bad)
    reply = parse_reply(
        json.dumps(
            {"new_facts": facts, "confirmed": [bad, 1], "retired": [bad, RETIRED]}
        )
    )
    assert {"Prefers tea", "Has 2 cats"} <= set(contents(reply))
    assert reply.confirmed[-1].number == 1
    assert reply.retired[-1].number == 3


manglings = st.one_of(
    st.tuples(st.just("cut"), st.integers(1, len(TIGHT)), st.just("")),
    st.tuples(
        st.just("insert"),
        st.integers(0, len(TIGHT)),
        st.text(max_size=5) | st.sampled_from('{}[]",:\\\n'),
    ),
    st.tuples(st.just("drop"), st.integers(0, len(TIGHT)), st.just("")),
)


@given(
    st.just(TIGHT) | json_values.map(json.dumps),
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
            0 <= fact.confidence <= 1
            for fact in parse_reply(before + text + after).new_facts
        )


@given(st.integers(0, len(TIGHT)))
def test_a_cut_reply_gives_what_is_whole_or_is_refused(place: int) -> None:
    """It is never taken for nothing new, for then what was cut off would be lost for good."""
    if TIGHT[:place].strip():
        try:
            reply = parse_reply(TIGHT[:place])
        except FactReplyError:
            return
        assert contents(reply)
        assert set(contents(reply)) <= {"Prefers tea", "Has 2 cats"}


@pytest.mark.parametrize(
    "text",
    [
        '{"new_facts": [{"content": "Likes } tea", "quote": "I like } te',
        '{"new_facts": [{"content": "a}b',
        '["a} b", {"content": "x} \\',
        '{"new_facts": [{"content": "Likes } \ud83d tea',
    ],
)
def test_an_answer_that_was_cut_inside_a_string_raises_no_other_error(
    text: str,
) -> None:
    """A bracket in a string ends no entry."""
    with contextlib.suppress(FactReplyError):
        parse_reply(text)
