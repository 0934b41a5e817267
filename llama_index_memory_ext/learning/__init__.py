"""Facts about a user: extracted, checked, kept, ranked and shown."""
