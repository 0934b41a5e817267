"""The texts with figures of the README and of the pages, by name: ``figures.py`` writes them where a page names them.

``{FILE|MEASURE|HOW}`` stands for a number of ``results/FILE.json``; what is measured is written in no other way. Limits,
counts of messages and other settings are words. ``{by}`` stands for the benchmarks that its line refers to.
"""

# ruff: noqa: E501 - a row of a table is a line of text

from __future__ import annotations

# Results of which no number stands in a page, and where they are shown.
NOT_IN_A_PAGE: dict[str, str] = {}
# These take long, and have no results yet.
NOT_YET_IN_A_PAGE = {
    "hard_days",
    "long_session",
    "many_sessions",
    "pauses",
    "recall_generated",
}

ALL_FIGURES = """
## One message

| | measured | by |
|---|---|---|
| tasks told in 2 to 40 pieces, with tool calls between them, whose pieces are all there, once, in order, in one user message; and with a restart in the middle | {sharded|all holds, CondensedMemory|.0%}, and {sharded|all holds, CondensedMemory, taken over by a new one|.0%} (the list of strings: {sharded|all holds, the recipe|.0%}, and {sharded|all holds, the recipe, taken over by a new one|.0%}; LlamaIndex's `Memory` has every piece of {sharded|every piece, LlamaIndex's Memory|.0%}, in messages of their own) | {by} |
| days beside what was said: how many times as likely the right answer to a question about a day gets; to other questions; and the right one of three days is the likeliest, without days and with them | {dated_questions|questions about a day: the days add, mean|times} times; {dated_questions|questions: the days add, mean|times} times; {dated_questions|right day of three, without days|.0%} and {dated_questions|right day of three, with days|.0%} | {by} |

## Tokens, caches and prices

| | measured | by |
|---|---|---|
| tokens of a prompt in one long conversation (400 turns of plain words) with all defaults, and how many of them a cache finds | {per_turn|tokens of a prompt, CondensedMemory, as they come|,.0f}, {per_turn|share from the cache, CondensedMemory, as they come|.0%} (LlamaIndex's `Memory`, which keeps less: {per_turn|tokens of a prompt, LlamaIndex's Memory, as they come|,.0f}, {per_turn|share from the cache, LlamaIndex's Memory, as they come|.0%}) | {by} |
| the same at a limit of 8,000, without recall, and with 2,000 of them for recall | {per_turn|tokens of a prompt, CondensedMemory, a limit of 8,000 tokens|,.0f}, {per_turn|share from the cache, CondensedMemory, a limit of 8,000 tokens|.0%}, and {per_turn|tokens of a prompt, CondensedMemory with recall, a limit of 8,000 tokens|,.0f}, {per_turn|share from the cache, CondensedMemory with recall, a limit of 8,000 tokens|.0%} (LlamaIndex's `Memory`: {per_turn|tokens of a prompt, LlamaIndex's Memory, a limit of 8,000 tokens|,.0f}, {per_turn|share from the cache, LlamaIndex's Memory, a limit of 8,000 tokens|.0%}) | {by} |
| prompt tokens that a cache finds at a limit of 8,000, five conversations of LoCoMo without facts, OpenAI up to GPT-5.5, vLLM, llama.cpp: by default, with 2,000 tokens of recall, without recall | {cached_prefix_by_default|share found, R1, CondensedMemory, recall by default, 8,000|.0%}, {cached_prefix|share found, R1, CondensedMemory with recall, 8,000|.0%}, {cached_prefix|share found, R1, CondensedMemory, 8,000|.0%} (LlamaIndex's `Memory`, prompts as long: {cached_prefix|share found, R1, LlamaIndex's Memory, 8,000|.0%}; dropping the oldest message each turn: {cached_prefix|share found, R1, the recipe, 8,000|.0%}) | {by} |
| tokens of a prompt there: by default, with 2,000 tokens of recall, without recall | {cached_prefix_by_default|tokens of a prompt, CondensedMemory, recall by default, 8,000|,.0f}, {cached_prefix|tokens of a prompt, CondensedMemory with recall, 8,000|,.0f}, {cached_prefix|tokens of a prompt, CondensedMemory, 8,000|,.0f} (LlamaIndex's `Memory`: {cached_prefix|tokens of a prompt, LlamaIndex's Memory, 8,000|,.0f}) | {by} |
| what a prompt token costs there, relative to LlamaIndex's `Memory` with prompts as long: by default, with 2,000 tokens of recall, without recall | {cached_prefix_by_default|price relative to the plain list, R1, CondensedMemory, recall by default, 8,000|.2f}, {cached_prefix|price relative to the plain list, R1, CondensedMemory with recall, 8,000|.2f}, {cached_prefix|price relative to the plain list, R1, CondensedMemory, 8,000|.2f} (dropping the oldest message each turn: {cached_prefix|price relative to the plain list, R1, the recipe, 8,000|.1f}) | {by} |
| what a prompt costs there with facts, too, by default: relative to LlamaIndex's `Memory` with prompts as long, and to one with prompts as long as our record | {equal_room|price of a turn, with all defaults, to LlamaIndex's Memory, as long|.2f}, and {equal_room|price of a turn, with all defaults, to LlamaIndex's Memory, as long as the record|.2f} | {by} |
| without facts: the same of Anthropic and Bedrock, found and price, with `cache_points=True`: by default, and without recall | {cached_prefix_by_default|share found, R4, CondensedMemory, recall by default, marked, 8,000|.0%} at {cached_prefix_by_default|price relative to the plain list, R4, CondensedMemory, recall by default, marked, 8,000|.2f}, and {cached_prefix|share found, R4, CondensedMemory, marked, 8,000|.0%} at {cached_prefix|price relative to the plain list, R4, CondensedMemory, marked, 8,000|.2f}; without marks {cached_prefix|share found, R4, CondensedMemory, 8,000|.0%} (LlamaIndex's `Memory`: {cached_prefix|share found, R4, LlamaIndex's Memory, 8,000|.0%}) | {by} |
| the same of GPT-5.6 and later | {cached_prefix_by_default|share found, R3, CondensedMemory, recall by default, marked, 8,000|.0%} at {cached_prefix_by_default|price relative to the plain list, R3, CondensedMemory, recall by default, marked, 8,000|.2f}, and {cached_prefix|share found, R3, CondensedMemory, marked, 8,000|.0%} at {cached_prefix|price relative to the plain list, R3, CondensedMemory, marked, 8,000|.2f}; without marks {cached_prefix|share found, R2, CondensedMemory, 8,000|.0%} (LlamaIndex's `Memory`: {cached_prefix|share found, R2, LlamaIndex's Memory, 8,000|.0%}) | {by} |
| the same of DeepSeek, which takes no marks: by default, and without recall | {cached_prefix_by_default|share found, R5, CondensedMemory, recall by default, 8,000|.0%} at {cached_prefix_by_default|price relative to the plain list, R5, CondensedMemory, recall by default, 8,000|.2f}, and {cached_prefix|share found, R5, CondensedMemory, 8,000|.0%} at {cached_prefix|price relative to the plain list, R5, CondensedMemory, 8,000|.2f} (LlamaIndex's `Memory`: {cached_prefix|share found, R5, LlamaIndex's Memory, 8,000|.0%}) | {by} |
| price of a prompt token of an agent with three calls of tools in each turn, with `cache_points=True`, Anthropic: without recall, and with 2,000 tokens of it | {tool_rounds|price, R4, CondensedMemory, marked, end of the prompt too|.2f} and {tool_rounds|price, R4, CondensedMemory, marked with recall, end of the prompt too|.2f} times that of LlamaIndex's `Memory` | {by} |
| tokens that llama.cpp processes in a turn, at 4,000: by default, and with recall off | {real_engine|tokens processed in a turn, CondensedMemory|.0f} of {real_engine|tokens of a prompt, CondensedMemory|,.0f}, and {real_engine|tokens processed in a turn, CondensedMemory, recall off|.0f} of {real_engine|tokens of a prompt, CondensedMemory, recall off|,.0f} (LlamaIndex's `Memory`: {real_engine|tokens processed in a turn, LlamaIndex's Memory|.0f} of {real_engine|tokens of a prompt, LlamaIndex's Memory|,.0f}; dropping the oldest message each turn: {real_engine|tokens processed in a turn, the recipe|,.0f} of {real_engine|tokens of a prompt, the recipe|,.0f}) | {by} |

## Messages that are found

| | measured | by |
|---|---|---|
| evidence of LoCoMo's questions in prompts of the same length, with all defaults and a record of 8,000; the same, or a fact of it | {equal_room|mean over the questions, with all defaults|.0f} % in {equal_room|tokens of a prompt with a question, with all defaults|,.0f} tokens; {equal_room|mean over the questions, or a fact of it, with all defaults|.0f} % (LlamaIndex's `Memory`: {equal_room|mean over the questions, LlamaIndex's Memory, as long when asked|.0f} % in {equal_room|tokens of a prompt with a question, LlamaIndex's Memory, as long when asked|,.0f} tokens) | {by} |
| evidence of LoCoMo's questions in the prompt, at 4,000 tokens: by default, and with 2,000 of them for recall | {evidence_in_prompt|mean over the questions, CondensedMemory, recall by default|.0f} % and {evidence_in_prompt|mean over the questions, CondensedMemory with recall|.0f} % (without recall, just after a cut: {evidence_in_prompt|mean over the questions, CondensedMemory, newest only|.0f} %; LlamaIndex's `Memory`: {evidence_in_prompt|mean over the questions, LlamaIndex's Memory|.0f} %; with `VectorMemoryBlock` and multilingual-e5-small: {evidence_in_prompt_e5|mean over the questions, VectorMemoryBlock, two nodes|.0f} to {evidence_in_prompt_e5|mean over the questions, VectorMemoryBlock, 18 nodes, asked by two messages|.0f} %) | {by} |
| the same with `embed_model="local"` and 2,000 tokens for recall | {evidence_in_prompt_e5|mean over the questions, CondensedMemory with recall and E5|.0f} % | {by} |
| the same in the conversation of the five with the least | {evidence_in_prompt|mean of the conversation with the least, CondensedMemory, recall by default|.0f} % and {evidence_in_prompt|mean of the conversation with the least, CondensedMemory with recall|.0f} % | {by} |
| the same where all five are one long conversation | {evidence_in_prompt|mean over the questions, all in one session, CondensedMemory, recall by default|.0f} % and {evidence_in_prompt|mean over the questions, all in one session, CondensedMemory with recall|.0f} % (LlamaIndex's `Memory`: {evidence_in_prompt|mean over the questions, all in one session, LlamaIndex's Memory|.0f} %) | {by} |
| the same where each reply is made about 800 tokens long, at 8,000 tokens of which 4,000 recall: the conversations that the order was chosen on, and others | {long_replies|mean over the questions, chosen on, CondensedMemory with recall|.0f} %, and {long_replies|mean over the questions, elsewhere, CondensedMemory with recall|.0f} % (of what the user said {long_replies|evidence said by the user, chosen on, CondensedMemory with recall|%of} and {long_replies|evidence said by the user, elsewhere, CondensedMemory with recall|%of}, of what stands in long replies {long_replies|evidence in a long reply, chosen on, CondensedMemory with recall|%of} and {long_replies|evidence in a long reply, elsewhere, CondensedMemory with recall|%of}; LlamaIndex's `Memory`: {long_replies|mean over the questions, chosen on, LlamaIndex's Memory|.0f} %, and {long_replies|mean over the questions, elsewhere, LlamaIndex's Memory|.0f} %) | {by} |
| evidence in a prompt of 2,000 tokens, of which 500 recall, if the questions say when it was said, and without: chosen on two conversations; three others | {named_times|evidence, chosen on, CondensedMemory, with its time|.0f} % and {named_times|evidence, chosen on, CondensedMemory, without|.0f} %; {named_times|evidence, elsewhere, CondensedMemory, with its time|.0f} % and {named_times|evidence, elsewhere, CondensedMemory, without|.0f} % (LlamaIndex's `Memory`: {named_times|evidence, chosen on, LlamaIndex's Memory, with its time|.1f} %; {named_times|evidence, elsewhere, LlamaIndex's Memory, with its time|.1f} %) | {by} |
| evidence within a budget of messages: by words, and with `embed_model="local"`, too | {recall|turns, similarity|.1f} %, and {recall_e5|turns with E5, similarity|.1f} % | {by} |

## Facts that are found

| | measured | by |
|---|---|---|
| evidence of LoCoMo's questions within a budget of facts: by similarity, and by score | {recall|observations, similarity|.1f} %, and {recall|observations, blended|.1f} % (newest first: {recall|observations, newest first|.1f} %) | {by} |
| the same with `embed_model="local"` | {recall_e5|observations with E5, similarity|.1f} %, and {recall_e5|observations with E5, blended|.1f} % | {by} |
| evidence in the facts that a block of 2,000 tokens shows, and their tokens: by default, and where facts fill the limit (conversations 3 to 5) | {recall|facts shown within 2,000 tokens, elsewhere, by default: evidence|.1f} % with {recall|facts shown within 2,000 tokens, elsewhere, by default: tokens|,.0f}, and {recall|facts shown within 2,000 tokens, elsewhere, min_similarity=0: evidence|.1f} % with {recall|facts shown within 2,000 tokens, elsewhere, min_similarity=0: tokens|,.0f} | {by} |
| evidence within a budget of RealMem's facts, which grow while questions are asked: as the block ranks | {growing|as the block ranks|.1f} % (by similarity alone: {growing|similarity|.1f} %; newest first: {growing|newest first|.1f} %) | {by} |
| questions in other words than the fact that they ask for, of 60 written by hand, whose fact is among the first five of 134 (those that the rules were chosen on, and others): by words; with `embed_model="local"`, too | {other_words|fact among the first 5, words alone, chosen on|.0f} and {other_words|fact among the first 5, words alone, elsewhere|of}; {other_words_e5|fact among the first 5, words and E5, chosen on|.0f} and {other_words_e5|fact among the first 5, words and E5, elsewhere|of} | {by} |
| time of the processor that `embed_model="local"` takes for a fact or a short question | {other_words_e5|time of the processor for a fact or a question|.0f} ms | {by} |
| questions to which `min_similarity=0.5` brings exactly the facts that answer them, no fewer and no more, of 46 each, written by hand about users with 8 to 26 facts (those that the rules were chosen on, and others) | {exact_facts|questions with exactly the right facts, chosen on|.0f}, and {exact_facts|questions with exactly the right facts, elsewhere|.0f} | {by} |
| the same, of 9 each that no fact answers: no fact is shown | {exact_facts|questions without an answer that get no fact, chosen on|.0f}, and {exact_facts|questions without an answer that get no fact, elsewhere|.0f} | {by} |
| 20,000 random changes, removals and questions in all languages: differences between an index and one made anew | {index_operations|differences between an index and a new one|.0f} | {by} |

## Facts that are true

| | measured | by |
|---|---|---|
| true facts of LoCoMo that the checks lose, a turn at a time: exact quotes, and quotes as models alter them | {honesty|LoCoMo, true facts lost: exact quotes|.1f} %, and {honesty|LoCoMo, true facts lost: altered quotes of all kinds|.1f} % (foreign quotes found: {honesty|LoCoMo, quotes of another turn found|.0f} %) | {by} |
| true facts that are hard to check, written by hand, that the checks lose | {honesty|hard set, true facts lost: all|.1f} % | {by} |
| false replies written to deceive that are stored, without `verify=True`, from a model that labels truly how each was said | {honesty|false replies stored: all|.0f} %; without wishes and orders, which are stored on purpose, duplicates and retirements {honesty|false replies stored: without what is stored on purpose, duplicates and retirements|.0f} %; of invented numbers {honesty|false replies stored: invented number|of}, of secrets {honesty|false replies stored: secret|of}. From a model that gives no labels: {honesty|false replies stored: all, from a model that tells nothing of how they were said|%of} | {by} |
| true facts of LoCoMo made false mechanically that are stored (conversations 3 to 5): labelled truly, a tenth of the labels wrong, all labelled as stated | {honesty|falsehoods stored, elsewhere, labelled truly|.1f} %, {honesty|falsehoods stored, elsewhere, labelled a tenth wrongly|.1f} %, {honesty|falsehoods stored, elsewhere, labelled always stated|.0f} % (of two names that were swapped, labelled truly, {honesty|falsehoods stored, elsewhere, labelled truly: two names swapped|of}; of statements of another turn {honesty|falsehoods stored, elsewhere, labelled truly: a statement of another turn|of}) | {by} |
| true facts that tidying up loses in generated stores of 400 facts, with an honest and a careless model; what undo does not bring back; and the share of the duplicates, contradictions and plans that the honest one tidies up, in words that the rules were chosen on, and in others | {consolidation|true facts lost, of 120 stores of 400|.0f}; {consolidation|facts that undo did not bring back|.0f}; {consolidation|tidied up, honest model, templates chosen with|.0f} %, and {consolidation|tidied up, honest model, templates held out|.0f} % | {by} |
| words or facts of one user that another is shown, in 200 random interleavings of 3 users in 4 sessions, shared and not | {whose_words|times that a user was shown another's words|.0f} | {by} |
| secrets stored, and harmless facts taken for one, of 30 each written by hand | {secrets_stored|secrets stored|.0f}, and {secrets_stored|harmless facts lost|.0f} | {by} |

## Time

| | measured | by |
|---|---|---|
| cost of a turn at 10,000 stored messages against 100: by default, at its worst, where each question has words of all messages; and with `recall_token_limit=0` | {turn_cost|10,000 messages with recall against 100|.1f} times ({turn_cost|one turn, CondensedMemory at 10,000 messages|.0f} ms against {turn_cost|one turn, CondensedMemory at 100 messages|.1f} ms); {turn_cost|10,000 messages without recall against 100|.2f} times | {by} |
| a turn of a session that grows, with all defaults, at 100, 1,000 and 10,000 messages | {history_cost|one turn, CondensedMemory at 100 messages|.0f}, {history_cost|one turn, CondensedMemory at 1,000 messages|.0f} and {history_cost|one turn, CondensedMemory at 10,000 messages|.0f} ms (LlamaIndex's `Memory`: {history_cost|one turn, LlamaIndex's Memory at 100 messages|.0f}, {history_cost|one turn, LlamaIndex's Memory at 1,000 messages|.0f} and {history_cost|one turn, LlamaIndex's Memory at 10,000 messages|.0f} ms) | {by} |
| cost of a turn against LlamaIndex's `Memory` without any block, at 100 messages | {turn_cost|CondensedMemory against Memory without blocks at 100|.2f} times (with a block that keeps a list of strings: {turn_cost|the recipe against Memory without blocks|.1f} times) | {by} |
| longest pause of the event loop in 99 of 100 turns, and in all, with 10,000 messages and 1,000 facts | {turn_cost|longest pause in 99 of 100 turns, 10,000 messages and 1,000 facts|.0f} ms, and {turn_cost|longest pause in a turn, 10,000 messages and 1,000 facts|.0f} ms | {by} |
| a turn with 1,000 facts against one with none | {facts_cost|a turn with 1,000 facts against one without|.2f} times, which is {facts_cost|what 1,000 facts add, against a turn of LlamaIndex's Memory|.2f} of a turn of LlamaIndex's `Memory` more | {by} |
| an extraction model of 1 s delays the agent's first call by | {facts_cost|the first call of the model comes later by|.1f} ms | {by} |
| `aput_messages` of 6,000 messages | {bulk_put|one put of 6,000 messages|.1f} s | {by} |
| first `aget` of a new process in a session of 100,000 messages, more than in a new one, by default, where a question waits [up to a second](keeping-it-short.md#recall) for messages to be indexed; and in one that LlamaIndex's `Memory` has written | {restore|more than a fresh session, 100,000 messages|.0f} ms; {restore|more than a fresh session, 100,000 messages of LlamaIndex's Memory|.0f} ms | {by} |
| the first question of a process: time of the processor, and memory, if the vocabulary of the tokenizer is loaded already; and if not | {first_question|CPU time, after the vocabulary|*1000 .0f} ms and {first_question|memory, after the vocabulary|.1f} MiB; {first_question|CPU time, with the vocabulary|*1000 .0f} ms and {first_question|memory, with the vocabulary|.0f} MiB | {by} |
| a question to 1,000, 10,000 and 100,000 facts, the order of all of them included | {ranking_speed|question with rank, 1,000 facts|.1f}, {ranking_speed|question with rank, 10,000 facts|.1f} and {ranking_speed|question with rank, 100,000 facts|.1f} ms | {by} |
| `from llama_index_memory_ext import CondensedMemory`, more than `import llama_index.core` | {import_time|seconds more than LlamaIndex alone|*1000 .0f} ms | {by} |
"""

IN_SHORT = """
| | measured |
|---|---|
| tasks told in 2 to 40 pieces, with a restart in the middle: all pieces reach the model, once, in order, in one message | {sharded|all holds, CondensedMemory, taken over by a new one|.0%} |
| messages that hold the answers to LoCoMo's questions, in a prompt of 4,000 tokens: by default, and with 2,000 of them for recall | {evidence_in_prompt|mean over the questions, CondensedMemory, recall by default|.0f} %, and {evidence_in_prompt|mean over the questions, CondensedMemory with recall|.0f} % (LlamaIndex's `Memory`: {evidence_in_prompt|mean over the questions, LlamaIndex's Memory|.0f} %; with its `VectorMemoryBlock`: {evidence_in_prompt_e5|mean over the questions, VectorMemoryBlock, two nodes|.0f} to {evidence_in_prompt_e5|mean over the questions, VectorMemoryBlock, 18 nodes, asked by two messages|.0f} %) |
| prompt tokens that OpenAI's cache finds (up to GPT-5.5), and what a token costs then, at a limit of 8,000, without facts: by default; with recall off | {cached_prefix_by_default|share found, R1, CondensedMemory, recall by default, 8,000|.0%} at {cached_prefix_by_default|price relative to the plain list, R1, CondensedMemory, recall by default, 8,000|.2f} times the price of LlamaIndex's `Memory`, which has {cached_prefix|share found, R1, LlamaIndex's Memory, 8,000|.0%}; {cached_prefix|share found, R1, CondensedMemory, 8,000|.0%} at {cached_prefix|price relative to the plain list, R1, CondensedMemory, 8,000|.2f} times |
| true facts of LoCoMo that the checks lose, with quotes as models alter them | {honesty|LoCoMo, true facts lost: altered quotes of all kinds|.1f} % |
| a turn with 10,000 stored messages: by default, where each question matches all of them; with recall off | {turn_cost|one turn, CondensedMemory at 10,000 messages|.0f} ms; {turn_cost|one turn, CondensedMemory at 10,000 messages, recall_token_limit=0|.0f} ms (LlamaIndex's `Memory` with 100 messages: {turn_cost|one turn, Memory without blocks at 100 messages|.0f} ms) |
| a question to 10,000 facts | {ranking_speed|question with rank, 10,000 facts|.1f} ms |

Where LlamaIndex's `Memory`, a list of messages, does better:

- **Caches with recall and facts.** Recalled messages and facts change with each question, and no cache serves them: hence the price above, and more with facts. Anthropic, Bedrock and
  GPT-5.6 or later find nothing without `cache_points=True`, and {cached_prefix_by_default|share found, R4, CondensedMemory, recall by default, marked, 8,000|.0%} with it.
- **Time with recall.** With 10,000 stored messages, of which each matches the question, a turn takes {turn_cost|one turn, CondensedMemory at 10,000 messages|.0f} ms; a `Memory` without blocks takes {turn_cost|one turn, Memory without blocks at 100 messages|.0f} ms at 100 messages.
- **Long conversations.** By default our prompts are longer: {per_turn|tokens of a prompt, CondensedMemory, as they come|,.0f} tokens in the mean of 400 turns, against {per_turn|tokens of a prompt, LlamaIndex's Memory, as they come|,.0f}. Where five
  conversations of LoCoMo are one, {evidence_in_prompt|mean over the questions, all in one session, CondensedMemory, recall by default|.0f} % of the answers' messages are in the prompt by default, not {evidence_in_prompt|mean over the questions, CondensedMemory, recall by default|.0f} % (`Memory`: {evidence_in_prompt|mean over the questions, all in one session, LlamaIndex's Memory|.0f} %).
"""

READ_FIRST = """
| | LlamaIndex `Memory` | `CondensedMemory` |
|---|---|---|
| share of the needed messages that are in the prompt ({equal_room|questions|.0f} questions of [LoCoMo](https://github.com/snap-research/locomo), about 9,000 tokens for both) | {equal_room|mean over the questions, LlamaIndex's Memory, as long when asked|.0f} % | **{equal_room|mean over the questions, with all defaults|.0f} %** |
| a message that has left the prompt | is lost, unless a memory block stores it | can come back when a question is about it |
| facts are learned | from messages that no longer fit (the "waterfall") | from each turn, as soon as it ends |
| a fact is | a line that the model may rewrite | quoted, dated, correctable, deletable |
| after a restart, with a database, the memory uses | recent messages | all messages and facts |
| price of prompts of the same length, with OpenAI's prompt cache | **1** | {equal_room|price of a turn, with all defaults, to LlamaIndex's Memory, as long|.1f} |
| time that the memory takes in a turn, with 100 and with 10,000 stored messages | {history_cost|one turn, LlamaIndex's Memory at 100 messages|.0f} and {history_cost|one turn, LlamaIndex's Memory at 10,000 messages|.0f} ms | **{history_cost|one turn, CondensedMemory at 100 messages|.0f} and {history_cost|one turn, CondensedMemory at 10,000 messages|.0f} ms** |

**When not to use it:**

- **Cost is everything.** Providers cache the conversation, and a cached token is cheap. Recalled messages and facts change with each question and are
  paid in full. The prompts of a long conversation cost {equal_room|price of a turn, with all defaults, to LlamaIndex's Memory, as long|.1f} times as much as with `Memory`, {equal_room|price of a turn, without facts, to LlamaIndex's Memory, as long as the record|.1f} times without facts (`extract_facts=False`), and {equal_room|price of a turn, without facts and recall, to LlamaIndex's Memory, as long as the record|.2f} times without facts and recall (`recall_token_limit=0`).
  The call per turn that learns facts comes on top. Anthropic, Bedrock and OpenAI's GPT-5.6 or later cache the conversation only with [`cache_points=True`](docs/prompt-caches.md).
- **Conversations are short and users never come back:** there is nothing to find again, and no fact to carry over.
- **You need proof of better answers.** The table counts messages in the prompt, not right answers. How one small model answered is [measured](docs/figures.md#right-answers). [All figures](docs/figures.md).
"""

DEFAULTS = """
By default a turn pays for the record, for recall and for facts. The prices above leave the facts out. With them (`equal_room`: the
same conversations, facts as LoCoMo notes them, R1), per turn:

| | tokens of a prompt | from the cache | paid, in tokens at the full price | relative to LlamaIndex's `Memory` as long | relative to a `Memory` as long as the record |
|---|---|---|---|---|---|
| all defaults, with a record of 8,000 | {equal_room|tokens of a prompt, with all defaults|,.0f} | {equal_room|share from the cache, with all defaults|.0%} | {equal_room|paid for a prompt, with all defaults|,.0f} | {equal_room|price of a turn, with all defaults, to LlamaIndex's Memory, as long|.2f} | {equal_room|price of a turn, with all defaults, to LlamaIndex's Memory, as long as the record|.2f} |
| `facts_token_limit=0` | {equal_room|tokens of a prompt, without facts|,.0f} | {equal_room|share from the cache, without facts|.0%} | {equal_room|paid for a prompt, without facts|,.0f} |  | {equal_room|price of a turn, without facts, to LlamaIndex's Memory, as long as the record|.2f} |
| `facts_token_limit=0`, `recall_token_limit=0` | {equal_room|tokens of a prompt, without facts and recall|,.0f} | {equal_room|share from the cache, without facts and recall|.0%} | {equal_room|paid for a prompt, without facts and recall|,.0f} |  | {equal_room|price of a turn, without facts and recall, to LlamaIndex's Memory, as long as the record|.2f} |
| LlamaIndex's `Memory`, as long as ours with all defaults | {equal_room|tokens of a prompt, LlamaIndex's Memory, as long|,.0f} | {equal_room|share from the cache, LlamaIndex's Memory, as long|.0%} | {equal_room|paid for a prompt, LlamaIndex's Memory, as long|,.0f} | 1 |  |
| LlamaIndex's `Memory`, as long as the record | {equal_room|tokens of a prompt, LlamaIndex's Memory, as long as the record|,.0f} | {equal_room|share from the cache, LlamaIndex's Memory, as long as the record|.0%} | {equal_room|paid for a prompt, LlamaIndex's Memory, as long as the record|,.0f} |  | 1 |

Facts and recall are ranked for each question, so no cache serves them. `facts_token_limit=500` pays at most 500 tokens for facts. The call that
learns facts comes on top, one per turn, with the price of its model; `extract_every_turns=5` makes it one in five turns.
"""

CACHE_RULES = ("R1", "R2", "R3", "R4", "R5")
CACHES, BY_DEFAULT = "cached_prefix", "cached_prefix_by_default"
# Label, file, side without marks or None, side with marks or None.
RECALLING = (
    (
        "`CondensedMemory` without facts, recall by default (1,000 of the 8,000 tokens)",
        BY_DEFAULT,
        "CondensedMemory, recall by default",
    ),
    (
        "with 2,000 tokens of recall besides the 8,000",
        CACHES,
        "CondensedMemory with recall",
    ),
    ("`recall_token_limit=0`", CACHES, "CondensedMemory"),
)
WITHOUT_MARKS = (
    (
        "LlamaIndex's `Memory`, prompts as long as ours without recall",
        CACHES,
        "LlamaIndex's Memory",
    ),
    ("`ChatMemoryBuffer`", CACHES, "ChatMemoryBuffer"),
    ("`ChatSummaryMemoryBuffer`", CACHES, "ChatSummaryMemoryBuffer"),
    (
        "a list of strings in one message, the oldest dropped each turn",
        CACHES,
        "the recipe",
    ),
)
TOOLS = (
    ("`cache_points=True`", "CondensedMemory, marked"),
    ("with recall besides", "CondensedMemory, marked with recall"),
)
ENGINE = (
    ("`CondensedMemory`", "CondensedMemory"),
    ("the same with recall off", "CondensedMemory, recall off"),
    ("LlamaIndex's `Memory`, as long", "LlamaIndex's Memory"),
    ("`ChatMemoryBuffer`", "ChatMemoryBuffer"),
    ("a list of strings, the oldest dropped each turn", "the recipe"),
)


def _by_rule(what: str, how: str) -> str:
    """A table with a column for each rule, and a row for each side, without marks and with them."""
    lines = [f"| | {' | '.join(CACHE_RULES)} |", "|" + "---|" * (1 + len(CACHE_RULES))]

    def add(label: str, file: str, side: str, rules: tuple[str, ...]) -> None:
        cells = (
            f"{{{file}|{what}, {rule}, {side}, 8,000|{how}}}" if rule in rules else ""
            for rule in CACHE_RULES
        )
        lines.append(f"| {label} | {' | '.join(cells)} |")

    for label, file, side in (*RECALLING, *WITHOUT_MARKS):
        add(label, file, side, ("R1", "R2", "R4", "R5"))
        if (label, file, side) in RECALLING:
            add(
                "the same with `cache_points=True`",
                file,
                f"{side}, marked",
                ("R3", "R4"),
            )
    return "\n" + "\n".join(lines) + "\n"


def _tools() -> str:
    ends = ("R3, {}", "R4, {}", "R4, {}, end of the prompt too")
    lines = [
        "",
        "| | R3 | R4 | R4, and the end of each prompt is marked |",
        "|---|---|---|---|",
    ]
    for label, side in TOOLS:
        cells = (
            f"{{tool_rounds|price relative to the plain list, {end.format(side)}|.2f}}"
            for end in ends
        )
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _engine() -> str:
    heads = (
        "tokens of a prompt",
        "reused",
        "processed in a turn",
        "CPU to the first token, mean",
    )
    asked = (
        ("tokens of a prompt", ",.0f"),
        ("share reused", ".0%"),
        ("tokens processed in a turn", ",.0f"),
        ("CPU to the first token, mean", ".1f"),
    )
    lines = ["", f"| | {' | '.join(heads)} |", "|---|---|---|---|---|"]
    for label, side in ENGINE:
        lines.append(
            f"| {label} | {' | '.join(f'{{real_engine|{what}, {side}|{how}}}' for what, how in asked)} s |"
        )
    return "\n".join(lines) + "\n"


TEXTS: dict[str, str] = {
    "all": ALL_FIGURES,
    "readme": READ_FIRST,
    "in-short": IN_SHORT,
    "defaults": DEFAULTS,
    "found": _by_rule("share found", ".0%"),
    "paid": _by_rule("price relative to the plain list", ".1f"),
    "tools": _tools(),
    "engine": _engine(),
    "other-limits": """
Without recall, at 50,000 tokens (no conversation is as long) {cached_prefix|share found, R1, CondensedMemory, 50,000|.0%} are found by R1 and {cached_prefix|share found, R4, CondensedMemory, marked, 50,000|.0%} by R3 and R4, for {cached_prefix|price relative to the plain list, R1, CondensedMemory, 50,000|.2f} and {cached_prefix|price relative to the plain list, R4, CondensedMemory, marked, 50,000|.2f} times the price.
At 4,000 tokens, where a prompt has {cached_prefix|tokens of a prompt, CondensedMemory, 4,000|,.0f} tokens in the mean, {cached_prefix|share found, R1, CondensedMemory, 4,000|.0%} by R1, {cached_prefix|share found, R4, CondensedMemory, marked, 4,000|.0%} by R3 and R4 and {cached_prefix|share found, R5, CondensedMemory, 4,000|.0%} by R5, for {cached_prefix|price relative to the plain list, R1, CondensedMemory, 4,000|.2f}, {cached_prefix|price relative to the plain list, R4, CondensedMemory, marked, 4,000|.2f} and {cached_prefix|price relative to the plain list, R5, CondensedMemory, 4,000|.2f} times the price (of LlamaIndex's `Memory`, {cached_prefix|share found, R1, LlamaIndex's Memory, 4,000|.0%} by R1).
""",
    "local-time": "{other_words_e5|time of the processor for a fact or a question|.0f} ms",
    "before-recall": "{cached_prefix_by_default|share found, R1, CondensedMemory, recall by default, before what is recalled|.0%}",
    "questions-sent": "{cached_prefix|prompts of each side|,.0f}",
    "cache-record": "{cached_prefix|share found, R1, CondensedMemory, 8,000|.0%}",
    "cache-without-recall": "{cached_prefix|share found, R1, CondensedMemory, 8,000|.0%} of its tokens can come from a [prompt cache](prompt-caches.md) at 8,000 tokens, {cached_prefix|share found, R1, CondensedMemory, 4,000|.0%} at 4,000",
    "cache-trimmed": "{cached_prefix|share found, R1, the recipe, 8,000|.0%}",
}
