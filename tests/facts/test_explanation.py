"""Why a fact is shown for a question, in words that are true."""

from __future__ import annotations

from llama_index_memory_ext import CondensedMemory, RelevantFactsBlock
from llama_index_memory_ext.fact import Fact
from llama_index_memory_ext.facts.explanation import Explanation

SAID = "I'm Logan and I live in Paris"
KNOWN = (
    Fact(content="Is called Logan", source=SAID, confidence=0.95),
    Fact(content="Lives in Paris", source=SAID, confidence=0.8),
    Fact(content="Likes tea", confidence=0.5),
    Fact(content="Owns a canoe", confidence=0.4),
    Fact(content="Is allergic to nuts", pinned=True),
)


async def explanation_of(
    question: str, *context: str, min_similarity: float = 0.0, languages: list[str] | None = None
) -> Explanation:
    async with CondensedMemory.from_defaults(user_id="ann", extract_facts=False, languages=languages) as memory:
        await memory.facts.aimport("".join(fact.model_dump_json() + "\n" for fact in KNOWN))
        memory.facts_block.min_similarity = min_similarity
        return await memory.facts_block.aexplain(question, context=context)


async def test_own_words_come_before_the_words_of_the_source() -> None:
    facts = (await explanation_of("Where do I live?")).facts
    first, second = facts[:2]
    assert (first.fact.content, first.words, first.why) == ("Lives in Paris", "live", "matches in its own words")
    assert (second.words, second.why) == ("source: live", "matches in its source only")
    assert first.similarity > 2 * second.similarity
    assert {one.why for one in facts[2:]} == {"pinned", "nothing in common, but room"}


async def test_a_match_in_an_earlier_turn_is_told_as_one() -> None:
    found = await explanation_of("And Logan?", "Shall we have tea?")
    by_content = {one.fact.content: one for one in found.facts}
    assert by_content["Likes tea"].words == "earlier turn: tea"
    assert by_content["Likes tea"].why == "matches an earlier turn only"
    assert by_content["Is called Logan"].words == "logan"
    assert by_content["Lives in Paris"].words == "source: logan"


async def test_what_is_left_out_says_why() -> None:
    found = await explanation_of("Which canoe?", min_similarity=0.5)
    assert {one.fact.content: one.why for one in found.facts if one.injected} == {
        "Owns a canoe": "matches in its own words",
        "Is allergic to nuts": "pinned",
    }
    assert "left out: too little in common" in repr(found)


async def test_the_table_says_what_its_numbers_are() -> None:
    found = await explanation_of("Where do I live?")
    header, *rows = repr(found).splitlines()
    assert header.split("  ")[0] == "fact"
    for name in ("similarity", "confidence", "recency", "score", "words in common", "tokens", "shown"):
        assert name in header
    best = found.facts[0]
    total = sum(getattr(found.weights, name) * getattr(best, name) for name in ("similarity", "confidence", "recency"))
    assert abs(best.score - total) < 1e-9
    assert rows[-2].startswith("score = ")
    assert "has 1" in rows[-1]
    assert found._repr_html_().count("<tr>") == 1 + len(KNOWN)


async def test_fixed_languages_hold_for_both_blocks_of_a_memory() -> None:
    async with CondensedMemory.from_defaults(session_id="s", languages=["de", "en"]) as memory:
        assert memory.facts_block.languages == memory.condensed_block.languages == ("de", "en")
        await memory.facts.aadd("Wohnt in Bonn")
        await memory.facts.aadd("Fährt gern Kanu")
        (found,) = await memory.facts_block.asearch("Wo wohne ich?")
        assert (found.fact.content, found.matched) == ("Wohnt in Bonn", ("wohne",))
        memory.facts_block.min_similarity = 0.5
        explained = await memory.facts_block.aexplain("Wo wohne ich?")
        assert [one.fact.content for one in explained.facts if one.injected] == ["Wohnt in Bonn"]
    assert RelevantFactsBlock(languages="fr").languages == ("fr",)
