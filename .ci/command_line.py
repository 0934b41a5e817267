"""The app of the command line, from which Typer makes the page of its help."""

from llama_index_memory_ext.__main__ import load_app

app = load_app()
