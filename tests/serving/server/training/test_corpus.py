import hashlib
import os
from pathlib import Path

import pytest

from emulator.errors import ConfigError
from serving.server.training.corpus import CorpusFile, default_corpus, read_corpus


def write_files(folder: Path, count: int = 60) -> None:
    for number in range(count):
        path = folder / f"part{number % 3}" / f"file{number}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"x = {number}\n" * 40, encoding="utf-8")


def test_the_digest_is_over_sorted_names_and_contents(tmp_path: Path) -> None:
    write_files(tmp_path)
    corpus = read_corpus(tmp_path)

    by_hand = hashlib.sha256()
    for path in sorted(
        tmp_path.rglob("*.py"), key=lambda each: each.relative_to(tmp_path).as_posix()
    ):
        name = path.relative_to(tmp_path).as_posix()
        by_hand.update(hashlib.sha256(name.encode()).digest())
        by_hand.update(hashlib.sha256(path.read_bytes()).digest())
    assert corpus.digest == by_hand.hexdigest()


def test_a_changed_byte_or_name_changes_the_digest(tmp_path: Path) -> None:
    write_files(tmp_path)
    before = read_corpus(tmp_path).digest

    (tmp_path / "part0" / "file0.py").write_text("y = 0\n", encoding="utf-8")
    changed = read_corpus(tmp_path).digest
    (tmp_path / "part0" / "file0.py").rename(tmp_path / "part1" / "file0.py")

    assert len({before, changed, read_corpus(tmp_path).digest}) == 3


def test_which_file_is_held_out_depends_on_its_name_alone(tmp_path: Path) -> None:
    write_files(tmp_path)
    before = {file.name for file in read_corpus(tmp_path).held_out}

    for number in range(200, 230):
        (tmp_path / f"more{number}.py").write_text("z = 1\n", encoding="utf-8")
    after = {file.name for file in read_corpus(tmp_path).held_out}

    assert before
    assert {name for name in after if not name.startswith("more")} == before


def test_about_one_name_in_twenty_is_held_out() -> None:
    held_out = [CorpusFile(name=f"a/{n}.py", content=b"x").is_held_out for n in range(10_000)]

    assert 0.04 < sum(held_out) / len(held_out) < 0.06


def test_files_that_are_no_text_or_empty_are_counted_and_left_out(tmp_path: Path) -> None:
    write_files(tmp_path)
    (tmp_path / "latin.py").write_bytes(b"# caf\xe9\n")
    (tmp_path / "empty.py").write_bytes(b"")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "other.py").write_text("x = 1\n", encoding="utf-8")

    corpus = read_corpus(tmp_path)

    assert corpus.skipped == 2
    assert len(corpus.files) == 60


@pytest.mark.long
def test_the_default_is_the_running_pythons_library_without_other_peoples_packages() -> None:
    corpus = read_corpus(default_corpus())
    names = {file.name for file in corpus.files}

    assert {"argparse.py", "test/test_io.py", "json/decoder.py"} <= names
    assert not any("site-packages" in name or not name.endswith(".py") for name in names)
    assert 0.02 < len(corpus.held_out) / len(names) < 0.1


@pytest.mark.parametrize("files", [0, 1])
def test_a_folder_with_too_little_is_refused_in_one_line(tmp_path: Path, files: int) -> None:
    for number in range(files):
        (tmp_path / f"{number}.py").write_text("x = 1\n", encoding="utf-8")

    with pytest.raises(ConfigError, match=r"^corpus=.*expected enough text files"):
        read_corpus(tmp_path)


def test_neither_files_nor_digest_depend_on_the_order_in_which_the_disk_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(tmp_path)
    (tmp_path / os.fsdecode(b"caf\xe9.py")).write_text("x = 1\n", encoding="utf-8")
    before = read_corpus(tmp_path)
    found = list(Path.rglob(tmp_path, "*"))
    monkeypatch.setattr(Path, "rglob", lambda *_: reversed(found))

    assert read_corpus(tmp_path) == before
    assert read_corpus(tmp_path).digest == before.digest
    assert [file.raw_name for file in before.files] == sorted(
        file.raw_name for file in before.files
    )


def test_a_file_that_cannot_be_read_is_refused_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(tmp_path)

    def refuse(_path: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)  # root may read everything

    with pytest.raises(ConfigError, match=r"^corpus=.*file\d+\.py cannot \(Permission denied\)"):
        read_corpus(tmp_path)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^corpus=.*expected a folder"):
        read_corpus(tmp_path / "nowhere")
