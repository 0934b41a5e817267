"""Tells which answers of a model are a summary, and takes the summary out of them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from llama_index_memory_ext.errors import SummaryReplyError
from llama_index_memory_ext.text.messages import unescape_tags

if TYPE_CHECKING:
    from llama_index_memory_ext.text.tokens import TokenCounter

# What the entries that are to be summarised must not be able to forge.
PROMPT_TAGS = ("summary_so_far", "transcript")

# An answer that is shorter than this share of a summary of some length is not the whole of it, but what is new.
_SHRUNK, _WORTH_GUARDING = 0.25, 30
# Beyond this many characters an answer that begins with an apology goes on with something else.
_LONGEST_REFUSAL = 600

# How a refusal begins, in the languages in which models refuse most.
_REFUSAL = re.compile(
    r"\W{0,4}(?:"
    r"(?:i['\u2019]?m|i am|we['\u2019]?re|we are) +(?:(?:very|so|really) )?(?:sorry|afraid|unable|not able)\b"
    r"|sorry[,.!]? +(?:but|i|we)\b|(?:my )?apologies\b|i apologi[sz]e\b|i (?:must|have to) decline\b"
    r"|(?:unfortunately,? )?(?:i|we) +(?:(?:ca|could|wo)n['\u2019]?t|(?:can|could|will) ?not)\b"
    r"|i +do(?: not|n['\u2019]?t) +(?:have|feel)\b"
    r"|(?:as|being) an? (?:ai(?: language model| model| assistant| system)?(?:,| i\b)|(?:large )?language model\b)"
    r"|(?:很|非常|十分)?(?:抱歉|对不起|對不起|遗憾|遺憾)|我(?:无法|無法|不能)|[作做][为為](?:一[个個])?(?:AI|人工智能)"
    r"|申し訳|すみません|ごめんなさい|お手伝いできません|죄송"
    r"|(?:es )?tut mir leid|ich kann (?:dabei |ihnen |dir )?(?:leider )?nicht|(?:je suis )?désolée?\b|je ne peux pas"
    r"|lo siento|desculpe|mi dispiace|извините"
    r")",
    re.IGNORECASE,
)
# What only a machine says, and no summary begins with.
_MACHINE_ERROR = re.compile(
    r"<!doctype html|<html|<\?xml|traceback \(most recent call last\)|[\w.]*error code: \d+ - [{\"']"
    r"|[\[{](?=.*[\]}]\Z).*?[\"'](?:errors?|detail|message|code|status)[\"']\s*:",
    re.IGNORECASE | re.DOTALL,
)
# What providers and proxies say; so may a summary begin, but then it goes on with what the user or the assistant did.
_ERROR = re.compile(
    r"\W{0,4}(?:oops\W+)?(?:"
    r"(?:(?:http|api|server|internal|request|network|connection|timeout|rate[ _-]?limit|model|openai|fatal|connect|"
    r"upstream) +)*[\w.]*(?:error|exception)\b"
    r"\s*(?:[:(\[{\u2014*]|code ?[:=\d]|\d|while\b|occurred|during\b|or\b|[.!]?$)"
    r"|(?:http(?:/[\d.]+)? *|status(?: code)?:? *)?[45]\d\d\b\W*(?:too many requests|bad gateway|bad request"
    r"|internal(?: server)? error|service (?:temporarily )?unavailable|gateway time-?out|unauthori[sz]ed|forbidden"
    r"|(?:page )?not found|payment required)\b"
    r"|internal server error|too many requests|gateway time-?out|request time(?:d )?-?out|upstream request timeout"
    r"|no healthy upstream|connection (?:refused|reset|aborted|timed out)"
    r"|rate limit (?:reached|exceeded)|insufficient quota|you(?:'ve| have)? exceeded your"
    r"|(?:incorrect|invalid) api key|this model['\u2019]s maximum context length"
    r"|(?:the |that )?(?:service|model|server|engine) (?:is )?(?:temporarily |currently )*(?:unavailable|overloaded)"
    r"|the server had an error|the model `?[\w.:/-]+`? does not exist|your credit balance is too low"
    r"|(?:your )?request was (?:throttled|blocked|filtered)|overloaded\b|(?:please )?try again later"
    r"|(?:blocked|filtered|the (?:response|prompt|request) was (?:blocked|filtered)) (?:by|due to)\b"
    r"|an? (?:\w+ )?error (?:has )?occurred|something went wrong"
    r")",
    re.IGNORECASE,
)
_PEOPLE = re.compile(
    r"\b(?:the|an?) (?:user|assistant)\b|\buser['\u2019]s\b|用户|用戶|助手|ユーザー|アシスタント", re.IGNORECASE
)
# An error in the very work that was asked for, whoever is named in it.
_OWN_WORK = re.compile(
    r"\b(?:generat|creat|produc|process|summari[sz]|writ|extend)\w*\b.{0,60}\b(?:summary|request|response|conversation|prompt)",
    re.IGNORECASE | re.DOTALL,
)
_WORD = re.compile(r"\w")
# What a model says instead of a summary.
_NO_SUMMARY = re.compile(
    r"\W*(?:none|n/a|null|ok(?:ay)?|sure|certainly|of course|understood|done|got it"
    r"|no (?:new )?(?:summary|information|changes?|messages?)(?: to (?:add|report|summari[sz]e))?"
    r"|(?:the )?(?:extended |running )?summary (?:is |remains |stays )*(?:unchanged|the same)"
    r"|(?:there is )?nothing (?:new|to (?:add|report|summari[sz]e))(?: in the (?:messages|transcript))?"
    r"|(?:i (?:have|see) no|there are no) (?:new )?messages\b.{0,200}"
    r"|(?:please )?provide (?:me with )?the (?:transcript|messages|conversation)\b.{0,100})\W*",
    re.IGNORECASE | re.DOTALL,
)
# A copy of the prompt: its first sentence, its last, or one of its tags on a line of its own.
_PROMPT = re.compile(
    r"You keep the running summary of a conversation between|Extend the summary by what is new in the"
    rf"|^</?(?:{'|'.join(PROMPT_TAGS)})>$",
    re.MULTILINE,
)
# What models put around a summary: their thoughts (some without the first tag, and some do not come to an end), ...
_THINKING = re.compile(
    r"\A(?:<think(?:ing)?>.*?(?:</think(?:ing)?>\s*|\Z)|(?!<).*?^</think(?:ing)?>$)",
    re.DOTALL | re.MULTILINE | re.IGNORECASE,
)
# ... a line that says what comes, ...
_HEADING = re.compile(
    r"\A\W{0,4}(?:(?:sure|certainly|of course|okay)\W{1,3})?(?:here(?:['\u2019]s| is) )?(?:the |your |an? )?"
    r"(?:(?:extended|updated|complete|full|whole|new|running) )*(?:conversation )?summary"
    r"(?: so far)?(?: of (?:the|this|our) (?:conversation|chat))?:\W{0,4}\n",
    re.IGNORECASE,
)
# ... and fences or tags.
_WRAPPINGS = (
    re.compile(r"\A```\w*\n(?P<text>.*)```\Z", re.DOTALL),
    re.compile(
        r"\A<(?P<tag>conversation_summary|summary|extended_summary|summary_so_far)>(?P<text>.*)</(?P=tag)>\Z",
        re.DOTALL | re.IGNORECASE,
    ),
)
_MOST_WRAPPINGS = 4
_BLANK = "\ufeff\u200b"


def checked_summary(reply: str, previous: str, counter: TokenCounter) -> str:
    """The summary in a model's answer, without what models put around it.

    Raises:
        SummaryReplyError: There is none in it.
    """
    text = _unwrapped(reply)
    if not _WORD.search(text) or _NO_SUMMARY.fullmatch(text):
        raise SummaryReplyError(reply, "it is empty")
    if len(text) <= _LONGEST_REFUSAL and _REFUSAL.match(text):
        raise SummaryReplyError(reply, "it reads like a refusal")
    tells = _PEOPLE.search(text) and not _OWN_WORK.search(text)
    if _MACHINE_ERROR.match(text) or (_ERROR.match(text) and not tells):
        raise SummaryReplyError(reply, "it reads like an error message")
    if _PROMPT.search(text):
        raise SummaryReplyError(reply, "it repeats the prompt")
    # Said in the conversation, and escaped in the prompt from which the model has copied it.
    text = unescape_tags(text, PROMPT_TAGS)
    before = counter.count(previous)
    is_addition = before >= _WORTH_GUARDING and counter.count(text) < _SHRUNK * before
    return f"{previous}\n{text}" if is_addition else text


def _unwrapped(reply: str) -> str:
    text = _stripped(reply)
    for _ in range(_MOST_WRAPPINGS):
        text = _HEADING.sub("", _stripped(_THINKING.sub("", text)))
        for wrapping in _WRAPPINGS:
            wrapped = wrapping.match(text)
            text = _stripped(wrapped["text"] if wrapped else text)
    return text


def _stripped(text: str) -> str:
    """Without white space at both ends, and without the marks that cannot be seen."""
    return text.strip().strip(_BLANK).strip()


def was_refused(raw: Any) -> bool:
    """Whether the provider says so beside the text: a ``refusal``, or a ``content_filter`` that stopped the model."""
    choices = _field(raw, "choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    if _field(_field(choice, "message"), "refusal"):
        return True
    reasons = (_field(choice, "finish_reason"), _field(raw, "stop_reason"))
    return any(reason in ("content_filter", "refusal") for reason in reasons)


def _field(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else getattr(value, name, None)
