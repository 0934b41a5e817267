"""The memory as a retriever and as tools of an agent."""
