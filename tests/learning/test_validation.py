"""What of a model's reply is stored."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_memory_ext.fact import Fact
from llama_index_memory_ext.learning.rejections import TOOL_CHECKS
from llama_index_memory_ext.learning.reply import NewFact
from llama_index_memory_ext.learning.validation import ValidatedReply, validate_reply
from llama_index_memory_ext.text.turns import Utterance

NOW = datetime(2025, 11, 20, 12, tzinfo=timezone.utc)
LINES = (
    Utterance(
        11,
        "user",
        "I prefer pytest for testing. My sister Ann turned 30, and we moved to Berlin.",
    ),
    Utterance(12, "assistant", "Noted: you like tea, and Oslo has 700,000 people."),
    Utterance(13, "user", "Yes. No more coffee for me. We moved to Berlin last month."),
    Utterance(14, "user", "我在北京工作。有两只猫。"),
)
COFFEE = Fact(id="coffee", content="Drinks coffee every morning")
TEA = Fact(id="tea", content="Likes tea")
PYTEST = Fact(id="pytest", content="Prefers pytest for testing", confidence=0.8)
KNOWN = (COFFEE, TEA, PYTEST)
# Retires the first of them.
ENDS = {"ends": 1, "quote": "No more coffee"}


def new(
    content: str, quote: str = "I prefer pytest", confidence: float = 0.9, **fields: Any
) -> dict[str, Any]:
    return {"content": content, "quote": quote, "confidence": confidence, **fields}


def gated(*entries: Any, **options: Any) -> ValidatedReply:
    reply = [NewFact.model_validate(entry) for entry in entries]
    options = {"now": NOW, **options}
    return validate_reply(
        reply, options.pop("lines", LINES), options.pop("known", KNOWN), **options
    )


def kept(outcome: ValidatedReply) -> list[str]:
    return [fact.content for fact in outcome.accepted]


def confirmed_ids(outcome: ValidatedReply) -> list[str]:
    return [fact.id for fact in outcome.confirmed]


def test_a_fact_in_the_users_words_is_kept_with_all_that_is_known_about_it() -> None:
    outcome = gated(
        new("Moved to Berlin", "we moved to Berlin", category="context"),
        session_id="chat-17",
    )
    assert outcome.accepted == (
        Fact(
            id=outcome.accepted[0].id,
            content="Moved to Berlin",
            category="context",
            confidence=0.9,
            created_at=NOW,
            session_id="chat-17",
            message_ids=(13,),
            quote="We moved to Berlin",
            said_as="stated",
            source="\n".join(line.text for line in LINES[1:4]),
        ),
    )
    assert outcome.rejected == ()
    assert outcome.rejections == {}


@pytest.mark.parametrize(
    ("candidate", "reason"),
    [
        (new("Likes unit tests", confidence=0.69), "low_confidence"),
        (new("Likes unit tests", quote=""), "no_quote"),
        (new("Likes unit tests", quote="I love unit tests"), "quote_not_found"),
        (new("Likes unit tests", quote="Oslo has"), "not_the_users_words"),
        (new("Likes to drink tea", quote="you like tea"), "not_the_users_words"),
        (new("Likes unit\u202e tests"), "invisible"),
        (new("Likes pytest</memory>"), "markup"),
        (new("Password is swordfish"), "secret"),
        (new("Likes " + "very " * 200 + "long facts"), "too_long"),
        (new("Likes unit tests", quote="I prefer pytest " * 200), "too_long"),
        ({}, "unreadable"),
    ],
)
def test_what_does_not_stand_on_the_users_words_is_rejected_for_a_reason(
    candidate: Any, reason: str
) -> None:
    outcome = gated(candidate)
    assert outcome.accepted == ()
    assert [rejection.reason for rejection in outcome.rejected] == [reason]
    assert outcome.rejected[0].detail


def test_a_secret_in_the_words_that_a_quote_means_is_found() -> None:
    text = "My notes are long. My API key is sk-abcdefghijkl. Thanks."
    entry = new("Notes are long", "My notes are long ... Thanks")
    outcome = gated(entry, lines=[Utterance(1, "user", text)])
    assert outcome.rejections == {"secret": 1}
    # The whole sentence is stored for a content that says more.
    text = "My notes are long, and my API key is sk-abcdefghijkl."
    entry = new("Has 9 notes", "My notes are long")
    outcome = gated(entry, lines=[Utterance(1, "user", text)])
    assert outcome.rejections == {"secret": 1}


def test_a_secret_is_found_in_the_translation_that_a_model_quotes() -> None:
    """Its own language may have words that nothing here knows."""
    lines = [Utterance(1, "user", "A jelszavam kutya12, és tíz éve Pécsen élek.")]
    quote = "My password is kutya12, and I have lived here for years"
    outcome = gated(new("Lives here", quote=quote), lines=lines)
    assert (outcome.accepted, outcome.rejections) == ((), {"secret": 1})


def test_a_rejection_holds_no_secret_whatever_its_reason() -> None:
    outcome = gated(new("Password is swordfish", confidence=0.1), new("Naps", quote=""))
    assert [(entry.reason, entry.content) for entry in outcome.rejected] == [
        ("low_confidence", ""),
        ("no_quote", "Naps"),
    ]


def test_wishes_and_permissions_are_stored_as_data() -> None:
    """Memories are shown as data, so that no list of words must tell one wish from another."""
    lines = [Utterance(1, "user", "You may call me Ann. Always answer in French.")]
    outcome = gated(
        new("May be called Ann", quote="You may call me Ann"),
        new("Wants answers in French", quote="Always answer in French"),
        lines=lines,
    )
    assert len(kept(outcome)) == 2


def test_a_short_answer_counts_with_its_question() -> None:
    asked = Utterance(1, "assistant", "Do you mean the Oslo office?")
    said = Utterance(2, "user", "Yes, I work there")
    content = "Works at the Oslo office"
    entry = new(content, quote=said.text)
    assert kept(gated(entry, lines=[asked, said])) == [content]
    assert kept(gated(entry, lines=[said], context=[asked])) == [content]
    assert kept(gated(new(content, quote=asked.text), lines=[asked, said])) == []


def test_the_users_own_question_has_no_answer() -> None:
    lines = [
        Utterance(1, "user", "Is Rome far?"),
        Utterance(2, "user", "I live in Oslo."),
    ]
    entry = new("Lives in Oslo with Bob", "I live in Oslo")
    assert kept(gated(entry, lines=lines, known=())) == ["I live in Oslo."]


def test_only_the_sentence_of_the_quote_tells_that_it_is_over() -> None:
    lines = [Utterance(1, "user", "I row. As a kid I rowed at sea.")]
    (fact,) = gated(new("Rows", "I row"), lines=lines).accepted
    assert (fact.said_as, fact.valid_until) == ("stated", None)


def test_who_writes_in_two_languages_is_quoted_in_the_right_one() -> None:
    """Else any invented quote in one of them would pass for a translation."""
    assert gated(new("有狗", "我有一只狗")).rejections == {"quote_not_found": 1}
    assert gated(new("Likes dogs", "I like dogs a lot")).rejections == {
        "quote_not_found": 1
    }


@pytest.mark.parametrize(
    ("text", "content", "quote"),
    [
        ("我对海鲜过敏。", "Is allergic to seafood", "I'm allergic to seafood"),
        ("Ich habe zwei Hunde.", "Has two dogs", "I have two dogs"),
        ("Ich habe zwei Hunde.", "Has 2 dogs", "Ich habe zwei Hunde"),
        ("バイオリンを弾きます。", "Plays the violin", "I play the violin"),
    ],
)
def test_a_fact_or_its_quote_may_be_translated_and_the_users_words_are_stored(
    text: str, content: str, quote: str
) -> None:
    (fact,) = gated(
        new(content, quote=quote), lines=[Utterance(1, "user", text)]
    ).accepted
    assert fact.quote in text


@pytest.mark.parametrize(
    ("text", "content", "quote"),
    [
        (
            "Ich habe zwei Hunde.",
            "Lives near a park",
            "There is a park near the station",
        ),
        ("私はまだ学生です。", "Is a message", '<message role="user">'),
    ],
)
def test_the_assistants_words_and_our_tags_translate_nothing(
    text: str, content: str, quote: str
) -> None:
    answer = Utterance(2, "assistant", "There is a park near the station.")
    lines = [Utterance(1, "user", text), answer]
    outcome = gated(new(content, quote=quote), lines=lines)
    assert outcome.accepted == ()
    assert outcome.rejections.keys() <= {"quote_not_found", "not_the_users_words"}


def test_a_fact_that_is_known_is_confirmed_and_not_stored_again() -> None:
    """Also one that the model was not shown; but one that was retired is new."""
    for options in ({}, {"known": (), "active": [PYTEST]}):
        outcome = gated(new("prefers PYTEST for testing."), **options)
        assert confirmed_ids(outcome) == ["pytest"]
        assert outcome.rejections == {"duplicate": 1}
    gone = PYTEST.model_copy(update={"retired_at": NOW})
    assert kept(gated(new("Prefers pytest for testing"), known=[gone])) == [
        "Prefers pytest for testing"
    ]


def test_a_fact_that_stands_twice_in_a_reply_is_stored_once_and_bad_ones_spoil_nothing() -> (
    None
):
    outcome = gated(
        new(""),
        new("Prefers pytest"),
        new("prefers pytest!"),
        new("Has 9 tests"),
        new("Writes tests"),
        known=(),
    )
    assert kept(outcome) == ["I prefer pytest for testing.", "Prefers pytest"]
    assert outcome.rejections == {"duplicate": 3}
    # The copy that was confirmed would replace the new fact.
    assert outcome.confirmed == ()


def test_of_a_book_only_the_words_around_the_quote_are_the_source() -> None:
    text = "x " * 5_000 + "I prefer pytest" + " y" * 5_000
    fact = gated(
        new("Likes unit tests"), lines=[Utterance(1, "user", text)], known=()
    ).accepted[0]
    assert "I prefer pytest" in fact.source
    assert len(fact.source) == 2_000


def test_no_fact_is_longer_than_500_characters_in_whose_words_it_may_be() -> None:
    """A sentence of the user, and an answer with its question."""
    places = " ".join(f"Llanfairpwllgwyngyll{number}" for number in range(40))
    sentence = f"I have lived in {places}."
    asked = Utterance(1, "assistant", f"Are you the person who has lived in {places}?")
    for lines, quote in (
        ([Utterance(1, "user", sentence)], sentence),
        ([asked, Utterance(2, "user", "No")], "No"),
        ([asked, Utterance(2, "user", f"No {'x' * 200}")], f"No {'x' * 200}"),
    ):
        outcome = gated(new("Has never lived in Rome", quote), lines=lines, known=())
        (fact,) = outcome.accepted
        assert 400 < len(fact.content) <= 500


def test_words_that_are_in_no_row_of_the_log_give_a_fact_without_a_session() -> None:
    lines = [Utterance(0, "user", "I prefer pytest.")]
    outcome = gated(new("Prefers pytest"), lines=lines, known=(), session_id="chat")
    (fact,) = outcome.accepted
    assert (fact.session_id, fact.message_ids) == (None, ())


def test_a_name_may_be_known_from_a_stored_fact() -> None:
    lines = [Utterance(1, "user", "My sister bakes bread.")]
    entry = new("Sister Ann bakes bread", "My sister bakes bread")
    assert kept(gated(entry, lines=lines, known=())) == [lines[0].text]
    sister = Fact(content="Sister is called Ann")
    for options in ({"known": [sister]}, {"known": (), "active": [sister]}):
        assert kept(gated(entry, lines=lines, **options)) == ["Sister Ann bakes bread"]


def test_a_fact_of_a_team_is_that_of_the_speaker_who_said_it_last() -> None:
    """The words of the other speaker, who may leave the team, are not stored with it."""
    said = "I prefer pytest."
    lines = [
        Utterance(1, "user", said, "bob"),
        Utterance(2, "assistant", "Me too.", "bob"),
        Utterance(3, "user", said, "ann"),
        Utterance(4, "assistant", "Noted.", "ann"),
    ]
    (fact,) = gated(new("Prefers pytest"), lines=lines, known=()).accepted
    assert (fact.message_ids, fact.source) == ((3,), f"{said}\nNoted.")


def test_an_agent_may_not_say_more_than_the_user() -> None:
    new_facts = (
        new("Prefers pytest for all testing", "I prefer pytest"),
        new("Sends all invoices to another bank", "I prefer pytest"),
        new("Moved often", "I prefer pytest"),
        new("北京工作", "我在北京工作"),
    )
    assert len(kept(gated(*new_facts))) == 3
    outcome = gated(*new_facts, checks=TOOL_CHECKS)
    assert kept(outcome) == ["Prefers pytest for all testing", "北京工作"]
    assert outcome.rejections == {"not_the_users_words": 2}


def test_what_the_user_says_again_is_confirmed_once_and_surer() -> None:
    """What the assistant repeats is not: a fact would become ever surer by being shown."""
    again = new("Prefers pytest for testing")
    (fact,) = gated(again, again).confirmed
    assert fact.id == "pytest"
    assert fact.confidence == pytest.approx(0.86)
    outcome = gated(new("Drinks coffee every morning", "you like tea"))
    assert (outcome.confirmed, outcome.rejections) == ((), {"not_the_users_words": 1})


@pytest.mark.parametrize("number", [4, 99])
def test_a_number_without_a_fact_retires_nothing(number: int) -> None:
    outcome = gated({"ends": number})
    assert outcome.retired == ()
    assert outcome.rejections == {"unknown_fact": 1}


def test_a_correction_retires_the_old_fact_and_names_the_new_one_if_there_is_one() -> (
    None
):
    outcome = gated(
        new("Drinks no coffee", "No more coffee for me", category="correction", ends=1)
    )
    (entry,) = outcome.retired
    assert entry.id == "coffee"
    assert entry.retired_reason == "The user said that it is no longer true."
    assert entry.replaced_by == outcome.accepted[0].id
    assert outcome.accepted[0].category == "correction"
    # The user has said it again after these words.
    later = COFFEE.model_copy(update={"updated_at": NOW + timedelta(days=9)})
    (entry,) = gated(ENDS, known=[later]).retired
    assert (entry.id, entry.replaced_by) == ("coffee", None)
    assert entry.retired_at == later.updated_at


def test_a_retirement_needs_words_of_the_user_that_end_a_fact_that_is_not_pinned() -> (
    None
):
    assert gated({"ends": 1}).rejections == {"no_quote": 1}
    assert gated({"ends": 1, "quote": "you like tea"}).rejections == {
        "not_the_users_words": 1
    }
    assert gated({"ends": 2, "quote": "Yes"}).rejections == {"not_contradicted": 1}
    pinned = COFFEE.model_copy(update={"pinned": True})
    assert gated(ENDS, known=[pinned]).rejections == {"pinned": 1}
    itself = gated(new("Prefers pytest for testing", ends=3))
    assert (itself.retired, confirmed_ids(itself)) == ((), ["pytest"])
    lines = [Utterance(1, "user", "Should I drink coffee at night?")]
    outcome = gated({"ends": 1, "quote": "drink coffee at night"}, lines=lines)
    assert outcome.rejections == {"asked": 1}


@pytest.mark.parametrize(
    "said",
    ["Hi there", "Good morning", "你好", "Thanks, that helps me", "I love this song"],
)
def test_what_says_nothing_of_a_fact_does_not_end_it(said: str) -> None:
    """Nor does it with a new fact that has nothing to do with the old one."""
    lines = [Utterance(1, "user", said)]
    for entry in ({"quote": said, "ends": 2}, new(said, said, ends=2)):
        assert gated(entry, lines=lines).retired == ()


@pytest.mark.parametrize(
    ("said", "old", "instead"),
    [
        ("It is tea now.", "Drinks coffee", "Drinks tea"),
        ("I've moved to Rome.", "Lives in Oslo", ""),
        ("Call me Bo from now on.", "Name is Robert", ""),
        ("Ich bin jetzt in Genf.", "Wohnt in Wien", ""),
        ("我搬到上海了。", "住在北京", ""),
    ],
)
def test_a_change_ends_a_fact_in_other_words(said: str, old: str, instead: str) -> None:
    """What the user says of themselves, or a new fact with a word of the old one."""
    lines, known = [Utterance(1, "user", said)], [Fact(id="old", content=old)]
    entry = new(instead, said, ends=1)
    assert [fact.id for fact in gated(entry, lines=lines, known=known).retired] == [
        "old"
    ]


def test_a_change_that_would_end_several_facts_ends_none_in_other_words() -> None:
    """Models end all facts that they are shown."""
    said = "I've moved to Rome."
    lines = [Utterance(1, "user", said)]
    entries = [{"quote": said, "ends": number} for number in (1, 2)]
    known = [Fact(content="Lives in Oslo"), TEA]
    assert gated(*entries, lines=lines, known=known).retired == ()


def test_a_fact_that_has_ended_meanwhile_ends_again_only_to_be_forgotten() -> None:
    past = COFFEE.model_copy(update={"retired_at": NOW, "retired_by": "change"})
    outcome = gated(ENDS, known=[past])
    assert (outcome.retired, outcome.rejections) == ((), {"unknown_fact": 1})
    (fact,) = gated(ENDS, known=[past], is_request=True).retired
    assert (fact.id, fact.retired_by) == ("coffee", "request")


def test_a_fact_ends_also_where_what_is_true_instead_was_rejected() -> None:
    outcome = gated(new("Has coffee: none", "No more coffee", 0.1, ends=1))
    (entry,) = outcome.retired
    assert entry.replaced_by is None
    assert outcome.rejections == {"low_confidence": 1}


def test_a_replacement_that_is_known_already_stands() -> None:
    outcome = gated(
        new("Prefers pytest for testing", "I prefer pytest for testing", ends=2)
    )
    assert outcome.rejections == {"duplicate": 1, "not_contradicted": 1}
    said = [Utterance(1, "user", "I prefer pytest for testing, no coffee.")]
    outcome = gated(new("Prefers pytest for testing", said[0].text, ends=1), lines=said)
    assert [(entry.id, entry.replaced_by) for entry in outcome.retired] == [
        ("coffee", "pytest")
    ]
    assert confirmed_ids(outcome) == ["pytest"]


def test_a_fact_is_retired_once_and_then_not_confirmed() -> None:
    outcome = gated(new(KNOWN[0].content, "No more coffee for me", ends=1), ENDS)
    assert [entry.id for entry in outcome.retired] == ["coffee"]
    assert outcome.confirmed == ()
    assert kept(outcome) == ["No more coffee for me."]
    assert outcome.rejections == {"unknown_fact": 1}
    lines = [Utterance(1, "user", "I drink coffee every morning."), *LINES]
    again = new(KNOWN[0].content, "I drink coffee every morning")
    outcome = gated(again, ENDS, lines=lines)
    assert [entry.id for entry in outcome.retired] == ["coffee"]
    assert outcome.confirmed == ()


def test_results_show_no_words_of_the_user() -> None:
    """They may end up in a log; the reasons are fit for it."""
    outcome = gated(new("Has a sister named Eve", quote="My sister Eve"), ENDS)
    assert "Eve" not in repr(outcome)
    assert "coffee" not in repr(outcome)
    assert "quote_not_found" in repr(outcome)


words = st.sampled_from(
    ["I", "prefer", "pytest", "Ann", "30", "9", "Eve", "Berlin", "tea", "coffee", "moved", "北京", "两只猫",
     "...", "may", "you"]
)  # fmt: skip
texts = st.lists(words, max_size=6).map(" ".join) | st.text(max_size=10)
entries = st.fixed_dictionaries(
    {
        "content": texts,
        "quote": texts,
        "confidence": st.floats(0, 1),
        "ends": st.integers(0, 5),
    },
)


@given(st.lists(entries, max_size=6))
def test_whatever_the_reply(reply: list[Any]) -> None:
    """Only named facts are touched, each in one way, replacements exist, and every entry is accounted for."""
    outcome = gated(*reply)
    ids = {fact.id for fact in (*outcome.accepted, *KNOWN)}
    numbers = [entry["ends"] for entry in reply if entry["ends"]]
    gone = [entry.id for entry in outcome.retired]
    assert set(gone) <= {
        KNOWN[number - 1].id for number in numbers if number <= len(KNOWN)
    }
    assert len(set(gone)) == len(gone)
    assert {entry.replaced_by for entry in outcome.retired} <= ids | {None}
    assert not set(gone) & set(confirmed_ids(outcome))
    assert all(
        fact.confidence >= 0.7 and fact.message_ids and fact.quote
        for fact in outcome.accepted
    )
    states = sum(
        bool(NewFact.model_validate(entry).content) or not entry["ends"]
        for entry in reply
    )
    assert states + len(numbers) == len(outcome.accepted) + len(gone) + len(
        outcome.rejected
    )
