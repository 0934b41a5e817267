"""A real browser without a window: Chromium, driven by its DevTools protocol over two pipes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), "")
_FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe")


class Browser:
    """One tab. ``requested`` are the addresses that it has asked for, ``complaints`` what its console says."""

    def __init__(self, commands: int, answers: int) -> None:
        self.commands, self.answers = os.fdopen(commands, "wb", 0), os.fdopen(answers, "rb")
        self.number, self.session = 0, ""
        self.requested: list[str] = []
        self.complaints: list[str] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **params: Any) -> Any:
        """The result of a command; what the browser tells meanwhile is noted."""
        self.number += 1
        command = {"id": self.number, "method": method, "params": params}
        self.commands.write(
            json.dumps(command | ({"sessionId": self.session} if self.session else {})).encode() + b"\0"
        )
        while (answer := self.read()).get("id") != self.number:
            pass
        assert "error" not in answer, answer
        return answer["result"]

    def show(self, address: str, width: int, scheme: str) -> None:
        """Open an address in a window of this width, light or dark, and wait until all of it is there."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 500)
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.ask("Page.navigate", url=address)
        self.wait_for_load()

    def wait_for_load(self) -> None:
        """Wait until a page is loaded."""
        while self.read().get("method") != "Page.loadEventFired":
            pass

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page."""
        result = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def click(self, selector: str) -> None:
        """Click on the first element of a selector, and wait for the page behind it."""
        self.evaluate(f"document.querySelector({json.dumps(selector)}).click()")
        self.wait_for_load()

    def picture(self, file: Path, *, whole: bool = False) -> None:
        """Write what is seen as a PNG, the ``whole`` page or the window."""
        shot = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        file.write_bytes(b64decode(shot["data"]))

    def close(self) -> None:
        """Close both pipes, with which the browser ends."""
        self.commands.close()
        self.answers.close()

    def read(self) -> Any:
        told = b""
        while not told.endswith(b"\0"):
            byte = self.answers.read(1)
            assert byte, "the browser has ended"
            told += byte
        message = json.loads(told[:-1])
        if message.get("method") == "Network.requestWillBeSent":
            self.requested.append(message["params"]["request"]["url"])
        if message.get("method") == "Log.entryAdded":
            self.complaints.append(message["params"]["entry"]["text"])
        return message


@contextmanager
def browsing() -> Iterator[Browser]:
    """A browser with an empty profile, which ends with the block."""
    from_us, to_browser = os.pipe()
    from_browser, to_us = os.pipe()
    with TemporaryDirectory(prefix="chromium", ignore_cleanup_errors=True) as profile:
        # The browser reads commands from descriptor 3 and answers to 4.
        script = f'exec "$@" 3<&{from_us} 4>&{to_us}'
        process = subprocess.Popen(
            ["/bin/bash", "-c", script, "bash", CHROMIUM, *_FLAGS, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(from_us, to_us),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(from_us)
        os.close(to_us)
        browser = Browser(to_browser, from_browser)
        try:
            yield browser
        finally:
            browser.close()
            process.terminate()
            process.wait(60)
