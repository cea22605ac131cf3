"""The mutated packages and their nearest tests: the one list of packages.

When a package moves, its line here moves too. A missing path stops the run, so a move cannot take
an area out of the check unnoticed.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Area:
    """A part of the product whose decisions the tests must hold."""

    name: str
    packages: tuple[str, ...]
    without: frozenset[str] = frozenset()
    """Modules that import one of these are left out."""

    def modules(self) -> list[Path]:
        found = []
        for package in self.packages:
            if not (ROOT / package).is_dir():
                raise FileNotFoundError(f"tests/mutations/areas.py: {package} is not a package")
            found += [path.relative_to(ROOT) for path in (ROOT / package).rglob("*.py")]
        return sorted(path for path in found if not self.without & _imported(ROOT / path))


AREAS: Final = (
    Area(
        name="policy",
        packages=(
            "serving/policy",
            "serving/policy/placement",
            "serving/policy/admission",
            "serving/policy/day_night",
        ),
    ),
    Area(
        name="engine",
        packages=("serving/engine", "serving/plugin"),
        without=frozenset({"vllm", "torch"}),
    ),
    Area(
        name="simulator",
        packages=("serving/analysis/day", "serving/analysis/steady_state", "serving/analysis/plan"),
        without=frozenset({"altair"}),  # what draws charts only shows what was decided
    ),
    Area(name="memory", packages=("emulator/memory",)),
)


def nearest_tests(module: Path) -> list[Path]:
    """A module's own test file, then its package's folder."""
    folder = ROOT / "tests" / module.parent
    own = [folder / f"test_{module.stem}.py"]
    while not folder.is_dir():
        folder = folder.parent
    return [path.relative_to(ROOT) for path in (*own, folder) if path.exists()]


def _imported(path: Path) -> set[str]:
    return set(_top_level_imports(path.read_text(encoding="utf-8")))


def _top_level_imports(text: str) -> Iterator[str]:
    for line in text.splitlines():
        words = line.split()
        if words[:1] in (["import"], ["from"]) and len(words) > 1:
            yield words[1].split(".")[0].rstrip(",")
