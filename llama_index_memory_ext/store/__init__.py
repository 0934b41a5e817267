"""Keeps the log of each session and the cursors of its readers in one SQL database."""

from llama_index_memory_ext.store.failures import telling_failures
from llama_index_memory_ext.store.memory_store import DEFAULT_TABLE_NAME, LogPage, LogRow, MemoryStore, Seen, Unread

__all__ = ["DEFAULT_TABLE_NAME", "LogPage", "LogRow", "MemoryStore", "Seen", "Unread", "telling_failures"]
