"""Pages for a browser: the contents of a database, and the prompt that the model would get."""
