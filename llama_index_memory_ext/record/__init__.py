"""The record of a session: what was said, within a token limit."""
