"""What ``trim`` gives: each case is its rule with the options, the messages, and what is left of them.

A word is a token, and a call four. A message is written as its role, the calls that it makes, and its text: ``u`` is a
user, ``a`` an assistant, ``s`` the system, ``d`` the developer, ``t1`` the result of the call 1, ``a+1+2`` an assistant
that makes the calls 1 and 2. A ``/`` parts two blocks, a ``|`` two messages; ``-`` stands for none.
"""

from __future__ import annotations

from typing import Any, NamedTuple

THIRTY = " ".join(f"w{i}" for i in range(10, 40))
TABLE = r"""
exactly the limit stays: token_limit=7
    u: one two | a: three | u: four five six | a: seven
    u: one two | a: three | u: four five six | a: seven
with one token less the oldest message goes: token_limit=6
    u: one two | a: three | u: four five six | a: seven
    a: three | u: four five six | a: seven
nothing gives nothing: token_limit=5
    -
    -
with one message less the oldest goes: max_messages=3
    u: one two | a: three | u: four five six | a: seven
    a: three | u: four five six | a: seven
a call and its result go together: token_limit=9
    u: ask | a+1: look | t1: found this here | a: done | u: thanks
    a: done | u: thanks
a call and its result go together where messages are counted: max_messages=3
    u: ask | a+1: look | t1: found this here | a: done | u: thanks
    a: done | u: thanks
a result without its call is left out: token_limit=10
    t1: found | a: done | u: thanks
    a: done | u: thanks
a result that answers another call is left out with its call: token_limit=20
    u: ask | a+1: look | t2: what | u: thanks
    u: ask | u: thanks
a result that comes too late is left out with its call: token_limit=20
    u: ask | a+1: look | u: and | t1: found
    u: ask | u: and
a call that was never answered is left out: token_limit=20
    u: ask | a+1: look | u: never mind
    u: ask | u: never mind
two calls with one result are left out: token_limit=20
    u: ask | a+1+2: look | t2: found | u: so
    u: ask | u: so
a newest message that is too large is clipped: token_limit=20
    u: hi | a: yes | u: {THIRTY}
    u: w10 w11 w12 w13 w14 w15 w16 [... 10 tokens left out ...] w33 w34 w35 w36 w37 w38 w39
a newest result that is too large is clipped: token_limit=24
    u: ask | a+1: | t1: {THIRTY}
    a+1: | t1: w10 w11 w12 w13 w14 w15 w16 [... 10 tokens left out ...] w33 w34 w35 w36 w37 w38 w39
the system's message stays: token_limit=6, include_system=True
    s: be nice | u: one two | a: three | u: four five six | a: seven
    s: be nice | u: four five six | a: seven
only the first message can be the system's: token_limit=6, include_system=True
    u: hi | s: be nice | u: one two | a: three | u: four five six | a: seven
    a: three | u: four five six | a: seven
the system's message is one of the messages: max_messages=3, include_system=True
    s: be nice | u: one two | a: three | u: four five six | a: seven
    s: be nice | u: four five six | a: seven
a system's message over the limit is clipped to half of it: token_limit=20, include_system=True
    s: {THIRTY} | u: hi
    s: w10 w11 w12 w13 w14 w15 w16 w17 w18 w19 | u: hi
a system's message that leaves no room is clipped too: token_limit=3, include_system=True
    s: one two three | u: hi
    s: one | u: hi
a newest message that is too large beside the system's is clipped: token_limit=22, include_system=True
    s: be nice | u: hi | u: {THIRTY}
    s: be nice | u: w10 w11 w12 w13 w14 w15 w16 [... 10 tokens left out ...] w33 w34 w35 w36 w37 w38 w39
"""


class Case(NamedTuple):
    """A conversation with options, and what is left of it."""

    rule: str
    options: dict[str, Any]
    messages: list[str]
    gives: list[str]


def _read(lines: list[str]) -> Case:
    head, *talks = lines
    rule, _, options = head.partition(": ")
    plain = [
        talk.strip().replace("{THIRTY}", THIRTY).replace("\\n", "\n") for talk in talks
    ]
    messages, gives = ([] if talk == "-" else talk.split(" | ") for talk in plain)
    return Case(rule, eval(f"dict({options})"), messages, gives)  # noqa: S307 - it is our own


_LINES = TABLE.strip().splitlines()
CASES = [_read(_LINES[i : i + 3]) for i in range(0, len(_LINES), 3)]
