"""A text corpus: a folder's files, divided into training and held-out by a hash of the name.

The default is the *.py files of the running Python's standard library, test suites included,
`site-packages` (other people's) excluded: every machine has it, under the PSF licence. A file added
or removed moves no other.
"""

import hashlib
import os
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from emulator.errors import ConfigError

HELD_OUT_ONE_IN: Final = 20

_LEFT_OUT: Final = frozenset({"site-packages", "__pycache__"})
_TEXT_SUFFIXES: Final = frozenset({".py", ".txt", ".md", ".rst"})
"""Of a user's folder; of the standard library *.py alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusFile:
    """A file's `name` relative to the corpus, with "/" between parts, and its UTF-8 text."""

    name: str
    content: bytes

    @property
    def raw_name(self) -> bytes:
        """The name's bytes, the same in every locale; the sort key."""
        return os.fsencode(self.name)

    @property
    def is_held_out(self) -> bool:
        """Whether the name's hash selects it for evaluation."""
        digest = hashlib.sha256(self.raw_name).digest()
        return int.from_bytes(digest[:8], "big") % HELD_OUT_ONE_IN == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Files by name; `skipped` counts those empty or not UTF-8."""

    files: Sequence[CorpusFile]
    skipped: int

    @property
    def digest(self) -> str:
        """Hexadecimal SHA-256 over the sorted names and the contents' hashes."""
        whole = hashlib.sha256()
        for file in self.files:
            whole.update(hashlib.sha256(file.raw_name).digest())
            whole.update(hashlib.sha256(file.content).digest())
        return whole.hexdigest()

    @property
    def training(self) -> list[CorpusFile]:
        """The training files, by name."""
        return [file for file in self.files if not file.is_held_out]

    @property
    def held_out(self) -> list[CorpusFile]:
        """The evaluation files, by name."""
        return [file for file in self.files if file.is_held_out]


def default_corpus() -> Path:
    """The running Python's standard library."""
    return Path(sysconfig.get_paths()["stdlib"])


def read_corpus(folder: Path) -> Corpus:
    """Read all text files below `folder`. Raises ConfigError without the folder, a training or a
    held-out file, or for an unreadable file.
    """
    if not folder.is_dir():
        raise ConfigError("corpus", folder, "a folder of text files")
    is_default = folder.resolve() == default_corpus().resolve()
    suffixes = {".py"} if is_default else _TEXT_SUFFIXES
    files, skipped = [], 0
    for path in folder.rglob("*"):
        relative = path.relative_to(folder)
        if path.suffix not in suffixes or _LEFT_OUT & set(relative.parts) or not path.is_file():
            continue
        try:
            content = path.read_bytes()
        except OSError as error:
            expected = f"files that can be read; {relative} cannot ({error.strerror})"
            raise ConfigError("corpus", folder, expected) from error
        if content and _is_text(content):
            files.append(CorpusFile(name=relative.as_posix(), content=content))
        else:
            skipped += 1
    files.sort(key=lambda file: file.raw_name)
    corpus = Corpus(files=files, skipped=skipped)
    if not corpus.training or not corpus.held_out:
        raise ConfigError(
            "corpus",
            folder,
            f"enough text files ({', '.join(sorted(suffixes))}) that some are held out: "
            f"{len(corpus.training)} are to learn from and {len(corpus.held_out)} to judge by",
        )
    return corpus


def _is_text(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True
