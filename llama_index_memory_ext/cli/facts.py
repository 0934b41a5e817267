"""Shows and changes what is known about a user: the commands under ``facts``."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llama_index_memory_ext.cli.database import existing, existing_or_new, place_of
from llama_index_memory_ext.cli.fact_tables import as_json, show_changed, show_explanation, show_facts, show_found
from llama_index_memory_ext.cli.options import AsJson, Database, Session, User, Yes, confirmed, namespace_of
from llama_index_memory_ext.cli.reasons import counted
from llama_index_memory_ext.cli.screen import say, show_json

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from llama_index_memory_ext.fact import Fact
    from llama_index_memory_ext.facts.block import RelevantFactsBlock
    from llama_index_memory_ext.facts.book import FactBook

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="What is known about a user: look at it, search it, change it."
)

Question = Annotated[str, typer.Argument(help="What the user might ask.")]
FactId = Annotated[str, typer.Argument(metavar="ID", help="The id of a fact, or its beginning.")]
FactIds = Annotated[list[str] | None, typer.Argument(metavar="ID...", help="The ids of facts, or their beginnings.")]
Retired = Annotated[bool, typer.Option("--retired", help="Also those that hold no longer.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="Most facts that are shown.")]
Category = Annotated[
    str,
    typer.Option(metavar="CATEGORY", help="preference, knowledge, context, behavior, goal or correction."),
]
Confidence = Annotated[float, typer.Option(min=0.0, max=1.0, help="How sure it is.")]
Pin = Annotated[bool, typer.Option("--pin", help="Show it before facts that match better.")]
Reason = Annotated[str, typer.Option(help="Why it holds no longer.")]
All = Annotated[bool, typer.Option("--all", help="All facts of the user.")]


@app.command("list")
def list_(
    *, user: User = None, session: Session = None, retired: Retired = False, db: Database = None, json: AsJson = False
) -> None:
    """List the facts that hold, the newest first."""
    namespace = namespace_of(user, session)
    facts = asyncio.run(_with_book(db, namespace, lambda book: book.alist(with_retired=retired)))
    if json:
        show_json([as_json(fact) for fact in facts])
    else:
        show_facts(facts, namespace)


@app.command()
def search(
    question: Question,
    *,
    user: User = None,
    session: Session = None,
    limit: Limit = 10,
    db: Database = None,
    json: AsJson = False,
) -> None:
    """Find facts that have words in common with a question."""
    namespace = namespace_of(user, session)
    found = asyncio.run(_with_block(db, namespace, lambda block: block.asearch(question)))[:limit]
    if json:
        show_json([{**as_json(entry.fact), "score": entry.score, "similarity": entry.similarity} for entry in found])
    else:
        show_found(found, namespace)


@app.command()
def explain(
    question: Question, *, user: User = None, session: Session = None, db: Database = None, json: AsJson = False
) -> None:
    """Say of each fact whether a question shows it to the model."""
    namespace = namespace_of(user, session)
    explanation = asyncio.run(_with_block(db, namespace, lambda block: block.aexplain(question)))
    show_explanation(explanation, namespace, as_json_=json)


@app.command()
def add(
    text: Annotated[str, typer.Argument(help="The fact in one sentence.")],
    *,
    user: User = None,
    session: Session = None,
    category: Category = "knowledge",
    confidence: Confidence = 1.0,
    pin: Pin = False,
    db: Database = None,
    json: AsJson = False,
) -> None:
    """Add a fact; a database that does not exist is created."""
    fields: dict[str, Any] = {"category": category, "confidence": confidence, "pinned": pin}
    namespace = namespace_of(user, session)
    fact = asyncio.run(_with_book(db, namespace, lambda book: book.aadd(text, **fields), create=True))
    show_changed("Added", fact, as_json_=json)


@app.command()
def retire(
    fact_id: FactId,
    *,
    user: User = None,
    session: Session = None,
    reason: Reason = "retired by hand",
    db: Database = None,
    json: AsJson = False,
) -> None:
    """Keep a fact, but show it to the model no longer."""

    async def retired(book: FactBook) -> Fact:
        return await book.aretire((await _found(book, fact_id)).id, reason)

    show_changed("Retired", asyncio.run(_with_book(db, namespace_of(user, session), retired)), as_json_=json)


@app.command()
def restore(
    fact_id: FactId, *, user: User = None, session: Session = None, db: Database = None, json: AsJson = False
) -> None:
    """Let a retired fact hold again."""

    async def restored(book: FactBook) -> Fact:
        return await book.arestore((await _found(book, fact_id)).id)

    show_changed("Restored", asyncio.run(_with_book(db, namespace_of(user, session), restored)), as_json_=json)


@app.command()
def forget(
    fact_ids: FactIds = None,
    *,
    user: User = None,
    session: Session = None,
    all_: All = False,
    yes: Yes = False,
    db: Database = None,
    json: AsJson = False,
) -> None:
    """Delete facts for good; asks before it does."""
    if bool(fact_ids) == all_:
        raise typer.BadParameter("name the facts, or say --all.")
    namespace = namespace_of(user, session)

    async def chosen(book: FactBook) -> list[Fact]:
        return await book.alist(with_retired=True) if all_ else [await _found(book, one) for one in fact_ids or ()]

    facts = list({fact.id: fact for fact in asyncio.run(_with_book(db, namespace, chosen))}.values())
    if facts and not yes:
        show_facts(facts, namespace, stderr=True)
    if facts and not confirmed(f"Delete {counted(len(facts), 'fact')} of {namespace} for good?", yes=yes):
        say("Nothing was deleted.", stderr=True)
        raise typer.Exit(1)
    ids = [fact.id for fact in facts]
    count = asyncio.run(_with_book(db, namespace, lambda book: book.aforget(*ids))) if ids else 0
    if json:
        show_json({"facts": count})
    else:
        say(f"Deleted {counted(count, 'fact')} of {namespace}.")


async def _with_book(
    db: str | None, namespace: str, work: Callable[[FactBook], Awaitable[Any]], *, create: bool = False
) -> Any:
    """What comes of work on the facts of a namespace."""
    from llama_index_memory_ext.facts.book import FactBook

    place = place_of(db)
    async with existing_or_new(place) if create else existing(place) as store:
        return await work(FactBook(store, namespace))


async def _with_block(db: str | None, namespace: str, work: Callable[[RelevantFactsBlock], Awaitable[Any]]) -> Any:
    """What comes of asking for the facts of a namespace that matter."""
    from llama_index_memory_ext.facts.block import RelevantFactsBlock

    async with existing(place_of(db)) as store:
        return await work(RelevantFactsBlock(store=store, user_id=namespace, extract_facts=False))


async def _found(book: FactBook, beginning: str) -> Fact:
    from llama_index_memory_ext.cli.ids import fact_of

    return fact_of(beginning, await book.alist(with_retired=True))
