"""The record of a session: its messages within a token limit."""
