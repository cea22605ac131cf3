"""The commands of README and the guides, and the test that runs each."""

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.contracts.markdown_pages import pages, simple_commands

FENCED: Final = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SHELLS: Final = ("sh", "bash")
GUIDES: Final = re.compile(r"^(?:README|deploy/guides/[\w-]+)\.md$")

FOLLOWED: Final[Mapping[str, str]] = {
    "deploy/guides/tutorial.md": "test_tutorial.py runs the page from a clone to its end",
    "deploy/guides/multi-node.md": "test_multi_node.py runs its two nodes and its engine",
    "deploy/guides/your-own-model.md": "test_your_own_model.py makes its model and serves it",
    "deploy/guides/add-a-chip.md": "test_chip_guide.py adds the chip of the page and describes it",
}
"""Pages with a test of their own, because their commands need files that the page makes."""

NOT_RUN: Final[Mapping[str, str]] = {
    r"make demo$": "`ultraserve demo` with fewer requests is run by test_hostile_directory.py",
    r"make test$": "it would run itself",
    r"\S*ultraserve day .*--from-prometheus": "test_day.py asks a Prometheus of its own",
    r"prometheus --config": "tests/deploy/prometheus starts one from the same configuration",
}
"""Commands that no test runs, and why; test_markdown_pages.py parses them."""

QUICK_SUBCOMMANDS: Final = {"describe", "power", "collectives", "key"}
LONG_SUBCOMMANDS: Final = {
    *("simulate", "pareto", "plan", "compare", "validate", "train", "recipe", "day", "explain"),
    *("fleet", "quality"),
}
ASKING_SUBCOMMANDS: Final = {
    *("watch", "console", "top", "ls", "monitor", "state", "fault", "engine"),
    *("lend", "drain", "resume", "daynight", "publish", "rollback", "replicas"),
}


class Kind(enum.Enum):
    """A command's requirements."""

    QUICK = "nothing, and a few seconds"
    LONG = "nothing, and longer"
    SERVER = "to be left running: it is a server"
    ASKS = "a server"
    FOLLOWED = "its page, which has a test of its own"
    NOT_RUN = "what is not here"


_REFUSALS: Final = ("ultraserve serve: ", "ultraserve describe: ", "ultraserve-loadgen: ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """One line of shell of a page, continued lines joined, without comments.

    Attributes:
        printed: the output below it in a transcript, else empty.
    """

    page: str
    line: str
    printed: str = ""

    @property
    def words(self) -> list[str]:
        """The words of its first simple command, after environment settings."""
        first = next(iter(simple_commands(self.line)), [])
        while first and re.match(r"\w+=", first[0]):
            first = first[1:]
        return first

    @property
    def refused(self) -> bool:
        """Whether the page shows it as an example of a refusal."""
        return self.printed.startswith(_REFUSALS)


def without_comment(line: str) -> str:
    """The line up to its comment; a # inside a word or quotes is none."""
    for match in re.finditer(r"\s+#\s", line):
        before = line[: match.start()]
        if before.count("'") % 2 == 0 and before.count('"') % 2 == 0:
            return before
    return line.strip()


def shown_commands() -> list[Shown]:
    """Every command of README and the guides, in page order."""
    found = []
    for name, page in pages().items():
        if GUIDES.match(name):
            for language, body in FENCED.findall(page.text):
                found += commands_of(name, language, body)
    return found


def commands_of(page: str, language: str, body: str) -> list[Shown]:
    joined = re.sub(r"\s*\\\n\s*", " ", body)
    if language == "console":
        return [
            Shown(page=page, line=without_comment(first), printed=printed.strip())
            for first, _, printed in (
                each.partition("\n") for each in re.split(r"^\$ ", joined, flags=re.MULTILINE)[1:]
            )
        ]
    if language not in SHELLS:
        return []
    lines = [without_comment(line) for line in joined.splitlines()]
    return [Shown(page=page, line=line) for line in lines if line and not line.startswith("#")]


def kind(shown: Shown) -> Kind | None:
    """How a command is run; None if unknown."""
    if shown.page in FOLLOWED:
        return Kind.FOLLOWED
    if any(re.match(pattern, shown.line) for pattern in NOT_RUN):
        return Kind.NOT_RUN
    program, *words = [Path(word).name for word in shown.words[:1]] + shown.words[1:]
    if program == "curl":
        return Kind.ASKS
    if program == "vllm" and words[0] == "serve":
        return Kind.SERVER
    if program == "ultraserve-loadgen":
        # A report and a comparison read the files that runs before them wrote.
        return Kind.QUICK if "--help" in words or shown.refused else Kind.ASKS
    if program == "ultraserve":
        return ultraserve_kind(shown, words)
    return None


def ultraserve_kind(shown: Shown, words: list[str]) -> Kind | None:
    if shown.refused or words[0] in QUICK_SUBCOMMANDS:
        return Kind.QUICK
    if words[0] == "serve":
        return Kind.SERVER
    if words[0] == "profile":
        return Kind.LONG if "--model" in words else Kind.ASKS
    if words[0] in LONG_SUBCOMMANDS:
        return Kind.LONG
    return Kind.ASKS if words[0] in ASKING_SUBCOMMANDS else None


SHORTER: Final[tuple[tuple[str, str], ...]] = (
    (r"--duration \w+", "--duration 2s"),
    (r"--rate ramp:1-20/5m", "--rate ramp:1-20/2s"),
    (r"--rate (?:500|4000)\b", "--rate 20"),
    (r"--requests (?:100|200|300|1000|50000)\b", "--requests 12"),
    (r"--rates 20-320x2", "--rates 20-40x2"),
    (r"--max-rate 64", "--max-rate 640 --repeats 1"),
    (r"\boutput=512\b", "output=32"),
    (r"--steps \d+", "--steps 2"),
    (r" --compare-gzip", ""),
    (r"^(\S*ultraserve quality)$", r"\1 --formats w4a8 --tokens 128"),
    (r"ultraserve-training/published/step-299", "emulator/data/small_moe_trained"),
    (r"^(\S*ultraserve plan .*)--model deepseek-r1\b", r"\1--model qwen3-30b-a3b"),
    (r"^(\S*ultraserve plan .*)", r"\1 --chips 3 --requests 40 --tries 1"),
    (
        r"^(\S*ultraserve compare .*)--model deepseek-r1(.*)--rate 50(.*)",
        r"\1--model qwen3-30b-a3b\2--rate 5\3 --chips 1 --requests 40 --tries 1 --no-pools",
    ),
    (r"^(\S*ultraserve pareto .*--slo .*)", r"\1 --requests 40"),
    (r"^(\S*ultraserve pareto (?!.*--tp ).*)", r"\1 --chips 8 --batch 1,64"),
    (r"^(\S*ultraserve day .*)", r"\1 --requests 40"),
    (r"^(\S*ultraserve fleet .*)", r"\1 --requests 40 --sample 1"),
    (r"--seconds 10", "--seconds 1"),
)
"""Shorter settings for tests, and stand-ins for files of long runs."""


def shortened(line: str) -> str:
    for pattern, text in SHORTER:
        line = re.sub(pattern, text, line)
    return line
