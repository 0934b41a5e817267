"""What goes into one request for facts."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from llama_index_memory_ext.facts.prompt import Room, room_in
from llama_index_memory_ext.models.ask import context_window
from tests.facts.test_prompt import Scripted

tokens = st.integers(0, 300_000)


def test_all_of_the_room_is_there_where_the_window_is_unknown() -> None:
    """As it is of LlamaIndex's default, and of a model that does not know itself."""

    class Unknown(Scripted):
        @property
        def metadata(self) -> object:  # type: ignore[override]
            raise ValueError("Unknown model")

    assert room_in(context_window(Scripted(text="")), 1_000) == Room()
    assert room_in(context_window(Unknown(text="")), 1_000) == Room()


@example(window=7_408, fixed=2_230, halved=0.0, answer=262)
@given(window=tokens, fixed=st.integers(0, 3_000), halved=st.floats(0, 6), answer=st.none() | tokens)
def test_a_request_and_its_answer_fit_into_the_window(
    window: int, fixed: int, halved: float, answer: int | None
) -> None:
    """Also where another tokenizer counts an eighth more; but some words are always asked for."""
    room = room_in(window, fixed, halved=halved, answer=answer)
    assert sum(room) + fixed <= max(0.85 * window, fixed) + 400
    if 0.85 * window - fixed >= 2_500 + 2 * (answer or 0):
        assert (sum(room) + fixed) * 1.17 <= window
    assert all(here <= there for here, there in zip(room[:3], Room()[:3], strict=True))
    assert room.batch >= 200 <= room.answer


@given(window=tokens, wider=tokens, halved=st.floats(0, 5))
def test_a_wider_window_and_fewer_halvings_leave_more_room(window: int, wider: int, halved: float) -> None:
    room = room_in(window, 1_000, halved=halved)
    for more in (room_in(window + wider, 1_000, halved=halved), room_in(None, 0, halved=halved)):
        assert all(here <= there for here, there in zip(room, more, strict=True))
    less = room_in(window, 1_000, halved=halved + 0.5)
    assert all(here >= there for here, there in zip(room, less, strict=True))
