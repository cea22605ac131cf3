"""Hold the wire contract to its rules: `python -m protos.check`; 0 when all of them hold.

- `buf lint`, STANDARD.
- `buf breaking`, FILE, against the contract before this one: HEAD's when the files here are others
  than HEAD's, else that of the last commit but one that touched them, however long ago. Only a
  contract that has the service `ControlService` is compared with: the one before it had no promise.
  A clone that is too shallow to have that commit has nothing to compare with, and says so.
- The generated code is what `protos.generate` makes.

buf comes from npm, in the version that package-lock.json pins, into the user's cache.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from protos.generate import SOURCES, generate

_PINS: Final = ("package.json", "package-lock.json")
_SERVICE: Final = "service ControlService {"
_INSTALL_S: Final = 120.0


class BufUnavailable(Exception):
    """There is no npm, or it cannot reach a registry; says which."""


class TooShallow(Exception):
    """The commit to compare with was not fetched."""

    def __init__(self) -> None:
        super().__init__("a shallow clone does not have the contract before this one")


def find_buf(cache: Path | None = None) -> Path:
    """The pinned buf, installed below `cache` when it is not there yet.

    Raises BufUnavailable.
    """
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        raise BufUnavailable("npm and node are not on PATH")
    pins = b"".join((SOURCES / name).read_bytes() for name in _PINS)
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ultraserve"
    target = (cache or home) / f"buf-{hashlib.sha256(pins).hexdigest()[:16]}"
    program = target / "node_modules" / ".bin" / "buf"
    if not program.exists():
        _install(npm, target)
    return program


def _install(npm: str, target: Path) -> None:
    """Install beside the place and move there, so that a half of it is never found."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="buf-", dir=target.parent) as scratch:
        for name in _PINS:
            shutil.copy(SOURCES / name, scratch)
        command = [npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
        try:
            done = subprocess.run(
                command,
                cwd=scratch,
                capture_output=True,
                text=True,
                timeout=_INSTALL_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise BufUnavailable(f"npm ci took longer than {_INSTALL_S:g} s") from error
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if line.startswith("npm error")]
            raise BufUnavailable(f"npm ci failed: {'; '.join(said[:3]) or 'without a word'}")
        if not target.exists():
            Path(scratch).rename(target)
            Path(scratch).mkdir()  # what the context removes


def lint(buf: Path, contract: Path = SOURCES) -> list[str]:
    """What `buf lint` says of the contract below `contract`; nothing when it has no complaint."""
    return _complaints([str(buf), "lint"], contract)


def breaking(buf: Path, before: Path, contract: Path = SOURCES) -> list[str]:
    """What `buf breaking` says of the change from `before` to `contract`."""
    return _complaints([str(buf), "breaking", "--against", str(before)], contract)


def _complaints(command: list[str], contract: Path) -> list[str]:
    done = subprocess.run(command, cwd=contract, capture_output=True, text=True, check=False)
    said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    assert done.returncode == 0 or said, done  # a failure always says at what
    return said if done.returncode else []


def reference(contract: Path = SOURCES) -> str | None:
    """The commit that the contract is compared with; None where there is none to compare with.

    Raises TooShallow.
    """
    here = _files(contract)
    head = _files_of(contract, "HEAD")
    if head is None:
        return None
    commit = "HEAD" if here != head else _before(contract)
    files = None if commit is None else _files_of(contract, commit)
    if not files or not any(_SERVICE in text for text in files.values()):
        return None
    return commit


def _before(contract: Path) -> str | None:
    """The last commit whose contract is another than HEAD's."""
    log = _git(contract, "log", "-n", "2", "--format=%H", "--", "*.proto") or ""
    commits = log.split()
    if len(commits) == 2:
        return commits[1]
    if (_git(contract, "rev-parse", "--is-shallow-repository") or "").strip() == "true":
        raise TooShallow
    return None


def extract(commit: str, target: Path, contract: Path = SOURCES) -> None:
    """Write the contract of `commit` below `target`, with the rules of today."""
    for name, text in (_files_of(contract, commit) or {}).items():
        written = target / name
        written.parent.mkdir(parents=True, exist_ok=True)
        written.write_text(text)
    shutil.copy(contract / "buf.yaml", target)


def _files(contract: Path) -> dict[str, str]:
    found = sorted(contract.rglob("*.proto"))
    return {path.relative_to(contract).as_posix(): path.read_text() for path in found}


def _files_of(contract: Path, commit: str) -> dict[str, str] | None:
    """The same of a commit; None without git, or such a commit."""
    listed = _git(contract, "ls-tree", "-r", "--name-only", commit, ".")
    if listed is None:
        return None
    names = [name for name in listed.splitlines() if name.endswith(".proto")]
    return {name: _git(contract, "show", f"{commit}:./{name}") or "" for name in names}


def _git(folder: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *words], cwd=folder, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return None
    return done.stdout if done.returncode == 0 else None


def stale_code() -> list[str]:
    """Files of generated code that are not what the generator makes."""
    with tempfile.TemporaryDirectory(prefix="ultraserve-protos-") as scratch:
        made = {path.relative_to(scratch): path.read_text() for path in generate(Path(scratch))}
    kept = {
        path.relative_to(SOURCES): path.read_text()
        for path in SOURCES.rglob("*_pb2*.py*")
        if path.suffix != ".pyc"
    }
    names = made.keys() | {name for name in kept if name.suffix in (".py", ".pyi")}
    return sorted(str(name) for name in names if made.get(name) != kept.get(name))


def main() -> int:
    """Check everything; prints what does not hold."""
    try:
        buf = find_buf()
    except BufUnavailable as error:
        print(f"protos.check: no buf: {error}", file=sys.stderr)
        return 2
    said = lint(buf)
    try:
        commit = reference()
    except TooShallow as error:
        print(f"protos.check: buf breaking is left out: {error}", file=sys.stderr)
        commit = None
    if commit is None:
        print("nothing to compare with")
    else:
        with tempfile.TemporaryDirectory(prefix="ultraserve-protos-") as before:
            extract(commit, Path(before))
            said += breaking(buf, Path(before))
        print(f"compared with {commit}")
    said += [f"{name}: run `python -m protos.generate`" for name in stale_code()]
    for line in said:
        print(line)
    return int(bool(said))


if __name__ == "__main__":
    sys.exit(main())
