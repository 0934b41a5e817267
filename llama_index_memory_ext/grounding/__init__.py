"""Whether a statement stands on the words that it is said to come from."""
