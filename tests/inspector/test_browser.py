"""The pages in a real browser: narrow and wide, light and dark, and without a complaint of its console."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.cli.terminal import Here
from tests.inspector.browser import CHROMIUM, Browser, browsing
from tests.inspector.example import SESSION
from tests.inspector.test_command import inspecting

pytestmark = pytest.mark.skipif(not CHROMIUM, reason="there is no Chromium here: apt-get install chromium")

WIDTHS, SCHEMES = (400, 1400), ("light", "dark")
PAGES = (
    "sessions",
    "users",
    f"session?id={quote(SESSION)}&q=What+do+I+eat%3F",
    f"messages?id={quote(SESSION)}",
    "facts?user=mia",
    "really?deed=forget-user&user=mia",
    "fact?user=nobody&fact=none",
)
# The contrast of what is read with what is behind it, as the guidelines for accessibility define it.
CONTRAST = """
(() => {
  const parsed = (color) => color.match(/[\\d.]+/g).map(Number);
  const light = (color) => parsed(color).slice(0, 3).map((c) => c / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (one) => {
    for (let at = one; at; at = at.parentElement) {
      const color = getComputedStyle(at).backgroundColor, parts = parsed(color);
      if (parts.length < 4 || parts[3] > 0) return color;
    }
    return "rgb(255, 255, 255)";
  };
  const read = [...document.querySelectorAll("body *")].filter(
    (one) => one.getClientRects().length && [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim())
  );
  return Math.min(...read.map((one) => {
    const [a, b] = [light(getComputedStyle(one).color), light(behind(one))];
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  }));
})()
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsing() as one:
        yield one


@pytest.fixture(scope="module")
def address(example: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where the pages of a filled database are, which may be written to."""
    with inspecting(Path(shutil.copy(example, tmp_path_factory.mktemp("pages"))), "--write") as (served, _):
        yield served


def look(browser: Browser, address: str, width: int, scheme: str) -> dict[str, Any]:
    browser.show(address, width, scheme)
    return {
        "width": browser.evaluate("document.documentElement.scrollWidth"),
        "dark": browser.evaluate("matchMedia('(prefers-color-scheme: dark)').matches"),
        "page": browser.evaluate("getComputedStyle(document.body).backgroundColor"),
        "contrast": browser.evaluate(CONTRAST),
    }


def test_every_page_fits_into_its_window_and_can_be_read(address: str, browser: Browser) -> None:
    for page in PAGES:
        for width in WIDTHS:
            seen = {scheme: look(browser, address + page, width, scheme) for scheme in SCHEMES}
            assert [one["width"] <= width for one in seen.values()] == [True, True], (page, width, seen)
            assert [one["dark"] for one in seen.values()] == [False, True]
            assert seen["light"]["page"] != seen["dark"]["page"]
            assert min(one["contrast"] for one in seen.values()) >= 4.5, (page, width, seen)
    assert [url for url in browser.requested if not url.startswith((address, "data:", "about:"))] == []
    # What a missing page says of itself is told, too.
    assert [said for said in browser.complaints if "404" not in said] == []


def test_a_fact_is_retired_by_clicking(address: str, browser: Browser) -> None:
    browser.show(f"{address}facts?user=mia&q=museums", 1400, "light")
    for button in (".fact a", ".actions a", ".actions button"):
        browser.click(button)
    assert "Retired" in browser.evaluate("document.querySelector('dl').innerText")
    assert "read-only" not in browser.evaluate("document.querySelector('header').innerText")


def test_a_page_in_a_file_looks_the_same(command: Here, filled: Path, tmp_path: Path, browser: Browser) -> None:
    file = tmp_path / "session.html"
    options = ("--html", str(file), "--session", SESSION, "--question", "What do I eat?")
    assert command("inspect", "--db", str(filled), *options).returncode == 0
    browser.complaints.clear()
    for width in WIDTHS:
        seen = look(browser, file.as_uri(), width, "dark")
        assert (seen["width"] <= width, seen["page"]) == (True, "rgb(16, 20, 27)")
    assert browser.complaints == []
