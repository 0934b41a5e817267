"""Gives what a memory knows to query engines and tools: the user's facts and the session's messages as nodes."""

from __future__ import annotations

import asyncio
import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from uuid import NAMESPACE_OID, uuid5

from llama_index.core.async_utils import asyncio_run
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.schema import MetadataMode, NodeWithScore, TextNode
from pydantic import ValidationError

from llama_index_memory_ext.errors import LimitError, MemoryExtError, StoreError
from llama_index_memory_ext.facts.ranking import shares_of
from llama_index_memory_ext.memory.condensed_memory import CondensedMemory
from llama_index_memory_ext.record.recall import LONGEST_MESSAGE_TOKENS
from llama_index_memory_ext.text.messages import escape_tags
from llama_index_memory_ext.text.tokens import fit_tokens

if TYPE_CHECKING:
    from collections.abc import Iterator

    from llama_index.core.callbacks import CallbackManager
    from llama_index.core.schema import QueryBundle

    from llama_index_memory_ext.facts.ranking import RankedFact
    from llama_index_memory_ext.record.recall import FoundMessage

NOTHING_FOLLOWS = "That does not mean that nothing is known: say that the memory cannot be reached, or try again later."

# The network and the disk, and rows that cannot be read.
_DATABASE_ERRORS = (OSError, asyncio.TimeoutError, ValidationError, json.JSONDecodeError, UnicodeError)
# SQLAlchemy, and the drivers whose errors it hands on as they are while a connection is made.
_DATABASE_LIBRARIES = frozenset({"sqlalchemy", "aiosqlite", "asyncpg", "sqlite3"})
# On LoCoMo, ten nodes hold 72.6 % of the evidence for a question so, and 70.5 % with 0.7 for messages.
_MESSAGE_CONFIDENCE = 1.0
# The share of the limit that one node may have.
_NODE_SHARE = 0.25
# What stands between nodes when they are shown one after the other.
_BETWEEN = "\n\n"
_SHOWN = frozenset({"kind", "role", "date"})


@contextmanager
def store_errors(what: str, so: str) -> Iterator[None]:
    """Within the block, a failure of the database is a StoreError that says ``what`` did not happen, and what to do.

    The original error may quote what was stored, so only the name of its type is given. This package's own errors,
    and errors that have nothing to do with a database, are raised as they are.
    """
    try:
        yield
    except MemoryExtError:
        raise
    except Exception as error:
        modules = {base.__module__.partition(".")[0] for base in type(error).__mro__}
        if not isinstance(error, _DATABASE_ERRORS) and _DATABASE_LIBRARIES.isdisjoint(modules):
            raise
        raise StoreError(f"{what} (database failed: {type(error).__name__}). {so}") from None


class MemoryRetriever(BaseRetriever):
    """What is known about the user of a memory, and what was said in its session, for a question.

    It serves a ``RetrieverQueryEngine`` and a ``RetrieverTool``. Facts are ranked as the memory ranks them; messages
    are found by their words, those that the memory shows anyway too. A tool call stands with its results. The turn
    that is going on is left out, so that a question does not find itself. Facts are those of the memory's user and
    never retired ones; messages are those of its session.

    The score is 0..1: for a fact that of the ranking, and for a message the same formula, ``similarity_weight *
    similarity + confidence_weight * confidence``, with confidence 1, for what was said was said. Similarities are
    divided by the best of their kind. Ties: facts first.

    ``aretrieve`` and ``retrieve`` give the nodes best first, [] if nothing has a word in common with the question
    (with an ``embed_model`` nearly every fact has something), and raise a ``StoreError`` if the database failed. The
    id of a fact's node is that of the fact; that of a message is the same in each search, and no other database's. The
    metadata are ``kind`` ("fact" or "message"), ``date`` and ``session_id``; of a fact ``fact_id``, ``category``,
    ``confidence`` and ``created_at``, of a message ``role`` and ``message_ids``. A model is shown the kind, the role
    and the date.

    Args:
        memory: The memory that is asked.
        facts: Whether facts are looked for.
        messages: Whether messages are.
        similarity_top_k: Most nodes.
        token_limit: Most tokens of all nodes as a model is shown them, metadata included; None for no limit. Of a long
            message the part with the words of the question is shown, of at most a quarter of the limit and 500 tokens.
        callback_manager: The host's own.

    Raises:
        TypeError: ``memory`` is not a ``CondensedMemory``.
        ValueError: There is nothing to look for, or ``similarity_top_k`` is less than 1.
        LimitError: ``token_limit`` is less than 1.
    """

    def __init__(
        self,
        memory: CondensedMemory,
        *,
        facts: bool = True,
        messages: bool = True,
        similarity_top_k: int = 10,
        token_limit: int | None = None,
        callback_manager: CallbackManager | None = None,
    ) -> None:
        super().__init__(callback_manager=callback_manager)
        check_memory(memory, type(self).__name__)
        if not (facts or messages):
            raise ValueError("facts=False and messages=False leave nothing to look for; set one of them to True.")
        if similarity_top_k < 1:
            raise ValueError(f"similarity_top_k is the most nodes, at least 1; saw {similarity_top_k}.")
        if token_limit is not None and token_limit < 1:
            raise LimitError(f"token_limit must be at least 1, or None for no limit; saw {token_limit}.")
        self.memory = memory
        self.similarity_top_k = similarity_top_k
        self.token_limit = token_limit
        self._facts, self._messages = facts, messages

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        nodes: list[NodeWithScore] = asyncio_run(self._aretrieve(query_bundle))
        return nodes

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        question = query_bundle.query_str
        if not question.strip():
            return []
        with store_errors("The memory could not be searched", NOTHING_FOLLOWS):
            nodes = [*await self._found_facts(question), *await self._found_messages(question)]
        best = sorted(nodes, key=lambda node: -(node.score or 0.0))[: self.similarity_top_k]
        return self._within_limit(best)

    async def _found_facts(self, question: str) -> list[NodeWithScore]:
        if not self._facts:
            return []
        found = await self.memory.facts_block.asearch(question, session_id=self.memory.session_id)
        return [self._fact_node(entry) for entry in found[: self.similarity_top_k]]

    async def _found_messages(self, question: str) -> list[NodeWithScore]:
        if not self._messages:
            return []
        found = await self.memory.condensed_block.asearch(
            question,
            session_id=self.memory.session_id,
            most=self.similarity_top_k,
            message_token_limit=self._node_limit,
        )
        return [self._message_node(message) for message in found]

    def _fact_node(self, entry: RankedFact) -> NodeWithScore:
        fact = entry.fact
        text = escape_tags(" ".join(fact.content.split()))
        metadata = {
            "kind": "fact",
            "fact_id": fact.id,
            "category": fact.category,
            "confidence": fact.confidence,
            "created_at": fact.created_at.isoformat(),
            "date": fact.created_at.date().isoformat(),
            "session_id": fact.session_id or "",
        }
        return _node(fact.id, self.memory.tokenizer_fn.clip(text, self._node_limit), metadata, entry.score)

    def _message_node(self, message: FoundMessage) -> NodeWithScore:
        block = self.memory.facts_block
        near, sure = shares_of(block.similarity_weight, block.confidence_weight)
        metadata = {
            "kind": "message",
            "role": message.role,
            "date": message.day,
            "session_id": self.memory.session_id,
            "message_ids": list(message.row_ids),
        }
        score = near * message.similarity + sure * _MESSAGE_CONFIDENCE
        # Each database counts its rows from 1, and the host takes two nodes with one id for one.
        place = (*self.memory.sql_store.identity, self.memory.session_id, message.row_ids[0])
        return _node(uuid5(NAMESPACE_OID, repr(place)).hex, message.text, metadata, score)

    @property
    def _node_limit(self) -> int:
        if self.token_limit is None:
            return LONGEST_MESSAGE_TOKENS
        return min(LONGEST_MESSAGE_TOKENS, max(1, int(self.token_limit * _NODE_SHARE)))

    def _within_limit(self, nodes: list[NodeWithScore]) -> list[NodeWithScore]:
        if self.token_limit is None:
            return nodes
        count = self.memory.tokenizer_fn.count
        tokens = [count(node.node.get_content(MetadataMode.LLM) + _BETWEEN) for node in nodes]
        return [nodes[i] for i in fit_tokens(tokens, self.token_limit)]


def check_memory(memory: Any, who: str) -> None:
    """A TypeError if it is no ``CondensedMemory``."""
    if not isinstance(memory, CondensedMemory):
        raise TypeError(
            f"{who} asks a CondensedMemory; this is a {type(memory).__name__}. "
            "Build one with CondensedMemory.from_defaults(...)."
        )


def _node(node_id: str, text: str, metadata: dict[str, Any], score: float) -> NodeWithScore:
    unshown = [key for key in metadata if key not in _SHOWN]
    node = TextNode(
        id_=node_id,
        text=text,
        metadata=metadata,
        excluded_llm_metadata_keys=unshown,
        excluded_embed_metadata_keys=unshown,
    )
    return NodeWithScore(node=node, score=score)
