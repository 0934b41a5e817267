"""Tells whether the user's words ask to forget a fact."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from llama_index_memory_ext.grounding.names import shares_word
from llama_index_memory_ext.grounding.negation import denies
from llama_index_memory_ext.grounding.quotes import TOKEN, Span, find_quote
from llama_index_memory_ext.grounding.statement import sentences_at
from llama_index_memory_ext.grounding.words import keywords, shared

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index_memory_ext.text.messages import Utterance

# The memory, or a fact as what the assistant knows: "the fact that I smoke", but not "... from my letter".
_MEMORY = (
    r"\b(?:your (?:\w+ )?memor(?:y|ies)|the fact that i\b(?!.* (?:from|in) (?:my|the|this)\b)|(?:what|all|every\w+)"
    r"(?: that)? you(?:['\u2019]ve| have)? (?:know|remember|(?:learn|not|sav|stor)\w+ about m[ey])"
    r"|du .*wei(?:\u00df|ss)t|deine[mnr]? (?:ged\u00e4chtnis|speicher|erinnerung)|(?:ta|tu|tua|sua|votre) m[e\u00e9]m"
    r"[o\u00f3](?:ire|ria)|(?:que|che) (?:tu |vous |voc\u00ea )?(?:sais|savez|sabes?|sai)\b)"
)
_MEMORY_IN_CHARACTERS = r"[你您](?:的?[记記][忆憶]|所?(?:知道|[记記][得住]))|記憶から|(?:覚えて|知って)い?る"
# An order begins the sentence, or follows a polite beginning. Verbs of editing give one to the memory if they name it.
_ASKS = re.compile(
    r"(?i)^\W*(?:(?:please|ok(?:ay)?|and|then|now|also|just|yes|actually|bitte|por favor|per favore)\W+)*"
    r"(?:(?:[cw]ould|can|will) you (?:please )?|you (?:can|may|should) |i(?:['\u2019]d| would)? (?:want|like) you to )?"
    r"(?:(?:forget|vergiss|vergessen|oublie[zr]?|olvida|dimentica|esquece|(?:don['\u2019]?t|do not) remember"
    r"|stop remembering|merke? dir (?:bitte )?nicht|ne (?:te souviens|retiens) p\w+|no recuerdes|non ricordare"
    r"|n\u00e3o lembre)\b|(?:delete|remove|erase|drop|clear|wipe|l\u00f6sche?|entferne|efface[zr]?|supprime[zr]?|borra"
    rf"|elimina|cancella|apaga)\b(?=.*{_MEMORY}))|(?<![我别別要不])忘[掉记記了]|忘れて(?!し[まち]|い|た)"
    r"|(?:不[要用]|[别別])再?[记記][住得]|覚え(?:てお)?か?ないで"
    rf"|^(?=.*(?:{_MEMORY_IN_CHARACTERS})).*(?<![别別要不])(?:[删刪]除|[删刪]掉|清除|削除して|消して)"
)
_EXCEPT = re.compile(r"(?i)\b(?:except|(?:all|every\w+) but|au\u00dfer|sauf|excepto|tranne|exceto)\b|除了|以外")
# Behind it stands what is to be forgotten, which may be denied: "that I don't drink".
_OBJECT = re.compile(r"(?i)\b(?:that|dass|que|che)\b|我")
# "Everything", but not "everything you know about my job".
_EVERYTHING = re.compile(
    r"(?i)\b(?:everything|all|alles|tout|todo|tutto|tudo)\b"
    r"(?!.*\b(?:about|of|on|\u00fcber|sur|sobre|su) (?!(?:me|this|that|it|them|mich|moi|m\u00ed)\b))"
    "|全部|所有|一切|すべて|全て"
)
# A whole message that confirms has no other words.
_CONFIRMS = re.compile(
    r"(?i)(?:[^\w?\uff1f]*(?:\b(?:yes|yeah|yep|sure|ok(?:ay)?|please|do|go|ahead|confirm(?:ed)?|right|i|am|m|it|all|of"
    r"|that|them|forget|everything|about|me|ja|bitte|sicher|vergiss|alles|oui|tout|s[i\u00ed]|claro|vale|todo|tutto|sim)\b"
    r"|是的?|好的?|[对對]的?|可以|[确確][认認定]|忘掉|全部|はい|ええ|お願いします))+[^\w?\uff1f]*"
)
# "Forget it" means what was said right before.
_LONGEST_POINTER, _LINES_BEFORE = 3, 2


def asks_to_forget(
    quote: str, lines: Sequence[Utterance], results: Sequence[Utterance], contents: Sequence[str]
) -> tuple[list[bool], bool]:
    """Whether a quote of the user asks to forget each of these facts; and whether it is about everything.

    It asks for a fact that it names. Of everything it asks for the facts of which the user was told, in the ``lines``
    or by the ``results`` of tools, between the order and their next message, the last one, which confirms it. ``lines``
    is what was said last, oldest first. What the user says not to forget, and what only other words of the user or of
    others ask for, is not asked. All are False where the quote is in none of the user's lines.
    """
    for i in reversed(range(len(lines))):
        span = find_quote(quote, lines[i].text) if lines[i].is_users else None
        if span:
            told = _told_of_everything(lines, results)
            orders = list(filter(_is_order, sentences_at(lines[i].text, span)))
            before = [line.text for line in lines[max(i - _LINES_BEFORE, 0) : i + 1]]
            named = [_was_told(one, told) or any(_names(order, one, before) for order in orders) for one in contents]
            return named, bool(told) or any(map(_EVERYTHING.search, orders))
    return [False] * len(contents), False


def _is_order(sentence: str) -> bool:
    found = _ASKS.search(sentence)
    if found is None or _EXCEPT.search(sentence):
        return False
    # What the order is about may be denied, not the order.
    return not (denies(sentence[: found.start()]) or denies(_OBJECT.split(sentence[found.end() :])[0]))


def _names(sentence: str, content: str, before: Sequence[str]) -> bool:
    is_pointer = len(TOKEN.findall(sentence)) <= _LONGEST_POINTER
    return shares_word(content, "\n".join([sentence, *before]) if is_pointer else sentence)


def _told_of_everything(lines: Sequence[Utterance], results: Sequence[Utterance]) -> frozenset[str]:
    """The keywords of what came between an order to forget everything and the user's next message, if this says yes."""
    asked, answer = ([line for line in lines if line.is_users] * 2)[-2:]
    orders = filter(_is_order, sentences_at(asked.text, Span(0, len(asked.text), 1.0)))
    if not (_CONFIRMS.fullmatch(answer.text) and any(map(_EVERYTHING.search, orders))):
        return frozenset()
    between = (one.text for one in (*lines, *results) if asked.row_id < one.row_id < answer.row_id)
    return keywords("\n".join(between))


def _was_told(content: str, told: frozenset[str]) -> bool:
    words = keywords(content)
    return 2 * len(shared(words, told)) > len(words)
