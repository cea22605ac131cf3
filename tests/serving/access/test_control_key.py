"""The control service's key of a run: where it lies, who can read it, and when it is gone."""

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from emulator.errors import ConfigError
from serving.access.control_key import (
    ENVIRONMENT,
    control_key_path,
    find_console_port,
    find_control_key,
    held_control_key,
    noted_console_port,
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


OTHER_SERVER = """
import os, sys
from serving.access.control_key import held_control_key
with held_control_key(int(sys.argv[1]), os.environ):
    print("held", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.process
def test_a_second_server_on_the_port_leaves_the_first_one_s_key_alone(
    runtime: dict[str, str],
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OTHER_SERVER, str(PORT)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | runtime,
    ) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "held\n"
        key = find_control_key(PORT, runtime)
        with (
            pytest.raises(ConfigError, match=rf"^control_port={PORT}: .* process {first.pid} has"),
            held_control_key(PORT, runtime),
        ):
            pass
        assert find_control_key(PORT, runtime) == key is not None
        first.communicate("\n")
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


def linked_key(runtime: dict[str, str], tmp_path: Path) -> Path:
    """A secret of this user's elsewhere, and a link to it where a server's key would be."""
    path = control_key_path(PORT, runtime)
    path.parent.mkdir(mode=0o700)
    path.symlink_to(own(tmp_path, "a secret of this user's own, of enough length"))
    return path


def test_no_other_file_is_shown_for_the_server_s_key(
    runtime: dict[str, str], tmp_path: Path
) -> None:
    linked_key(runtime, tmp_path)
    with pytest.raises(ConfigError, match=r"^control_key_file=.*: expected a file to read"):
        find_control_key(PORT, runtime)


@pytest.mark.parametrize("mode", [0o770, 0o703, 0o740])
def test_nothing_is_taken_from_a_directory_that_others_can_enter(
    mode: int, runtime: dict[str, str]
) -> None:
    with held_control_key(PORT, runtime):
        directory = control_key_path(PORT, runtime).parent
        directory.chmod(mode)
        with pytest.raises(ConfigError, match=r"^runtime directory=.*mode 700"):
            find_control_key(PORT, runtime)
        with pytest.raises(ConfigError, match=r"^runtime directory="), held_control_key(2, runtime):
            pass
        directory.chmod(0o700)


def test_nothing_is_taken_from_a_directory_of_another_user(
    runtime: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with held_control_key(PORT, runtime):
        pass
    somebody = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: somebody)
    with pytest.raises(ConfigError, match=r"^runtime directory="):
        find_control_key(PORT, runtime)


def test_a_link_in_the_place_of_the_directory_is_not_followed(
    runtime: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    own(tmp_path / "elsewhere", "k" * 40).rename(tmp_path / "elsewhere" / f"control-{PORT}.key")
    (tmp_path / "ultraserve").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match=r"^runtime directory="):
        find_control_key(PORT, runtime)


def test_a_server_s_key_is_for_this_machine(runtime: dict[str, str]) -> None:
    with held_control_key(PORT, runtime):
        for variables in (runtime, runtime | {ENVIRONMENT: ""}, runtime | {ENVIRONMENT: " \n"}):
            assert find_control_key(PORT, variables, on_this_machine=False) is None
    given = runtime | {ENVIRONMENT: f"{'k' * 40}\n"}
    assert find_control_key(PORT, given, on_this_machine=False) == "k" * 40


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", mode=0o600)
    with pytest.raises(ConfigError, match=r"^control_key_file=.*: expected one line"):
        read_control_key(tmp_path / "pipe")


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


def test_a_console_s_port_is_noted_as_long_as_its_server_runs(tmp_path: Path) -> None:
    environment = {"XDG_RUNTIME_DIR": str(tmp_path)}
    assert find_console_port(50_051, environment) is None
    with noted_console_port(50_051, 60_000, environment):
        assert find_console_port(50_051, environment) == 60_000
        assert find_console_port(50_052, environment) is None
    assert find_console_port(50_051, environment) is None


def test_a_note_in_a_directory_that_others_may_write_is_refused(tmp_path: Path) -> None:
    environment = {"XDG_RUNTIME_DIR": str(tmp_path)}
    with noted_console_port(50_051, 60_000, environment):
        (tmp_path / "ultraserve").chmod(0o777)
        with pytest.raises(ConfigError):
            find_console_port(50_051, environment)
