"""Finds texts for a question, by words and by embeddings."""
