"""What a program's own function leaves out is never stored, and where it fails nothing is."""

from __future__ import annotations

import json
import pickle
import traceback
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_index.core.base.llms.types import ImageBlock, TextBlock
from llama_index.core.llms import ChatMessage

from llama_index_memory_ext import SettingError, redact_secrets
from llama_index_memory_ext.checks.secrets import holds_secret
from tests.conversation import assistant, calling, result, sent_text, user
from tests.databases import ask
from tests.learning.learning import Learns, contents, learns
from tests.memories import OpenMemory
from tests.memory.test_forgetting import words_in
from tests.search.test_embeddings import Meanings
from tests.words import cases

__all__ = ["learns"]
CARD = "4111 1111 1111 1111"
WORDS = "My own words."
SECRETS = cases("secrets.txt")


def without_ann(text: str) -> str:
    return text.replace("Ann", "[name]")


def fails(text: str) -> str:
    raise ValueError(text)


async def stored(uri: str) -> str:
    """All messages, as they stand in the database."""
    return "\n".join(await ask(uri, "SELECT data FROM llama_index_memory ORDER BY id"))


class Noted(ChatMessage):
    """A program's own kind of message."""

    note: str


async def test_a_field_of_a_programs_own_message_is_not_stored_as_it_was(
    open_memory: OpenMemory, database_uri: str
) -> None:
    memory = open_memory(redact=without_ann)
    text = {"role": "user", "content": "I am Ann.", "note": "Ann"}
    await memory.aput(Noted.model_validate(text))
    assert await memory.aget_all() == [user("I am [name].")]
    assert "Ann" not in await stored(database_uri)


async def test_texts_and_the_arguments_of_calls_are_changed_before_they_are_stored(
    open_memory: OpenMemory, database_uri: str
) -> None:
    memory = open_memory(redact=without_ann)
    asked = {"role": "assistant", "content": None}
    old_call = {
        "id": "Ann-1",
        "type": "function",
        "function": {"name": "Ann", "arguments": '{"who": "Ann"}'},
    }
    picture = ImageBlock(image=b"iVBORw0KGgo", image_mimetype="image/png")
    messages = [
        ChatMessage(role="user", blocks=[TextBlock(text="I am Ann."), picture]),
        calling(
            ("Ann-2", "look", {"who": "Ann", "more": [{"of": "Ann", "at": 3}]}),
            text="Ann, I look.",
        ),
        result("Ann-2", "Ann is here."),
        ChatMessage(**asked, additional_kwargs={"tool_calls": [old_call]}),
        result("Ann-1", "Found."),
    ]
    before = [message.model_dump_json() for message in messages]
    await memory.aput_messages(messages)
    text = await stored(database_uri)
    assert json.loads(text.splitlines()[1])["blocks"][1]["tool_kwargs"] == {
        "who": "[name]",
        "more": [{"of": "[name]", "at": 3}],
    }
    # Ids and names stay, by which calls and results belong together.
    assert text.replace("Ann-1", "").replace("Ann-2", "").count("Ann") == 1
    assert text.count("[name]") == 6
    assert [message.model_dump_json() for message in messages] == before
    await memory.aset([user("Ann again.")])
    assert "Ann" not in await stored(database_uri)
    added = {
        "refusal": "Ann, I cannot.",
        "citations": [{"title": "About Ann"}],
        "thought_signatures": ["Ann="],
    }
    await memory.aput(ChatMessage(role="assistant", additional_kwargs=added))
    assert (await stored(database_uri)).count("Ann") == 1


async def test_the_model_is_shown_what_is_stored_and_the_question_is_known_as_its_own(
    open_memory: OpenMemory,
) -> None:
    memory = open_memory(redact=without_ann)
    await memory.aput_messages([user("I am Ann."), assistant("Hello Ann.")])
    await memory.aput(user("Who is Ann?"))
    text = sent_text(await memory.aget(input="Who is Ann?"))
    assert "Ann" not in text
    assert text.count("Who is [name]?") == 1


async def test_no_embedding_model_gets_what_is_left_out_of_a_question(
    open_memory: OpenMemory,
) -> None:
    """Of a question that a chat engine puts only with its answer, too."""
    model = Meanings()
    memory = open_memory(redact=without_ann, embed_model=model)
    await memory.facts.aadd("Knows a gardener")
    await memory.aget(input="Who is Ann?")
    assert "Who is [name]?" in model.asked
    assert "Ann" not in str(model.asked)


async def test_facts_are_learned_from_what_is_stored(learns: Learns) -> None:
    memory, server = learns(redact=lambda text: text.replace("tea", "something"))
    await memory.aput_messages([user("I like tea."), assistant("Fine.")])
    await memory.aflush()
    assert await contents(memory) == ["Likes something"]
    assert "like tea" not in str(server.requests)


@pytest.mark.parametrize(
    ("redact", "got"),
    [
        (fails, "one that raises a ValueError"),
        (lambda text: None, "one that returns a NoneType"),
        (lambda text: text.encode(), "one that returns a bytes"),
    ],
)
async def test_where_the_function_fails_nothing_is_stored_and_the_error_has_no_text(
    open_memory: OpenMemory, database_uri: str, redact: Any, got: str
) -> None:
    memory = open_memory(redact=redact)
    for put in (memory.aput_messages, memory.aset):
        with pytest.raises(
            SettingError, match=f"got {got}. Nothing was stored."
        ) as raised:
            await put([assistant(""), user(WORDS)])
        assert WORDS not in "".join(traceback.format_exception(raised.value))
        assert raised.value.__context__ is None
    assert await memory.aget_all() == []


async def test_it_travels_with_a_pickle_or_the_memory_does_not(
    open_memory: OpenMemory,
) -> None:
    memory = open_memory(redact=redact_secrets)
    async with pickle.loads(pickle.dumps(memory)) as copy:
        await copy.aput(user(f"My card is {CARD}."))
        assert [message.content for message in await copy.aget_all()] == [
            "My card is [secret]."
        ]
    with pytest.raises(
        SettingError, match="cannot be pickled: redact is not a function of a module"
    ):
        pickle.dumps(open_memory(redact=lambda text: text))
    assert "redact" not in memory.model_dump()
    branch = await memory.abranch("branch")
    assert branch.redact is redact_secrets


async def test_no_byte_of_a_card_is_in_the_file(
    open_memory: OpenMemory, tmp_path: Path
) -> None:
    memory = open_memory(redact=redact_secrets)
    call = calling(("call_1", "pay", {"card": CARD}))
    await memory.aput_messages(
        [user(f"Pay with {CARD}, please."), call, result("call_1", f"Paid by {CARD}.")]
    )
    await memory.aflush()
    assert words_in(tmp_path, [CARD]) == set()
    assert "Pay with [secret], please." in sent_text(await memory.aget_all())


@pytest.mark.parametrize("text", SECRETS["secret"])
def test_a_secret_is_left_out_and_a_text_without_one_stays(text: str) -> None:
    left = redact_secrets(f"Good morning to you.\n{text}\nThat is all.")
    assert not holds_secret(left)
    assert text not in left
    assert redact_secrets(left) == left


@pytest.mark.parametrize("text", SECRETS["harmless"])
def test_what_only_looks_like_a_secret_stays(text: str) -> None:
    assert redact_secrets(text) == text


@given(
    st.lists(
        st.sampled_from(
            [*SECRETS["secret"], *SECRETS["harmless"], ". ", "\n", " and ", "?"]
        )
    ).map(" ".join)
)
def test_nothing_that_is_left_holds_a_secret(text: str) -> None:
    assert not holds_secret(redact_secrets(text))


def test_a_private_key_goes_with_all_of_its_lines() -> None:
    body = "\n".join(["MIIEpAIBAAKCAQEAaaaaaaaaaaaaaaaaaaaaaaaaa"] * 3)
    key = f"-----BEGIN RSA PRIVATE KEY-----\n{body}\n-----END RSA PRIVATE KEY-----"
    assert (
        redact_secrets(f"Here it is:\n{key}\nKeep it.")
        == "Here it is:\n[secret]\nKeep it."
    )
