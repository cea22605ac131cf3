import gzip
from pathlib import Path

import pytest

from serving.server.console.page_files import PAGE, read_page


@pytest.fixture
def built(tmp_path: Path) -> Path:
    (tmp_path / "assets").mkdir()
    (tmp_path / "index.html").write_text("<!doctype html><title>x</title>")
    (tmp_path / "assets" / "page-3f.js").write_text("let a = 1;\n" * 200)
    (tmp_path / "assets" / "mark.svg").write_text("<svg/>")
    (tmp_path / ".DS_Store").write_text("x")
    return tmp_path


def test_the_page_is_every_file_by_its_path(built: Path) -> None:
    page = read_page(built)

    assert set(page) == {"/", "/index.html", "/assets/page-3f.js", "/assets/mark.svg"}
    assert page["/"] is page["/index.html"]
    assert page["/"].content_type == "text/html; charset=utf-8"
    assert page["/assets/mark.svg"].content_type == "image/svg+xml"


def test_files_with_a_digest_in_their_name_are_kept_for_good_and_others_asked_for_again(
    built: Path,
) -> None:
    page = read_page(built)
    assert "immutable" in page["/assets/page-3f.js"].cache_control
    assert page["/"].cache_control == "no-cache"
    assert page["/"].etag != page["/assets/page-3f.js"].etag
    (built / "index.html").write_text("<!doctype html><title>y</title>")
    assert read_page(built)["/"].etag != page["/"].etag


def test_what_is_packed_is_the_file_and_smaller(built: Path) -> None:
    page = read_page(built)
    script = page["/assets/page-3f.js"]
    assert script.packed is not None
    assert len(script.packed) < len(script.data)
    assert gzip.decompress(script.packed) == script.data
    assert page["/"].packed is None  # too short to be worth it


def test_no_page_is_no_file(tmp_path: Path) -> None:
    assert read_page(tmp_path) == {}


def test_the_page_that_is_checked_in_asks_nobody_else_and_has_no_inline_script() -> None:
    page = read_page(PAGE)
    text = page["/"].data.decode()
    named = [part.split('"')[1] for part in text.replace("href=", "src=").split("src=")[1:]]
    assert named
    for path in named:
        assert path in page, path
    assert "<script>" not in text
    assert "style=" not in text
