"""Work in the background, and locks that tasks, threads and event loops share."""
