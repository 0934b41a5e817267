"""Finds the user's facts and the session's messages for a question, as nodes for query engines and tools."""

from __future__ import annotations

import json
import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from uuid import NAMESPACE_OID, uuid5

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.schema import MetadataMode, NodeWithScore, TextNode
from pydantic import ValidationError

from llama_index_memory_ext.background.loop import run
from llama_index_memory_ext.errors import FactError, LimitError, StoreError
from llama_index_memory_ext.facts.book import FactFilter
from llama_index_memory_ext.facts.ranking import Weights, days_of
from llama_index_memory_ext.memory.search import check_memory, check_search
from llama_index_memory_ext.record.recall import LONGEST_MESSAGE_TOKENS
from llama_index_memory_ext.settings import checked, unpacked
from llama_index_memory_ext.text.messages import escape_tags
from llama_index_memory_ext.text.tokens import fit_tokens

if TYPE_CHECKING:
    from collections.abc import Iterator

    from llama_index.core.callbacks import CallbackManager
    from llama_index.core.schema import QueryBundle

    from llama_index_memory_ext.fact import Fact
    from llama_index_memory_ext.memory.condensed_memory import CondensedMemory

logger = logging.getLogger(__name__)

# On LoCoMo, ten nodes hold 72.6 % of the evidence for a question with 1.0, and 70.5 %
# with 0.7.
_MESSAGE_CONFIDENCE = 1.0
# The share of the limit that one node may have.
_NODE_SHARE = 0.25
# What stands between nodes when they are shown one after the other.
_BETWEEN = "\n\n"
_SHOWN = frozenset({"kind", "role", "date", "until"})


@contextmanager
def store_errors(what: str, session_id: str) -> Iterator[None]:
    """Raise, and logs, a StoreError where the database fails within the block; it says ``what`` did not happen.

    The original error may quote stored texts, so only the name of its type is given.
    Other errors are raised as they are.
    """
    try:
        yield
    # The last three tell of rows that cannot be read.
    except (StoreError, ValidationError, json.JSONDecodeError, UnicodeError) as raised:
        # What the database has refused has a cause.
        if isinstance(raised, StoreError):
            error = raised.__cause__
        else:
            error = raised
        if error is None:
            raise
        logger.warning(
            "%s (session %r, database failed: %s).",
            what,
            session_id,
            type(error).__name__,
        )
        raise StoreError(
            f"{what} (database failed: {type(error).__name__}). That does not mean that nothing is known: say that the "
            "memory cannot be reached, or try again later."
        ) from None


class MemoryRetriever(BaseRetriever):
    """Retrieves the facts of a memory's user and the messages of its session that have to do with a question.

    It serves a ``RetrieverQueryEngine`` and a ``RetrieverTool``. Facts are ranked as
    the memory ranks them, without retired ones; but a question about the past finds
    what was true before, too. Messages are ranked as for recall, those that the memory
    shows anyway too, a tool call together with its results; the current turn is left
    out, so that a question does not find itself.

    The score is 0..1: for a fact that of the ranking, and for a message the same
    formula, ``similarity_weight * similarity + confidence_weight * confidence``, with
    confidence 1. Similarities are divided by the best of their kind. Ties: facts first.

    ``aretrieve`` and ``retrieve`` return the nodes best first, [] if nothing has a word
    in common with the question (with an ``embed_model`` nearly everything has
    something), and raise a ``StoreError`` if the database failed. The id of a fact's
    node is that of the fact; that of a message is the same in each search, and unique
    across databases. The metadata are ``kind`` ("fact" or "message"), ``date`` and
    ``session_id``; of a fact ``fact_id``, ``category``, ``confidence`` and
    ``created_at``, and ``until``, its last day, if it has ended or will; of a message
    ``role`` and ``message_ids``. A model sees kind, role, date and until.

    Args:
        memory: The memory that is searched.
        facts: Whether facts are searched.
        messages: Whether messages are.
        similarity_top_k: Most nodes.
        token_limit: Most tokens of all nodes as a model sees them, metadata included;
            None for no limit. Of a long message the part with the words of the question
            is shown, of at most a quarter of the limit and 500 tokens.
        callback_manager: The host's own.
        wanted: Which facts are found: ``since``, ``until``, ``category``, ``tags`` and
            ``agent_id``, as for ``memory.facts.asearch``. Messages are found all the
            same.

    Raises:
        TypeError: ``memory`` is not a ``CondensedMemory``.
        ValueError: There is nothing to look for, or ``similarity_top_k`` is less than
            1.
        LimitError: ``token_limit`` is less than 1.
        FactError: No fact can be wanted so.
    """

    @unpacked(FactFilter, FactFilter)
    def __init__(
        self,
        memory: CondensedMemory,
        *,
        facts: bool = True,
        messages: bool = True,
        similarity_top_k: int = 10,
        token_limit: int | None = None,
        callback_manager: CallbackManager | None = None,
        **wanted: Any,
    ) -> None:
        super().__init__(callback_manager=callback_manager)
        check_memory(memory, type(self).__name__)
        check_search(similarity_top_k, facts=facts, messages=messages)
        if token_limit is not None and token_limit < 1:
            raise LimitError(
                f"token_limit must be at least 1, or None for no limit; saw {token_limit}."
            )
        self.memory = memory
        self.similarity_top_k = similarity_top_k
        self.token_limit = token_limit
        self._facts = facts
        self._messages = messages
        self._wanted = checked(FactFilter, FactFilter, FactError, **wanted).model_dump(
            exclude_unset=True
        )
        if token_limit is None:
            share = LONGEST_MESSAGE_TOKENS
        else:
            share = max(1, int(token_limit * _NODE_SHARE))
        self._node_limit = min(LONGEST_MESSAGE_TOKENS, share)

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return run(self._aretrieve(query_bundle))

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        question = query_bundle.query_str
        memory = self.memory
        most = self.similarity_top_k
        if not question.strip():
            return []
        nodes: list[NodeWithScore] = []
        with store_errors("The memory could not be searched", memory.session_id):
            await memory.acheck_session()
            if self._facts:
                found_facts = await memory.facts.asearch(
                    question, similarity_top_k=most, **self._wanted
                )
                nodes += [
                    self.fact_node(entry.fact, entry.score) for entry in found_facts
                ]
            if self._messages:
                limits = {"most": most, "message_token_limit": self._node_limit}
                shares = Weights(
                    memory.facts_block.similarity_weight,
                    memory.facts_block.confidence_weight,
                ).shares()
                for found in await memory.condensed_block.asearch(
                    question, session_id=memory.session_id, **limits
                ):
                    # Each database counts its rows from 1, and the host takes two nodes
                    # with the same id for one.
                    place = (
                        *memory.sql_store.database.identity,
                        memory.session_id,
                        found.row_ids[0],
                    )
                    about = {
                        "role": found.role,
                        "date": found.day,
                        "session_id": memory.session_id,
                    }
                    score = (
                        shares.similarity * found.similarity
                        + shares.confidence * _MESSAGE_CONFIDENCE
                    )
                    ids = list(found.row_ids)
                    node_id = uuid5(NAMESPACE_OID, repr(place)).hex
                    nodes.append(
                        _node(
                            node_id,
                            found.text,
                            score,
                            kind="message",
                            **about,
                            message_ids=ids,
                        )
                    )
        best = sorted(nodes, key=lambda node: -(node.score or 0.0))[:most]
        if self.token_limit is None:
            return best
        count = memory.tokenizer_fn.count
        tokens = [
            count(node.node.get_content(MetadataMode.LLM) + _BETWEEN) for node in best
        ]
        return [best[i] for i in fit_tokens(tokens, self.token_limit)]

    def fact_node(self, fact: Fact, score: float) -> NodeWithScore:
        """Return a fact as a node."""
        text = escape_tags(" ".join(fact.content.split()))
        return _node(
            fact.id,
            self.memory.tokenizer_fn.clip(text, self._node_limit),
            score,
            kind="fact",
            fact_id=fact.id,
            category=fact.category,
            confidence=fact.confidence,
            created_at=fact.created_at.isoformat(),
            session_id=fact.session_id or "",
            **days_of(fact),
        )


def _node(node_id: str, text: str, score: float, **metadata: object) -> NodeWithScore:
    hidden = [key for key in metadata if key not in _SHOWN]
    keys = {
        "excluded_llm_metadata_keys": hidden,
        "excluded_embed_metadata_keys": hidden,
    }
    return NodeWithScore(
        node=TextNode(id_=node_id, text=text, metadata=metadata, **keys), score=score
    )
