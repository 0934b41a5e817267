"""Shows what is known about the user, ranked for the question, within a token limit."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any

from llama_index.core.bridge.pydantic import Field, PrivateAttr

from llama_index_memory_ext.events import FactsInjectedEvent, is_heard, send
from llama_index_memory_ext.facts.explanation import Explanation, explain
from llama_index_memory_ext.facts.learning import FactLearning
from llama_index_memory_ext.facts.ranking import fit_facts, split_lines
from llama_index_memory_ext.log_block import DEFAULT_SESSION_ID, Remembered
from llama_index_memory_ext.store import Seen
from llama_index_memory_ext.text.messages import question_in, spoken, turns_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index.core.base.llms.types import ChatMessage

    from llama_index_memory_ext.facts.known_facts import Known
    from llama_index_memory_ext.store import LogPage

_CONTEXT_ROWS = 40


@dataclass(frozen=True)
class _Talk:
    """The last messages of a session in the log, and the turns that they make."""

    seen: Seen = field(default_factory=Seen)
    messages: tuple[ChatMessage, ...] = ()
    turns: tuple[list[str], ...] = ()


@dataclass(frozen=True, slots=True)
class _Shown:
    """The facts as they are shown for a question: their text with its tokens, and their ids in that order."""

    text: str
    tokens: int
    fact_ids: tuple[str, ...]


class RelevantFactsBlock(FactLearning):
    """What is known about the user and matters for the question, best first, within a token limit.

    Facts are extracted by a model from the log of a ``MemoryStore``, beside the conversation, and belong to a
    ``user_id``, or to the session if there is none. They are ranked by
    ``similarity_weight * similarity + confidence_weight * confidence``.

    Without a ``store`` the block keeps a private one in memory, fed by what the memory flushes. Give the
    memory the same store otherwise.
    """

    name: str = Field(default="relevant_facts", description="The name of the element around the facts.")
    token_limit: int = Field(
        default=2_000, ge=0, description="Most tokens of the facts, all tags included; never exceeded."
    )
    context_turns: int = Field(default=3, ge=1, description="Turns that are looked at, the current one included.")

    _talks: Remembered[str, _Talk] = PrivateAttr(default_factory=Remembered)
    _shown: Remembered[Any, _Shown] = PrivateAttr(default_factory=Remembered)

    @classmethod
    def class_name(cls) -> str:
        """The name under which LlamaIndex serialises this block."""
        return "RelevantFactsBlock"

    # ---- what the host calls -----------------------------------------------------------------------

    async def _aget(
        self, messages: list[ChatMessage] | None = None, *, session_id: str | None = None, **block_kwargs: Any
    ) -> str:
        """The facts as text, one line-ended element per fact; empty if none is known."""
        session_id, started = session_id or DEFAULT_SESSION_ID, perf_counter()
        namespace = self.namespace_of(session_id)
        talk, now = await self._read_talk(session_id)
        known = await self._read_known(namespace, now)
        if not known.active:
            return ""
        question, context = question_in(messages or [], talk.turns, self.context_turns)
        key = (known.changes.epoch, known.changes.change, namespace, question, tuple(context))
        cached = self._shown.get(key)
        shown = cached
        if shown is None:
            prepared = await self._prepare(known, [question, *context])
            shown = self._show(known, question, context)
            if prepared:
                self._shown.put(key, shown)
        if shown.text and is_heard():
            self._tell_shown(session_id, shown, len(known.active), perf_counter() - started, cached=cached is not None)
        return shown.text

    async def atruncate(self, content: Any, tokens_to_truncate: int) -> str | None:
        """The facts without the lowest-ranked: at least ``tokens_to_truncate`` tokens shorter, or None."""
        lines = split_lines(content) if isinstance(content, str) else []
        gone = 0
        while lines and gone < tokens_to_truncate:
            gone += self.tokenizer_fn.count(lines.pop())
        return "".join(lines) or None

    async def aexplain(
        self,
        question: str,
        *,
        session_id: str = DEFAULT_SESSION_ID,
        context: Sequence[str] = (),
    ) -> Explanation:
        """Why each fact is shown for a question, or not; prints as a table, and shows as one in a notebook.

        ``session_id`` is needed only by a block without a ``user_id``; ``context`` is what was said in the turns
        before, oldest first.
        """
        known = await self._read_known(self.namespace_of(session_id))
        await self._prepare(known, [question, *context])
        return explain(self._ranked(known, question, context), self._room, self.tokenizer_fn)

    # ---- showing -----------------------------------------------------------------------------------

    @property
    def _room(self) -> int:
        return self._room_within(self.token_limit)

    def _show(self, known: Known, question: str, context: Sequence[str]) -> _Shown:
        """What there is room for of the facts, best first."""
        facts = self._best_first(known, question, context)
        shown = fit_facts(facts, self._room, self.tokenizer_fn, known.rendered)
        text = "".join(entry.line for entry in shown)
        if self.tokenizer_fn.adds_up:
            self.tokenizer_fn.remember(text, sum(entry.tokens for entry in shown))
        return _Shown(text, self.tokenizer_fn.count(text), tuple(entry.fact.id for entry in shown))

    def _tell_shown(self, session_id: str, shown: _Shown, known: int, seconds: float, *, cached: bool) -> None:
        send(
            FactsInjectedEvent(
                session_id=session_id,
                user_id=self.namespace_of(session_id),
                fact_ids=list(shown.fact_ids),
                known=known,
                tokens=shown.tokens,
                token_limit=self.token_limit,
                cached=cached,
                seconds=seconds,
            )
        )

    async def _read_talk(self, session_id: str) -> tuple[_Talk, tuple[int, int] | None]:
        """The last turns in the log, and how far the changes of the facts have come."""
        talk = self._talks.get(session_id, _Talk())
        page = await self._context_page(session_id, talk.seen)
        if not page.fresh:
            talk = _Talk()
            page = await self._context_page(session_id, talk.seen)
        if page.rows:
            said = [row.message for row in page.rows]
            new = [message for message in said if spoken(message)]
            kept = (*talk.messages, *new)[-_CONTEXT_ROWS:]
            seen = Seen(page.epoch, page.position, page.rows[-1].id)
            talk = _Talk(seen, kept, tuple(turns_in(kept)[-self.context_turns :]))
            self._talks.put(session_id, talk)
        return talk, page.facts

    async def _context_page(self, session_id: str, seen: Seen) -> LogPage:
        watched = self.namespace_of(session_id)
        return await self._log.read_log(session_id, f"{self.name} context", seen, limit=_CONTEXT_ROWS, watch=watched)
