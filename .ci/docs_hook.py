"""Makes pages of files that stand elsewhere in the repository, under the same names, and of the command line's help."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
ELSEWHERE = {
    "SECURITY.md": "SECURITY.md",
    "README.md": "index.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "LICENSE": "LICENSE",
}
# A cell of a table, the code in it, and the signs behind which a name may go on in the next line.
CELL = re.compile(r"<(t[dh])\b[^>]*>.*?</\1>", re.DOTALL)
CODE = re.compile(r"(?<=<code>)[^<]+(?=</code>)")
JOINTS = re.compile(r"(?<=[a-z\d])(?:[_.=/,:@+(\[]|(?=[A-Z]))(?=\S)|(?<=[A-Z])_(?=\S)")
OPTION = re.compile(r"<code>(?=--[a-z-]+</code>)")
CODE_WITH_OPTION = re.compile(r"<code>[^\n]*? --[a-z][^\n]*?</code>")
OPTION_AMONG_WORDS = re.compile(r"(?<= )--[a-z-]+")
HELP = ".ci/command_line.py utils docs --name llama-index-memory"


def on_files(files: Files, config: Any) -> Files:
    """Called by MkDocs when it knows its own pages."""
    notebooks = [
        path.relative_to(ROOT).as_posix()
        for path in sorted(ROOT.glob("notebooks/*.ipynb"))
    ]
    for name, page in (ELSEWHERE | {name: name for name in notebooks}).items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / name)))
    command = [sys.executable, "-m", "typer", *HELP.split(), "--title", "Command line"]
    text = subprocess.run(  # noqa: S603 - the command is this file's own
        command, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    files.append(File.generated(config, "reference/command-line.md", content=text))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Called for each page: links of the README and of guides lead to where the files are on the site."""
    # A search shows guides before recipes, the reference and the pages about the
    # project. Each page has the word "user", and a reader who wants to delete a user
    # must find how.
    behind = ("reference", "recipes", "CHANGELOG.md", "CONTRIBUTING.md")
    boosts = dict.fromkeys(behind, 0.1) | {"deleting-a-person.md": 5}
    folder = page.file.src_uri.split("/")[0]
    page.meta["search"] = {"boost": boosts.get(folder, 1)}
    if folder == "recipes":
        return markdown
    elsewhere = {"](docs/": "](", "](../README.md": "](index.md", "](../": "]("}
    for there, here in (elsewhere | {'src="docs/': 'src="'}).items():
        markdown = markdown.replace(there, here)
    return markdown


def on_post_page(output: str, **_: Any) -> str:
    """Called for each finished page: names in tables break between their words, and options nowhere."""
    broken = CELL.sub(lambda cell: CODE.sub(_with_breaks, cell[0]), output)
    whole = CODE_WITH_OPTION.sub(_with_whole_options, broken)
    return OPTION.sub('<code class="option">', whole)


def _with_breaks(code: re.Match[str]) -> str:
    return JOINTS.sub(r"\g<0><wbr>", code[0])


def _with_whole_options(code: re.Match[str]) -> str:
    return OPTION_AMONG_WORDS.sub(r'<span class="option">\g<0></span>', code[0])
