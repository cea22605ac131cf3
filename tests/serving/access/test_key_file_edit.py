"""Adding and revoking keys: the others stay as they are, whatever else is written beside them."""

import fcntl
import os
import stat
import subprocess
import sys
import tomllib
from pathlib import Path
from threading import Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.errors import ConfigError
from serving.access import key_file_edit
from serving.access.key_file import KEYS_MAX, read_key_file
from serving.access.key_file_edit import add_key, key_text, revoke_key
from serving.access.secret import hash_of
from serving.access.stored_key import StoredKey
from serving.policy.admission.work import Client
from tests.serving.access.key_files import TEXT, written


def key(name: str) -> StoredKey:
    return StoredKey(client=Client(name=name), hash=hash_of(f"{name}'s secret"))


def names(path: Path) -> list[str]:
    return [key.client.name for key in read_key_file(path)[0]]


def test_the_first_key_makes_a_file_that_its_user_alone_can_use(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    before = os.umask(0)
    try:
        add_key(path, key("a"))
    finally:
        os.umask(before)

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_key_file(path)[0] == (key("a"),)
    assert list(tmp_path.iterdir()) == [path]


def test_a_key_is_added_behind_what_is_there(tmp_path: Path) -> None:
    path = written(tmp_path)
    path.chmod(0o640)
    add_key(path, key("new"))

    assert path.read_text() == f"{TEXT}\n{key_text(key('new'))}"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    with pytest.raises(ConfigError, match=r"^name=new: expected a name that .* does not have"):
        add_key(path, key("new"))


def test_a_last_line_without_an_end_is_no_obstacle(tmp_path: Path) -> None:
    path = written(tmp_path, key_text(key("a")).rstrip("\n"))
    add_key(path, key("b"))

    assert names(path) == ["a", "b"]


def test_a_revoked_key_takes_its_table_with_it_and_no_comment_of_others(tmp_path: Path) -> None:
    path = written(tmp_path)
    revoke_key(path, "alice")

    assert names(path) == ["batch@night", "ops", "past"]
    assert path.read_text().startswith("# keys of one team\n\n# works at night\n[[key]]\n")
    for name in ("past", "batch@night", "ops"):
        revoke_key(path, name)
    assert names(path) == []
    assert "# keys of one team" in path.read_text()
    with pytest.raises(ConfigError, match=r"^name=alice: expected a key of .*keys.toml"):
        revoke_key(path, "alice")


def test_a_layout_that_is_not_tables_is_left_for_a_person(tmp_path: Path) -> None:
    entries = [f'{{name = "{name}", hash = "{hash_of(name)}"}}' for name in "ab"]
    path = written(tmp_path, text := f"key = [{', '.join(entries)}]\n")
    for change in (lambda: revoke_key(path, "a"), lambda: add_key(path, key("c"))):
        with pytest.raises(ConfigError):
            change()
    assert path.read_text() == text


def test_a_wrong_file_is_not_touched(tmp_path: Path) -> None:
    path = written(tmp_path, "[[key]]\nname = 1\n")
    with pytest.raises(ConfigError, match=r"key 1, name=1"):
        add_key(path, key("a"))
    assert path.read_text() == "[[key]]\nname = 1\n"


@pytest.mark.long
def test_a_full_file_takes_no_more(tmp_path: Path) -> None:
    path = written(tmp_path, "".join(key_text(key(f"k{i}")) for i in range(KEYS_MAX)))
    with pytest.raises(ConfigError, match=r"1024 keys: expected < 1024"):
        add_key(path, key("a"))


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^file=.*: expected a file to write \(No such file"):
        add_key(tmp_path / "none" / "keys.toml", key("a"))


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    target = written(tmp_path)
    link = tmp_path / "link.toml"
    link.symlink_to(target)
    add_key(link, key("new"))

    assert link.is_symlink()
    assert names(target)[-1] == "new"


@pytest.mark.long
def test_whoever_changes_a_file_waits_for_whoever_does(tmp_path: Path) -> None:
    path = written(tmp_path, "")
    directory = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(directory, fcntl.LOCK_EX)
    adding = Thread(target=add_key, args=(path, key("a")))
    adding.start()
    adding.join(0.3)  # without waiting it takes a hundredth of that
    assert adding.is_alive()
    assert names(path) == []
    os.close(directory)
    adding.join()

    assert names(path) == ["a"]


ADD = """
import sys
from pathlib import Path
from serving.access.key_file_edit import add_key
from tests.serving.access.test_key_file_edit import key
for i in range(10):
    add_key(Path(sys.argv[1]), key(f"{sys.argv[2]}{i}"))
"""


@pytest.mark.process
def test_two_that_add_at_the_same_time_lose_no_key(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    adding = [
        subprocess.Popen([sys.executable, "-c", ADD, str(path), name], cwd=Path.cwd())
        for name in "ab"
    ]
    assert [process.wait(60) for process in adding] == [0, 0]

    assert sorted(names(path)) == sorted(f"{name}{i}" for name in "ab" for i in range(10))


@pytest.mark.long
@given(st.permutations(range(4)), st.integers(0, 3), st.text("#[] a\n", max_size=9))
def test_what_is_left_is_what_was_not_revoked(
    tmp_path_factory: pytest.TempPathFactory, order: list[int], revoked: int, comment: str
) -> None:
    comments = "".join(f"#{line}\n" for line in comment.split("\n"))
    tables = [f"{comments}{key_text(key(f'k{number}'))}\n" for number in order]
    path = written(tmp_path_factory.mktemp("keys"), "".join(tables))
    for number in range(revoked):
        revoke_key(path, f"k{number}")

    left = [number for number in order if number >= revoked]
    assert read_key_file(path)[0] == tuple(key(f"k{number}") for number in left)
    # All comments are there still, and of the tables those that are left.
    assert path.read_text().count(comments.strip("\n")) >= 4
    assert tomllib.loads(path.read_text())["key"] == [
        tomllib.loads(key_text(key(f"k{number}")))["key"][0] for number in left
    ]


def test_a_directory_that_somebody_holds_is_told_and_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_file_edit, "_WAIT_S", 0.1)
    path = written(tmp_path)
    directory = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(directory, fcntl.LOCK_SH)
    with pytest.raises(ConfigError, match=r"^file=.*: expected a file whose directory no other"):
        revoke_key(path, "alice")
    os.close(directory)
    revoke_key(path, "alice")
