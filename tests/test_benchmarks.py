"""The benchmarks count right, and their results and the notebook that draws them belong together."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

# The source distribution has tests, but no benchmarks.
per_turn = pytest.importorskip("benchmarks.per_turn")
command = pytest.importorskip("benchmarks.command")
report = pytest.importorskip("benchmarks.report")
messages = pytest.importorskip("benchmarks.messages")
real_engine = pytest.importorskip("benchmarks.real_engine")

NOTEBOOK = json.loads((Path(__file__).parents[1] / "notebooks" / "benchmarks.ipynb").read_text(encoding="utf-8"))
CODE = "\n".join("".join(cell["source"]) for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code")
FILES = sorted(report.RESULTS.glob("*.json"))


def assigned(name: str) -> Any:
    """The value of a name that the notebook sets to a literal."""
    for node in ast.parse(CODE).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return ast.literal_eval(node.value)
    raise AssertionError(name)


def read(name: str) -> Any:
    return json.loads((report.RESULTS / f"{name}.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_results_say_what_was_run_where_and_with_which_versions(file: Path) -> None:
    result = json.loads(file.read_text(encoding="utf-8"))
    module = result["command"].split()[2]
    assert result["command"].startswith("python -m benchmarks.")
    assert (report.RESULTS.parent / f"{module.removeprefix('benchmarks.')}.py").is_file()
    assert file.stem.startswith(module.removeprefix("benchmarks."))
    assert result["date"]
    assert result["machine"].keys() >= {"cpus", "platform", "python"}
    assert result["versions"].keys() >= {"llama-index-memory-ext", "llama-index-core", "tiktoken", "sqlalchemy"}
    assert result["measures"] or result["promises"]


@pytest.mark.parametrize("name", assigned("NAMES"))
def test_results_hold_what_the_notebook_shows_of_them(name: str) -> None:
    result = read(name)
    assert result["machine"].keys() >= {"processor", "cpus", "memory_gb", "system", "python"}
    assert result["versions"].keys() >= {"scikit-learn", "aiosqlite"}
    assert result["seconds"] >= 0


def test_the_notebook_can_draw_every_series() -> None:
    styles = assigned("STYLES")
    series = [line for name in assigned("NAMES") for line in read(name)["series"]]
    for line in series:
        assert line["side"] in styles
        assert line["what"] in CODE
        assert line["setting"] in CODE
        xs = [x for x, _ in line["points"]]
        assert xs == sorted(xs)
        assert len(xs) > 1


def test_the_notebook_is_stored_without_outputs() -> None:
    cells = [cell for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]
    assert cells
    assert not any(cell["outputs"] or cell["execution_count"] for cell in cells)


@given(
    st.lists(
        st.sampled_from(["<|user|>\n", "\n", "<", "</a>\n", "word ", "a\n\n<b", "?\n/", "\r\n<", "  \n<x>", "中文"])
    )
)
def test_pieces_have_the_tokens_of_the_whole_prompt(parts: list[str]) -> None:
    prompt = "".join(parts)
    tokens = [token for piece in per_turn.pieces_of(prompt) for token in per_turn.tokens_of(piece)]
    assert tokens == per_turn.o200k().encode_ordinary(prompt)


@given(st.text("<a \n", max_size=30), st.text("<a \n", max_size=30))
def test_the_shared_prefix_is_that_of_the_tokens(prompt: str, previous: str) -> None:
    encode = per_turn.o200k().encode_ordinary
    expected = 0
    for one, other in zip(encode(prompt), encode(previous), strict=False):
        if one != other:
            break
        expected += 1
    assert per_turn.shared_tokens(per_turn.pieces_of(prompt), per_turn.pieces_of(previous)) == expected


@pytest.mark.parametrize(("setting", "side"), per_turn.contenders())
async def test_every_side_can_be_measured(setting: str, side: str) -> None:
    opened = per_turn.contenders()[setting, side]
    counts = await per_turn.counts_of(opened(per_turn.IN_MEMORY), messages.conversation(8))
    assert len(counts) == 8
    assert all(0 <= cached <= tokens for cached, tokens in counts)


@pytest.mark.skipif(not real_engine.has_engine(), reason="needs the extra bench")
@pytest.mark.parametrize("side", [real_engine.OURS, real_engine.HOST])
async def test_what_is_counted_of_a_prompt_is_what_the_engine_says(side: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real_engine, "FIRST", 2)
    said = [{"speaker": "AB"[i % 2], "text": f"<b>{i}</b> \U0001f600 said\n\n<message> {'so ' * i}"} for i in range(12)]
    counted = real_engine.Counted()
    with real_engine.running_engine() as engine:
        conversation = {"speakers": ["A", "B"], "pools": {"turns": said}}
        await real_engine.count(engine, real_engine.SIDES[side], conversation, counted, 3)
    assert (len(counted.counts), len(counted.answers), counted.differing) == (4, 3, 0)
    assert all(answer.reused and answer.processed and answer.cpu_seconds for answer in counted.answers)


def test_a_command_names_files_without_their_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["x", "--show-progress", "/home/ann/locomo.json", "--full"])
    assert command.named_path(Path("other.json")) == Path("/home/ann/locomo.json")
    assert command.command_of("bulk_put") == "python -m benchmarks.bulk_put locomo.json --full"
    assert list(command.shown([1, 2], "numbers")) == [1, 2]


def test_a_part_that_is_not_measured_everywhere_has_a_file_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    line = report.Series("what", "setting", "side", "turn", "tokens", ((1, 2.0), (2, 3.14159)))
    assert report.publish("recall", [report.Measure("one", 1.0)], [], [line, line], part="minilm") == 0
    missed = report.Promise("two", 1.0, 2.0)
    assert report.publish("recall", [], [missed]) == 1
    assert sorted(file.name for file in tmp_path.iterdir()) == ["recall.json", "recall_minilm.json"]
    written = json.loads((tmp_path / "recall_minilm.json").read_text(encoding="utf-8"))
    assert [one["points"] for one in written["series"]] == [[[1, 2.0], [2, 3.142]]] * 2
    assert json.loads((tmp_path / "recall.json").read_text(encoding="utf-8"))["series"] == []
