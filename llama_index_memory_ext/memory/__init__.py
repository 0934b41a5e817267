"""The memory that users pass to their agents."""
