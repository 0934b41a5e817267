"""Says what the options are that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

from llama_index_memory_ext.cli.screen import is_terminal, say

DATABASE_VARIABLE = "LLAMA_INDEX_MEMORY_DB"

Database = Annotated[
    str | None,
    typer.Option(
        "--db",
        metavar="DB",
        envvar=DATABASE_VARIABLE,
        help="A SQLite file, or a SQLAlchemy address. Default: a file in your own folder.",
    ),
]
Table = Annotated[
    str,
    typer.Option(
        "--table",
        metavar="NAME",
        envvar="LLAMA_INDEX_MEMORY_TABLE",
        help="The chat table, with whose name all the others begin. Default: llama_index_memory.",
        show_default=False,
    ),
]
Schema = Annotated[
    str | None,
    typer.Option(
        "--schema", metavar="NAME", envvar="LLAMA_INDEX_MEMORY_SCHEMA", help="The schema of the tables, on PostgreSQL."
    ),
]
User = Annotated[
    str | None, typer.Option("--user", metavar="ID", help="The person; their facts hold in all of their sessions.")
]
Session = Annotated[str | None, typer.Option("--session", metavar="ID", help="The conversation.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else; errors as JSON on stderr.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def namespace_of(user: str | None, session: str | None) -> str:
    """Whose facts are meant: the user's, or those of a session that has no user."""
    if user is None and session is None:
        raise typer.BadParameter("say whose facts: --user ID, or --session ID for those of a session without a user.")
    named = user if user is not None else session
    if not named:
        raise typer.BadParameter("--user and --session must not be empty.")
    return named


def one_of(user: str | None, session: str | None) -> None:
    """Refuse both, none and the empty name."""
    if (user is None) == (session is None):
        raise typer.BadParameter("say either --user ID or --session ID.")
    if not (user or session):
        raise typer.BadParameter("--user and --session must not be empty.")


def confirmed(question: str, *, yes: bool) -> bool:
    """Whether it may be done; where nobody can be asked, only ``--yes`` says so."""
    if yes:
        return True
    if not is_terminal():
        raise typer.BadParameter("nobody can be asked here, so nothing was done. Say --yes if it should be.")
    try:
        # On stderr, so that stdout holds the result and nothing else.
        return typer.confirm(question, err=True)
    except typer.Abort as end:
        say("", stderr=True)
        if isinstance(end.__context__, KeyboardInterrupt):
            say("Nothing was deleted.", stderr=True)
            raise KeyboardInterrupt from None
        return False
