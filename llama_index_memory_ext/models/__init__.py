"""Models: how they are asked, what they answer, and what their caches need."""
