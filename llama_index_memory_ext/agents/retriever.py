"""A retriever of the user's facts and the session's messages, for query engines and tools."""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from uuid import NAMESPACE_OID, uuid5

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle, TextNode

from llama_index_memory_ext.background.loop import run
from llama_index_memory_ext.errors import FactError, StoreError
from llama_index_memory_ext.fact import CONFIDENCE_WEIGHT, SIMILARITY_WEIGHT
from llama_index_memory_ext.facts.filters import FactFilter
from llama_index_memory_ext.facts.lines import days_of
from llama_index_memory_ext.memory.search import check_memory, check_search
from llama_index_memory_ext.record.recall import LONGEST_MESSAGE_TOKENS, FoundMessage
from llama_index_memory_ext.settings import build_checked, check_limit, unpacked
from llama_index_memory_ext.text.entries import escape_tags
from llama_index_memory_ext.text.tokens import take_fitting

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from llama_index.core.callbacks import CallbackManager

    from llama_index_memory_ext.fact import Fact
    from llama_index_memory_ext.memory.condensed_memory import CondensedMemory

logger = logging.getLogger(__name__)

# The share of the limit that one node may have.
_NODE_SHARE = 0.25
# Separates the nodes in a prompt.
_BETWEEN = "\n\n"
_VISIBLE_METADATA = frozenset({"kind", "role", "date", "until"})


@asynccontextmanager
async def opened_session(memory: CondensedMemory, what: str) -> AsyncIterator[None]:
    """Check the owner of a memory's session, then run the block.

    Raise and log a StoreError if the database fails; it says ``what`` did not happen. The
    error names only the type of the original error, which may quote stored texts. Other
    errors pass.
    """
    try:
        await memory.acheck_session()
        yield
    except StoreError as raised:
        error = raised.__cause__
        # Only an error of the database has a cause.
        if error is None:
            raise
        logger.warning(
            "%s (session %r, database failed: %s).",
            what,
            memory.session_id,
            type(error).__name__,
        )
        raise StoreError(
            f"{what} (database failed: {type(error).__name__}). That does not mean that nothing is known: say that the "
            "memory cannot be reached, or try again later."
        ) from None


class MemoryRetriever(BaseRetriever):
    """Retrieves the facts of a memory's user and the messages of its session that match a question.

    It serves a ``RetrieverQueryEngine`` and a ``RetrieverTool``. Facts are ranked as
    for the prompt, without retired facts; a question about the past also finds past
    facts. Messages are ranked as for recall, including messages in the prompt, and a
    tool call comes with its results. A current turn without an answer is left out, so
    that a question does not find itself.

    The score is 0..1. The score of a fact is its score in the ranking; of a message,
    ``score = similarity_weight * similarity + confidence_weight``. Similarities are
    divided by the best similarity of facts or of messages. Ties: facts first.

    ``aretrieve`` and ``retrieve`` return the nodes best first, [] if no node has a word
    in common with the question. With an ``embed_model`` nearly every node matches. They
    raise a ``StoreError`` if the database failed.

    The id of a fact's node is the id of the fact. The id of a message's node is the same
    in each search, and unique across databases. The metadata are ``kind`` ("fact" or
    "message"), ``date`` and ``session_id``. A fact also has ``fact_id``, ``category``,
    ``confidence`` and ``created_at``, and ``until``, its last day, if it has an end. A
    message also has ``role`` and ``message_ids``. A model sees kind, role, date and
    until.

    Args:
        memory: The memory that is searched.
        facts: Whether facts are searched.
        messages: Whether messages are searched.
        similarity_top_k: Maximum number of nodes.
        token_limit: Maximum tokens of all nodes as a model sees them, with metadata;
            None for no limit. A long message is cut to the part with the words of the
            question, at most a quarter of the limit and 500 tokens.
        callback_manager: As in LlamaIndex.
        wanted: A filter of facts: ``since``, ``until``, ``category``, ``tags`` and
            ``agent_id``, as for ``memory.facts.asearch``. Messages are not filtered.

    Raises:
        TypeError: ``memory`` is not a ``CondensedMemory``.
        ValueError: Neither facts nor messages are searched.
        SettingError: ``similarity_top_k`` is not a whole number of at least 1.
        LimitError: ``token_limit`` is not a whole number of at least 1.
        FactError: The filter is not valid.

    Examples:
        >>> from llama_index_memory_ext import CondensedMemory
        >>> memory = CondensedMemory.from_defaults(user_id="ann", extract_facts=False)
        >>> fact = memory.facts.add("Lives in Rome")
        >>> [node.text for node in MemoryRetriever(memory).retrieve("Where do I live?")]
        ['Lives in Rome']
        >>> memory.close()
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
        check_limit("token_limit", token_limit)
        self.memory = memory
        self.similarity_top_k = similarity_top_k
        self.token_limit = token_limit
        self._facts = facts
        self._messages = messages
        self._wanted = build_checked(
            FactFilter, FactFilter, FactError, **wanted
        ).model_dump(exclude_unset=True)
        self._node_limit = LONGEST_MESSAGE_TOKENS
        if token_limit is not None:
            share = max(1, int(token_limit * _NODE_SHARE))
            self._node_limit = min(LONGEST_MESSAGE_TOKENS, share)

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return run(self._aretrieve(query_bundle))

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        question = query_bundle.query_str
        if not question.strip():
            return []
        memory = self.memory
        nodes = []
        async with opened_session(memory, "The memory could not be searched"):
            if self._facts:
                facts = await memory.facts.asearch(
                    question, similarity_top_k=self.similarity_top_k, **self._wanted
                )
                nodes += [self.fact_node(entry.fact, entry.score) for entry in facts]
            if self._messages:
                messages = await memory.condensed_block.asearch(
                    question,
                    session_id=memory.session_id,
                    most=self.similarity_top_k,
                    message_token_limit=self._node_limit,
                )
                nodes += map(self._message_node, messages)
        nodes.sort(key=lambda node: -(node.score or 0.0))
        best_nodes = nodes[: self.similarity_top_k]
        if self.token_limit is None:
            return best_nodes

        def tokens_of(node: NodeWithScore) -> int:
            text = node.node.get_content(MetadataMode.LLM)
            return memory.tokenizer_fn.count(text + _BETWEEN)

        return take_fitting(best_nodes, tokens_of, self.token_limit)

    def _message_node(self, message: FoundMessage) -> NodeWithScore:
        memory = self.memory
        # Each database counts its rows from 1, and LlamaIndex merges nodes with the same
        # id.
        database = memory.sql_store.database.identity
        place = (*database, memory.session_id, message.row_ids[0])
        return _node(
            uuid5(NAMESPACE_OID, repr(place)).hex,
            message.text,
            # On LoCoMo, ten nodes hold 72.6 % of the evidence for a question with a
            # confidence of 1 in each message, and 70.5 % with 0.7.
            SIMILARITY_WEIGHT * message.similarity + CONFIDENCE_WEIGHT,
            kind="message",
            role=message.role,
            date=message.day,
            session_id=memory.session_id,
            message_ids=list(message.row_ids),
        )

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
    hidden = [key for key in metadata if key not in _VISIBLE_METADATA]
    node = TextNode(
        id_=node_id,
        text=text,
        metadata=metadata,
        excluded_llm_metadata_keys=hidden,
        excluded_embed_metadata_keys=hidden,
    )
    return NodeWithScore(node=node, score=score)
