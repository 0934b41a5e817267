"""The commands under ``facts``: show and change what is known about a user."""

# No annotation is a string here: Typer reads those of the commands, through the
# signatures that ``command`` makes.
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime, timedelta, timezone
from inspect import Parameter, Signature, signature
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer
from rich.console import Group, RenderableType

from llama_index_memory_ext.cli import TerminalError, UsageError, one_line, pluralize
from llama_index_memory_ext.cli import app as cli
from llama_index_memory_ext.cli.app import (
    Agent,
    Db,
    Embed,
    Json,
    Model,
    Output,
    Session,
    User,
    Yes,
)

if TYPE_CHECKING:
    from llama_index_memory_ext import CondensedMemory, Fact
    from llama_index_memory_ext.facts.ranking import Explanation

# Begins with the memory whose facts are meant; the other parameters are the arguments
# and options of the command.
_Work: TypeAlias = Callable[..., Awaitable[Output]]

# What is to be known of each fact that is deleted.
WORDS_STAY = "The messages in which it was said stay in their session: `forget --session ID` deletes a session."
_CATEGORY_HELP = "preference, knowledge, context, behavior, goal or correction."

_Question = Annotated[
    str, typer.Argument(metavar="QUESTION", help="What the user might ask.")
]
_Text = Annotated[str, typer.Argument(metavar="TEXT", help="The fact in one sentence.")]
_Id = Annotated[
    str, typer.Argument(metavar="ID", help="The id of a fact, or its beginning.")
]
_Ids = Annotated[
    list[str] | None,
    typer.Argument(metavar="ID", help="The ids of facts, or their beginnings."),
]
_Some = Annotated[
    list[str],
    typer.Argument(metavar="ID", help="The ids of facts, or their beginnings."),
]
_Ttl = Annotated[
    float | None,
    typer.Option(
        "--ttl", metavar="DAYS", help="After how many days it is shown no more."
    ),
]
_Category = Annotated[str, typer.Option(metavar="CATEGORY", help=_CATEGORY_HELP)]
_Pin = Annotated[
    bool, typer.Option("--pin", help="Show it before facts that match better.")
]
_Reason = Annotated[str, typer.Option(metavar="TEXT", help="Why it is no longer true.")]
_Apply = Annotated[bool, typer.Option("--apply", help="Retire them.")]
_All = Annotated[bool, typer.Option("--all", help="All facts of the user.")]
_NoTags = Annotated[bool, typer.Option("--no-tags", help="Take its tags away.")]
_Tags = Annotated[
    list[str] | None,
    typer.Option("--tag", metavar="TEXT", help="A tag; say it again for more."),
]
_FILTERS: dict[str, Any] = {
    "with_retired": Annotated[
        bool | None, typer.Option("--retired", help="Also retired facts.")
    ],
    "with_expired": Annotated[
        bool | None, typer.Option("--expired", help="Also facts whose time is up.")
    ],
    "since": Annotated[
        str | None,
        typer.Option(
            metavar="DAY", help="Known since this day (2026-11-20), or later."
        ),
    ],
    "until": Annotated[
        str | None,
        typer.Option(metavar="DAY", help="Known since this day, or earlier."),
    ],
    "category": Annotated[
        str | None, typer.Option(metavar="CATEGORY", help="Of this category.")
    ],
    "tags": _Tags,
    "state": Annotated[
        str | None,
        typer.Option(help="present, past, retired, expired, pending or all."),
    ],
    "limit": Annotated[int | None, typer.Option(help="Most facts.")],
    "after": Annotated[
        str | None,
        typer.Option(metavar="ID", help="Only those behind this fact of the list."),
    ],
}
_CHANGES: dict[str, Any] = {
    "content": Annotated[
        str | None, typer.Option(metavar="TEXT", help="What it says.")
    ],
    "category": Annotated[
        str | None, typer.Option(metavar="CATEGORY", help=_CATEGORY_HELP)
    ],
    "confidence": Annotated[
        float | None, typer.Option(metavar="NUMBER", help="How certain it is, 0..1.")
    ],
    "pinned": Annotated[
        bool | None,
        typer.Option("--pin/--unpin", help="Show it before facts that match better."),
    ],
    "tags": _Tags,
}

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
cli.app.add_typer(
    app,
    name="facts",
    help="What is known about a user: look at it, search it, change it.",
)


def check_whose(user: str | None, session: str | None) -> None:
    """Raise a UsageError if it is not said whose facts are meant."""
    if not (user or session):
        raise UsageError(
            "say whose facts: --user ID, or --session ID for those of a session without a user."
        )


def command(
    name: str, *, create: bool = False, **options: Any
) -> Callable[[_Work], None]:
    """Make a command of a coroutine function: adds those for user, session, agent, database and JSON to its own.

    The ``options`` are further ones that it takes by name; with ``embed`` its memory
    has an embedding model.
    """
    added = options | {
        "user": User,
        "session": Session,
        "agent": Agent,
        "db": Db,
        "json": Json,
    }

    def register(work: _Work) -> None:
        def run(*, db: str | None, json: bool, **given: Any) -> None:
            whose = {
                name: given.pop(name, None)
                for name in ("session", "user", "agent", "embed")
            }
            check_whose(whose["user"], whose["session"])
            cli.run(
                db,
                lambda store: work(cli.memory_on(store, **whose), **given),
                create=create,
                as_json=json,
            )

        _, *shown = (
            one
            for one in signature(work).parameters.values()
            if one.kind != one.VAR_KEYWORD
        )
        for option, about in added.items():
            default = False if about is Json else None
            shown.append(
                Parameter(
                    option, Parameter.KEYWORD_ONLY, default=default, annotation=about
                )
            )
        vars(run)["__signature__"] = Signature(shown)  # what Typer reads
        app.command(name, help=work.__doc__)(run)

    return register


@command("list", **_FILTERS)
async def list_(memory: "CondensedMemory", **wanted: Any) -> Output:
    """List the current facts, the newest first."""
    chosen = {name: value for name, value in wanted.items() if value is not None}
    if "after" in chosen:
        chosen["after"] = (await _find(memory, chosen["after"])).id
    facts = await cli.book_of(memory).alist(**chosen)
    return facts, facts_table(facts, cli.whose(memory))


@command("pending")
async def pending(memory: "CondensedMemory") -> Output:
    """List what was learned and waits for your yes or no, the newest first."""
    facts = await cli.book_of(memory).alist(state="pending")
    return facts, facts_table(facts, f"{cli.whose(memory)} that are pending")


@command("approve")
async def approve(memory: "CondensedMemory", fact_ids: _Some) -> Output:
    """Let pending facts hold, and end what they correct: all that are named, or none."""
    facts = await cli.book_of(memory).aapprove(
        *[(await _find(memory, one)).id for one in fact_ids]
    )
    return facts, facts_table(facts, cli.whose(memory))


@command("reject")
async def reject(
    memory: "CondensedMemory", fact_ids: _Some, *, reason: _Reason = "rejected by hand"
) -> Output:
    """Retire pending facts, and do not learn them again."""
    facts = await cli.book_of(memory).areject(
        *[(await _find(memory, one)).id for one in fact_ids], reason=reason
    )
    return facts, facts_table(facts, cli.whose(memory))


@command("search", embed=Embed)
async def search(memory: "CondensedMemory", question: _Question) -> Output:
    """Find facts that have words in common with a question, the best first; without --agent those that all share."""
    found = await memory.facts_block.asearch(question)
    result = [
        {
            **one.fact.model_dump(mode="json"),
            "score": one.score,
            "similarity": one.similarity,
        }
        for one in found
    ]
    return result, facts_table(
        [one.fact for one in found], f"{cli.whose(memory)} that share a word with it"
    )


@command("explain", embed=Embed)
async def explain(memory: "CondensedMemory", question: _Question) -> Output:
    """Say of each fact whether the model is shown it for a question, and why; without --agent of the shared ones."""
    found = await memory.facts_block.aexplain(question)
    names = ("why", "score", "similarity", "recency", "matched", "tokens")
    facts = [
        one.fact.model_dump(mode="json")
        | {"shown": one.injected}
        | {name: getattr(one, name) for name in names}
        for one in found.facts
    ]
    result = {"tokens": found.tokens, "token_limit": found.limit, "facts": facts}
    return result, explanation_table(found, cli.whose(memory))


@command("add", create=True)
async def add(
    memory: "CondensedMemory",
    text: _Text,
    *,
    category: _Category = "knowledge",
    pin: _Pin = False,
    ttl: _Ttl = None,
) -> Output:
    """Add a fact, with --agent as this agent's own; a database that does not exist is created."""
    from llama_index_memory_ext.facts.book import known_as

    if same := await known_as(memory.facts, text):
        return _changed("Known already, as", same)
    lasting = None if ttl is None else timedelta(days=ttl)
    fact = await memory.facts.aadd(text, ttl=lasting, category=category, pinned=pin)
    return _changed("Added", fact)


@command("edit", **_CHANGES)
async def edit(
    memory: "CondensedMemory", fact_id: _Id, *, no_tags: _NoTags = False, **given: Any
) -> Output:
    """Change what a fact says, or how it is kept."""
    fields = {name: value for name, value in given.items() if value is not None} | (
        {"tags": ()} if no_tags else {}
    )
    if not fields:
        raise UsageError(
            "say what is to be changed: --content, --category, --confidence, --pin, --unpin or --tag."
        )
    fact = await _find(memory, fact_id)
    return _changed("Changed", await cli.book_of(memory).aupdate(fact.id, **fields))


@command("retire")
async def retire(
    memory: "CondensedMemory", fact_id: _Id, *, reason: _Reason = "retired by hand"
) -> Output:
    """Keep a fact, but no longer show it to the model."""
    fact = await _find(memory, fact_id)
    return _changed("Retired", await cli.book_of(memory).aretire(fact.id, reason))


@command("restore")
async def restore(memory: "CondensedMemory", fact_id: _Id) -> Output:
    """Show a retired fact to the model again."""
    fact = await _find(memory, fact_id)
    return _changed("Restored", await cli.book_of(memory).arestore(fact.id))


@command("forget")
async def forget(
    memory: "CondensedMemory",
    fact_ids: _Ids = None,
    *,
    all_: _All = False,
    yes: Yes = False,
) -> Output:
    """Delete facts for good. It asks before it does.

    The messages in which they were said stay; `forget` deletes sessions and persons.
    """
    if bool(fact_ids) == all_:
        raise UsageError("name the facts, or say --all.")
    namespace = cli.whose(memory)
    book = cli.book_of(memory)
    if all_:
        found = await book.alist(state="all")
    else:
        found = [await _find(memory, one) for one in fact_ids or ()]
    facts = {fact.id: fact for fact in found}
    if facts and not yes:
        cli.say(facts_table([*facts.values()], namespace), stderr=True)
        cli.confirm(f"Delete {pluralize(len(facts), 'fact')} of {namespace} for good?")
    # Without ids all facts would be deleted.
    count = await book.aforget(*facts) if facts else 0
    return {
        "facts": count
    }, f"Deleted {pluralize(count, 'fact')} of {namespace}. {WORDS_STAY}"


@command("consolidate")
async def consolidate(
    memory: "CondensedMemory",
    *,
    apply: _Apply = False,
    yes: Yes = False,
    model: Model = None,
) -> Output:
    """Show which facts need not be kept, each with the one that stays; with --apply they are retired.

    They are repeated, contradicted by a newer one, or a plan that is over, and your
    model confirms it: it needs OPENAI_API_KEY, and OPENAI_API_BASE for another address.
    `facts restore ID` undoes it. It asks before it does.
    """
    # Imported here: they import LlamaIndex.
    from openai import DefaultAsyncHttpxClient

    from llama_index_memory_ext.cli.demo import choose_model

    async with DefaultAsyncHttpxClient() as client:
        memory.facts_block.llm = choose_model(model, client)
        proposals = await (book := cli.book_of(memory)).aconsolidate()
    shown = "\n".join(map(str, proposals))
    count = pluralize(len(proposals), "fact")
    if apply and proposals and not yes:
        cli.say(shown, stderr=True)
        cli.confirm(f"Retire {count} of {cli.whose(memory)}?")
    retired = await book.aapply(proposals) if apply else 0
    if apply:
        told = f"Retired {count}."
    else:
        told = f"Nothing was changed; --apply retires {count}."
    return {"proposals": proposals, "retired": retired}, f"{shown}\n{told}".lstrip()


def _changed(what: str, fact: "Fact") -> Output:
    return fact, f"{what} {fact.id}: {one_line(fact.content)}"


async def _find(memory: "CondensedMemory", text: str) -> "Fact":
    """Return the one fact whose id is or begins with the text; else a TerminalError."""
    facts = await cli.book_of(memory).alist(state="all")
    found = [fact for fact in facts if text and fact.id.startswith(text)]
    found = [fact for fact in found if fact.id == text] or found
    if not found:
        raise TerminalError(
            f"There is no fact {text!r} among {len(facts)}. `facts list --state all` shows all."
        )
    if len(found) > 1:
        raise TerminalError(
            f"{len(found)} ids begin with {text!r}. Give more of the one you mean."
        )
    return found[0]


def short_ids(ids: Iterable[str]) -> dict[str, str]:
    """Return for each id a beginning of it, all of the same length: the least from 8 on with which they differ.

    >>> short_ids(["abcdefgh1", "abcdefgh2", "xyz"])["abcdefgh1"], short_ids(["0123456789"])
    ('abcdefgh1', {'0123456789': '01234567'})
    """
    whole = set(ids)
    longest = max(map(len, whole), default=0)
    length = next(
        n
        for n in range(8, longest + 9)
        if len({id_[:n] for id_ in whole}) == len(whole)
    )
    return {id_: id_[:length] for id_ in whole}


def facts_table(facts: Sequence["Fact"], whose: str) -> RenderableType:
    """Return a table of facts in their order, with what they are if they do not hold now; "No facts of", if none.

    It has a column of agents if one of the facts is an agent's own.
    """
    ids = short_ids(fact.id for fact in facts)
    columns = ["id", "fact", "category", "confidence", "since"]
    rows = [
        [
            ids[fact.id],
            _content(fact),
            fact.category,
            f"{fact.confidence:.2f}",
            f"{fact.updated_at:%Y-%m-%d}",
        ]
        for fact in facts
    ]
    if any(fact.agent_id is not None for fact in facts):
        columns.append("agent")
        rows = [
            [*row, fact.agent_id or ""] for row, fact in zip(rows, facts, strict=True)
        ]
    return cli.table(columns, rows, empty=f"No facts of {whose}.")


def explanation_table(explanation: "Explanation", namespace: str) -> RenderableType:
    """Return a table that says of each fact whether it is shown, and why."""
    ids = short_ids(one.fact.id for one in explanation.facts)
    rows = []
    for one in explanation.facts:
        if one.injected:
            shown = f"yes: {one.why}"
        else:
            shown = one.why
        content = _content(one.fact) + (
            f" (in common: {one_line(one.words)})" if one.words else ""
        )
        rows.append(
            (
                ids[one.fact.id],
                content,
                f"{one.score:.2f}",
                f"{one.similarity:.2f}",
                shown,
            )
        )
    # A terminal is narrow: --json has the other numbers.
    columns = ["id", "fact", "score", "similarity", "shown"]
    table = cli.table(columns, rows, empty=f"No facts of {namespace}.")
    if rows:
        return Group(table, *explanation.notes)
    return table


def _content(fact: "Fact") -> str:
    """Return what a fact says and when it holds: "Lives in Oslo (past, until 2025-11-20: moved)"."""
    state = fact.state(datetime.now(timezone.utc))
    if fact.retired_reason:
        reason = f": {fact.retired_reason}"
    else:
        reason = ""
    if fact.expires_at:
        expiry = f"{fact.expires_at:%Y-%m-%d}"
    else:
        expiry = ""
    ended = {
        "past": f"past, until {fact.ends}{reason}",
        "retired": f"retired{reason}",
        "expired": f"expired {expiry}",
    }
    to_come = (
        expiry and f"expires {expiry}",
        f"until {fact.valid_until}" if fact.valid_until else "",
    )
    when = one_line(ended.get(state) or ", ".join(filter(None, to_come)))
    pinned = "(pending) " * (state == "pending") + "(pinned) " * fact.pinned
    return f"{pinned}{one_line(fact.content)}{f' ({one_line(when)})' if when else ''}"
