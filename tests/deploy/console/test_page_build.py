"""The page that is checked in is what its sources make, and nothing of it lies on other hosts."""

import hashlib
import json
import os
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.system_programs import lacking, program

ROOT = Path(__file__).resolve().parents[3]
SOURCES = ROOT / "deploy" / "console"
PAGE = ROOT / "serving" / "server" / "console" / "page"
MANIFEST = "sources.json"
BUILD_WALL_S_MAX = 240
NO_WAY_TO_A_REGISTRY = re.compile("EAI_AGAIN|ECONNREFUSED|EHOSTUNREACH|ENOTFOUND|ETIMEDOUT")
CONNECTED_TO = re.compile(rb"""(?:fetch|src|href|url|import)\s*\(?\s*["'`]https?://""")


def digests(folder: Path, *left_out: str) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not set(path.relative_to(folder).parts) & set(left_out)
    }


@pytest.fixture(scope="module")
def manifest() -> dict[str, dict[str, str]]:
    read: dict[str, dict[str, str]] = json.loads((PAGE / MANIFEST).read_text())
    return read


def test_the_page_was_built_from_the_sources_that_are_here(
    manifest: dict[str, dict[str, str]],
) -> None:
    assert manifest["sources"] == digests(SOURCES, "node_modules"), "run: make console"


def test_the_page_is_what_that_build_wrote(manifest: dict[str, dict[str, str]]) -> None:
    assert manifest["page"] == digests(PAGE, MANIFEST), "run: make console"


@pytest.mark.slow  # npm fetches what it has not; the digests above are held every day
@pytest.mark.timeout(BUILD_WALL_S_MAX + 60)
def test_a_clean_clone_builds_the_page_that_is_checked_in(tmp_path: Path) -> None:
    for name in ("npm", "make"):
        program(name)
    console = tmp_path / "deploy" / "console"
    shutil.copytree(SOURCES, console, ignore=shutil.ignore_patterns("node_modules"))
    shutil.copy(ROOT / "Makefile", tmp_path)
    # What this machine has fetched before is not fetched again; the lock file holds its digests.
    environment = os.environ | {"npm_config_prefer_offline": "true"}
    made = subprocess.run(
        ["make", "console"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=BUILD_WALL_S_MAX,
        check=False,
    )
    said = made.stdout + made.stderr
    if made.returncode and NO_WAY_TO_A_REGISTRY.search(said):
        lacking("npm's registry", "or what deploy/console/package-lock.json names in npm's cache")

    assert made.returncode == 0, said
    built = digests(tmp_path / PAGE.relative_to(ROOT))
    assert len(built) > 5
    assert built == digests(PAGE)


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.script_text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] in ("script", "style"):
            self.script_text += data.strip()


def test_the_document_names_only_files_of_its_own_and_holds_no_script() -> None:
    tags = Tags()
    tags.feed((PAGE / "index.html").read_text())
    named = [
        address
        for _, attributes in tags.tags
        for address in (attributes.get("src"), attributes.get("href"))
        if address
    ]

    assert len(named) >= 3  # a script, a style sheet, a sign
    assert [address for address in named if not (PAGE / address.lstrip("/")).is_file()] == []
    assert tags.script_text == ""
    assert not any(name.startswith("on") for _, attributes in tags.tags for name in attributes)


def test_nothing_of_the_page_is_loaded_from_another_host() -> None:
    built = [path for path in (PAGE / "assets").iterdir() if path.suffix in (".js", ".css")]

    assert {path.suffix for path in built} == {".js", ".css"}
    assert [path.name for path in built if CONNECTED_TO.search(path.read_bytes())] == []


def test_a_source_that_would_load_from_another_host_is_seen() -> None:
    assert CONNECTED_TO.search(b'await fetch("https://example.com/x")')
    assert CONNECTED_TO.search(b"@import url('http://example.com/a.css')")


def test_every_version_is_exact_and_the_lock_names_no_host() -> None:
    package: dict[str, Any] = json.loads((SOURCES / "package.json").read_text())
    lock: dict[str, Any] = json.loads((SOURCES / "package-lock.json").read_text())
    packages = {name: each for name, each in lock["packages"].items() if name}

    for name, version in package["devDependencies"].items():
        assert packages[f"node_modules/{name}"]["version"] == version
    assert [name for name, each in packages.items() if "resolved" in each] == []
    assert [name for name, each in packages.items() if "integrity" not in each] == []


def test_what_the_page_carries_of_others_has_its_licence_beside_it() -> None:
    licences = {path.stem: path.read_text() for path in (PAGE / "licences").iterdir()}

    assert set(licences) == {
        "preact",
        "preact-signals",
        "preact-signals-core",
        "uplot",
        "fontsource-variable-inter",
    }
    assert all("Copyright" in text for text in licences.values())
