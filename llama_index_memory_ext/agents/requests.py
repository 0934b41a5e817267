"""Tells whether the user's words ask to forget a fact."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from llama_index_memory_ext.grounding.names import shares_name
from llama_index_memory_ext.grounding.negation import denies
from llama_index_memory_ext.grounding.quotes import TOKEN, find_quote
from llama_index_memory_ext.grounding.statement import sentences_at
from llama_index_memory_ext.grounding.words import keywords, shared

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index_memory_ext.text.messages import Utterance

# A request to forget: the verb begins the sentence, or follows a polite beginning of it.
_ASKS = re.compile(
    r"(?i)^\W*(?:(?:please|ok(?:ay)?|and|then|now|also|just|yes|actually|bitte)\W+)*"
    r"(?:(?:can|could|will|would) you (?:please )?|you (?:can|may|should) "
    r"|i(?:['\u2019]d| would)? (?:want|like) you to )?"
    r"(?:forget|delete|remove|erase|drop|vergiss|vergessen|l\u00f6sche?|oublie[zr]?|efface[zr]?|supprime[zr]?|olvida"
    r"|borra|elimina|dimentica|cancella|esquece|apaga)\b"
    r"|忘掉|忘记|忘了|删除|删掉|刪除|忘れて|削除して|消して"
)
# "Everything", but not "everything about my job".
_EVERYTHING = re.compile(
    r"(?i)\b(?:everything|all|alles|tout|todo|tutto|tudo)\b"
    r"(?! (?:about|of|on|\u00fcber|sur|sobre|su) (?!(?:me|this|that|it|them|mich|moi|m\u00ed)\b))"
    "|全部|所有|一切|すべて|全て"
)
# "Forget it" means what was said right before.
_LONGEST_POINTER, _LINES_BEFORE = 3, 2


def asks_to_forget(quote: str, lines: Sequence[Utterance], contents: Sequence[str]) -> list[bool]:
    """Whether a quote of the user asks to forget each of these facts, by its words or as "everything".

    ``lines`` is what was said last, oldest first. What the user says not to forget, and what only other words of the
    user or of others ask for, is not asked. All are False where the quote is in none of the user's lines.
    """
    for i in reversed(range(len(lines))):
        span = find_quote(quote, lines[i].text) if lines[i].is_users else None
        if span:
            asked = [one for one in sentences_at(lines[i].text, span) if _ASKS.search(one) and not denies(one)]
            before = [line.text for line in lines[max(i - _LINES_BEFORE, 0) : i + 1]]
            return [any(_names(sentence, content, before) for sentence in asked) for content in contents]
    return [False] * len(contents)


def _names(sentence: str, content: str, before: Sequence[str]) -> bool:
    is_pointer = len(TOKEN.findall(sentence)) <= _LONGEST_POINTER
    words = "\n".join([sentence, *before]) if is_pointer else sentence
    if _EVERYTHING.search(sentence):
        return True
    return bool(shared(keywords(content), keywords(words))) or shares_name(content, words)
