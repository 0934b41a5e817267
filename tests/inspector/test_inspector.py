"""What the pages show, who may see them, and that looking changes nothing."""

from __future__ import annotations

import logging
import re
from base64 import b64encode
from collections import Counter
from hashlib import sha256
from html import unescape
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import httpx
import pytest
from llama_index.core.llms import ChatMessage

from llama_index_memory_ext import (
    Fact,
    FactBook,
    MemoryStore,
    StoreError,
    preview_prompt,
)
from llama_index_memory_ext.agent_view import ALL_FACTS
from llama_index_memory_ext.apps.inspector.pages import Access
from llama_index_memory_ext.store.rows import ReadPosition
from tests.conversation import assistant, user
from tests.databases import ask
from tests.inspector.conftest import Inspect, Inspected, memory_in
from tests.inspector.example import SESSION, facts, fill
from tests.openai_server import call, say
from tests.scripted_models import StartModel

STRANGE = [
    "<script>alert(1)</script>",
    'a/b?c=d&e#f"',
    "Müller & 山田",
    "%2e%2e/",
    " ",
    "",
]
WORDS = "<script>alert('x')</script></pre><img src=x onerror=alert(2)> “{{ 7777 * 3 }}”"
OTHER_HOSTS = """
: @ evil.example:8000 evil.example:127.0.0.1 127.0.0.1:8000@evil.com localhost:x@evil.com:80 evil.com@127.0.0.1:8000
127.0.0.1: 127.0.0.1:x 127.0.0.1:-1 127.0.0.1:8000:80 127.0.0.1:\u0661 127.0.0.1:800000 localhost. 127.0.0.1.
127.0.0.1.evil.com xlocalhost [::1]:8000 [127.0.0.1]:8000 0.0.0.0 127.1 2130706433 127.0.0.2 localhost/ localhost:80/x
localhost,evil.com //localhost http://localhost localhost?x localhost#x localhost\\evil loc\u0430lhost localho\u017ft
"""


def bytes_of(file: Path) -> bytes:
    """All that the database consists of: its file, and what stands in a log beside it while it is open."""
    log = file.with_name(f"{file.name}-wal")
    names = {one.name for one in file.parent.iterdir()}
    assert names <= {file.name, log.name, f"{file.name}-shm"}
    return file.read_bytes() + (log.read_bytes() if log.exists() else b"")


def kind_of(address: str) -> str:
    """The name of a page."""
    return httpx.URL(address).path.rsplit("/", 1)[1]


async def crawl(client: Inspected, most: int = 12) -> dict[str, str]:
    """The pages that links lead to, by their addresses, at most so many of each kind."""
    pages: dict[str, str] = {}
    left = [f"/{client.inspector.access.token}/"]
    while left:
        response = await client.get(
            f"http://127.0.0.1:8000{left.pop(0)}", follow_redirects=True
        )
        assert response.status_code == 200, response.url
        pages[str(response.url)] = response.text
        links = set(map(unescape, re.findall(r'href="(/[^"]+)"', response.text)))
        known = {httpx.URL(url).raw_path.decode() for url in pages}
        left += sorted(links - known - set(left))
        counts = Counter(map(kind_of, pages))
        left = [link for link in left if counts[kind_of(link)] < most]
    return pages


async def test_whoever_does_not_know_the_address_learns_nothing(
    filled: Path, inspect: Inspect
) -> None:
    client = await inspect(filled)
    token = client.inspector.access.token
    paths = ["", "sessions", f"{token[:-1]}/sessions", f"{token}x/sessions"]
    paths += [f"?token={token}", "ü/sessions"]
    answers = [await client.get(f"http://127.0.0.1:8000/{path}") for path in paths]
    hosts = ("evil.example:8000", "", "127.0.0.1.x")
    answers += [await client.get("sessions", headers={"Host": one}) for one in hosts]
    methods = ("POST", "PUT", "DELETE", "OPTIONS")
    answers += [await client.request(method, "sessions") for method in methods]
    assert {answer.status_code for answer in answers} == {403}
    (text,) = {answer.text for answer in answers}
    assert "Open the address that `inspect` printed" in text
    assert len({tuple(sorted(answer.headers.items())) for answer in answers}) == 1
    right = await client.get("sessions", headers={"Host": "localhost:8000"})
    assert right.status_code == 200
    assert token not in repr(client.inspector)


def test_only_the_names_of_this_machine_are_answered() -> None:
    """A web page can lead a browser here by a name of its own, whatever that looks like."""
    access = Access()
    for host in ("127.0.0.1", "127.0.0.1:8000", "localhost:65535", "LocalHost:80"):
        assert access.allows("GET", access.token, {"host": host}), host
    blanks = ["", " localhost", "localhost ", "localhost\n", "localhost\t:80"]
    for host in (*blanks, *OTHER_HOSTS.split()):
        assert not access.allows("GET", access.token, {"host": host}), host


async def test_a_page_may_load_nothing_but_its_style_and_is_kept_nowhere(
    filled: Path, inspect: Inspect
) -> None:
    page = await (await inspect(filled)).get("sessions")
    (style,) = re.findall("<style>(.*?)</style>", page.text, re.DOTALL)
    digest = b64encode(sha256(style.encode()).digest()).decode()
    policy = page.headers["content-security-policy"]
    assert policy.startswith(f"default-src 'none'; style-src 'sha256-{digest}';")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert page.headers["referrer-policy"] == "no-referrer"
    assert page.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("writes", [False, True])
async def test_looking_at_every_page_changes_no_byte(
    filled: Path, inspect: Inspect, *, writes: bool
) -> None:
    before = bytes_of(filled)
    client = await inspect(filled, writes=writes)
    pages = await crawl(client)
    await client.page("session", id=SESSION, q="What do I eat?")
    await client.page("do", action="forget-user", user="mia", item="")
    kinds = set(map(kind_of, pages))
    assert kinds >= {"sessions", "users", "session", "messages", "facts", "fact"}
    has_forms = any('method="post"' in page for page in pages.values())
    assert has_forms is writes
    assert bytes_of(filled) == before


async def rows_of(uri: str) -> dict[str, list[str]]:
    """All rows of all tables of a server's database."""
    tables = await ask(
        uri, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
    )
    rows = {}
    for name in tables:
        query = f"SELECT t::text FROM {name} t ORDER BY 1"  # noqa: S608 - a name from the database itself
        rows[name] = await ask(uri, query)
    return rows


async def test_on_a_server_nothing_can_be_written_either(
    postgres_uri: str, inspect: Inspect
) -> None:
    await fill(postgres_uri, turns=8, others=3)
    client = await inspect(postgres_uri)
    before = await rows_of(postgres_uri)
    pages = await crawl(client)
    assert "Starts the journey from Manchester" in "".join(pages.values())
    with pytest.raises(StoreError, match="read-only transaction"):
        await client.inspector.reader.add_message(SESSION, ChatMessage("No."))
    assert await rows_of(postgres_uri) == before


async def test_what_is_stored_is_never_taken_for_a_part_of_a_page(
    tmp_path: Path, inspect: Inspect
) -> None:
    file = tmp_path / "memory.db"
    store = MemoryStore(f"sqlite+aiosqlite:///{file}")
    for name in STRANGE:
        await store.add_messages(name, [user(WORDS), assistant(WORDS)])
        fact = Fact(content=f"{WORDS} {name}", quote=WORDS, category=WORDS)
        await store.facts.write(name, [fact])
    await store.aclose()
    client = await inspect(file, writes=True)
    pages = await crawl(client)
    assert {page for page in pages if "/fact?" in page}
    for name in STRANGE:
        pages[name] = await client.page("session", id=name, q=WORDS)
        assert "onerror" in pages[name]
        assert (await client.get("messages", params={"id": name})).status_code == 200
    for page in pages.values():
        assert not re.search(r"<(script|img)|[\"'\s]onerror=(?!alert\(2\)&gt;)", page)
        assert "23331" not in page


def number_of(text: str) -> int:
    return int(text.replace(",", ""))


def numbers_in(page: str) -> set[tuple[str, str]]:
    return {*re.findall(r"<b>(\d[\d,]*)</b><span>([^<]+)</span>", page)}


async def test_a_session_tells_what_is_unread_and_the_tokens_of_the_prompt(
    filled: Path, inspect: Inspect
) -> None:
    """For a question, or of the last turn."""
    client = await inspect(filled)
    asked = await client.page("session", id=SESSION, q="Why?")
    last = await client.page("session", id=SESSION, q="")
    unread = ("46", "messages not yet read for facts")
    assert numbers_in(asked) >= {("46", "messages"), unread, ("197", "current facts")}
    assert "shown: pinned" in asked
    kinds = {"the profile", "the conversation", "facts", "question"}
    for page, at_last, named in (
        (asked, "", kinds),
        (last, " at the last question", {*kinds, "rest of the turn"}),
    ):
        (whole,) = re.findall(rf"<h2>([\d,]+) tokens{at_last}</h2>", page)
        tokens = dict(re.findall(r"</i>([^<]+) <b>([\d,]+)</b>", page))
        assert set(tokens) == named
        assert sum(map(number_of, tokens.values())) == number_of(whole)


async def test_a_session_tells_its_summary_and_the_turns_that_were_set_aside(
    filled: Path, inspect: Inspect
) -> None:
    client = await inspect(filled, limits={"recall_token_limit": 0})
    store = client.inspector.writer
    rows = await store.readers.find(SESSION, ["archived"], limit=6)
    summary = {"summary": "They plan a journey to Japan.", "summarised": 6}
    set_aside = {"rows": [[rows[0].id, rows[1].id, "FactReplyError"]]}
    states = {"condensed_memory": summary, "relevant_facts of mia": set_aside}
    for reader, state in states.items():
        page = await store.readers.page(SESSION, reader, ReadPosition(), limit=1)
        assert await store.readers.move(SESSION, reader, page, rows[-1].id, state)
    shown = await client.page("session", id=SESSION, q="And then?")
    assert shown.count("They plan a journey to Japan.") == 2
    assert "small museums. (1)" not in shown.split("</form>")[1].split("Facts of")[0]
    assert "FactReplyError" in shown
    unread = ("40", "messages not yet read for facts")
    expected = {("6", "have left the record"), ("1", "turns set aside"), unread}
    assert numbers_in(shown) >= expected


async def test_a_session_of_two_users_is_shown_for_each_of_them(
    filled: Path, inspect: Inspect
) -> None:
    client = await inspect(filled)
    shared = {"shared": True, "chat_store": client.inspector.writer}
    mia = memory_in(filled, SESSION, "mia", **shared)
    await mia.aput(ChatMessage("Come along."))
    other = memory_in(filled, SESSION, "sister", **shared)
    await other.facts.aadd("Lives in Leeds")
    await other.aput(ChatMessage("I come, too."))
    pages = {}
    for name in ("mia", "sister", "nobody"):
        pages[name] = await client.page("session", id=SESSION, user=name, q="Where?")
    assert "Lives in Leeds" in pages["sister"]
    assert "Manchester</a>" not in pages["sister"]
    assert "Lives in Leeds" not in pages["mia"]
    assert "Manchester</a>" in pages["nobody"]


async def test_lists_are_searched_and_paged(filled: Path, inspect: Inspect) -> None:
    client = await inspect(filled)
    for page, query, marked, count in (
        ("sessions", {"page": "1"}, 'class="row"', 50),
        ("sessions", {"page": "2"}, 'class="row"', 11),
        ("sessions", {"q": "SUPPORT/007"}, 'class="row"', 1),
        ("sessions", {"user": "mia"}, 'class="row"', 1),
        ("facts", {"user": "mia", "q": "museum"}, 'class="fact', 1),
        ("facts", {"user": "mia", "state": "past"}, "London", 1),
        ("facts", {"user": "mia", "state": "past"}, "from Manchester", 0),
    ):
        assert (await client.page(page, **query)).count(marked) == count, query
    for number in ("0", "-1", "9" * 40, "x"):
        answer = await client.get("messages", params={"id": SESSION, "page": number})
        assert answer.status_code == 200


async def test_a_fact_tells_its_quote_its_history_and_where_it_was_said(
    filled: Path, inspect: Inspect
) -> None:
    client = await inspect(filled)
    (home,) = await client.facts_of_mia("Starts the journey from Manchester")
    page = await client.page("fact", user="mia", fact=home.id)
    assert "My sister has moved to Leeds" in page
    assert "Starts the journey from London" in page
    assert "row 1" in page
    assert ">Retire</button>" not in page
    missing = await client.get("fact", params={"user": "somebody", "fact": home.id})
    assert (missing.status_code, "Manchester" in missing.text) == (404, False)


async def act(
    client: Inspected, text: str | None = None, **action: str
) -> httpx.Response:
    """Send the form of an action, from the page that has it, with a text where it takes one."""
    form = await form_for(client, **action)
    assert ("<textarea" in form) == (text is not None)
    hidden = re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', form)
    fields = {name: unescape(value) for name, value in hidden}
    if text is not None:
        fields["content"] = text
    return await client.post("do", data=fields)


async def form_for(
    client: Inspected, action: str, user: str = "", item: str = ""
) -> str:
    """The form of an action in the page that shows it."""
    if action == "forget-session":
        page = await client.page("session", id=item)
    elif action in ("add", "forget-user"):
        page = await client.page("facts", user=user)
    else:
        page = await client.page("fact", user=user, fact=item)
    forms = re.findall('<form method="post".*?</form>', page, re.DOTALL)
    (form,) = [form for form in forms if f'name="action" value="{action}"' in form]
    return str(form)


async def test_facts_are_retired_restored_and_forgotten(
    filled: Path, inspect: Inspect
) -> None:
    client = await inspect(filled, writes=True)
    (fact,) = await client.facts_of_mia("museums")
    for action, state in (("retire", "retired"), ("restore", "current")):
        done = await act(client, action=action, user="mia", item=fact.id)
        assert f">{state}</span>" in await client.page_after(done)
    await act(client, action="forget-fact", user="mia", item=fact.id)
    assert await client.facts_of_mia("museums") == []
    assert len(await client.facts_of_mia()) == len(facts()) - 1


async def test_facts_are_added_edited_and_pinned(
    filled: Path, inspect: Inspect
) -> None:
    client = await inspect(filled, writes=True)
    for _ in range(2):
        # What is known is not stored twice.
        done = await act(client, action="add", user="mia", text="Plays <b>chess</b>")
        assert done.status_code == 303
    (fact,) = await client.facts_of_mia("chess")
    assert "Plays &lt;b&gt;chess&lt;/b&gt;" in await client.page("facts", user="mia")
    pending = Fact(content="Plays poker", pending=True)
    await client.inspector.writer.facts.write("mia", [pending])
    await act(client, action="add", user="mia", text="plays poker.")
    assert len(await client.facts_of_mia("poker")) == 1
    for action, text, found in (
        ("edit", "Plays go", "Plays go"),
        ("pin", None, ">Unpin<"),
        ("unpin", None, ">Pin<"),
    ):
        done = await act(client, text, action=action, user="mia", item=fact.id)
        assert found in await client.page_after(done)
    refused = await act(client, action="edit", user="mia", item=fact.id, text=" ")
    assert refused.status_code == 400
    assert re.search(
        r'<textarea[^>]*name="content"[^>]*> </textarea>\s*<span[^>]*role="alert">content: ',
        refused.text,
    )


async def test_a_fact_is_added_with_category_confidence_and_tags(
    filled: Path, inspect: Inspect
) -> None:
    """What was typed stays where a field is refused, and the reason stands beside it."""
    client = await inspect(filled, writes=True)
    page = await client.page("facts", user="mia")
    assert page.index("Add a fact") < page.index('class="fact')
    form = {
        "action": "add",
        "user": "mia",
        "content": "Runs <i>marathons</i>",
        "category": "goal",
        "confidence": "often",
        "tags": "sport, spring run ,",
    }
    refused = await client.post("do", data=form)
    assert refused.status_code == 400
    assert re.search(
        r'name="confidence" value="often"[^>]*>\s*<span[^>]*role="alert">confidence must be a valid number',
        refused.text,
    )
    assert "Runs &lt;i&gt;marathons&lt;/i&gt;</textarea>" in refused.text
    done = await client.post("do", data={**form, "confidence": "0.4"})
    assert done.status_code == 303
    (fact,) = await client.facts_of_mia("marathons")
    assert (fact.category, fact.confidence) == ("goal", 0.4)
    assert fact.tags == ("sport", "spring run")


async def test_the_tokens_of_the_facts_fit_their_limit_with_and_without_a_profile(
    filled: Path, inspect: Inspect
) -> None:
    client = await inspect(filled)
    for limits, least in (({}, 900), ({"profile_token_limit": 0}, 0)):
        preview = await preview_prompt(
            client.inspector.reader, SESSION, "mia", limits, "Which museums?"
        )
        explanation = preview.explanation
        assert least < explanation.tokens <= explanation.limit
        assert 1_900 < explanation.limit <= 2_000


async def test_a_long_session_is_shown_as_whole_though_its_newest_messages_are_read_alone(
    tmp_path: Path, inspect: Inspect
) -> None:
    """Recall and the record need no older ones; the numbers count all."""
    file = tmp_path / "memory.db"
    async with memory_in(file, "birds") as memory:
        messages = []
        for i in range(1_200):
            messages += [user(f"I have seen bird number {i}."), assistant("Which?")]
        await memory.aput_messages(messages)
        facts = [Fact(content=f"Has seen bird number {i}") for i in range(1_300)]
        await memory.facts.aimport("\n".join(fact.model_dump_json() for fact in facts))
    client = await inspect(file, limits={"condensed_token_limit": 1_000})
    for question in ("", "Which bird?"):
        page = await client.page("session", id="birds", q=question)
        numbers = {label: number_of(number) for number, label in numbers_in(page)}
        kept = numbers["shown in the record"] + numbers["in the current turn"]
        assert numbers["messages"] == 2_400
        assert numbers["have left the record"] == 2_400 - kept
        omitted = re.findall(r"([\d,]+) not shown, of which the best 200", page)
        assert 1_000 < number_of(omitted[0]) < len(facts)


async def test_a_session_tells_what_is_unread_by_the_agent(
    tmp_path: Path, inspect: Inspect, start_model: StartModel
) -> None:
    file = tmp_path / "memory.db"
    llm, _ = start_model(
        lambda _, tools: (
            call(("c", "report_facts", {"facts": []})) if tools else say("Fine.")
        )
    )
    options: Any = {"llm": llm, "extract_facts": True}
    turns = [
        user("I live in Rome."),
        assistant("Fine."),
        user("Bye."),
        assistant("Bye."),
    ]
    async with memory_in(file, "s", **options) as memory:
        await memory.aput_messages(turns)
        await memory.aflush()
    async with memory_in(file, "s", agent_id="cook", **options) as memory:
        await memory.aput_messages([user("And now?"), assistant("Yes.")])
    for limits, unread in (({}, "2"), ({"agent_id": "cook"}, "0")):
        client = await inspect(file, limits=limits)
        numbers = numbers_in(await client.page("session", id="s"))
        assert (unread, "messages not yet read for facts") in numbers


async def test_for_an_agent_its_own_facts_are_shown(
    filled: Path, inspect: Inspect
) -> None:
    client = await inspect(filled, writes=True, limits={"agent_id": "cook"})
    own = Fact(id="own", content="Cooks without museums", agent_id="cook", pinned=True)
    other = Fact(id="other", content="Sleeps in museums", agent_id="maid")
    await client.inspector.writer.facts.write("mia", [own, other], view=ALL_FACTS)
    page = await client.page("session", id=SESSION, q="museums?")
    assert "Cooks without museums" in page
    assert "Sleeps in museums" not in page
    assert ("198", "current facts") in numbers_in(page)
    sent = re.findall(r"&lt;fact[^&]*&gt;(.*?)&lt;/fact&gt;", page)
    listed = re.findall(r'class="what"><a [^>]*>(.*?)</a>', page)
    assert set(listed[: len(sent)]) == set(sent)
    listed_all = await client.page("facts", user="mia", q="museums")
    assert "of cook</span>" in listed_all
    done = await act(client, action="retire", user="mia", item="other")
    timeline = (await client.page_after(done)).split("Timeline")[1]
    entries = re.findall(r"<dd>(.*?)</dd>", timeline)
    assert entries == ["learned", "retired: hand: retired by hand"]


async def test_pending_facts_are_marked_approved_and_rejected(
    filled: Path, inspect: Inspect
) -> None:
    client = await inspect(filled, writes=True)
    for name, action, state in (
        ("tea", "approve", "current"),
        ("milk", "reject", "retired"),
    ):
        pending = Fact(id=name, content=f"Likes {name}", tags=("drink",), pending=True)
        await client.inspector.writer.facts.write("mia", [pending])
        page = await client.page("fact", user="mia", fact=name)
        for text in (">pending</span>", ">Approve<", ">Reject<", "drink"):
            assert text in page
        page = await client.page_after(
            await act(client, action=action, user="mia", item=name)
        )
        assert f">{state}</span>" in page
        assert ("<dd>rejected: rejected by hand</dd>" in page) == (action == "reject")
    # Whatever the reason is.
    writer = client.inspector.writer
    await writer.facts.write("mia", [Fact(id="rum", content="Likes rum", pending=True)])
    await FactBook(writer, "mia", scope="all").areject("rum", reason="a guess")
    page = await client.page("fact", user="mia", fact="rum")
    assert "<dd>rejected: a guess</dd>" in page


async def test_forgetting_a_user_keeps_the_turns_of_others_as_the_form_says(
    filled: Path, inspect: Inspect
) -> None:
    client = await inspect(filled, writes=True)
    store = client.inspector.writer
    for name, session_id in (("amy", "own"), ("amy", "team"), ("bob", "team")):
        shared = {"chat_store": store, "shared": session_id == "team"}
        memory = memory_in(filled, session_id, name, **shared)
        await memory.aput_messages([user(f"I am {name}."), assistant("Hello.")])
    query = {"action": "forget-user", "user": "amy", "item": ""}
    form = await form_for(client, **query)
    assert "In sessions with others, only this user&#39;s turns are deleted." in form
    assert "This cannot be undone." in form
    assert "Forget this user" not in await client.page("facts", user="nobody")
    assert re.search(r'<a class="button quiet" href="[^"]+">Cancel</a>', form)
    await act(client, **query)
    left = await client.inspector.reader.readers.find("team")
    assert [row.message.content for row in left] == ["I am bob.", "Hello."]


async def test_sessions_and_users_are_forgotten_with_their_words(
    filled: Path, inspect: Inspect
) -> None:
    client = await inspect(filled, writes=True)
    await act(client, action="forget-session", item="support/003")
    left = {info.session_id: info for info in await client.inspector.reader.sessions()}
    assert "support/003" not in left
    assert left["support/012"].user_ids == ("user 3",)
    assert (await act(client, action="forget-user", user="mia")).status_code == 303
    assert SESSION not in {
        info.session_id for info in await client.inspector.reader.sessions()
    }
    assert b"vegetarisch" not in bytes_of(filled)


async def test_a_session_without_a_user_is_shown_by_its_id_and_is_no_user_of_that_name(
    filled: Path, inspect: Inspect
) -> None:
    client = await inspect(filled, writes=True)
    store = client.inspector.writer
    for session_id, user_id, fact in (
        ("bob", None, "Likes tea"),
        ("bobs", "bob", "Likes milk"),
    ):
        memory = memory_in(filled, session_id, user_id, chat_store=store)
        await memory.aput_messages([user("Hello."), assistant("Hello.")])
        await memory.facts.aadd(fact)
    for name, params in (("sessions", {}), ("users", {}), ("session", {"id": "bob"})):
        page = await client.page(name, **params)
        assert ">bob</a>" in page
        assert "> session bob<" not in page
        links = re.findall(r'href="[^"]*/(facts\?user=[^"]*session[^"]*)"', page)
        shown = await client.page(unescape(links[0]))
        assert ("Likes tea" in shown, "Likes milk" in shown) == (True, False)
    assert "Likes tea" in await client.page("session", id="bob")
    await act(client, action="forget-user", user="bob", item="")
    left = {info.session_id for info in await store.sessions()}
    assert left & {"bob", "bobs"} == {"bob"}
    form = await form_for(client, "forget-session", item="bob")
    assert "Its 2 messages are deleted" in form
    assert "without a user, they are deleted with it" in form
    await act(client, action="forget-session", item="bob")
    assert "bob" not in {info.session_id for info in await store.sessions()}
    assert not [name for name in await store.facts.count_by_user() if "bob" in name]


async def test_nothing_is_done_without_a_form_of_these_pages(
    filled: Path, inspect: Inspect
) -> None:
    """A page of another address cannot send the header of such a form, even if it knows the address."""
    client = await inspect(filled, writes=True)
    before = bytes_of(filled)
    action = {"action": "forget-user", "user": "mia", "item": ""}
    answers = [
        await client.post("do", data=action, headers={"Sec-Fetch-Site": site})
        for site in ("cross-site", "same-site", "none", "")
    ]
    del client.headers["Sec-Fetch-Site"]
    answers.append(await client.post("do", data=action))
    client.headers["Sec-Fetch-Site"] = "same-origin"
    answers.append(await client.post("do", data={**action, "more": "x" * 200_000}))
    answers.append(await client.post("users", data=action))
    answers.append(await (await inspect(filled)).post("do", data=action))
    assert [answer.status_code for answer in answers] == [403] * 8
    assert bytes_of(filled) == before


async def test_an_error_is_told_without_the_words_of_anybody(
    postgres_uri: str, inspect: Inspect, caplog: pytest.LogCaptureFixture
) -> None:
    """A server refuses NUL in a text, and its error quotes the text."""
    await fill(postgres_uri, turns=1, others=0)
    client = await inspect(postgres_uri)
    with caplog.at_level(logging.DEBUG, logger="llama_index_memory_ext"):
        answer = await client.get("session", params={"id": "my secret\x00name"})
    assert answer.status_code == 500
    assert "secret" not in answer.text + caplog.text
    assert "A page of the inspector failed" in caplog.text


@pytest.mark.parametrize(
    ("zone", "heading", "written"),
    [
        (None, "2026-03-10", "2026-03-10 21:30"),
        (ZoneInfo("Pacific/Auckland"), "2026-03-11", "2026-03-11 10:30"),
    ],
)
async def test_the_pages_show_the_days_of_the_prompt(
    tmp_path: Path, inspect: Inspect, zone: ZoneInfo | None, heading: str, written: str
) -> None:
    file = tmp_path / "zones.db"
    said = {"timestamp": "2026-03-10T21:30:00Z"}
    memory = memory_in(file, "chat", time_zone=zone)
    await memory.aput_messages(
        [ChatMessage("Alpacas spit.", additional_kwargs=said), assistant("Indeed.")]
    )
    await memory.aflush()
    fact = await memory.facts.aadd("Likes tea")
    await memory.aclose()
    client = await inspect(file, limits={"time_zone": zone} if zone else None)
    session = await client.page("session", id="chat", q="Hm?")
    assert f"&lt;message date&gt;{heading}" in session
    assert f"date=&#34;{fact.began}&#34;" in session
    assert written in await client.page("messages", id="chat")
    assert f"Last used ({zone or 'UTC'})" in await client.page("sessions")
    facts = await client.page("facts", user="ann")
    assert f"since {fact.began}" in re.sub("<a [^>]*>", "", facts)


async def test_the_pages_count_a_single_thing_in_the_singular(
    inspect: Inspect, tmp_path: Path
) -> None:
    file = tmp_path / "single.db"
    async with memory_in(file, "trip", "mia") as memory:
        await memory.facts.aadd("Eats vegetarian food")
        await memory.aput(user("We plan ten days in Japan."))
    client = await inspect(file, writes=True)
    pages = ("sessions", "users", "facts?user=mia", "session?id=trip")
    texts = [re.sub("<[^>]*>", "", await client.page(page)) for page in pages]
    shown = "\n".join(texts)
    assert re.findall(r"\b1 (?:conversation|fact|message|session|user)s\b", shown) == []
    assert {"1 conversation", "1 fact", "1 message", "1 session"} <= set(
        re.findall(r"\b1 [a-z]+", shown)
    )
