"""Tells what must never be remembered: secrets, permissions, and instructions for a single answer."""

from __future__ import annotations

import re
import unicodedata
from typing import Literal

Offence = Literal["secret", "permission", "instruction"]

_SECRET = re.compile(
    r"\bsk-[a-z0-9_-]{12,}|\bAKIA[0-9A-Z]{12,}|\bgh[pousr]_\w{16,}|\bxox[abp]-|\beyJ\w{10,}\."
    r"|-----BEGIN [A-Z ]*PRIVATE KEY"
    r"|\b(?:password|passwd|passphrase|pass ?code|pin(?: code)?|api[ _-]?key|access key|secret(?: key)?|access token)\b"
    r"(?: (?:for|to|of) (?:\S+ ){1,4}?)? ?(?:is|was|are|:|=)"
    r"|(?:密码|口令|密钥|暗証番号|パスワード)[^。]{0,8}(?:是|为|:|=|は)",
    re.IGNORECASE,
)
_ACTS = (
    "access|act|always|approve|buy|bypass|change|commit|delete|deploy|do|edit|execute|freely|go|ignore|install|merge|now|"
    "order|override|pay|proceed|push|read|remove|run|send|share|skip|spend|transfer|use|write"
)
_PERMISSION = re.compile(
    r"\byou may (?!call|refer|address|find|reach|contact|know|remember|have )"
    rf"|\byou can (?:{_ACTS})\b"
    r"|\byou(?: are|'re| have)? (?:now |hereby |always )*(?:allowed|permitted|authori[sz]ed|free to|permission)"
    r"|\byou (?:do not|don't|no longer|never) (?:have|need) to (?:ask|confirm|check)"
    r"|\b(?:assistant|agent|chatbot|bot|ai|model) (?:may|can|is (?:now |always )*(?:allowed|permitted|free))"
    r"|\b(?:allows?|allowed|permits?|permitted|authori[sz]e[sd]?|trusts?) "
    r"(?:you|(?:the |an? )?(?:assistant|agent|ai|bot))\b"
    r"|\b(?:gives?|gave|given|grants?|granted) (?:\S+ ){0,3}?permission"
    r"|\bwithout (?:asking|confirm\w*|(?:further |my |any |user )*(?:approval|confirmation|permission)|checking with)"
    r"|(?:你|您|助手)(?:现在|以后|从现在起|将来|今后)*(?:可以|被允许|有权|获准)(?!叫我|称呼|喊我|找|联系|看)"
    r"|(?:允许|授权|准许)(?:你|您|助手)|(?:不用|不必|无需|不需要)(?:再)?(?:问我?|确认|请示|批准|询问)"
    r"|許可(?:します|する|なし)|確認(?:なし|せず|不要)",
    re.IGNORECASE,
)
_INSTRUCTION = re.compile(
    r"\b(?:ignore|disregard|forget|override|bypass)\b[^.!?]{0,30}?"
    r"\b(?:instructions?|prompts?|rules|guidelines?|guardrails?|restrictions?|polic(?:y|ies)|safety|safeguards?|above|"
    r"previous|prior)\b"
    r"|\bsystem prompt|\bdeveloper mode|\bjailbreak|\byou are now\b|\bpretend (?:to be|you)"
    r"|\bfor (?:this|the next|your next|that) (?:one )?(?:answer|reply|response|question|message|task|time|request)\b"
    r"|\bin (?:this|the next|your next) (?:answer|reply|response|message)\b"
    r"|\bjust (?:this once|for now|this time)|\bonly (?:this once|this time|for now)|\bthis (?:one time|time only)\b"
    r"|(?:忽略|无视|忘记|忘掉|绕过)[^。]{0,12}(?:指令|指示|规则|提示|说明|限制)"
    r"|(?:这|本|下)一?(?:次|个|条)(?:的)?(?:回答|回复|问题|消息|任务)|仅此一次|(?:只有?|就)这一?次"
    r"|(?:指示|命令|ルール|制約)[^。]{0,6}(?:無視|忘れ)|今回(?:だけ|のみ)|この(?:回答|質問)(?:だけ|では|には)",
    re.IGNORECASE,
)


def offence(text: str) -> Offence | None:
    """Why a text must never be remembered, in English, Chinese and in part Japanese; None if it may be.

    >>> offence("You may delete files without asking"), offence("For this answer, use French")
    ('permission', 'instruction')
    >>> offence("My password is swordfish"), offence("You may call me Ann")
    ('secret', None)
    """
    straight = unicodedata.normalize("NFKC", text).replace("\u2019", "'")
    if _SECRET.search(straight):
        return "secret"
    if _INSTRUCTION.search(straight):
        return "instruction"
    return "permission" if _PERMISSION.search(straight) else None
