"""Check the wire contract: `python -m protos.check`; exit code 0 if it holds.

- `buf lint`, STANDARD.
- `buf breaking`, FILE, against the previous contract: HEAD's if the files here differ from it, else
  that of the last commit but one that touched them. Only a contract with the service
  `ControlService` is compared with: earlier ones made no promise. A clone too shallow for that
  commit has nothing to compare with, and says so.
- The generated code is that of `protos.generate`.

buf comes from npm, in the version pinned by package-lock.json, into the user's cache.
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
    """Without npm, or a registry that it can reach; says which."""


class TooShallow(Exception):
    """The commit to compare with was not fetched."""

    def __init__(self) -> None:
        super().__init__("a shallow clone does not have the contract before this one")


def find_buf(cache: Path | None = None) -> Path:
    """The pinned buf, installed below `cache` if need be. Raises BufUnavailable."""
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
    """Install beside the place and rename, so that it is never half there."""
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
    """Complaints of `buf lint` about the contract."""
    return _complaints([str(buf), "lint"], contract)


def breaking(buf: Path, before: Path, contract: Path = SOURCES) -> list[str]:
    """Complaints of `buf breaking` about the change from `before` to `contract`."""
    return _complaints([str(buf), "breaking", "--against", str(before)], contract)


def _complaints(command: list[str], contract: Path) -> list[str]:
    done = subprocess.run(command, cwd=contract, capture_output=True, text=True, check=False)
    said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    assert done.returncode == 0 or said, done  # a failure always says at what
    return said if done.returncode else []


def reference(contract: Path = SOURCES) -> str | None:
    """The commit to compare the contract with; None without one. Raises TooShallow."""
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
    """The last commit whose contract differs from HEAD's."""
    log = _git(contract, "log", "-n", "2", "--format=%H", "--", "*.proto") or ""
    commits = log.split()
    if len(commits) == 2:
        return commits[1]
    if (_git(contract, "rev-parse", "--is-shallow-repository") or "").strip() == "true":
        raise TooShallow
    return None


def extract(commit: str, target: Path, contract: Path = SOURCES) -> None:
    """Write the contract of `commit` below `target`, with today's rules."""
    for name, text in (_files_of(contract, commit) or {}).items():
        written = target / name
        written.parent.mkdir(parents=True, exist_ok=True)
        written.write_text(text)
    shutil.copy(contract / "buf.yaml", target)


def _files(contract: Path) -> dict[str, str]:
    found = sorted(contract.rglob("*.proto"))
    return {path.relative_to(contract).as_posix(): path.read_text() for path in found}


def _files_of(contract: Path, commit: str) -> dict[str, str] | None:
    """A commit's proto files and their text; None without git, or such a commit."""
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
    """Generated files that differ from the generator's."""
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
    """Check everything; prints every failure."""
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
