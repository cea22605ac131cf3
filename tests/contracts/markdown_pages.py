"""The project's Markdown pages: their headings, links and shell commands."""

import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
_FENCED: Final = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_HEADING: Final = re.compile(r"^#+ (.+)$", re.MULTILINE)
_LINK: Final = re.compile(r"(!?)\[[^\]]*\]\(([^()\s]+)\)")
_SHELLS: Final = {"", "sh", "bash", "console"}
_OPERATORS: Final = "();<>|&"


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A link of a page as written; `picture` if it is an image."""

    target: str
    picture: bool

    @property
    def outside(self) -> bool:
        return "://" in self.target or self.target.startswith("mailto:")


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One page; `path` is relative to the root."""

    path: Path
    text: str

    def blocks(self, *languages: str) -> list[str]:
        """Contents of fenced blocks of these languages; "" is a block without one."""
        return [body for language, body in _FENCED.findall(self.text) if language in languages]

    @property
    def prose(self) -> str:
        """All but fenced blocks and inline code, which have no links or headings."""
        return re.sub(r"`[^`\n]+`", "code", _FENCED.sub("", self.text))

    def links(self) -> list[Link]:
        return [
            Link(target=target, picture=bool(mark)) for mark, target in _LINK.findall(self.prose)
        ]

    def anchors(self) -> frozenset[str]:
        """Link targets after #, as GitHub makes them of headings."""
        return _anchors(self.text)

    def commands(self) -> list[list[str]]:
        """The simple commands of its shell blocks as words, without redirections.

        In a transcript (`console`) a command follows `$ `. In a block without a language, a line
        that begins with a program of .venv, or with make, is one too.
        """
        return [
            words
            for language, body in _FENCED.findall(self.text)
            if language in _SHELLS
            for line in body.replace("\\\n", " ").splitlines()
            if line.startswith("$ ")
            or language in ("sh", "bash")
            or (not language and line.startswith((".venv/bin/", "make ")))
            for words in simple_commands(line.removeprefix("$ "))
        ]


def simple_commands(line: str) -> Iterator[list[str]]:
    """The words of each command of a line of shell, without redirections.

    An incomplete line, such as the middle of a quoted program, gives nothing.
    """
    without_numbers = re.sub(r"(?<=\s)\d(?=[<>])", "", line)  # the 2 of 2>&1 is no word
    reader = shlex.shlex(without_numbers, posix=True, punctuation_chars=_OPERATORS)
    reader.whitespace_split = True
    try:
        tokens = list(reader)
    except ValueError:
        return
    words: list[str] = []
    redirected = False
    for token in tokens:
        if not set(token) <= set(_OPERATORS):
            if not redirected:
                words.append(token)
            redirected = False
        elif set(token) <= set("<>&") and set(token) & set("<>"):
            redirected = True
        else:
            if words:
                yield words
            words, redirected = [], False
    if words:
        yield words


@cache  # each link of a page asks for them
def _anchors(text: str) -> frozenset[str]:
    return frozenset(anchor(heading) for heading in _HEADING.findall(_FENCED.sub("", text)))


def anchor(heading: str) -> str:
    """GitHub's name of a heading: lower case, no marks, hyphens for spaces."""
    words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
    return re.sub(r"[^\w\- ]", "", words).strip().replace(" ", "-")


def pages() -> dict[str, Page]:
    """Every page that git knows or would add, by path."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return {
        name: Page(path=Path(name), text=(ROOT / name).read_text(encoding="utf-8"))
        for name in sorted(listed.split("\0"))
        if name and (ROOT / name).is_file()
    }
