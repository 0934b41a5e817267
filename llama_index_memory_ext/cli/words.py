"""Holds what the help says, with Typer and without."""

from __future__ import annotations

ABOUT = "Condensed memory for LlamaIndex agents."
DEMO = (
    "Show a conversation, and what the model is shown in each turn. It goes over two processes. With OPENAI_API_KEY "
    "set it talks to OpenAI (OPENAI_MODEL, default gpt-4o-mini; OPENAI_API_BASE for another address), without it to a "
    "small offline model."
)
DATABASE = "The SQLite file; by default in a new folder."
SESSION = "The conversation."
NOT_INSTALLED = (
    "The commands chat, facts, sessions, export, import, forget and doctor need Typer and Rich: "
    'pip install "llama-index-memory-ext[cli]"'
)
