"""Takes from a model's answer the summary that stands on what was said."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from llama_index_memory_ext.errors import SummaryReplyError
from llama_index_memory_ext.grounding.sentences import Said, is_finished, is_repetitive, pieces_of, share_kept
from llama_index_memory_ext.text.messages import unescape_tags
from llama_index_memory_ext.text.visible import visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index_memory_ext.text.tokens import TokenCounter

# What the entries that are to be summarised must not be able to forge.
PROMPT_TAGS = ("summary_so_far", "transcript")

# An answer of which less is left, without the sentences that nobody said, is no summary.
_FEWEST_LEFT = 0.5
# An answer with less of the summary before than this share of its telling words does not replace it. Where that summary
# fills half of its room, there is less left of it in a good one.
_KEPT, _KEPT_WHEN_FULL, _FULL = 0.5, 0.25, 0.5
# Prose of which only the last of so many sentences has no end was cut off.
_FEWEST_SENTENCES = 3

# What a model says instead of a summary. It may have been said in the conversation, too.
_NO_SUMMARY = re.compile(
    r"(?i)\W*(?:\(?none\)?|n/a|null|nan|undefined|\[?(?:the )?(?:(?:extended|running|updated) )?summary\]?:?"
    r"|ok(?:ay)?|sure|certainly|of course|understood|done|got it|(?:there (?:is|are) )?no (?:new )?"
    r"(?:summary|information|changes?|messages?)(?: to (?:add|report|summari[sz]e))?)\W*"
)
# A copy of the prompt: its first sentence, its last, one of its tags on a line of its own, or a message with its tag.
_PROMPT = re.compile(
    r"(?m)You keep the running summary of|Extend the summary by what is new in"
    rf"|^</?(?:{'|'.join(PROMPT_TAGS)})>$|^<message role=\""
)
# What models put around a summary: their thoughts (some without the first tag, and some do not come to an end), ...
_AROUND = re.compile(
    r"(?ims)\A(?:<think(?:ing)?>.*?(?:</think(?:ing)?>\s*|\Z)|(?!<).*?^</think(?:ing)?>$"
    # ... a line that says what comes, ...
    r"|\W{0,4}(?:(?:sure|certainly|of course|okay)\W{1,3})?(?:here(?:['\u2019]s| is) )?(?:the |your |an? )?"
    r"(?:(?:extended|updated|complete|full|whole|new|running) )*(?:conversation )?summary"
    r"(?: so far)?(?: of (?:the|this|our) (?:conversation|chat))?:\W{0,4}\n"
    # ... and fences or tags.
    r"|```\w*\n(?P<fenced>.*)```\Z"
    r"|<(?P<tag>(?:conversation_|extended_)?summary|summary_so_far)>(?P<tagged>.*)</(?P=tag)>\Z)"
)
_MOST_LAYERS = 8
_BLANK = "\ufeff\u200b"
# Of the entries only the text was said.
_ENTRY_TAGS = re.compile(r'<message role="\w+"|</message>')


def checked_summary(
    reply: str, previous: str, counter: TokenCounter, *, said: str = "", is_cut: bool = False, token_limit: int = 0
) -> str:
    """Returns the summary in a model's answer: the sentences that stand on what was said, or on the summary before.

    It does not replace ``previous`` if it has too little of it, or not the names and numbers of which nobody spoke, if
    sentences of it were not taken, or if it was cut off (``is_cut``, or in mid-sentence): then what is new in it is
    added. ``said`` are the entries that are summarised; without them, sentences are not compared. Of a previous summary
    that has filled half of ``token_limit``, less must be left.

    Raises:
        SummaryReplyError: The answer is empty, repeats itself or the prompt, or does not tell what was said, as
            refusals and error messages do not.
    """
    messages = unescape_tags(_ENTRY_TAGS.sub(" ", said), PROMPT_TAGS)
    source = Said(messages, previous)
    pieces = _sentences_in(reply, source, previous, said)
    taken = _supported(pieces, source, previous) if said else pieces
    if share_kept("".join(pieces), "".join(taken)) < _FEWEST_LEFT:
        raise SummaryReplyError(reply, "it tells what nobody said")
    if not is_cut and _is_whole(pieces, taken):
        is_full, text = counter.count(previous) > _FULL * token_limit > 0, "".join(taken)
        if _keeps(text, previous, source, is_full=is_full):
            return text.strip()
    new = _new_in(taken, source, is_cut=is_cut)
    if not new and not previous:
        raise SummaryReplyError(reply, "no sentence of it is whole")
    return "\n".join(filter(None, (previous, new)))


def _sentences_in(reply: str, source: Said, previous: str, said: str) -> list[str]:
    """Returns the sentences of an answer; a SummaryReplyError for one that is no summary of anything that was said."""
    # Our tags are escaped in the prompt from which the model has copied them.
    text = unescape_tags(unwrapped := _unwrapped(visible(reply)), PROMPT_TAGS)
    pieces = pieces_of(source.without_foreign_tags(text).strip() if said else text)
    reason = _rejection_reason(unwrapped)
    if not reason and (said or previous) and not source.is_told_by("".join(pieces)):
        reason = "it does not tell what was said"
    if reason:
        raise SummaryReplyError(reply, reason)
    return pieces


def _supported(pieces: Sequence[str], source: Said, previous: str) -> list[str]:
    """The sentences that stand on what was said; what was known stays as it was where no message is about a change."""
    is_translated, earlier = source.is_translated("".join(pieces)), pieces_of(previous)
    taken = (piece for piece in pieces if source.supports(piece, is_translated=is_translated))
    return [piece if piece.strip() in previous else source.settled(piece, earlier) for piece in taken]


def _is_whole(pieces: Sequence[str], taken: Sequence[str]) -> bool:
    """Returns whether all sentences were taken, and it is not so that of several ones only the last has no end."""
    ends_early = len(pieces) >= _FEWEST_SENTENCES and not is_finished(pieces[-1]) and all(map(is_finished, pieces[:-1]))
    return len(taken) == len(pieces) and not ends_early


def _keeps(text: str, previous: str, source: Said, *, is_full: bool) -> bool:
    """Returns whether a text has enough of the summary before, and its names and numbers if there is room for them."""
    if is_full:
        return share_kept(previous, text) >= _KEPT_WHEN_FULL
    return share_kept(previous, text) >= _KEPT and not source.loses(pieces_of(previous), text)


def _new_in(taken: Sequence[str], source: Said, *, is_cut: bool) -> str:
    """Returns the sentences that add something; the last one of an answer that was cut off only if it has an end."""
    whole = [piece for piece in taken if not is_cut or is_finished(piece) or piece != taken[-1]]
    return "".join(filter(source.adds, whole)).strip()


def _rejection_reason(text: str) -> str:
    """Returns why a text is no summary, whatever was said; "" if it may be one."""
    if not re.search(r"\w", text) or _NO_SUMMARY.fullmatch(text):
        return "it is empty"
    if is_repetitive(text):
        return "it repeats itself"
    return "it repeats the prompt" if _PROMPT.search(text) else ""


def _unwrapped(reply: str) -> str:
    text = reply
    for _ in range(_MOST_LAYERS):
        text = _AROUND.sub(r"\g<fenced>\g<tagged>", text.strip().strip(_BLANK).strip())
    return text.strip().strip(_BLANK).strip()
