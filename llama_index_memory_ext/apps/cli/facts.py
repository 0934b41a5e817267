"""The commands under ``facts``: list, search, explain and change the facts of a user."""

# Without ``annotations`` from __future__, because Typer reads the annotations of the
# commands through the signatures that ``command`` makes.
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime, timedelta, timezone
from inspect import signature
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer
from rich.console import Group, RenderableType

from llama_index_memory_ext.apps.cli import (
    TerminalError,
    UsageError,
    one_line,
    pluralize,
)
from llama_index_memory_ext.apps.cli import app as cli
from llama_index_memory_ext.apps.cli.app import (
    Agent,
    Db,
    Embed,
    Json,
    Output,
    Session,
    TimeZone,
    User,
    Yes,
)

if TYPE_CHECKING:
    from llama_index_memory_ext import CondensedMemory, Fact

# The first parameter is the memory with the facts. The other parameters are the
# arguments and options of the command.
_WorkOnFacts: TypeAlias = Callable[..., Awaitable[Output]]

# The characters of an id in a table; --json has all of them.
_ID_CHARACTERS = 8
# The most words in common that a row shows.
_MOST_WORDS = 5
# A warning for each deletion of a fact.
WORDS_STAY = "The messages with its words stay in their session: `forget --session ID` deletes a session."
_Question = Annotated[
    str, typer.Argument(metavar="QUESTION", help="A question of the user.")
]


def _with_words(text: str) -> str:
    """Return the text of an argument; raise a ValueError for a blank one, which Typer reports."""
    if not text.strip():
        raise ValueError("words are needed")
    return text


def _day(text: str) -> str:
    """Return the text of a day; raise a ValueError for any other text."""
    datetime.fromisoformat(text)
    return text


_Id = Annotated[str, typer.Argument(metavar="ID", help="The beginning of a fact's id.")]
_IDS = typer.Argument(metavar="ID", help="The beginning of each fact's id.")
_RequiredIds = Annotated[list[str], _IDS]
_Reason = Annotated[str, cli.option("--reason TEXT", "Why the fact is no longer true.")]
_Categories = Literal[
    "preference", "knowledge", "context", "behavior", "goal", "correction"
]
_States = Literal["present", "past", "retired", "expired", "pending", "all"]
_CATEGORY = Annotated[
    _Categories | None,
    cli.option("--category CATEGORY", "preference, knowledge, context, ..."),
]
_TAGS = Annotated[
    list[str] | None,
    cli.option("--tag TAG", "A tag; repeat the option for more.", parser=_with_words),
]
_FILTERS: dict[str, Any] = {
    "since": Annotated[
        str | None,
        cli.option("--since DAY", "Learned on this day or later.", parser=_day),
    ],
    "until": Annotated[
        str | None,
        cli.option("--until DAY", "Learned on this day or earlier.", parser=_day),
    ],
    "category": _CATEGORY,
    "tags": _TAGS,
    "state": Annotated[
        _States | None, cli.option("--state STATE", "present, past, ..., or all.")
    ],
    "limit": Annotated[
        int | None, cli.option("--limit COUNT", "At most this many facts.", min=1)
    ],
    "after": Annotated[
        str | None, cli.option("--after ID", "Only facts after this fact.")
    ],
}
_FIELDS: dict[str, Any] = {
    "category": _CATEGORY,
    "confidence": Annotated[
        float | None,
        cli.option("--confidence 0..1", "How certain it is.", min=0, max=1),
    ],
    "pinned": Annotated[
        bool | None,
        typer.Option("--pin/--unpin", help="Show it before facts that match better."),
    ],
    "tags": _TAGS,
}
_CONTENT = Annotated[
    str | None,
    cli.option("--content TEXT", "The new text of the fact.", parser=_with_words),
]

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
cli.app.add_typer(
    app,
    name="facts",
    help="The facts of a user: list, search, explain, change.",
    epilog=cli.example("facts list --user ann"),
)


def check_whose(user: str | None, session: str | None) -> None:
    """Raise a UsageError without a user or a session."""
    if not (user or session):
        raise UsageError(
            "pass --user ID, or --session ID for the facts of a session without a user."
        )


def command(
    name: str, example: str = "", *, create: bool = False, **options: Any
) -> Callable[[_WorkOnFacts], None]:
    """Return a decorator that makes a command of a coroutine function.

    ``example`` are arguments of a right call. The command gets options for user,
    session, agent, database and JSON. ``options`` are further options that the function
    takes by name; ``embed`` gives its memory an embedding model.
    """
    added_options = options | {
        "user": User,
        "session": Session,
        "agent": Agent,
        "time_zone": TimeZone,
        "db": Db,
        "json": Json,
    }

    def register(work: _WorkOnFacts) -> None:
        def run(*, db: str | None, json: bool, **values: Any) -> None:
            names = ("session", "user", "agent", "embed", "time_zone")
            of_memory = {name: values.pop(name, None) for name in names}
            check_whose(of_memory["user"], of_memory["session"])
            cli.run(
                db,
                lambda store: work(cli.memory_on(store, **of_memory), **values),
                create=create,
                as_json=json,
            )

        _, *parameters = signature(work).parameters.values()
        cli.add_options(run, parameters, added_options)
        call = " ".join(filter(None, ["facts", name, example, "--user ann"]))
        app.command(name, help=work.__doc__, epilog=cli.example(call))(run)

    return register


@command("list", "--since 2026-11-01 --until 2026-11-20", **_FILTERS)
async def list_(memory: "CondensedMemory", **options: Any) -> Output:
    """List the current facts, the newest first."""
    filters = cli.without_none(options)
    if "after" in filters:
        filters["after"] = (await _find(memory, filters["after"])).id
    facts = await cli.book_of(memory).alist(**filters)
    return await _with_unread(memory, _listed(memory, facts))


@command("approve", "3f2a91bc")
async def approve(memory: "CondensedMemory", fact_ids: _RequiredIds) -> Output:
    """Approve pending facts, and retire the facts they correct.

    All of them are approved, or none after an error.
    """
    ids = await _find_ids(memory, fact_ids)
    return _listed(memory, await cli.book_of(memory).aapprove(*ids))


@command("reject", "3f2a91bc")
async def reject(
    memory: "CondensedMemory",
    fact_ids: _RequiredIds,
    *,
    reason: _Reason = "rejected by hand",
) -> Output:
    """Retire pending facts, and do not learn them again."""
    ids = await _find_ids(memory, fact_ids)
    return _listed(memory, await cli.book_of(memory).areject(*ids, reason=reason))


@command("search", '"Where do I live?"', embed=Embed)
async def search(memory: "CondensedMemory", question: _Question) -> Output:
    """Find facts with words of a question, the best first.

    Without --agent, the shared facts are searched.
    """
    matches = await memory.facts_block.asearch(question)
    result = [_with_numbers(match, "score", "similarity") for match in matches]
    owner = f"{cli.whose(memory)} that share a word with it"
    table = facts_table([match.fact for match in matches], owner)
    return await _with_unread(memory, Output(result, table))


@command("explain", '"Where do I live?"', embed=Embed)
async def explain(memory: "CondensedMemory", question: _Question) -> Output:
    """Explain for each fact why a question shows it, or not.

    With --session, as the next question of this session, with the limits of the
    defaults: a fact is left out while the prompt shows its message. Without --agent,
    the shared facts are explained.
    """
    if memory.session_id == cli.NO_SESSION:
        explanation = await memory.facts_block.aexplain(question)
    else:
        explanation = await _explain_in_session(memory, question)
    facts = []
    for explained in explanation.facts:
        fields = _with_numbers(
            explained, "why", "score", "similarity", "recency", "matched", "tokens"
        )
        facts.append({**fields, "shown": explained.injected})
    result = {
        "tokens": explanation.tokens,
        "token_limit": explanation.limit,
        "facts": facts,
    }
    table = explanation_table(explanation, cli.whose(memory))
    return await _with_unread(memory, Output(result, table))


async def _with_unread(memory: "CondensedMemory", output: Output) -> Output:
    """Return an output that says how many messages are unread: a command has no model to learn from them."""
    count = await memory.facts_block.count_unread(memory.session_id)
    if not count:
        return output
    messages = pluralize(count, "message")
    note = f"Not yet read for facts: {messages}. The user's next question reads them."
    return output._replace(text=Group(output.text, note))


async def _explain_in_session(memory: "CondensedMemory", question: str) -> Any:
    """Explain the facts of a prompt for the question, of which nothing is stored."""
    # Imported here: it imports LlamaIndex.
    from llama_index_memory_ext import preview_prompt

    block = memory.facts_block
    limits = {
        "agent_id": block.agent_id,
        "embed_model": block.embed_model,
        "time_zone": block.zone,
    }
    namespace = block.namespace_of(memory.session_id)
    preview = await preview_prompt(
        memory.sql_store, memory.session_id, namespace, limits, question
    )
    return preview.explanation


def _with_numbers(entry: Any, *names: str) -> dict[str, Any]:
    """Return the fields of the fact of an entry, with these numbers of the entry."""
    numbers = {name: getattr(entry, name) for name in names}
    return {**entry.fact.model_dump(mode="json"), **numbers}


@command("add", '"Likes tea" --tag drink', create=True, **_FIELDS)
async def add(
    memory: "CondensedMemory",
    text: Annotated[
        str,
        typer.Argument(
            metavar="TEXT", help="The fact in one sentence.", parser=_with_words
        ),
    ],
    *,
    ttl: Annotated[
        float | None,
        cli.option("--ttl DAYS", "It expires after this many days.", min=0.001),
    ] = None,
    **options: Any,
) -> Output:
    """Add a fact, with --agent for this agent alone.

    A database that does not exist is created.
    """
    same_fact = await memory.facts.afind(text)
    if same_fact:
        return _changed("Known already, as", same_fact)
    lifetime = None if ttl is None else timedelta(days=ttl)
    fact = await memory.facts.aadd(text, ttl=lifetime, **cli.without_none(options))
    return _changed("Added", fact)


@command("edit", "3f2a91bc --confidence 0.9", content=_CONTENT, **_FIELDS)
async def edit(
    memory: "CondensedMemory",
    fact_id: _Id,
    *,
    no_tags: Annotated[
        bool, typer.Option("--no-tags", help="Remove all tags.")
    ] = False,
    **options: Any,
) -> Output:
    """Change the text or the settings of a fact."""
    fields = cli.without_none(options)
    if no_tags:
        fields["tags"] = ()
    if not fields:
        raise UsageError(
            "pass a change: --content, --category, --confidence, --pin, --unpin, --tag or --no-tags."
        )
    fact = await _find(memory, fact_id)
    return _changed("Changed", await cli.book_of(memory).aupdate(fact.id, **fields))


@command("retire", "3f2a91bc")
async def retire(
    memory: "CondensedMemory", fact_id: _Id, *, reason: _Reason = "retired by hand"
) -> Output:
    """Keep a fact, but no longer show it to the model."""
    fact = await _find(memory, fact_id)
    return _changed("Retired", await cli.book_of(memory).aretire(fact.id, reason))


@command("restore", "3f2a91bc")
async def restore(memory: "CondensedMemory", fact_id: _Id) -> Output:
    """Show a retired fact to the model again."""
    fact = await _find(memory, fact_id)
    return _changed("Restored", await cli.book_of(memory).arestore(fact.id))


@command("forget", "3f2a91bc")
async def forget(
    memory: "CondensedMemory",
    fact_ids: Annotated[list[str] | None, _IDS] = None,
    *,
    all_: Annotated[bool, typer.Option("--all", help="All facts of the user.")] = False,
    yes: Yes = False,
) -> Output:
    """Delete facts for good, after a confirmation.

    The messages with their words stay; `forget` deletes sessions and persons.
    """
    if bool(fact_ids) == all_:
        raise UsageError("pass the ids of facts, or --all.")
    owner = cli.whose(memory)
    book = cli.book_of(memory)
    facts = {}
    if all_:
        facts = {fact.id: fact for fact in await book.alist(state="all")}
    for fact_id in fact_ids or ():
        fact = await _find(memory, fact_id)
        facts[fact.id] = fact
    if facts and not yes:
        cli.say(facts_table([*facts.values()], owner), stderr=True)
        cli.confirm(f"Delete {pluralize(len(facts), 'fact')} of {owner} for good?")
    # Without ids, aforget would delete all facts.
    count = await book.aforget(*facts) if facts else 0
    text = f"Deleted {pluralize(count, 'fact')} of {owner}. {WORDS_STAY}"
    return Output({"facts": count}, text)


def _listed(
    memory: "CondensedMemory", facts: Sequence["Fact"], filters: str = ""
) -> Output:
    return Output(facts, facts_table(facts, f"{cli.whose(memory)}{filters}"))


def _changed(change: str, fact: "Fact") -> Output:
    return Output(fact, f"{change} {fact.id}: {one_line(fact.content)}")


async def _find_ids(memory: "CondensedMemory", texts: Iterable[str]) -> list[str]:
    return [(await _find(memory, text)).id for text in texts]


async def _find(memory: "CondensedMemory", text: str) -> "Fact":
    """Return the fact whose id is the text, or alone begins with it; else raise a TerminalError."""
    facts = await cli.book_of(memory).alist(state="all")
    matching_facts = []
    for fact in facts:
        if fact.id == text:
            return fact
        if text and fact.id.startswith(text):
            matching_facts.append(fact)
    if not matching_facts:
        raise TerminalError(
            f"{cli.whose(memory)!r} has no fact {text!r} ({pluralize(len(facts), 'fact')}). "
            "`facts list --state all` shows all."
        )
    if len(matching_facts) > 1:
        raise TerminalError(
            f"{len(matching_facts)} ids begin with {text!r}. Pass more characters of the id."
        )
    return matching_facts[0]


def facts_table(facts: Sequence["Fact"], owner: str) -> RenderableType:
    """Return a table of facts in their order, with the state of each fact that does not hold now.

    It has a column of agents if a fact belongs to an agent. Without facts, return the
    text "No facts of OWNER".
    """
    columns = ["id", "fact", "category", "confidence", "since"]
    has_agents = any(fact.agent_id is not None for fact in facts)
    if has_agents:
        columns.append("agent")
    rows = []
    for fact in facts:
        confidence = f"{fact.confidence:.2f}"
        day = f"{fact.updated_at:%Y-%m-%d}"
        row = [fact.id[:_ID_CHARACTERS], _content(fact), fact.category, confidence, day]
        if has_agents:
            row.append(fact.agent_id or "")
        rows.append(row)
    return cli.table(columns, rows, empty=f"No facts of {owner}.")


def explanation_table(explanation: Any, owner: str) -> RenderableType:
    """Return a table of the facts, with the reason for which each is shown or not."""
    rows = []
    for explained in explanation.facts:
        reason = explained.why
        if explained.injected:
            reason = f"yes: {reason}"
        content = _content(explained.fact)
        if explained.matched:
            words = ", ".join(explained.matched[:_MOST_WORDS])
            content += f" (in common: {one_line(words)})"
        score = f"{explained.score:.2f}"
        similarity = f"{explained.similarity:.2f}"
        fact_id = explained.fact.id[:_ID_CHARACTERS]
        rows.append((fact_id, content, score, similarity, reason))
    # A terminal is narrow: --json has the other numbers.
    columns = ["id", "fact", "score", "similarity", "shown"]
    table = cli.table(columns, rows, empty=f"No facts of {owner}.")
    if rows:
        return Group(table, *explanation.notes)
    return table


def _content(fact: "Fact") -> str:
    """Return the text of a fact and its time: "Lives in Oslo (past, until 2025-11-20: moved)"."""
    state = fact.state(datetime.now(timezone.utc))
    content = one_line(fact.content)
    if fact.pinned:
        content = f"(pinned) {content}"
    if state == "pending":
        content = f"(pending) {content}"
    time = _time_of(fact, state)
    return f"{content} ({one_line(time)})" if time else content


def _time_of(fact: "Fact", state: str) -> str:
    """Return until when a fact holds or held, and why it ended; "" for a fact without an end."""
    reason = f": {fact.retired_reason}" if fact.retired_reason else ""
    expiry = f"{fact.expires_at:%Y-%m-%d}" if fact.expires_at else ""
    if state == "past":
        return f"past, until {fact.ends}{reason}"
    if state == "retired":
        return f"retired{reason}"
    if state == "expired":
        return f"expired {expiry}"
    ends = []
    if expiry:
        ends.append(f"expires {expiry}")
    if fact.valid_until:
        ends.append(f"until {fact.valid_until}")
    return ", ".join(ends)
