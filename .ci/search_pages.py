"""Asks the built pages what people look for, as the search in the browser does; the right page must come first."""

import json
import re
import sys
from pathlib import Path

from lunr import get_default_builder, lunr
from lunr.stop_word_filter import stop_word_filter

# What people type, and the page that must come first.
EXPECTED = {
    # Words.
    "GDPR": "deleting-a-person",
    "cost": "cost",
    "pricing": "cost",
    "price": "cost",
    "multi-tenant": "production",
    "chat engine": "chat-engines",
    "mem0": "comparison",
    "summary": "keeping-it-short",
    "context window": "failures",
    "settings": "settings",
    "opentelemetry": "seeing-what-happens",
    "ollama": "local-models",
    "vllm": "local-models",
    "redis": "production",
    "jupyter": "jupyter",
    "fastapi": "fastapi",
    "retention": "store-less",
    "rate limit": "failures",
    "migration": "upgrading",
    "upgrade": "upgrading",
    "license": "index",
    "Claude Desktop": "desktop-apps",
    "uvx": "desktop-apps",
    "footnotes": "citing",
    "prompt injection": "poisoning",
    # What a newcomer asks.
    "install": "index",
    "without an API key": "quickstart",
    "anthropic": "quickstart",
    "how do I use ollama": "local-models",
    "delete a user": "deleting-a-person",
    "delete a session": "deleting-a-person",
    "forget everything about a user": "deleting-a-person",
    "is my data sent anywhere": "deleting-a-person",
    "encryption": "encryption",
    "encrypt": "encryption",
    "two users at the same time": "production",
    "postgres": "production",
    "human in the loop": "contexts",
    "streaming": "fastapi",
    "tool calls": "tools",
    "images": "concepts",
    "long conversation": "keeping-it-short",
    "token limit": "settings",
    "embedding model": "ranking",
    "correct a wrong fact": "facts",
    "see what is remembered": "seeing-what-happens",
    "does not remember": "troubleshooting",
    "how much does it cost": "cost",
    "prompt cache": "prompt-caches",
    "which settings do I need": "settings",
    "how do I test my agent": "testing",
    "langmem": "comparison",
    "zep": "comparison",
    "curl": "fastapi",
    "ChatMemoryBuffer": "migrate",
    "langchain": "recipes/from-langgraph",
    "backup": "upgrading",
    "multiple agents": "agents",
    "regenerate": "branching",
    "benchmark": "figures",
    "serverless": "production",
    "slow": "troubleshooting",
    "cli": "command-line",
    "command line": "command-line",
    "export messages": "command-line",
    "mcp": "desktop-apps",
    "cursor": "desktop-apps",
    "workflow": "agents",
    "privacy": "deleting-a-person",
    "dashboard": "seeing-what-happens",
    "sharding": "recipes/partitioning",
    "old messages": "store-less",
    "credit card": "store-less",
    "group chat": "team-chats",
    "edit a message": "branching",
    "context length exceeded": "failures",
    "database is locked": "failures",
    "multiple workers": "production",
    "lm studio": "local-models",
    "asyncio.run notebook": "jupyter",
    # What an operator asks.
    "monitoring": "seeing-what-happens",
    "flask": "production",
    "below 4,000 tokens": "keeping-it-short",
    "rotate the key": "encryption",
    "only the facts": "quickstart",
    "docker": "production",
    "kubernetes": "production",
    "database size": "production",
    "export user data": "deleting-a-person",
    "prometheus": "seeing-what-happens",
    "slack": "team-chats",
    "custom block": "agents",
    # What other people than the obvious ask.
    "search past conversations": "tools",
    "memory tools": "tools",
    "azure": "quickstart",
    "audit trail": "seeing-what-happens",
    "webhook": "seeing-what-happens",
    "latency": "troubleshooting",
    "voice": "troubleshooting",
    "incognito": "store-less",
    "budget": "cost",
    "A/B test": "testing",
    "NPC": "agents",
    "lambda": "production",
    "time zone": "keeping-it-short",
    "customer": "team-chats",
    "gemini cache": "prompt-caches",
    "arabic": "ranking",
    "pytest": "testing",
    "streamlit": "production",
    "containers": "production",
    "spending limit": "cost",
    "compaction": "cost",
    "migrate": "migrate",
    "timezone": "keeping-it-short",
    "otel": "seeing-what-happens",
    "pii": "store-less",
    "redact a key": "store-less",
    "vision": "concepts",
    "pdf": "concepts",
    "rag": "tools",
    "concurrency": "agents",
    "rollback": "upgrading",
    "prove deletion": "deleting-a-person",
    "message not recalled": "troubleshooting",
    "exceptions": "troubleshooting",
    "speed": "figures",
    "evaluation": "figures",
}

index = json.loads(
    (Path(sys.argv[1]) / "search" / "search_index.json").read_text(encoding="utf-8")
)
# The rules are those of Material for MkDocs: src/templates/assets/javascripts/integrations/search.
builder = get_default_builder()
builder.pipeline.reset()
builder.pipeline.add(stop_word_filter)
builder.search_pipeline.reset()
builder.b(0)
separator = index["config"]["separator"]
documents = []
for entry in index["docs"]:
    text = re.sub("<[^>]+>", " ", entry["text"])
    words = {
        "title": re.sub(separator, " ", entry["title"]),
        "text": re.sub(separator, " ", text),
    }
    documents.append(({**entry, **words}, {"boost": entry.get("boost", 1)}))
fields = ({"field_name": "title", "boost": 1_000}, {"field_name": "text", "boost": 1})
search = lunr(ref="location", fields=fields, documents=documents, builder=builder)


def pages_for(question: str) -> list[str]:
    """Returns the pages that are found, the best one first."""
    words = re.split(separator, question.lower())
    found = []
    for hit in search.search(" ".join(f"{word}*" for word in words)):
        matched = [
            any(term.startswith(word) for term in hit["match_data"].metadata)
            for word in words
        ]
        counted = [
            got
            for word, got in zip(words, matched, strict=True)
            if got or stop_word_filter(word)
        ]
        boost = ("#" not in hit["ref"]) + sum(counted) / len(counted)
        found.append((hit["score"] * (1 + boost**2), hit["ref"].split(".html")[0]))
    return list(dict.fromkeys(page for _, page in sorted(found, reverse=True)))


found = {question: pages_for(question)[:5] for question in EXPECTED}
wrong = {
    question: pages
    for question, pages in found.items()
    if pages[:1] != [EXPECTED[question]]
}
assert not wrong, f"other pages come first: {wrong}"
print(len(EXPECTED), "questions find their page first")
