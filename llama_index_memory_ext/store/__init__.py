"""Keeps the log of each session and the cursors of its readers in one SQL database."""

from llama_index_memory_ext.store.failures import telling_failures
from llama_index_memory_ext.store.log_rows import LogPage, LogRow, Seen, Unread
from llama_index_memory_ext.store.memory_store import DEFAULT_TABLE_NAME, MemoryStore
from llama_index_memory_ext.store.schema import SCHEMA_VERSION
from llama_index_memory_ext.store.sessions import SessionInfo
from llama_index_memory_ext.store.tables import owner

__all__ = [
    "DEFAULT_TABLE_NAME",
    "SCHEMA_VERSION",
    "LogPage",
    "LogRow",
    "MemoryStore",
    "Seen",
    "SessionInfo",
    "Unread",
    "owner",
    "telling_failures",
]
