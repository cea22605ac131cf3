"""The page that is checked in is what its sources make, and nothing of it lies on other hosts."""

import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
SOURCES = ROOT / "deploy" / "console"
PAGE = ROOT / "serving" / "console" / "page"
MANIFEST = "sources.json"
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
