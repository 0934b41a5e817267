"""Messages as text: rendered, counted, cut and trimmed."""
