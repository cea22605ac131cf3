"""The contract keeps its rules, and the checks that say so can fail."""

import shutil
import subprocess
from pathlib import Path

import pytest

from protos import check
from protos.generate import SOURCES
from tests.system_programs import lacking


@pytest.fixture(scope="module")
def buf() -> Path:
    try:
        return check.find_buf()
    except check.BufUnavailable as error:
        lacking("buf", f"from npm: {error}")


@pytest.fixture
def contract(tmp_path: Path) -> Path:
    """A copy of the contract to change."""
    copied = tmp_path / "contract"
    shutil.copytree(SOURCES, copied, ignore=shutil.ignore_patterns("*.py*", "__pycache__"))
    return copied


def change(contract: Path, name: str, old: str, new: str) -> None:
    path = contract / "ultraserve" / "v1" / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.mark.process
def test_the_contract_passes_buf_s_standard_lint(buf: Path) -> None:
    assert check.lint(buf) == []


@pytest.mark.process
def test_the_contract_breaks_nothing_of_the_last_commit_s(buf: Path, tmp_path: Path) -> None:
    try:
        commit = check.reference()
    except check.TooShallow as error:
        pytest.skip(str(error))
    if commit is None:
        pytest.skip("no commit to compare with has the service")
    check.extract(commit, tmp_path)

    assert check.breaking(buf, tmp_path) == []


@pytest.mark.process
@pytest.mark.parametrize(
    ("name", "old", "new", "rule"),
    [
        ("control.proto", "service ControlService", "service Control", "SERVICE_SUFFIX|suffixed"),
        ("lease.proto", "PHASE_SERVING", "SERVING", "prefixed"),
        ("sleep.proto", "bool paused", "bool isPaused", "lower_snake_case"),
    ],
)
def test_a_contract_in_another_style_is_found(
    name: str, old: str, new: str, rule: str, buf: Path, contract: Path
) -> None:
    change(contract, name, old, new)

    assert any(word in line for line in check.lint(buf, contract) for word in rule.split("|"))


@pytest.mark.process
@pytest.mark.parametrize(
    ("name", "old", "new", "breaks"),
    [
        ("sleep.proto", "bool paused = 2;", "bool paused = 3;", True),
        ("sleep.proto", "bool paused = 2;", "int32 paused = 2;", True),
        ("sleep.proto", "  bool paused = 2;\n", "", True),
        ("control.proto", "  rpc GetRest(GetRestRequest) returns (GetRestResponse);\n", "", True),
        ("sleep.proto", "bool paused = 2;", "bool paused = 2;\n  bool dreams = 3;", False),
    ],
)
def test_a_change_that_breaks_clients_is_found_and_an_addition_is_none(
    name: str, old: str, new: str, breaks: bool, buf: Path, contract: Path
) -> None:
    change(contract, name, old, new)

    assert bool(check.breaking(buf, SOURCES, contract)) is breaks


@pytest.mark.process
def test_buf_is_installed_once(buf: Path) -> None:
    found = check.find_buf()

    assert found == buf
    version = subprocess.run([found, "--version"], check=True, capture_output=True, text=True)
    assert f'"@bufbuild/buf": "{version.stdout.strip()}"' in (SOURCES / "package.json").read_text()


def test_nothing_of_a_registry_is_in_the_pins() -> None:
    lock = (SOURCES / "package-lock.json").read_text()

    assert "resolved" not in lock
    assert "integrity" in lock


def test_without_npm_the_reason_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")

    with pytest.raises(check.BufUnavailable, match="not on PATH"):
        check.find_buf()


def git(folder: Path, *words: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@example.com")
    subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)


def head(folder: Path) -> str:
    asked = ["git", "rev-parse", "HEAD"]
    return subprocess.run(
        asked, cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


def commit(folder: Path) -> None:
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "a")


@pytest.mark.process
def test_the_contract_is_compared_with_the_commit_before_it(contract: Path) -> None:
    assert check.reference(contract) is None  # no repository
    git(contract, "init", "-q")
    assert check.reference(contract) is None  # no commit
    text = (contract / "ultraserve/v1/control.proto").read_text()
    change(contract, "control.proto", "service ControlService", "service Control")
    commit(contract)
    assert check.reference(contract) is None  # what it had then made no promise
    (contract / "ultraserve/v1/control.proto").write_text(text)
    assert check.reference(contract) is None  # the change that makes it compares with that
    commit(contract)
    assert check.reference(contract) is None  # and so does its own commit
    change(contract, "sleep.proto", "bool paused = 2;", "bool paused = 2;\n  bool dreams = 3;")
    assert check.reference(contract) == "HEAD"
    before = head(contract)
    commit(contract)
    assert check.reference(contract) == before


@pytest.mark.process
def test_a_break_is_found_however_many_commits_ago_it_was_made(
    buf: Path, contract: Path, tmp_path: Path
) -> None:
    git(contract, "init", "-q")
    commit(contract)
    before = head(contract)
    change(contract, "sleep.proto", "bool paused = 2;", "bool paused = 3;")
    commit(contract)
    for number in range(3):
        (contract / f"other-{number}.txt").write_text("another file")
        commit(contract)

    assert check.reference(contract) == before
    check.extract(before, tmp_path / "was", contract)
    assert check.breaking(buf, tmp_path / "was", contract) != []


@pytest.mark.process
def test_a_clone_without_that_commit_says_so(contract: Path, tmp_path: Path) -> None:
    git(contract, "init", "-q")
    commit(contract)
    change(contract, "sleep.proto", "bool paused = 2;", "bool paused = 2;\n  bool dreams = 3;")
    commit(contract)
    shallow = tmp_path / "shallow"
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{contract}", str(shallow))

    with pytest.raises(check.TooShallow):
        check.reference(shallow)
    change(shallow, "sleep.proto", "bool dreams = 3;", "int32 dreams = 3;")
    assert check.reference(shallow) == "HEAD"  # which is there


@pytest.mark.process
def test_the_contract_of_a_commit_is_taken_out_as_it_was(contract: Path, tmp_path: Path) -> None:
    git(contract, "init", "-q")
    commit(contract)
    before = (contract / "ultraserve/v1/sleep.proto").read_text()
    change(contract, "sleep.proto", "bool paused = 2;", "bool paused = 3;")
    check.extract("HEAD", tmp_path / "was", contract)

    assert (tmp_path / "was/ultraserve/v1/sleep.proto").read_text() == before


@pytest.mark.process
def test_the_generated_code_is_up_to_date() -> None:
    assert check.stale_code() == []
