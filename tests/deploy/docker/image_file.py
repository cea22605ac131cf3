"""The Dockerfile as instructions, and its build stage run without Docker.

Docker copies files into a stage and runs the RUN lines with `sh -c`, in the stage's variables and
directory. `run_build_stage` does so in a directory of the host, with its Python and programs in
place of the base image's, and another place for the environment.
"""

import fnmatch
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dockerfile_parse import DockerfileParser

ROOT = Path(__file__).resolve().parents[3]
DOCKERFILE = ROOT / "deploy/docker/Dockerfile"
IGNORE_FILE = DOCKERFILE.with_name("Dockerfile.dockerignore")
PREFIX = "/opt/ultraserve"
"""The image's environment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One instruction, its lines joined."""

    name: str
    value: str

    def words(self) -> list[str]:
        """The JSON array at the value's end, or its words."""
        if "[" in self.value:
            found: list[str] = json.loads(self.value[self.value.index("[") :])
            return found
        return self.value.split()


def stages() -> list[list[Instruction]]:
    """The instructions of each stage, `FROM` first; earlier ones are left out."""
    found: list[list[Instruction]] = []
    for each in DockerfileParser(path=str(DOCKERFILE)).structure:
        instruction = Instruction(name=each["instruction"], value=each["value"])
        if instruction.name == "FROM":
            found.append([])
        if found and instruction.name != "COMMENT":
            found[-1].append(instruction)
    return found


def named(stage: Sequence[Instruction], name: str) -> list[Instruction]:
    return [each for each in stage if each.name == name]


def variables(stage: Sequence[Instruction]) -> dict[str, str]:
    """Variables of ENV, unquoted and unexpanded."""
    pairs = (word for each in named(stage, "ENV") for word in each.words())
    return {name: value.strip('"') for name, _, value in (pair.partition("=") for pair in pairs)}


def copies(stage: Sequence[Instruction]) -> Iterator[tuple[list[str], str]]:
    """Sources and destination of each COPY from the build's context."""
    for each in named(stage, "COPY"):
        words = each.words()
        if not words[0].startswith("--from="):
            yield words[:-1], words[-1]


def is_sent(path: str) -> bool:
    """Whether the ignore file lets a path of the context through; the last matching line decides.

    A line matches a path and all below it. `**/` matches any depth; other wildcards are unused.
    """
    sent = True
    parts = path.split("/")
    above = ["/".join(parts[: end + 1]) for end in range(len(parts))]
    for line in IGNORE_FILE.read_text(encoding="utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        pattern = line.removeprefix("!")
        if pattern.startswith("**/"):
            fits = any(fnmatch.fnmatch(part, pattern[3:]) for part in parts)
        else:
            fits = pattern == "*" or pattern in above
        if fits:
            sent = line.startswith("!")
    return sent


def run_build_stage(directory: Path, *, path: str | None = None) -> Path:
    """Run the build stage below `directory`; returns its environment.

    `path` is the PATH of the RUN lines. Raises CalledProcessError when one fails.
    """
    stage, work, prefix = stages()[0], directory / "build", directory / "ultraserve"
    work.mkdir(parents=True)
    interpreter = directory / "bin"  # the base image has it as `python`
    interpreter.mkdir()
    base = Path(sys.base_prefix, "bin", f"python{sys.version_info.major}.{sys.version_info.minor}")
    (interpreter / "python").write_text(f'#!/bin/sh\nexec {base} "$@"\n', encoding="utf-8")
    (interpreter / "python").chmod(0o700)
    moved = {
        name: value.replace(PREFIX, str(prefix)).replace("/build", str(work))
        for name, value in variables(stage).items()
    }
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRT"))
    }
    search = os.environ["PATH"] if path is None else path
    environment |= {**moved, "PATH": f"{interpreter}:{search}"}
    for instruction in stage:
        if instruction.name == "COPY":
            *sources, destination = instruction.words()
            for source in sources:
                _copy(source, work / destination)
        elif instruction.name == "RUN":
            subprocess.run(
                ["/bin/sh", "-c", instruction.value], cwd=work, env=environment, check=True
            )
    return prefix


def _copy(source: str, destination: Path) -> None:
    """Copy a directory's contents or a file like COPY, but for ignored paths."""
    origin = ROOT / source
    if origin.is_file():
        shutil.copy2(origin, destination)
        return
    for each in origin.rglob("*"):
        if each.is_file() and is_sent(each.relative_to(ROOT).as_posix()):
            target = destination / each.relative_to(origin)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(each, target)
