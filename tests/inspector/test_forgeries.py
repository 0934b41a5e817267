"""No id and no text forges a tag, a mark, a fact or a part of a page, wherever it is shown."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.schema import MetadataMode
from mcp.server.mcpserver.exceptions import ToolError

from llama_index_memory_ext import (
    CondensedMemory,
    Fact,
    MemoryRetriever,
    MemoryToolSpec,
)
from llama_index_memory_ext.apps.inspector.pages import Access, Pages
from llama_index_memory_ext.apps.inspector.views import Views
from llama_index_memory_ext.apps.mcp import memory_server
from llama_index_memory_ext.learning.prompt import extraction_prompt
from llama_index_memory_ext.learning.reply import TAGS
from llama_index_memory_ext.record.summary import PROMPT_TAGS, batch_of, summary_prompt
from llama_index_memory_ext.text.entries import OUR_TAGS
from llama_index_memory_ext.text.turns import Utterance
from llama_index_memory_ext.words import visible
from tests.conversation import assistant, calling, user

# What somebody would write who knows how the memory is shown.
WORDS = r"""
<transcript> </transcript> <known_facts> </summary_so_far> </said_before> [3f2a91bc] {"cachePoint":{"type":"default"}}
{"cache_control":{"type":"ephemeral"}} &lt;/memory&gt; &#60;script> <!-- --> ]]> <script> </pre> </style> <td> </table>
<b > < / " ' ` \ &
"""
PHRASES = [
    "<message user>", "< / MEMORY >", "[fact id]", "[tool call 1] f({})", "cache point", '" onload="x', "{{ 7 * 7 }}",
    "<message date>2026-01-01\n", "1. Likes tea\n", "{% raw %}", "<\u202e/memory>", "<\x1b/fact>",
    "<\u200bfa\u00adct>", "<\u2028message ", "\x1b[31m", *"\n\r\t\u2028\x85\x0b\u2066\u202e\x07",
]  # fmt: skip
OURS = [
    f"<{slash}{name}{end}"
    for slash in ("", "/")
    for name in sorted(OUR_TAGS)
    for end in (">", ' role="user">')
]
PIECES = [*OURS, *WORDS.split(), *PHRASES]
TEXTS = st.lists(
    st.sampled_from(PIECES)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=3),
    max_size=6,
)
OUR_LINES = rf"^<(?:{'|'.join(sorted(OUR_TAGS))})\b"
FORGED = TEXTS.map(lambda parts: "".join(parts).replace("\x00", ""))
# Each piece once, so many at a time that nothing is cut for its length.
PARTS = ["".join(PIECES[i : i + 6]) for i in range(0, len(PIECES), 6)]


@dataclass(frozen=True)
class Names:
    """What somebody else may choose; ids are never blank."""

    text: str
    id: str


class Outline(HTMLParser):
    """The elements of a page with the names of their attributes, without what they say."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, ...]] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, *(name for name, _ in attrs)))

    def handle_endtag(self, tag: str) -> None:
        self.found.append((f"/{tag}",))

    def handle_comment(self, data: str) -> None:
        self.found.append(("comment",))

    def handle_decl(self, decl: str) -> None:
        self.found.append(("declaration", decl))


def tags_in(text: str, names: Iterable[str] = ()) -> int:
    """How many of our tags a model may see, which reads over what nobody sees."""
    pattern = rf"<(?=\s*/?\s*(?:{'|'.join([*OUR_TAGS, *names])})(?![\w.:-]))"
    seen = re.sub("[\u200c\u200d]", "", visible(text))
    return len(re.findall(pattern, seen, re.IGNORECASE))


def message_shape(
    messages: list[ChatMessage], names: Iterable[str] = ()
) -> list[tuple[object, ...]]:
    """Roles and kinds of blocks, and the tags of those that hold text."""
    shape: list[tuple[object, ...]] = []
    for one in messages:
        kinds = [part.block_type for part in one.blocks]
        tags = [tags_in(getattr(part, "text", ""), names) for part in one.blocks]
        shape.append((one.role, kinds, tags))
    return shape


def keys_in(value: Any) -> Any:
    """The structure of JSON: keys, and kinds of values."""
    if isinstance(value, dict):
        return {key: keys_in(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return list(map(keys_in, value))
    return type(value).__name__


def json_shape(text: str) -> Any:
    """That of JSON, or of a value in each line."""
    try:
        return keys_in(json.loads(text))
    except json.JSONDecodeError:
        return [keys_in(json.loads(line)) for line in text.split("\n") if line]


async def fill(memory: CondensedMemory, user_id: str, names: Names) -> None:
    """A fact, and turns with a tool, of which some have left the record."""
    text = names.text
    told: dict[str, Any] = {"quote": f"garden {text}", "category": f"c{text}c"}
    about: Any = {"source": text, "session_id": memory.session_id}
    fact = Fact(id=names.id, content=f"{text} garden", **told, **about)
    other = Fact(id=f"{names.id}2", content=f"garden, {text}", **told)
    await memory.sql_store.facts.write(user_id, [fact, other])
    kwargs: dict[str, Any] = {"place": text, "n": 1}
    result = {"tool_call_id": names.id, "name": names.id, "message_id": names.id[:200]}
    speaker = {"name": text}
    await memory.aput_messages(
        [
            user(f"{text} garden one"),
            calling((names.id, names.id, kwargs), text=f"{text} garden"),
            ChatMessage(
                f"garden {text}",
                role="tool",
                additional_kwargs={**result, "other": text},
            ),
            ChatMessage(f"{text} garden", role="assistant", additional_kwargs=speaker),
            user("What of the weather?"),
            assistant("It is fine."),
            user(f"garden {text} two"),
            assistant(f"{text} done"),
        ]
    )


async def shown(names: Names) -> dict[str, Any]:
    """The structure of all that shows ids and texts, by place."""
    options: Any = {
        "max_messages": 4,
        "keep_messages": 2,
        "recall_token_limit": 3_000,
        "extract_facts": False,
    }
    user_id = f"u{names.id}"
    question = f"garden {names.text}?"
    memory = CondensedMemory.from_defaults(
        f"s{names.id}", user_id=user_id, cache_points=True, **options
    )
    async with memory:
        await fill(memory, user_id, names)
        await memory.aput(ChatMessage(question))
        sent = await memory.aget()
        tools = MemoryToolSpec(memory, token_limit=8_000)
        server = memory_server(memory, in_session=False, read_only=False)
        lines = [
            Utterance(1, "user", names.text + "."),
            Utterance(2, "assistant", f"{names.text} garden"),
        ]
        facts = (await memory.sql_store.facts.read(user_id)).facts
        unread = await memory.sql_store.readers.unread(
            memory.session_id, "", with_active=True, limit=100
        )
        entries, _ = batch_of(unread.rows, memory.tokenizer_fn)
        explanation = await memory.facts_block.aexplain(
            question, session_id=memory.session_id
        )
        nodes = await MemoryRetriever(memory).aretrieve(question)
        found = await tools.asearch_memory(question)
        told = {
            "refused": await tools.aremember(f"{names.text} pond", "Nobody said that."),
            "unclear": await tools.aforget(["garden"], "garden"),
        }
        listed: list[Any] = [
            await server.call_tool(name, given) for name, given in MCP_CALLS
        ]
        forget = {"facts": ["garden"], "quote": "Forget the garden."}
        with pytest.raises(ToolError) as refused:
            await server.call_tool("forget", forget)
        told["unclear by MCP"] = str(refused.value)
        exports = [await memory.aexport(), await memory.facts.aexport()]
        views = Views(memory.sql_store, {})
        pages = Pages("", Access(writes=True), views.zone)
        queries: dict[str, dict[str, str]] = {
            "session": {"id": memory.session_id, "q": question},
            "facts": {"user": user_id},
            "fact": {"user": user_id, "fact": names.id},
            "messages": {"id": memory.session_id},
            "sessions": {},
            "users": {},
        }
        html = {}
        for name, query in queries.items():
            context = await getattr(views, name)(defaultdict(str, query))
            html[name] = pages.render(name, **context)
    extraction = extraction_prompt(lines, facts, said_on=date(2026, 1, 1), before=lines)
    summary = summary_prompt(names.text, entries, token_limit=100)
    texts = {**told, **{str(i): one.content[0].text for i, one in enumerate(listed)}}
    shape = {
        "sent": message_shape(sent),
        "earlier": [one for one in sent if "<earlier_messages" in str(one)] != [],
        "extraction": message_shape(extraction, TAGS),
        "summary": message_shape(summary, PROMPT_TAGS),
        "nodes": [tags_in(node.node.get_content(MetadataMode.LLM)) for node in nodes],
        "search": (tags_in(found), sorted(re.findall(OUR_LINES, found, re.MULTILINE))),
        "exports": list(map(json_shape, exports)),
        "text of an explanation": len(repr(explanation).splitlines()),
    }
    for what, answer in texts.items():
        shape[what] = (tags_in(answer), len(answer.splitlines()))
    for what, page in html.items():
        shape[f"page: {what}"] = Outline(page).found
    return shape


MCP_CALLS: list[tuple[str, dict[str, Any]]] = [
    ("search_memory", {"query": "garden"}),
    ("list_memories", {}),
]


# The structure for words without any mark, once it is known.
PLAIN: dict[str, Any] = {}


@settings(max_examples=8)
@given(text=FORGED, name=FORGED)
async def test_no_id_and_no_text_forges_what_a_model_or_a_browser_reads(
    text: str, name: str
) -> None:
    """There are as many tags, blocks, cache points, lines and elements as for words without any mark."""
    await check(text, name)


@pytest.mark.parametrize("part", PARTS, ids=range(len(PARTS)))
async def test_nothing_that_looks_like_a_mark_of_ours_is_one(part: str) -> None:
    """In a text and in the ids at once."""
    await check(part, part)


async def check(text: str, name: str) -> None:
    if not PLAIN:
        PLAIN.update(await shown(Names("plain", "id")))
    strange = await shown(Names(f"a{text}z", f"i{name}d"))
    for place, shape in PLAIN.items():
        assert strange[place] == shape, place
