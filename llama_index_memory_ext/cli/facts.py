"""The commands under ``facts``: show and change what is known about a user."""

from __future__ import annotations

import asyncio
import sys
from contextlib import redirect_stdout
from functools import partial
from itertools import pairwise
from os.path import commonprefix
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from llama_index_memory_ext.cli import TerminalError, one_line, pluralize
from llama_index_memory_ext.cli import app as cli
from llama_index_memory_ext.cli.app import Db, Json, Session, User, Yes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from llama_index_memory_ext import CondensedMemory, Fact
    from llama_index_memory_ext.facts.explanation import Explanation
    from llama_index_memory_ext.facts.ranking import RankedFact

T = TypeVar("T")

_KEYWORDS_SHOWN = 5
_IDS_SHOWN = 5
_SHORTEST_ID = 8
_CATEGORY_HELP = "preference, knowledge, context, behavior, goal or correction."

_Question = Annotated[str, typer.Argument(help="What the user might ask.")]
_Text = Annotated[str, typer.Argument(help="The fact in one sentence.")]
_Id = Annotated[str, typer.Argument(metavar="ID", help="The id of a fact, or its beginning.")]
_Ids = Annotated[list[str] | None, typer.Argument(metavar="ID...", help="The ids of facts, or their beginnings.")]
_Retired = Annotated[bool, typer.Option("--retired", help="Also retired facts.")]
_Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="Most facts that are shown.")]
_Category = Annotated[str, typer.Option(metavar="CATEGORY", help=_CATEGORY_HELP)]
_Confidence = Annotated[float, typer.Option(min=0.0, max=1.0, help="How certain the fact is.")]
_Pin = Annotated[bool, typer.Option("--pin", help="Show it before facts that match better.")]
_Reason = Annotated[str, typer.Option(help="Why it is no longer true.")]
_All = Annotated[bool, typer.Option("--all", help="All facts of the user.")]

app = typer.Typer(rich_markup_mode=None)
cli.app.add_typer(app, name="facts", help="What is known about a user: look at it, search it, change it.")


@app.command("list")
def list_(
    *, user: User = None, session: Session = None, retired: _Retired = False, db: Db = None, json: Json = False
) -> None:
    """List the current facts, the newest first."""
    namespace = _namespace(user, session)
    facts = _run(db, namespace, lambda memory: memory.facts.alist(with_retired=retired))
    cli.show(facts, partial(show_facts, facts, namespace), as_json=json)


@app.command()
def search(
    question: _Question,
    *,
    user: User = None,
    session: Session = None,
    limit: _Limit = 10,
    db: Db = None,
    json: Json = False,
) -> None:
    """Find facts that have words in common with a question."""
    namespace = _namespace(user, session)
    found = _run(db, namespace, lambda memory: memory.facts_block.asearch(question))[:limit]
    result = [{**one.fact.model_dump(mode="json"), "score": one.score, "similarity": one.similarity} for one in found]
    cli.show(result, partial(_show_found, found, namespace), as_json=json)


@app.command()
def explain(
    question: _Question, *, user: User = None, session: Session = None, db: Db = None, json: Json = False
) -> None:
    """Say of each fact whether a question shows it to the model."""
    namespace = _namespace(user, session)
    found = _run(db, namespace, lambda memory: memory.facts_block.aexplain(question))
    names = ("why", "score", "similarity", "matched", "tokens")
    facts = [
        one.fact.model_dump(mode="json") | {"shown": one.injected} | {name: getattr(one, name) for name in names}
        for one in found.facts
    ]
    result = {"tokens": found.tokens, "token_limit": found.limit, "facts": facts}
    cli.show(result, partial(show_explanation, found, namespace), as_json=json)


@app.command()
def add(
    text: _Text,
    *,
    user: User = None,
    session: Session = None,
    category: _Category = "knowledge",
    confidence: _Confidence = 1.0,
    pin: _Pin = False,
    db: Db = None,
    json: Json = False,
) -> None:
    """Add a fact; a database that does not exist is created."""

    async def run(memory: CondensedMemory) -> Fact:
        return await memory.facts.aadd(text, category=category, confidence=confidence, pinned=pin)

    _show_change("Added", _run(db, _namespace(user, session), run, create=True), as_json=json)


@app.command()
def retire(
    fact_id: _Id,
    *,
    user: User = None,
    session: Session = None,
    reason: _Reason = "retired by hand",
    db: Db = None,
    json: Json = False,
) -> None:
    """Keep a fact, but no longer show it to the model."""

    async def run(memory: CondensedMemory) -> Fact:
        return await memory.facts.aretire(await _find_id(memory, fact_id), reason)

    _show_change("Retired", _run(db, _namespace(user, session), run), as_json=json)


@app.command()
def restore(fact_id: _Id, *, user: User = None, session: Session = None, db: Db = None, json: Json = False) -> None:
    """Show a retired fact to the model again."""

    async def run(memory: CondensedMemory) -> Fact:
        return await memory.facts.arestore(await _find_id(memory, fact_id))

    _show_change("Restored", _run(db, _namespace(user, session), run), as_json=json)


@app.command()
def forget(
    fact_ids: _Ids = None,
    *,
    user: User = None,
    session: Session = None,
    all_: _All = False,
    yes: Yes = False,
    db: Db = None,
    json: Json = False,
) -> None:
    """Delete facts permanently; asks for confirmation."""
    if bool(fact_ids) == all_:
        raise typer.BadParameter("name the facts, or say --all.")
    namespace = _namespace(user, session)
    known = _run(db, namespace, lambda memory: memory.facts.alist(with_retired=True))
    facts = {fact.id: fact for fact in (known if all_ else [find_fact(known, one) for one in fact_ids or ()])}
    if facts and not yes:
        with redirect_stdout(sys.stderr):
            show_facts(list(facts.values()), namespace)
        cli.confirm(f"Delete {pluralize(len(facts), 'fact')} of {namespace} for good?")
    # Without ids all facts would be deleted.
    count = _run(db, namespace, lambda memory: memory.facts.aforget(*facts)) if facts else 0
    cli.show({"facts": count}, f"Deleted {pluralize(count, 'fact')} of {namespace}.", as_json=json)


def _namespace(user: str | None, session: str | None) -> str:
    """Returns whose facts are meant: the user's, or those of a session that has no user."""
    namespace = user or session
    if namespace is None:
        raise typer.BadParameter("say whose facts: --user ID, or --session ID for those of a session without a user.")
    return namespace


def _run(db: str | None, name: str, work: Callable[[CondensedMemory], Awaitable[T]], *, create: bool = False) -> T:
    async def run() -> T:
        async with cli.open_store(cli.find_place(db), create=create) as store:
            return await work(cli.memory_on(store, name))

    return asyncio.run(run())


async def _find_id(memory: CondensedMemory, text: str) -> str:
    return find_fact(await memory.facts.alist(with_retired=True), text).id


def find_fact(facts: Sequence[Fact], text: str, *, in_content: bool = False) -> Fact:
    """Returns the one fact whose id is ``text`` or begins with it, or, with ``in_content``, that contains it.

    Raises:
        TerminalError: There is none, or there are several.
    """
    none = f"There is no fact {text!r} among {len(facts)}. `facts list --retired` shows all."
    begins = [fact for fact in facts if text and fact.id.startswith(text)]
    found, matched = [fact for fact in begins if fact.id == text] or begins, "ids begin with"
    if in_content and not found:
        none = f"no fact is called {text!r} or has these words. /facts lists them."
        found, matched = [fact for fact in facts if text.casefold() in fact.content.casefold()], "facts contain"
    if not found:
        raise TerminalError(none)
    if len(found) > 1:
        ids = short_ids(fact.id for fact in facts)
        shown = ", ".join(sorted(ids[fact.id] for fact in found)[:_IDS_SHOWN])
        more = f" and {len(found) - _IDS_SHOWN} more" if len(found) > _IDS_SHOWN else ""
        raise TerminalError(f"{len(found)} {matched} {text!r}: {shown}{more}. Give more of the one you mean.")
    return found[0]


def short_ids(ids: Iterable[str]) -> dict[str, str]:
    """Returns for each id a beginning of eight or more characters that no other id has, or the whole id.

    >>> short_ids(["abcdefgh1", "abcdefgh2", "xyz", "0123456789"])
    {'0123456789': '01234567', 'abcdefgh1': 'abcdefgh1', 'abcdefgh2': 'abcdefgh2', 'xyz': 'xyz'}
    """
    ordered = sorted(set(ids))
    # An id shares most characters with the id before it or the one after it.
    shared = [len(commonprefix(pair)) for pair in pairwise(["", *ordered, ""])]  # noqa: RUF071 - by characters, indeed
    return {id_: id_[: max(_SHORTEST_ID, 1 + max(shared[i : i + 2]))] for i, id_ in enumerate(ordered)}


def show_facts(facts: Sequence[Fact], namespace: str) -> None:
    """Prints a table of facts in their order, retired ones with the reason."""
    if not facts:
        cli.say(f"No facts of {namespace}.")
        return
    ids = short_ids(fact.id for fact in facts)
    rows = [
        (ids[fact.id], _content(fact), fact.category, f"{fact.confidence:.2f}", f"{fact.updated_at:%Y-%m-%d}")
        for fact in facts
    ]
    # Half a date would be a wrong one.
    cli.show_table({"id": 0, "fact": 0, "category": 60, "confidence": 50, "since": 0}, rows)


def _show_found(found: Sequence[RankedFact], namespace: str) -> None:
    if not found:
        cli.say(f"No fact of {namespace} has a word in common with that.")
        return
    ids = short_ids(one.fact.id for one in found)
    rows = [(f"{one.score:.2f}", ids[one.fact.id], _content(one.fact), _keywords(one.matched)) for one in found]
    cli.show_table({"score": 0, "id": 0, "fact": 0, "matched": 0}, rows)


def show_explanation(explanation: Explanation, namespace: str) -> None:
    """Prints a table that says of each fact whether it is shown, and why."""
    if not explanation.facts:
        cli.say(f"No facts of {namespace}.")
        return
    ids = short_ids(one.fact.id for one in explanation.facts)
    rows = []
    for one in explanation.facts:
        shown = f"{'yes' if one.injected else 'no'}: {one.why}"
        numbers = [f"{number:.2f}" for number in (one.score, one.similarity, one.confidence)]
        content = _content(one.fact) + (f" (matched: {_keywords(one.matched)})" if one.matched else "")
        rows.append((shown, *numbers, str(one.tokens), ids[one.fact.id], content))
    columns = {"shown": 0, "score": 0, "similarity": 100, "confidence": 100, "tokens": 0, "id": 0, "fact": 0}
    cli.show_table(columns, rows)
    cli.say(f"{explanation.tokens} of {explanation.limit} tokens")


def _show_change(what: str, fact: Fact, *, as_json: bool) -> None:
    cli.show(fact, f"{what} {fact.id}: {one_line(fact.content)}", as_json=as_json)


def _content(fact: Fact) -> str:
    retired = f" (retired: {one_line(fact.retired_reason or '')})" if fact.retired else ""
    return f"{'(pinned) ' if fact.pinned else ''}{one_line(fact.content)}{retired}"


def _keywords(matched: Sequence[str]) -> str:
    return ", ".join(matched[:_KEYWORDS_SHOWN])
