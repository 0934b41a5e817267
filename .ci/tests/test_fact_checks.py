"""The examples of ``docs/fact-checks.md``: what the page says of a reported fact is what the checks do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timezone

import pytest

from llama_index_memory_ext.learning.reply import NewFact
from llama_index_memory_ext.learning.validation import ValidatedReply, validate_reply
from llama_index_memory_ext.text.turns import Utterance
from tests.pages import PAGES

PAGE = PAGES["fact-checks.md"]


def check(said: str, content: str, quote: str) -> ValidatedReply:
    """Check one reported fact against one message of the user."""
    fact = {"content": content, "quote": quote, "confidence": 0.9}
    reply = [NewFact.model_validate(fact)]
    now = datetime(2026, 11, 20, tzinfo=timezone.utc)
    return validate_reply(reply, (Utterance(1, "user", said),), (), now=now)


def rows(heading: str) -> Iterator[list[str]]:
    """Return the cells of the table under a heading, without its first two lines."""
    table = PAGE.split(heading)[1].split("\n\n| ")[1].split("\n\n")[0]
    for line in table.splitlines()[2:]:
        yield [cell.strip() for cell in line.strip("|").split(" | ")]


def quoted(cell: str) -> list[str]:
    return re.findall(r'"([^"]*)"', cell)


@pytest.mark.parametrize("row", rows("# How facts are checked"))
def test_the_first_table_says_what_is_stored(row: list[str]) -> None:
    (said,) = quoted(PAGE.split("The user says ")[1].split(":\n")[0])
    (content,), (quote,) = quoted(row[0]), quoted(row[1])
    outcome = check(said, content, quote)
    stored = [fact.content for fact in outcome.accepted]
    reasons = [f"rejected: `{rejection.reason}`" for rejection in outcome.rejected]
    assert stored == (quoted(row[2]) or [content] * (row[2] == "stored as it is"))
    assert reasons == ([] if stored else [row[2]])


@pytest.mark.parametrize("row", rows("**The user did not mean it:**"))
def test_what_the_user_did_not_mean_is_rejected_for_its_reason(row: list[str]) -> None:
    (said,), (content,) = quoted(row[1]), quoted(row[2])
    first_sentence = said.split(". ")[0]
    outcome = check(said, content, first_sentence)
    assert [f"`{rejection.reason}`" for rejection in outcome.rejected] == [row[0]]


@pytest.mark.parametrize("row", rows("## Why is it stored in these words?"))
def test_a_statement_that_says_more_is_stored_in_the_users_words(
    row: list[str],
) -> None:
    (said,), (content,) = quoted(row[1]), quoted(row[2])
    (fact,) = check(said, content, said).accepted
    assert fact.content == said
    assert fact.is_users_words
