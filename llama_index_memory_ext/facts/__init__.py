"""Facts about a user: kept, ranked and shown."""
