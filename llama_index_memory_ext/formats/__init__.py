"""Conversations as JSON: LlamaIndex's format and OpenAI's."""
