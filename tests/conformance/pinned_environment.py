"""Environments of third-party clients: pinned, and separate from ours and each other.

A client's folder has `requirements.txt` for Python, or `package.json` and `package-lock.json` for
node. Its environment is in `.conformance/` at the checkout's root, named by the content of those
files, so a changed pin is a new environment.

`python -m tests.conformance.pinned_environment CLIENT ...` builds those of Python ahead of time.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).parent
CACHE = HERE.parents[1] / ".conformance"
_FINISHED = ".finished"


def python_of(client: str) -> Path:
    """The interpreter of `client`'s environment, built if missing."""

    def build(folder: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        pip = (str(folder / "bin" / "python"), "-m", "pip", "install", "-qq", "--no-input")
        settled = ("--disable-pip-version-check", "-r", str(HERE / client / "requirements.txt"))
        subprocess.run([*pip, *settled], check=True, cwd=HERE)

    return _built(client, ("requirements.txt",), build) / "bin" / "python"


def node_folder_of(client: str) -> Path:
    """A folder with `client`'s files and its `node_modules`, made if missing."""
    pins = ("package.json", "package-lock.json")

    def build(folder: Path) -> None:
        folder.mkdir()
        for name in pins:
            shutil.copy(HERE / client / name, folder)
        command = ("npm", "ci", "--no-audit", "--no-fund", "--silent")
        subprocess.run(command, check=True, cwd=folder)

    return _built(client, pins, build)


def pinned_version(client: str, package: str) -> str:
    """The version of `package` in `client`'s requirements."""
    lines = (HERE / client / "requirements.txt").read_text().splitlines()
    found = [line.split("==")[1] for line in lines if line.lower().startswith(f"{package}==")]
    (version,) = found
    return version


def environment_digest(files: tuple[Path, ...]) -> str:
    """Name of an environment: a hash of the files, the interpreter, and the cache's path."""
    total = hashlib.sha256(f"{sys.version}\0{CACHE}".encode())
    for path in files:
        content = path.read_bytes()
        total.update(len(content).to_bytes(8, "big"))
        total.update(content)
    return total.hexdigest()[:12]


def make_cache() -> None:
    CACHE.mkdir(exist_ok=True)
    (CACHE / ".gitignore").write_text("*\n")


def _built(client: str, pins: tuple[str, ...], build: Callable[[Path], None]) -> Path:
    digest = environment_digest(tuple(HERE / client / name for name in pins))
    folder = CACHE / f"{client}-{digest}"
    if (folder / _FINISHED).exists():
        return folder
    make_cache()
    shutil.rmtree(folder, ignore_errors=True)  # an interrupted build
    print(f"conformance: building {os.path.relpath(folder)}", file=sys.stderr, flush=True)
    build(folder)
    (folder / _FINISHED).touch()
    return folder


if __name__ == "__main__":
    for wanted in sys.argv[1:]:
        print(os.path.relpath(python_of(wanted).parent))
