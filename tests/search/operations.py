"""Operations on an index of documents, which must then be as one that is made anew of the documents that are left."""

from __future__ import annotations

import random
from datetime import date, timedelta
from typing import NamedTuple

from llama_index_memory_ext.search.tfidf import Document, TfidfRanker
from llama_index_memory_ext.words.dates import date_words
from tests.words.test_languages import KNOWN

OTHERS = """我住在上海,喜欢喝茶 | 私は東京に住んでいます | 서울에 살아요 | يسكن في القاهرة | Mieszka w Krakowie
    | อาศัยอยู่ในกรุงเทพ"""
ENGLISH = """Has dogs named Pepper and Panda | Considers a dog in the city | Ann: I live at Google now | Ann: Is vegan
    | Bob: He lived there and went in May | Prefers testing, tests a test | Wohne bei Google | Die Hunde wohnen hier"""
SENTENCES = [*(fact for facts, _ in KNOWN.values() for fact in facts)]
SENTENCES += [
    " ".join(one.split()) for text in (OTHERS, ENGLISH) for one in text.split("|")
]
QUESTIONS = [
    *(asked for _, questions in KNOWN.values() for asked in questions),
    "I'm vegan now.",
    "I'm at Google now.",
]
# One word alone does not tell its language; then that of the documents counts.
WORDS = sorted({word for text in (*SENTENCES, *QUESTIONS) for word in text.split()})
DOCUMENTS = 160


class Operation(NamedTuple):
    """The documents ``first`` to ``last`` are made of these texts, or removed if there is none; or a question."""

    texts: tuple[str, ...] = ()
    first: int = 0
    last: int = 0
    question: str | None = None


class Index:
    """An index that has changed with each operation, and the documents that are left."""

    def __init__(self, languages: tuple[str, ...] | None = None) -> None:
        self.languages, self.ranker = languages, TfidfRanker(languages=languages)
        self.left: dict[str, Document] = {}

    def does(self, operation: Operation) -> None:
        """Change the index, or ask it."""
        numbers = range(operation.first, operation.last + 1)
        if operation.question is not None:
            self.ranker.similarities(operation.question)
        elif operation.texts:
            made = [_document(number, operation.texts) for number in numbers]
            self.ranker.add(made)
            self.left |= {document.id: document for document in made}
        else:
            self.ranker.remove(map(str, numbers))
            self.left = {
                name: one for name, one in self.left.items() if int(name) not in numbers
            }

    def differences(self, question: str) -> int:
        """How many documents are found otherwise than by a new index.

        Similarities are rounded to nine digits, and the mean length of many documents depends on their order by less
        than that: they may differ by the last digit.
        """
        new = TfidfRanker(languages=self.languages)
        new.add(self.left.values())
        found, expected = (
            dict(self.ranker.similarities(question)),
            dict(new.similarities(question)),
        )
        return sum(
            abs(found.get(one, 0.0) - expected.get(one, 0.0)) > 1.5e-9
            for one in found | expected
        )


def _document(number: int, texts: tuple[str, ...]) -> Document:
    """The text, the source and the day of a document; not each has both of them."""
    source = ((texts[(number + 1) % len(texts)], 0.3),) if number % 2 else ()
    day = date_words(date(2026, 5, 1) + timedelta(days=number)) if number % 3 else ""
    return Document(str(number), texts[number % len(texts)], source, day)


def drawn(chance: random.Random) -> Operation:
    """An operation: mostly about one document, and at times about many."""
    what, first = chance.random(), chance.randrange(DOCUMENTS)
    last = min(
        first + (chance.randrange(DOCUMENTS) if chance.random() < 0.02 else 0),
        DOCUMENTS - 1,
    )
    if what < 0.4:
        return Operation(question=text(chance, QUESTIONS))
    return Operation(
        (text(chance, SENTENCES), text(chance, SENTENCES)) if what < 0.7 else (),
        first,
        last,
    )


def text(chance: random.Random, whole: list[str]) -> str:
    """A whole text, or a few words of any."""
    return (
        chance.choice(whole)
        if chance.random() < 0.6
        else " ".join(chance.choices(WORDS, k=chance.randrange(6)))
    )


def count_differences(
    operations: int, languages: tuple[str, ...] | None, seed: int
) -> int:
    """How many differences there are in so many operations, looked for with each question."""
    index, wrong, chance = Index(languages), 0, random.Random(seed)  # noqa: S311 - no secret is made of it
    for operation in (drawn(chance) for _ in range(operations)):
        index.does(operation)
        if operation.question is not None:
            wrong += index.differences(operation.question)
    return wrong
