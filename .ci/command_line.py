"""The app of the command line, from which Typer makes the page of its help."""

import inspect

from llama_index_memory_ext.__main__ import load_app

app = load_app()
# Typer cuts the first line of a help after 45 characters, unless it is a short help.
for group in (app, *(info.typer_instance for info in app.registered_groups)):
    for command in group.registered_commands if group else ():
        text = command.help or inspect.getdoc(command.callback) or ""
        command.short_help = text.partition("\n\n")[0]
