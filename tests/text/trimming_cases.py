"""What ``trim`` gives, and what LangChain's ``trim_messages(strategy="last")`` gives for the same messages.

LangChain's was measured with langchain-core 1.7.2. Both count one token for a word and four for a call; where
messages are counted, LangChain's counts with ``len``. A message is written as its role, the calls that it makes,
and its text: ``u`` is a user, ``a`` an assistant, ``s`` the system, ``d`` the developer, ``t1`` the result of
the call 1, ``a+1+2`` an assistant that makes the calls 1 and 2. A ``/`` parts two blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Case:
    """A conversation with options. ``langchain_gives`` is None where it is the same, else ``why`` says what differs."""

    rule: str
    messages: list[str]
    options: dict[str, Any]
    gives: list[str]
    langchain_gives: list[str] | None = None
    why: str = ""


CHAT = ["u: one two", "a: three", "u: four five six", "a: seven"]
TOOLS = ["u: ask", "a+1: look", "t1: found this here", "a: done", "u: thanks"]
LONG_TURN = ["u: old", "a: old", "u: the question", "a+1:", "t1: r r r", "a+2:", "t2: r r r"]
THIRTY = " ".join(f"w{i}" for i in range(10, 40))

CASES = [
    Case("exactly the limit stays", CHAT, {"token_limit": 7}, CHAT),
    Case(
        "with one token less the oldest message goes",
        CHAT,
        {"token_limit": 6},
        ["a: three", "u: four five six", "a: seven"],
    ),
    Case("the newest message may be all that fits", CHAT, {"token_limit": 1}, ["a: seven"]),
    Case("nothing gives nothing", [], {"token_limit": 5}, []),
    Case("exactly as many messages stay", CHAT, {"max_messages": 4}, CHAT),
    Case(
        "with one message less the oldest goes", CHAT, {"max_messages": 3}, ["a: three", "u: four five six", "a: seven"]
    ),
    Case(
        "a call and its result stay together",
        TOOLS,
        {"token_limit": 10},
        ["a+1: look", "t1: found this here", "a: done", "u: thanks"],
    ),
    Case(
        "a call and its result go together",
        TOOLS,
        {"token_limit": 9},
        ["a: done", "u: thanks"],
        ["t1: found this here", "a: done", "u: thanks"],
        "an orphaned tool result",
    ),
    Case(
        "a call and its result go together where messages are counted",
        TOOLS,
        {"max_messages": 3},
        ["a: done", "u: thanks"],
        ["t1: found this here", "a: done", "u: thanks"],
        "an orphaned tool result",
    ),
    Case(
        "a result without its call is left out",
        ["t1: found", "a: done", "u: thanks"],
        {"token_limit": 10},
        ["a: done", "u: thanks"],
        ["t1: found", "a: done", "u: thanks"],
        "an orphaned tool result",
    ),
    Case(
        "a result that answers another call is left out",
        ["u: ask", "a+1:", "t1: found", "t2: what", "u: thanks"],
        {"token_limit": 20},
        ["u: ask", "a+1:", "t1: found", "u: thanks"],
        ["u: ask", "a+1:", "t1: found", "t2: what", "u: thanks"],
        "an orphaned tool result",
    ),
    Case(
        "a result that comes too late is left out with its call",
        ["u: ask", "a+1: look", "u: and", "t1: found"],
        {"token_limit": 20},
        ["u: ask", "a: look", "u: and"],
        ["u: ask", "a+1: look", "u: and", "t1: found"],
        "an orphaned tool result",
    ),
    Case(
        "a call that was never answered is taken out",
        ["u: ask", "a+1: look", "u: never mind"],
        {"token_limit": 20},
        ["u: ask", "a: look", "u: never mind"],
        ["u: ask", "a+1: look", "u: never mind"],
        "a call without its result",
    ),
    Case(
        "a message that was only a call goes with it",
        ["u: ask", "a+1:", "u: never mind"],
        {"token_limit": 20},
        ["u: ask", "u: never mind"],
        ["u: ask", "a+1:", "u: never mind"],
        "a call without its result",
    ),
    Case(
        "one call of two is taken out",
        ["u: ask", "a+1+2: look", "t2: found", "u: so"],
        {"token_limit": 20},
        ["u: ask", "a+2: look", "t2: found", "u: so"],
        ["u: ask", "a+1+2: look", "t2: found", "u: so"],
        "a call without its result",
    ),
    Case(
        "a newest message that is too large is clipped",
        ["u: hi", "a: yes", f"u: {THIRTY}"],
        {"token_limit": 20},
        ["u: w10 w11 w12 w13 w14 w15 w16 [... 10 tokens left out ...] w33 w34 w35 w36 w37 w38 w39"],
        [],
        "nothing at all because the newest message is too large",
    ),
    Case(
        "a newest result that is too large is clipped",
        ["u: ask", "a+1:", f"t1: {THIRTY}"],
        {"token_limit": 24},
        ["a+1:", "t1: w10 w11 w12 w13 w14 w15 w16 [... 10 tokens left out ...] w33 w34 w35 w36 w37 w38 w39"],
        [],
        "nothing at all because the newest message is too large",
    ),
    Case(
        "the end of a newest message that is too large can be kept",
        ["u: hi", "u: one two three four"],
        {"token_limit": 3, "allow_partial": True, "text_splitter": "words"},
        ["u: two three four"],
        ["u: one two three four"],
        "over the limit because the pieces are counted in reversed order",
    ),
    Case(
        "where no piece of the newest message fits it is clipped",
        ["u: hi", "u: one two three four"],
        {"token_limit": 3, "allow_partial": True, "text_splitter": "lines"},
        ["u: one two three"],
        [],
        "nothing at all because the newest message is too large",
    ),
    Case(
        "the end of the first message can be kept",
        CHAT,
        {"token_limit": 3, "allow_partial": True, "text_splitter": "words"},
        ["u: five six", "a: seven"],
        ["u: four five six", "a: seven"],
        "over the limit because the pieces are counted in reversed order",
    ),
    Case(
        "the last lines of the first message can be kept",
        ["u: one two\nthree\nfour five\n", "a: six"],
        {"token_limit": 4, "allow_partial": True, "text_splitter": "lines"},
        ["u: three four five", "a: six"],
    ),
    Case(
        "where no piece of the first message fits it is left out",
        CHAT,
        {"token_limit": 3, "allow_partial": True, "text_splitter": "lines"},
        ["a: seven"],
    ),
    Case(
        "the last blocks of the first message can be kept",
        ["u: one two three / four five", "a: six"],
        {"token_limit": 3, "allow_partial": True, "text_splitter": "words"},
        ["u: four five", "a: six"],
    ),
    Case(
        "the first block is cut where there is room for a part of it",
        ["u: one two three / four five", "a: six"],
        {"token_limit": 4, "allow_partial": True, "text_splitter": "words"},
        ["u: three / four five", "a: six"],
        ["u: four five", "a: six"],
        "less than fits",
    ),
    Case(
        "no part of a result is kept",
        TOOLS,
        {"token_limit": 4, "allow_partial": True, "text_splitter": "lines"},
        ["a: done", "u: thanks"],
    ),
    Case(
        "no part of a result is kept, whatever its pieces",
        ["u: ask", "a+1:", "t1: found this\nhere\n", "u: so"],
        {"token_limit": 3, "allow_partial": True, "text_splitter": "lines"},
        ["u: so"],
        ["t1: here", "u: so"],
        "an orphaned tool result",
    ),
    Case(
        "a start is looked for behind the cut",
        CHAT,
        {"token_limit": 6, "start_on": "user"},
        ["u: four five six", "a: seven"],
    ),
    Case("a start is looked for where all fits", ["a: hello", *CHAT], {"token_limit": 60, "start_on": "user"}, CHAT),
    Case(
        "a part of a message can be the start",
        ["u: one\ntwo\n", "a: three"],
        {"token_limit": 2, "start_on": "user", "allow_partial": True, "text_splitter": "lines"},
        ["u: two", "a: three"],
    ),
    Case("without a start nothing is left", ["a: one", "a: two"], {"token_limit": 60, "start_on": "user"}, []),
    Case(
        "there can be several starts",
        ["s: be nice", *CHAT],
        {"token_limit": 8, "start_on": ["user", "assistant"]},
        CHAT,
    ),
    Case(
        "a long turn of calls keeps its question",
        LONG_TURN,
        {"token_limit": 10, "start_on": "user"},
        ["u: the question", "a+2:", "t2: r r r"],
        [],
        "nothing at all because the question and its turn do not fit together",
    ),
    Case(
        "a start that is too large is clipped",
        ["u: hi", "a: yes", "u: one two three four five six", "a: seven"],
        {"token_limit": 5, "start_on": "user"},
        ["u: one two three four", "a: seven"],
        [],
        "nothing at all because the question and its answer do not fit together",
    ),
    Case(
        "no result is a start",
        TOOLS,
        {"token_limit": 5, "start_on": "tool"},
        [],
        ["t1: found this here", "a: done", "u: thanks"],
        "an orphaned tool result",
    ),
    Case(
        "what stands behind the end is left out before the cut",
        CHAT,
        {"token_limit": 6, "end_on": "user"},
        ["u: one two", "a: three", "u: four five six"],
    ),
    Case("without an end nothing is left", CHAT, {"token_limit": 6, "end_on": "tool"}, []),
    Case("there can be several ends", TOOLS, {"token_limit": 20, "end_on": ["tool", "user"]}, TOOLS),
    Case(
        "a call is no end",
        ["u: ask", "a: yes", "u: so", "a+1: look", "t1: found this here"],
        {"token_limit": 20, "end_on": "assistant"},
        ["u: ask", "a: yes"],
        ["u: ask", "a: yes", "u: so", "a+1: look"],
        "a call without its result",
    ),
    Case(
        "the system's message stays where there is no end",
        ["s: be nice", "a: hello"],
        {"token_limit": 20, "end_on": "user", "include_system": True},
        ["s: be nice"],
        [],
        "the system's message is lost",
    ),
    Case(
        "the system's message stays",
        ["s: be nice", *CHAT],
        {"token_limit": 6, "include_system": True},
        ["s: be nice", "u: four five six", "a: seven"],
    ),
    Case(
        "the system's message goes if nobody asks for it",
        ["s: be nice", *CHAT],
        {"token_limit": 6},
        ["a: three", "u: four five six", "a: seven"],
    ),
    Case(
        "only the first message can be the system's",
        ["u: hi", "s: be nice", *CHAT],
        {"token_limit": 6, "include_system": True},
        ["a: three", "u: four five six", "a: seven"],
    ),
    Case(
        "the developer's message stays too",
        ["d: be nice", *CHAT],
        {"token_limit": 6, "include_system": True},
        ["d: be nice", "u: four five six", "a: seven"],
    ),
    Case(
        "the system's message is no start",
        ["s: be nice", *CHAT],
        {"token_limit": 7, "include_system": True, "start_on": "user"},
        ["s: be nice", "u: four five six", "a: seven"],
    ),
    Case(
        "the system's message is one of the messages",
        ["s: be nice", *CHAT],
        {"max_messages": 3, "include_system": True},
        ["s: be nice", "u: four five six", "a: seven"],
    ),
    Case(
        "a system's message over the limit is clipped to half of it",
        [f"s: {THIRTY}", "u: hi"],
        {"token_limit": 20, "include_system": True},
        ["s: w10 w11 w12 w13 w14 w15 w16 w17 w18 w19", "u: hi"],
        [f"s: {THIRTY}"],
        "over the limit because the system's message is not clipped",
    ),
    Case(
        "a system's message that leaves no room is clipped too",
        ["s: one two three", "u: hi"],
        {"token_limit": 3, "include_system": True},
        ["s: one", "u: hi"],
        ["s: one two three"],
        "nothing but the system's message",
    ),
    Case(
        "a newest message that is too large beside the system's is clipped",
        ["s: be nice", "u: hi", f"u: {THIRTY}"],
        {"token_limit": 22, "include_system": True},
        ["s: be nice", "u: w10 w11 w12 w13 w14 w15 w16 [... 10 tokens left out ...] w33 w34 w35 w36 w37 w38 w39"],
        ["s: be nice"],
        "nothing but the system's message",
    ),
]
