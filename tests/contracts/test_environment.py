"""The environment is the one that `constraints.txt` describes: nothing unpinned, nothing spare."""

import sysconfig
import tomllib
from collections.abc import Iterable
from importlib.metadata import distribution, distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
# setuptools puts copies of its own on the path of a process that has imported it.
SITE = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
INSTALLERS = {"pip", "setuptools", "wheel"}  # asked for by the install itself


SITE_GROUP = "site"  # of an environment of its own, which .ci/site.py builds and holds to its pins
SITE_PINS = "\n# .site-venv alone"


def pin_lines() -> list[str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def pins() -> dict[str, str]:
    """Return the pinned version of each package of .venv, by its canonical name."""
    text = (ROOT / "constraints.txt").read_text()
    everyday, heading, _ = text.partition(SITE_PINS)
    assert heading
    named = (line.partition("==") for line in everyday.splitlines() if "==" in line)
    return {canonicalize_name(name): version for name, _, version in named}


def groups() -> dict[str, list[str]]:
    """Return the dependency groups of pyproject.toml."""
    found: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())[
        "dependency-groups"
    ]
    return found


def asked_for() -> list[Requirement]:
    """Return what the project and its dependency groups ask for by name, the site's left out."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    lines = [*project["project"]["dependencies"]]
    for name, group in groups().items():
        lines += group if name != SITE_GROUP else []
    return [Requirement(line) for line in lines]


def needed(requirements: Iterable[Requirement]) -> set[str]:
    """Return the canonical names of everything that these need here, directly or through others."""
    waiting = [(requirement, frozenset[str]()) for requirement in requirements]
    seen: set[tuple[str, str]] = set()
    while waiting:
        requirement, extras = waiting.pop()
        if requirement.marker and not any(
            requirement.marker.evaluate({"extra": extra}) for extra in extras or {""}
        ):
            continue
        name = canonicalize_name(requirement.name)
        wanted = {(name, extra) for extra in {"", *requirement.extras}} - seen
        seen |= wanted
        if wanted:
            inner = distribution(name).requires or []
            chosen = frozenset(extra for _, extra in wanted)
            waiting += [(Requirement(line), chosen) for line in inner]
    return {name for name, _ in seen}


def test_every_line_of_the_constraints_pins_one_exact_version() -> None:
    loose = [
        line
        for line in pin_lines()
        if Requirement(line).marker
        or [part.operator for part in Requirement(line).specifier] != ["=="]
        or "*" in line
    ]

    assert loose == []


def test_no_package_is_pinned_twice() -> None:
    names = [canonicalize_name(line.partition("==")[0]) for line in pin_lines()]

    assert len(set(names)) == len(names)


def test_the_site_s_packages_are_pinned() -> None:
    names = {canonicalize_name(line.partition("==")[0]) for line in pin_lines()}

    assert {canonicalize_name(Requirement(line).name) for line in groups()[SITE_GROUP]} <= names


@pytest.mark.long
def test_everything_that_the_project_needs_is_pinned() -> None:
    assert needed(asked_for()) - set(pins()) == set()


@pytest.mark.long
def test_nothing_is_pinned_that_the_project_does_not_need() -> None:
    assert set(pins()) - needed(asked_for()) - INSTALLERS == set()


@pytest.mark.long
def test_every_pinned_package_is_installed_in_its_pinned_version() -> None:
    found: dict[str, str] = {
        canonicalize_name(one.metadata["Name"]): one.version for one in distributions(path=SITE)
    }
    installed = {name: Version(found[name]).public for name in pins() if name in found}

    assert installed == pins()


def test_vllm_was_built_for_no_accelerator() -> None:
    files = distribution("vllm").files or []

    assert files
    assert [str(file) for file in files if file.suffix == ".so"] == []
