"""Messages as text: what was said, how many tokens it has, and how it is cut."""
