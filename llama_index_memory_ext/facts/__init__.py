"""Facts about a user: kept, tidied, ranked and shown."""
