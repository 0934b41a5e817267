"""The texts with figures of the README and of the pages, by name: ``figures.py`` writes them where a page names them.

``{FILE|MEASURE|HOW}`` stands for a number of ``results/FILE.json``; what is measured is written in no other way. Limits,
counts of messages and other settings are words. ``{by}`` stands for the benchmarks that its line refers to.
"""

# ruff: noqa: E501 - a row of a table is a line of text

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.measured import changed_since
from benchmarks.prices import (
    LIST_PRICES,
    cost_table,
    learning_share,
    list_price_table,
    stale_sources,
    whole_price,
)

WHOLE_PRICE = f"{whole_price():.1f}"
CLAUDE_PRICE = f"{whole_price(LIST_PRICES[-1]):.1f}"

# Results of which no number stands in a page, and where they are shown.
NOT_IN_A_PAGE: dict[str, str] = {
    "bulk_put": "its file of results alone",
    "dated_questions": "its file of results alone",
    "exact_facts": "its file of results alone",
    "import_time": "its file of results alone",
    "process_size": "its file of results alone",
    "real_engine": "its file of results alone",
    "first_question": "its file of results alone",
    "index_operations": "its file of results alone",
    "ranking_speed": "its file of results alone",
}
# These take long, and have no results yet.
NOT_YET_IN_A_PAGE = {
    "hard_days",
    "long_session",
    "many_sessions",
    "pauses",
    "recall_generated",
}

ALL_FIGURES = """
## Does the model see what matters?

Share of the [evidence](#how-do-i-read-these-figures) in the prompt, or within a budget.

| setting | this package | LlamaIndex's `Memory` | benchmark |
|---|---|---|---|
| a record of 8,000 tokens, prompts of the same length | {equal_room|mean over the questions, with all defaults|.0f} % in {equal_room|tokens of a prompt with a question, with all defaults|,.0f} tokens | {equal_room|mean over the questions, LlamaIndex's Memory, as long when asked|.0f} % in {equal_room|tokens of a prompt with a question, LlamaIndex's Memory, as long when asked|,.0f} tokens | {by} |
| a limit of 4,000 tokens | {evidence_in_prompt|mean over the questions, CondensedMemory, recall by default|.0f} %; with 2,000 tokens of recall {evidence_in_prompt|mean over the questions, CondensedMemory with recall|.0f} % | {evidence_in_prompt|mean over the questions, LlamaIndex's Memory|.0f} %; with `VectorMemoryBlock` and multilingual-e5-small {evidence_in_prompt_e5|mean over the questions, VectorMemoryBlock, two nodes|.0f} to {evidence_in_prompt_e5|mean over the questions, VectorMemoryBlock, 18 nodes, asked by two messages|.0f} % | {by} |
| long replies, half of 8,000 tokens for recall, other conversations | {long_replies|mean over the questions, elsewhere, CondensedMemory with recall|.0f} % | {long_replies|mean over the questions, elsewhere, LlamaIndex's Memory|.0f} % | {by} |
| questions that name a time, a quarter of 2,000 tokens for recall, other conversations | {named_times|evidence, elsewhere, CondensedMemory, with its time|.0f} % | {named_times|evidence, elsewhere, LlamaIndex's Memory, with its time|.0f} % | {by} |
| within a budget of messages | {recall|turns, similarity|.1f} %; with `embed_model="local"` {recall_e5|turns with E5, similarity|.1f} % | | {by} |
| within a budget of facts | {recall|observations, similarity|.1f} %; with `embed_model="local"` {recall_e5|observations with E5, similarity|.1f} % | newest first: {recall|observations, newest first|.1f} % | {by} |
| RealMem: facts grow while questions are asked | {growing|as the block ranks|.1f} % | newest first: {growing|newest first|.1f} % | {by} |
| questions in other words than the fact: the fact is among the first 5 of 134 | {other_words|fact among the first 5, words alone, elsewhere|of}; with `embed_model="local"` {other_words_e5|fact among the first 5, words and E5, elsewhere|of} | | {by} |

## How fast is it?

| setting | this package | LlamaIndex's `Memory` | benchmark |
|---|---|---|---|
| a turn, at 100 and at 10,000 messages | {history_cost|one turn, CondensedMemory at 100 messages|.0f} and {history_cost|one turn, CondensedMemory at 10,000 messages|.0f} ms | {history_cost|one turn, LlamaIndex's Memory at 100 messages|.0f} and {history_cost|one turn, LlamaIndex's Memory at 10,000 messages|.0f} ms | {by} |
| longest pause of the event loop in 99 of 100 turns, 10,000 messages and 1,000 facts | {turn_cost|longest pause in 99 of 100 turns, 10,000 messages and 1,000 facts|.0f} ms | | {by} |
| delay of the agent's first call by an extraction of 1 s (below zero: none) | {facts_cost|the first call of the model comes later by|.1f} ms | | {by} |
| processor time of `embed_model="local"` for a fact or a short question | {other_words_e5|time of the processor for a fact or a question|.0f} ms | | {by} |
| first `aget` of a new process, 100,000 messages | {restore|more than a fresh session, 100,000 messages|,.0f} ms | | {by} |
| another session's messages that are known at the first question | {next_session|messages known to the first question, learned in 1 s|of} | | {by} |

## Are facts true?

| case | result | benchmark |
|---|---|---|
| true facts that the checks lose: LoCoMo, with altered quotes; a hard set written by hand | {honesty|LoCoMo, true facts lost: altered quotes of all kinds|.1f} %; {honesty|hard set, true facts lost: all|.1f} % | {by} |
| false facts stored as reported: replies written to deceive; true facts that a program made false | {honesty|false replies stored: all|.0f} %; {honesty|falsehoods stored, elsewhere|.1f} % | {by} |
| secrets stored: of replies written to deceive; of 30 written by hand | {honesty|false replies stored: secret|of}; {secrets_stored|secrets stored|.0f} | {by} |
| words or facts of a user shown to another user, in 200 random mixtures of 3 users and 4 sessions | {whose_words|times that a user was shown another's words|.0f} | {by} |

## Is anything lost?

| case | this package | a list of strings | benchmark |
|---|---|---|---|
| tasks in 2 to 40 pieces with a restart: all pieces reach the model once, in order, in one message | {sharded|all holds, CondensedMemory, taken over by a new one|.0%} | {sharded|all holds, the recipe, taken over by a new one|.0%} | {by} |
"""

# The memories of ``answers`` by their measures, with the names that a page shows.
ANSWERING = {
    "LlamaIndex's Memory, 600 tokens": "LlamaIndex's `Memory`",
    "CondensedMemory without facts, 600 tokens": "`CondensedMemory` without facts",
    "CondensedMemory with added facts, 600 tokens": "`CondensedMemory`, facts added by a program",
    "CondensedMemory that learns, 600 tokens": "`CondensedMemory` by default (three conversations)",
    "FactExtractionMemoryBlock, 600 tokens": "`Memory` with `FactExtractionMemoryBlock` (two of the three), shorter prompts",
    "VectorMemoryBlock, 600 tokens": "`Memory` with `VectorMemoryBlock`",
    "ChatSummaryMemoryBuffer, 600 tokens": "`ChatSummaryMemoryBuffer` (two of the three), shorter prompts",
    "LlamaIndex's Memory, 1,500 tokens": "LlamaIndex's `Memory`, longer prompts",
    "CondensedMemory without facts, 1,500 tokens": "`CondensedMemory` without facts, longer prompts",
    "LlamaIndex's Memory without guessing, 600 tokens": "LlamaIndex's `Memory`, [told not to guess](local-models.md#what-if-a-model-guesses)",
    "CondensedMemory without facts without guessing, 600 tokens": "`CondensedMemory` without facts, told not to guess",
}
# They have results of their own.
SLOW = ("VectorMemoryBlock", "ChatSummaryMemoryBuffer")
ANSWER_COLUMNS = (
    ("right answers", "right answers", "of"),
    ("right answers, changed fact", "to changed facts", "of"),
    ("right answers, control", "questions that need no memory", "of"),
    ("invented answers", "invented answers", "of"),
    ("not understood", "wrong, although the value was in the prompt", ".0f"),
    ("a prompt", "tokens of a prompt", ",.0f"),
)
LOCOMO_ANSWERS = """\
For each conversation, learning sent {answers|CondensedMemory that learns, 600 tokens: learning, sent|,.0f} tokens and received {answers|CondensedMemory that learns, 600 tokens: learning, received|,.0f} with
`CondensedMemory`, and {answers_host|FactExtractionMemoryBlock, 600 tokens: learning, sent|,.0f} and {answers_host|FactExtractionMemoryBlock, 600 tokens: learning, received|,.0f} with the block.
Two rows have shorter prompts, because this model learns and summarizes little.

The same model answered 30 questions about the beginnings of five conversations of LoCoMo, which people wrote
(`answers_locomo`, judged by words of the evidence). The evidence had left the list of messages. Right answers: {answers_locomo|CondensedMemory without facts: right answers|of} with
`CondensedMemory` without facts, in {answers_locomo|CondensedMemory without facts: a prompt|.0f} tokens, and
{answers_locomo|LlamaIndex's Memory: right answers|of} with `Memory`, in {answers_locomo|LlamaIndex's Memory: a prompt|.0f} tokens.
"""
ENDINGS = {
    "question": 'a question about a stated fact ("Where does Nora live?")',
    "sum": "a question whose answer is the sum of two stated numbers",
    "instruction": "an instruction to write",
    "unrelated": "a question that needs no memory",
    "continuation": "a text to continue",
}


def _result_of(memory: str) -> str:
    """Return the name of the results that hold the answers with a memory."""
    if memory.startswith(SLOW):
        return "answers_slow"
    return "answers" if memory.startswith("CondensedMemory") else "answers_host"


def _answers() -> str:
    """Return a table with a row for each memory of ``answers``."""
    heads = [head for _, head, _ in ANSWER_COLUMNS]
    lines = [f"| | {' | '.join(heads)} |", "|" + "---|" * (1 + len(heads))]
    for name, label in ANSWERING.items():
        result = _result_of(name)
        cells = [
            f"{{{result}|{name}: {what}|{how}}}" for what, _, how in ANSWER_COLUMNS
        ]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n" + "\n".join([*lines, "", LOCOMO_ANSWERS])


def _one_message() -> str:
    """Return a table of the right answers with a list of messages and with one message."""
    lines = ["| right answers | list of messages | one message |", "|---|---|---|"]
    for kind, label in ENDINGS.items():
        cells = [
            f"{{one_message|{kind}: right answers, {side}|of}}"
            for side in ("list", "one message")
        ]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    cells = [
        f"**{{one_message|right answers, {side}|of}}**"
        for side in ("list", "one message")
    ]
    lines.append(f"| **all** | {' | '.join(cells)} |")
    return "\n" + "\n".join(lines) + "\n"


GUESSING = """
With these sentences, the model of [the figures](figures.md#does-a-small-model-answer-right) invented {answers|CondensedMemory without facts without guessing, 600 tokens: invented answers|of} answers instead of {answers|CondensedMemory without facts, 600 tokens: invented answers|.0f},
and {answers_host|LlamaIndex's Memory without guessing, 600 tokens: invented answers|of} instead of {answers_host|LlamaIndex's Memory, 600 tokens: invented answers|.0f} with LlamaIndex's `Memory`. Right answers fell from {answers|CondensedMemory without facts, 600 tokens: right answers|.0f} to {answers|CondensedMemory without facts without guessing, 600 tokens: right answers|of} with `CondensedMemory`.
"""
LIVE_AGENT = """
| | |
|---|---|
| right answers about what was said in an earlier session | {live_agent|right answers, asks for an earlier session|of} |
| right answers about what was said in the same session | {live_agent|right answers, asks for the same session|of} |
| right answers with a tool | {live_agent|right answers, needs a tool|of} |
| right answers to questions that need neither | {live_agent|right answers, needs nothing|of} |
| turns in which it called a tool that was not needed | {live_agent|turns with a tool that was not needed|of} |
| answers with tags of the prompt | {live_agent|answers with tags|of} |
"""

IN_SHORT = """
| question | this package | LlamaIndex's `Memory` |
|---|---|---|
| Does a small model answer right? Prompts of about 600 tokens | {answers|CondensedMemory without facts, 600 tokens: right answers|of}; with added facts {answers|CondensedMemory with added facts, 600 tokens: right answers|of} | {answers_host|LlamaIndex's Memory, 600 tokens: right answers|of} |
| Does the model see what matters? Evidence, with a limit of 4,000 tokens | {evidence_in_prompt|mean over the questions, CondensedMemory, recall by default|.0f} % | {evidence_in_prompt|mean over the questions, LlamaIndex's Memory|.0f} % |
| What does a turn cost? A short record, prompts of the same length, OpenAI's cache up to GPT-5.5 ([details](cost.md)) | WHOLE_PRICE; a token of the prompt {cached_prefix_by_default|price of a turn, R1, CondensedMemory, all defaults, facts known, to LlamaIndex's Memory, as long as all defaults|.1f}; without facts and recall {cached_prefix|price relative to the plain list, R1, CondensedMemory, 8,000|.2f} | 1 |
| How fast is a turn at 10,000 messages? | {history_cost|one turn, CondensedMemory at 10,000 messages|.0f} ms | {history_cost|one turn, LlamaIndex's Memory at 10,000 messages|.0f} ms |
| How many true facts do the checks lose? | {honesty|LoCoMo, true facts lost: altered quotes of all kinds|.1f} % | no checks |

LlamaIndex's `Memory` does better in two ways:

- **Cost.** No [prompt cache](prompt-caches.md#figures) serves recalled messages and facts for a question.
- **Long conversations.** By default, this package's prompts are longer: {per_turn|tokens of a prompt, CondensedMemory, as they come|,.0f} tokens on average over 400 turns, against {per_turn|tokens of a prompt, LlamaIndex's Memory, as they come|,.0f}.
"""


def _older_than_the_code(*names: str) -> str:
    """Return a sentence about results that were measured before the last change to the code; "" if none was."""
    if not any(changed_since(name) for name in names):
        return ""
    return "\nThese numbers were measured before the last change to the code.\n"


READ_FIRST = """
| | LlamaIndex `Memory` | `CondensedMemory` |
|---|---|---|
| right answers to questions about messages that have left the prompt (Qwen2.5-Coder-1.5B-Instruct; prompts of {answers_host|LlamaIndex's Memory, 600 tokens: a prompt|.0f} and {answers|CondensedMemory without facts, 600 tokens: a prompt|.0f} tokens) | {answers_host|LlamaIndex's Memory, 600 tokens: right answers|of}; with `VectorMemoryBlock` {answers_slow|VectorMemoryBlock, 600 tokens: right answers|.0f} | **{answers|CondensedMemory without facts, 600 tokens: right answers|of}** without facts, **{answers|CondensedMemory with added facts, 600 tokens: right answers|.0f}** with facts that a program adds; with facts that this model learns, {answers|CondensedMemory that learns, 600 tokens: right answers|of} |
| share of the needed messages that are in the prompt ({equal_room|questions|.0f} questions of [LoCoMo](https://github.com/snap-research/locomo), in {equal_room|tokens of a prompt with a question, LlamaIndex's Memory, as long when asked|,.0f} and {equal_room|tokens of a prompt with a question, with all defaults|,.0f} tokens) | {equal_room|mean over the questions, LlamaIndex's Memory, as long when asked|.0f} % | **{equal_room|mean over the questions, with all defaults|.0f} %** |
| a message that has left the prompt | is not shown again, unless a memory block stores it | can come back when a question is about it |
| facts are learned | from messages that no longer fit (the "waterfall") | from each turn, when they are needed |
| a fact is | a line that the model may rewrite | quoted, dated, correctable, deletable |
| after a restart, with a database, the memory uses | recent messages | all messages and facts |
| price of a turn, including the calls that learn facts (prompts of the same length, OpenAI's prompt cache) | **1** | WHOLE_PRICE |
| time that the memory takes in a turn, with 100 and with 10,000 stored messages | {history_cost|one turn, LlamaIndex's Memory at 100 messages|.0f} and {history_cost|one turn, LlamaIndex's Memory at 10,000 messages|.0f} ms | **{history_cost|one turn, CondensedMemory at 100 messages|.0f} and {history_cost|one turn, CondensedMemory at 10,000 messages|.0f} ms** |
OLDER
**When not to use it:**

- **Cost is everything.** A provider's cache serves the conversation at a tenth of the price or less. Recalled messages and facts for a question are new in each turn, so they are billed at the full price. With a record of at most 8,000 tokens, a turn costs WHOLE_PRICE times as much as with a `Memory` whose prompts are as long (OpenAI), or CLAUDE_PRICE times (Claude Sonnet 5.5). Without facts, a token of the prompt costs {cached_prefix_by_default|price relative to the plain list, R1, CondensedMemory, recall by default, 8,000|.1f} times as much, and without facts and recall {cached_prefix|price relative to the plain list, R1, CondensedMemory, 8,000|.2f} times ([prices in dollars](docs/cost.md)). Anthropic, Bedrock and OpenAI's GPT-5.6 or later cache nothing without [`cache_points`](docs/prompt-caches.md).
- **Whole conversations fit into `token_limit`, and users never come back:** recall adds nothing, and no later session needs the facts.
- **You need proof with a large model.** The answers in the table come from one small model, and the conversations were generated in three languages. [All figures](docs/figures.md).
"""

DEFAULTS = """
| a limit of 8,000 tokens for the record, OpenAI's cache up to GPT-5.5 | tokens of a prompt | from the cache | price per token (`Memory`: 1) |
|---|---|---|---|
| recall and facts | {cached_prefix_by_default|tokens of a prompt, CondensedMemory, all defaults, facts known, 8,000|,.0f} | {cached_prefix_by_default|share found, R1, CondensedMemory, all defaults, facts known, 8,000|.0%} | {cached_prefix_by_default|price of a turn, R1, CondensedMemory, all defaults, facts known, to LlamaIndex's Memory, as long as all defaults|.2f} |
| `facts_token_limit=0` | {cached_prefix_by_default|tokens of a prompt, CondensedMemory, recall by default, 8,000|,.0f} | {cached_prefix_by_default|share found, R1, CondensedMemory, recall by default, 8,000|.0%} | {cached_prefix_by_default|price relative to the plain list, R1, CondensedMemory, recall by default, 8,000|.2f} |
| `facts_token_limit=0`, `recall_token_limit=0` | {cached_prefix|tokens of a prompt, CondensedMemory, 8,000|,.0f} | {cached_prefix|share found, R1, CondensedMemory, 8,000|.0%} | {cached_prefix|price relative to the plain list, R1, CondensedMemory, 8,000|.2f} |
| LlamaIndex's `Memory` | {cached_prefix_by_default|tokens of a prompt, LlamaIndex's Memory, as long as all defaults, 8,000|,.0f} | {cached_prefix_by_default|share found, R1, LlamaIndex's Memory, as long as all defaults, 8,000|.0%} | 1 |
"""

# The rule of each provider without marks, and with them; "" where marks change nothing.
PROVIDERS = {
    "OpenAI up to GPT-5.5, vLLM, llama.cpp": ("R1", ""),
    "OpenAI GPT-5.6 and later": ("R2", "R3"),
    "Anthropic, Bedrock": ("R4", "R4"),
    "DeepSeek": ("R5", ""),
}
CACHES, BY_DEFAULT = "cached_prefix", "cached_prefix_by_default"
# Label, file, side without marks or None, side with marks or None.
RECALLING = (
    (
        "`CondensedMemory` without facts, recall by default",
        BY_DEFAULT,
        "CondensedMemory, recall by default",
    ),
    ("`recall_token_limit=0`", CACHES, "CondensedMemory"),
)
WITHOUT_MARKS = (
    (
        "LlamaIndex's `Memory`, prompts as long as ours without recall",
        CACHES,
        "LlamaIndex's Memory",
    ),
    (
        "a list of strings in one message, the oldest dropped each turn",
        CACHES,
        "the recipe",
    ),
)
TOOLS = (
    ("`cache_points=True`", "CondensedMemory, marked"),
    ("the same with recall", "CondensedMemory, marked with recall"),
)


def _by_provider() -> str:
    """Return a table with a column for each provider, and a row for each side, without marks and with them."""
    lines = [f"| | {' | '.join(PROVIDERS)} |", "|" + "---|" * (1 + len(PROVIDERS))]

    def add(label: str, file: str, side: str, rules: Iterable[str]) -> None:
        cells = []
        for rule in rules:
            what = f"{rule}, {side}, 8,000"
            found = f"{{{file}|share found, {what}|.0%}}"
            price = f"{{{file}|price relative to the plain list, {what}|.1f}}"
            cells.append(f"{found}; {price}" if rule else "")
        lines.append(f"| {label} | {' | '.join(cells)} |")

    without_marks = [rules[0] for rules in PROVIDERS.values()]
    with_marks = [rules[1] for rules in PROVIDERS.values()]
    for label, file, side in (*RECALLING, *WITHOUT_MARKS):
        add(label, file, side, without_marks)
        if (label, file, side) in RECALLING:
            marked = f"{side}, marked"
            add("the same with `cache_points=True`", file, marked, with_marks)
    return "\n" + "\n".join(lines) + "\n"


def _tools() -> str:
    ends = ("R3, {}", "R4, {}", "R4, {}, end of the prompt too")
    lines = [
        "",
        "| | OpenAI GPT-5.6 and later | Anthropic, Bedrock | Anthropic, and the end of each prompt is marked |",
        "|---|---|---|---|",
    ]
    for label, side in TOOLS:
        cells = (
            f"{{tool_rounds|price relative to the plain list, {end.format(side)}|.2f}}"
            for end in ends
        )
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


TEXTS: dict[str, str] = {
    "answers": _answers(),
    "one-message": _one_message(),
    "guessing": GUESSING,
    "live-agent": LIVE_AGENT,
    "all": ALL_FIGURES.replace("WHOLE_PRICE", WHOLE_PRICE),
    "readme": READ_FIRST.replace(
        "OLDER\n", _older_than_the_code("equal_room", "history_cost") + "\n"
    )
    .replace("WHOLE_PRICE", WHOLE_PRICE)
    .replace("CLAUDE_PRICE", CLAUDE_PRICE),
    "in-short": IN_SHORT.replace("WHOLE_PRICE", WHOLE_PRICE),
    "defaults": DEFAULTS,
    "cost": cost_table(),
    "list-prices": list_price_table(),
    "stale-prices": stale_sources(),
    "whole-price": WHOLE_PRICE,
    "claude-price": CLAUDE_PRICE,
    "background-tokens": "{background_calls|calls in a turn, facts|*100 .0f} calls in 100 turns; in a turn, it sends {background_calls|tokens sent in a turn, facts|,.0f} tokens and receives {background_calls|tokens received in a turn, facts|.0f}",
    "learning-share": f"{learning_share():.0%}".replace("%", " %"),
    "summary-calls": "{background_calls|calls in a turn, summaries|*100 .1f} calls in 100 turns, {background_calls|tokens sent in a turn, summaries|.0f} tokens a turn",
    "caches": _by_provider(),
    "tools": _tools(),
    "local-time": "{other_words_e5|time of the processor for a fact or a question|.0f} ms",
    "questions-sent": "{cached_prefix|prompts of each side|,.0f}",
    "cache-record": "{cached_prefix|share found, R1, CondensedMemory, 8,000|.0%}",
    "cache-without-recall": "{cached_prefix|share found, R1, CondensedMemory, 8,000|.0%} of its tokens can come from a [prompt cache](prompt-caches.md) at 8,000 tokens, {cached_prefix|share found, R1, CondensedMemory, 4,000|.0%} at 4,000",
    "cache-trimmed": "{cached_prefix|share found, R1, the recipe, 8,000|.0%}",
}
