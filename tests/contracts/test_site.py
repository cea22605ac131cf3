"""`make site` puts the pages together so that their links hold, and builds a site on its own."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.contracts.markdown_pages import ROOT, pages

FETCHED = re.compile(r"<(?:script|link|img)[^>]*(?:src|href)=\"(?:https?:)?//")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, with another folder for its pages."""
    spec = importlib.util.spec_from_file_location("ci_site", ROOT / ".ci/site.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "PAGES", tmp_path)
    return module


def placed(site: ModuleType, page: str, text: str) -> str:
    link = site.LINK.search(text)
    return str(site.placed(Path(page), link))


def test_links_to_pages_and_to_other_sites_stay(site: ModuleType) -> None:
    for text in ("[a](../../README.md#two-commands)", "[b](https://example.org/x.py)", "[c](#d)"):
        assert placed(site, "deploy/guides/night.md", text) == text


def test_a_source_that_a_page_links_to_is_copied_beside_it(
    site: ModuleType, tmp_path: Path
) -> None:
    text = "[its shape](../../emulator/specs/chip.py)"

    assert placed(site, "deploy/guides/add-a-chip.md", text) == text
    copied = tmp_path / "emulator/specs/chip.py"
    assert copied.read_bytes() == (ROOT / "emulator/specs/chip.py").read_bytes()


def test_a_link_to_a_folder_leads_to_its_page_or_is_text(site: ModuleType) -> None:
    assert placed(site, "deploy/README.md", "[g](grafana)") == "[g](grafana/README.md)"
    assert placed(site, "deploy/README.md", "[k8s/](k8s)") == "k8s/"


def test_what_looks_like_a_link_in_a_block_is_left_alone(
    site: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    (source / "folder").mkdir(parents=True)
    (source / "page.md").write_text("[a](folder)\n\n```sh\necho '[a](folder)'\n```\n")
    monkeypatch.setattr(site, "ROOT", source)
    monkeypatch.setattr(site, "page_paths", lambda: [Path("page.md")])
    monkeypatch.setattr(site, "PAGES", tmp_path / "pages")

    site.gather()

    text = (tmp_path / "pages/page.md").read_text()
    assert text == "a\n\n```sh\necho '[a](folder)'\n```\n"


@pytest.mark.slow
def test_the_site_is_built_strictly_and_fetches_nothing() -> None:
    built = subprocess.run(
        [sys.executable, ".ci/site.py"], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert built.returncode == 0, built.stderr
    folder = ROOT / "build/site"
    found = json.loads((folder / "search/search_index.json").read_text())["docs"]
    assert {each["location"].partition("#")[0] for each in found} == {
        re.sub(r"README\.md$", "index.md", name).replace(".md", ".html") for name in pages()
    }
    fetched = [str(path) for path in folder.rglob("*.html") if FETCHED.search(path.read_text())]
    assert fetched == []
