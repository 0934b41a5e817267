"""Models: requests to them, their answers, and the needs of their caches."""
