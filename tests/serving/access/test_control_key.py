"""The control service's key of a run: where it lies, who can read it, and when it is gone."""

import os
import stat
import tempfile
from pathlib import Path

import pytest

from emulator.errors import ConfigError
from serving.access.control_key import (
    ENVIRONMENT,
    control_key_path,
    find_control_key,
    held_control_key,
    read_control_key,
)

PORT = 50_051


@pytest.fixture
def runtime(tmp_path: Path) -> dict[str, str]:
    """An environment with a session's directory of its own."""
    return {"XDG_RUNTIME_DIR": str(tmp_path)}


def test_a_command_of_the_same_user_finds_the_key_while_the_server_runs(
    runtime: dict[str, str], tmp_path: Path
) -> None:
    path = tmp_path / "ultraserve" / "control-50051.key"
    assert control_key_path(PORT, runtime) == path
    assert find_control_key(PORT, runtime) is None
    with held_control_key(PORT, runtime) as secret:
        assert len(secret) == 46
        assert find_control_key(PORT, runtime) == secret
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert list(path.parent.iterdir()) == []
    assert find_control_key(PORT, runtime) is None


def test_without_a_session_s_directory_it_lies_below_the_temporary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    assert control_key_path(7, {}) == tmp_path / f"ultraserve-{os.getuid()}" / "control-7.key"


def test_servers_on_two_ports_have_two_keys(runtime: dict[str, str]) -> None:
    with held_control_key(1, runtime) as one, held_control_key(2, runtime) as two:
        assert one != two
        assert (find_control_key(1, runtime), find_control_key(2, runtime)) == (one, two)


def test_what_a_killed_server_left_is_replaced(runtime: dict[str, str]) -> None:
    killed = held_control_key(PORT, runtime)
    left = killed.__enter__()
    with held_control_key(PORT, runtime) as secret:
        assert secret != left
        assert find_control_key(PORT, runtime) == secret
        killed.__exit__(None, None, None)  # it ends late, and leaves its successor's alone
        assert find_control_key(PORT, runtime) == secret
    assert find_control_key(PORT, runtime) is None


def test_a_failure_of_the_server_takes_the_key_with_it(runtime: dict[str, str]) -> None:
    with pytest.raises(RuntimeError), held_control_key(PORT, runtime):
        raise RuntimeError
    assert not control_key_path(PORT, runtime).exists()


def test_no_umask_lets_others_read_it(runtime: dict[str, str]) -> None:
    before = os.umask(0)
    try:
        with held_control_key(PORT, runtime):
            assert stat.S_IMODE(control_key_path(PORT, runtime).stat().st_mode) == 0o600
    finally:
        os.umask(before)


def test_a_directory_that_somebody_made_a_link_of_is_refused(
    runtime: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "ultraserve").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="runtime directory"), held_control_key(PORT, runtime):
        pass
    assert list((tmp_path / "elsewhere").iterdir()) == []


def own(directory: Path, text: str, mode: int = 0o600) -> Path:
    path = directory / "control.key"
    path.touch()
    path.chmod(mode)
    path.write_text(text)
    return path


def test_a_user_s_own_file_is_read_and_stays(runtime: dict[str, str], tmp_path: Path) -> None:
    key = "k" * 32
    path = own(tmp_path, f"{key}\n")
    with held_control_key(PORT, runtime, key_file=path) as secret:
        assert secret == key
        assert not control_key_path(PORT, runtime).exists()
    assert path.exists()
    assert find_control_key(PORT, runtime, key_file=path) == key


def test_a_command_takes_the_file_it_is_given_then_the_variable_then_the_server_s(
    runtime: dict[str, str], tmp_path: Path
) -> None:
    path = own(tmp_path, "f" * 32)
    given = runtime | {ENVIRONMENT: "from the variable"}
    with held_control_key(PORT, runtime) as drawn:
        assert find_control_key(PORT, given, key_file=path) == "f" * 32
        assert find_control_key(PORT, given) == "from the variable"
        assert find_control_key(PORT, runtime | {ENVIRONMENT: ""}) == drawn


@pytest.mark.parametrize(
    "text", ["", "short\n", f"{'k' * 32}\n{'k' * 32}\n", "ä" * 40, "k" * 5_000]
)
def test_what_is_no_key_is_refused_and_not_shown(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        read_control_key(own(tmp_path, text))

    assert str(raised.value).endswith("expected one line with a key of at least 32 characters")
    assert "kkkk" not in str(raised.value)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o610])
def test_a_file_that_others_can_use_is_refused(mode: int, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"expected a file that nobody else can use: chmod 600"):
        read_control_key(own(tmp_path, "k" * 32, mode))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^control_key_file=.*none: expected a file to read"):
        read_control_key(tmp_path / "none")
    with pytest.raises(ConfigError, match=r"^control_key_file="):
        read_control_key(Path(os.devnull))
