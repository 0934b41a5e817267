"""Shows in a browser what a database holds, and what the model is shown of it."""
