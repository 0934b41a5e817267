"""Asks the built pages' search index what people look for; a question that another page answers first ends it."""

import json
import sys
from pathlib import Path

from lunr import lunr

# What people type, and the page that must come first.
EXPECTED = {
    "delete a user": "deleting-a-person",
    "GDPR": "deleting-a-person",
    "cost": "prompt-caches",
    "multi-tenant": "production",
    "human in the loop": "contexts",
    "chat engine": "chat-engines",
    "mem0": "coming-from-elsewhere",
    "summary": "keeping-it-short",
    "context window": "hard-days",
    "settings": "settings",
    "opentelemetry": "seeing-what-happens",
    "ollama": "local-models",
    "vllm": "local-models",
    "redis": "redis",
    "jupyter": "jupyter",
    "fastapi": "fastapi",
    "retention": "leaving-out",
    "rate limit": "hard-days",
    "migration": "upgrading",
    "upgrade": "upgrading",
    "license": "index",
    "Claude Desktop": "desktop-apps",
    "uvx": "desktop-apps",
    "footnotes": "citing",
    "prompt injection": "poisoning",
}

index = json.loads((Path(sys.argv[1]) / "search" / "search_index.json").read_text(encoding="utf-8"))
# As Material for MkDocs weighs them.
fields = ("location", {"field_name": "title", "boost": 1_000}, {"field_name": "text", "boost": 1})
documents = [(entry, {"boost": entry.get("boost", 1)}) for entry in index["docs"]]
search = lunr(ref="location", fields=fields[1:], documents=documents)
wrong = {}
for question, page in EXPECTED.items():
    words = [word for word in question.split() if word not in {"a", "in", "the"}]
    found = [entry["ref"].split(".html")[0] for entry in search.search(" ".join(f"+{word}" for word in words))]
    if found[:1] != [page]:
        wrong[question] = found[:5]
assert not wrong, f"other pages come first: {wrong}"
print(len(EXPECTED), "questions find their page first")
