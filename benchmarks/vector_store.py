"""Keeps vectors and their texts in the process, as LlamaIndex's VectorMemoryBlock asks for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from llama_index.core.bridge.pydantic import Field
from llama_index.core.schema import BaseNode
from llama_index.core.vector_stores import (
    SimpleVectorStore,
    VectorStoreQuery,
    VectorStoreQueryResult,
)


class TextVectorStore(SimpleVectorStore):
    """LlamaIndex's vector store in memory, with the nodes kept next to their vectors."""

    stores_text: bool = True
    nodes: dict[str, BaseNode] = Field(default_factory=dict)

    def add(self, nodes: Sequence[BaseNode], **add_kwargs: Any) -> list[str]:
        """Keep the nodes too, and the vectors as arrays, which a query need not make of lists."""
        self.nodes.update({node.node_id: node for node in nodes})
        names = super().add(nodes, **add_kwargs)
        vectors: dict[str, Any] = self.data.embedding_dict
        for name in names:
            vectors[name] = np.array(vectors[name])
        return names

    def query(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        """The nearest nodes, not only their names."""
        found = super().query(query, **kwargs)
        found.nodes = [self.nodes[name] for name in found.ids or []]
        return found
