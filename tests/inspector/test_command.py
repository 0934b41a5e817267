"""The command ``inspect``, as a person runs it."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import httpx

from tests.cli.terminal import Here, clean_environment, package_command
from tests.inspector.example import SESSION


def test_the_address_is_served_on_this_machine_alone_and_nothing_is_logged(
    command: Here, filled: Path
) -> None:
    pipe: Any = subprocess.PIPE
    served = package_command("inspect", "--db", str(filled))
    environment = clean_environment(PYTHONUNBUFFERED="1")
    with subprocess.Popen(
        served, stdout=pipe, stderr=pipe, env=environment, text=True
    ) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{43}/", address)
        with httpx.Client(base_url=address, timeout=60) as client:
            page = client.get("session", params={"id": SESSION, "q": "my own question"})
            assert "my own question" in page.text
            assert "server" not in page.headers
            page = client.get("facts", params={"user": "mia"})
            assert 'method="post"' not in page.text
            port = client.base_url.port
        taken = command("inspect", "--db", str(filled), "--port", str(port))
        assert f"Port {port} cannot be used" in taken.stderr
        with socket.socket(socket.AF_INET) as other:
            other.settimeout(60)
            # All of 127.0.0.0/8 is this machine on Linux.
            assert other.connect_ex(("127.0.0.2", port or 0)) != 0
        process.send_signal(signal.SIGINT)
        printed, complaints = process.communicate(timeout=60)
    assert (process.returncode, complaints) == (0, "")
    assert "question" not in printed
