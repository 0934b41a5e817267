"""The commands under ``facts``: list, explain and change the facts of a user."""

# Without ``annotations`` from __future__, because Typer reads the annotations of the
# commands through the signatures that ``command`` makes.
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime, timezone
from inspect import Parameter, Signature, signature
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
    from llama_index_memory_ext import CondensedMemory, Fact, MemoryStore

# The first parameter is the memory with the facts. The other parameters are the
# arguments and options of the command.
_WorkOnFacts: TypeAlias = Callable[..., Awaitable[Output]]

# The characters of an id in a table; --json has all of them.
_ID_CHARACTERS = 8
# The fields of an explanation in JSON.
_EXPLAINED = ("why", "score", "similarity", "recency", "matched", "tokens")
# The note after each deletion of facts.
WORDS_STAY = "The messages with its words stay in their session: `forget --session ID` deletes a session."
_Question = Annotated[
    str, typer.Argument(metavar="QUESTION", help="A question of the user.")
]


def _with_words(text: str) -> str:
    """Return the text of an argument; raise a ValueError for a blank one, which Typer reports."""
    if not text.strip():
        raise ValueError("expected text that is not blank")
    return text


def _day(text: str) -> str:
    """Return the text of a day; raise a ValueError for any other text."""
    datetime.fromisoformat(text)
    return text


_Id = Annotated[str, typer.Argument(metavar="ID", help="The beginning of a fact's id.")]
_Ids = Annotated[
    list[str],
    typer.Argument(metavar="ID", help="The beginning of each fact's id."),
]
_Reason = Annotated[
    str, cli.option("--reason TEXT", "The reason; it is stored with the fact.")
]
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
    help="List, explain and change the facts of a user.",
    epilog=cli.example("facts list --user ann"),
)


def command(
    name: str, example: str = "", *, create: bool = False, **options: Any
) -> Callable[[_WorkOnFacts], None]:
    """Return a decorator that makes a command of a coroutine function.

    The command gets options for user, session, agent, time zone, database and JSON.

    ``example``: arguments of a valid call, for the help.
    ``create``: whether a database that does not exist is created.
    ``options``: further options that the function takes by name; ``embed`` gives its
    memory an embedding model instead.
    """

    def register(work: _WorkOnFacts) -> None:
        def run(
            *,
            user: User = None,
            session: Session = None,
            agent: Agent = None,
            time_zone: TimeZone = None,
            db: Db = None,
            json: Json = False,
            **values: Any,
        ) -> None:
            cli.one_of(user, session)
            embed = values.pop("embed", None)

            async def work_on_facts(store: "MemoryStore") -> Output:
                memory = cli.memory_on(
                    store,
                    session,
                    user,
                    agent_id=agent,
                    embed_model=embed,
                    time_zone=time_zone,
                )
                return await work(memory, **values)

            cli.run(db, work_on_facts, create=create, as_json=json)

        _, *parameters = signature(work).parameters.values()
        for option, annotation in options.items():
            parameters.append(
                Parameter(
                    option, Parameter.KEYWORD_ONLY, default=None, annotation=annotation
                )
            )
        parameters += signature(run).parameters.values()
        # Typer reads the parameters of a command here.
        vars(run)["__signature__"] = Signature(
            [entry for entry in parameters if entry.kind != Parameter.VAR_KEYWORD]
        )
        call = " ".join(filter(None, ["facts", name, example, "--user ann"]))
        app.command(name, help=work.__doc__, epilog=cli.example(call))(run)

    return register


@command("list", "--since 2026-11-01 --until 2026-11-20", **_FILTERS)
async def list_(memory: "CondensedMemory", **options: Any) -> Output:
    """List the current facts, the newest first."""
    facts = await cli.book_of(memory).alist(**cli.without_none(options))
    return await _with_unread(memory, _listed(memory, facts))


@command("approve", "3f2a91bc")
async def approve(memory: "CondensedMemory", fact_ids: _Ids) -> Output:
    """Approve pending facts, and retire the facts they correct.

    After an error, none of them is approved.
    """
    facts = await _find(memory, fact_ids)
    return _listed(memory, await cli.book_of(memory).aapprove(*facts))


@command("reject", "3f2a91bc")
async def reject(
    memory: "CondensedMemory",
    fact_ids: _Ids,
    *,
    reason: _Reason = "rejected by hand",
) -> Output:
    """Retire pending facts, and do not learn them again."""
    facts = await _find(memory, fact_ids)
    return _listed(memory, await cli.book_of(memory).areject(*facts, reason=reason))


@command("explain", '"Where do I live?"', embed=Embed)
async def explain(memory: "CondensedMemory", question: _Question) -> Output:
    """Explain why a question shows each fact, or not.

    Without --agent, the shared facts are explained. A session also leaves out facts whose
    messages its prompt shows: the inspector explains them.
    """
    explanation = await memory.facts_block.aexplain(question)
    facts = []
    for explained in explanation.facts:
        fields = {name: getattr(explained, name) for name in _EXPLAINED}
        fact = explained.fact.model_dump(mode="json")
        facts.append({**fact, **fields, "shown": explained.injected})
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


@command("add", '"Likes tea" --tag drink', create=True, **_FIELDS)
async def add(
    memory: "CondensedMemory",
    text: Annotated[
        str,
        typer.Argument(
            metavar="TEXT", help="The fact in one sentence.", parser=_with_words
        ),
    ],
    **options: Any,
) -> Output:
    """Add a fact, with --agent for this agent alone.

    A database that does not exist is created.
    """
    same_fact = await memory.facts.afind(text)
    if same_fact:
        return _changed("Known already, as", same_fact)
    fact = await memory.facts.aadd(text, **cli.without_none(options))
    return _changed("Added", fact)


@command("edit", "3f2a91bc --confidence 0.9", content=_CONTENT, **_FIELDS)
async def edit(memory: "CondensedMemory", fact_id: _Id, **options: Any) -> Output:
    """Change the text or the settings of a fact."""
    fields = cli.without_none(options)
    if not fields:
        raise UsageError(
            "pass a change: --content, --category, --confidence, --pin, --unpin or --tag."
        )
    (whole_id,) = await _find(memory, [fact_id])
    return _changed("Changed", await cli.book_of(memory).aupdate(whole_id, **fields))


@command("retire", "3f2a91bc")
async def retire(
    memory: "CondensedMemory", fact_id: _Id, *, reason: _Reason = "retired by hand"
) -> Output:
    """Hide a fact from the model, but keep it."""
    (whole_id,) = await _find(memory, [fact_id])
    return _changed("Retired", await cli.book_of(memory).aretire(whole_id, reason))


@command("restore", "3f2a91bc")
async def restore(memory: "CondensedMemory", fact_id: _Id) -> Output:
    """Show a retired fact to the model again."""
    (whole_id,) = await _find(memory, [fact_id])
    return _changed("Restored", await cli.book_of(memory).arestore(whole_id))


@command("forget", "3f2a91bc")
async def forget(
    memory: "CondensedMemory", fact_ids: _Ids, *, yes: Yes = False
) -> Output:
    """Delete facts for good, after a confirmation.

    The messages with their words stay; `forget` deletes sessions and persons.
    """
    owner = cli.whose(memory)
    facts = await _find(memory, fact_ids)
    if not yes:
        cli.say(facts_table([*facts.values()], owner), stderr=True)
        cli.confirm(f"Delete {pluralize(len(facts), 'fact')} of {owner} for good?")
    count = await cli.book_of(memory).aforget(*facts)
    text = f"Deleted {pluralize(count, 'fact')} of {owner}. {WORDS_STAY}"
    return Output({"facts": count}, text)


def _listed(memory: "CondensedMemory", facts: Sequence["Fact"]) -> Output:
    return Output(facts, facts_table(facts, cli.whose(memory)))


def _changed(change: str, fact: "Fact") -> Output:
    return Output(fact, f"{change} {fact.id}: {one_line(_content(fact))}")


async def _find(memory: "CondensedMemory", texts: Iterable[str]) -> dict[str, "Fact"]:
    """Return the facts that the texts name, by their ids; a text is an id, or the beginning of a single id.

    Raises:
        TerminalError: A text names no fact or several facts.
    """
    listed = await cli.book_of(memory).alist(state="all")
    stored = {fact.id: fact for fact in listed}
    facts = {}
    for text in texts:
        ids = [fact_id for fact_id in stored if text and fact_id.startswith(text)]
        if text in stored:
            ids = [text]
        if not ids:
            raise TerminalError(
                f"{cli.whose(memory)!r} has no fact {text!r} ({pluralize(len(stored), 'fact')}). "
                "`facts list --state all` shows all."
            )
        if len(ids) > 1:
            raise TerminalError(
                f"{len(ids)} ids begin with {text!r}. Pass more characters of the id."
            )
        facts[ids[0]] = stored[ids[0]]
    return facts


def facts_table(facts: Sequence["Fact"], owner: str) -> RenderableType:
    """Return a table of facts in their order; without facts, the text "No facts of OWNER"."""
    rows = []
    for fact in facts:
        confidence = f"{fact.confidence:.2f}"
        day = f"{fact.updated_at:%Y-%m-%d}"
        fact_id = fact.id[:_ID_CHARACTERS]
        rows.append((fact_id, _content(fact), fact.category, confidence, day))
    columns = ["id", "fact", "category", "confidence", "since"]
    return cli.table(columns, rows, empty=f"No facts of {owner}.")


def explanation_table(explanation: Any, owner: str) -> RenderableType:
    """Return a table of the facts, with the reason for which each is shown or not."""
    rows = []
    for explained in explanation.facts:
        reason = explained.why
        if explained.injected:
            reason = f"yes: {reason}"
        score = f"{explained.score:.2f}"
        fact_id = explained.fact.id[:_ID_CHARACTERS]
        rows.append((fact_id, _content(explained.fact), score, reason))
    # A terminal is narrow: --json has the other numbers, and the words in common.
    columns = ["id", "fact", "score", "shown"]
    table = cli.table(columns, rows, empty=f"No facts of {owner}.")
    if rows:
        return Group(table, *explanation.notes)
    return table


def _content(fact: "Fact") -> str:
    """Return the text of a fact behind its state: "(past, until 2025-11-20, moved) Lives in Oslo"."""
    state = fact.state(datetime.now(timezone.utc))
    notes = []
    if fact.pinned:
        notes.append("pinned")
    if state != "present":
        notes.append(state)
    if fact.ends and state != "retired":
        notes.append(f"until {fact.ends}")
    if fact.expires_at:
        notes.append(f"expires {fact.expires_at:%Y-%m-%d}")
    if fact.agent_id:
        notes.append(f"of {fact.agent_id}")
    if fact.retired_reason:
        notes.append(fact.retired_reason)
    if notes:
        return f"({', '.join(notes)}) {fact.content}"
    return fact.content
