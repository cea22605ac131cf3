import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from emulator.errors import ConfigError, NeuronError
from emulator.memory import core_claims
from emulator.memory.core_claims import CoreClaim, claims_directory

ROOT = Path(__file__).resolve().parents[3]
_HOLDER = """
import sys
from pathlib import Path
from emulator.memory.core_claims import CoreClaim
claim = CoreClaim(system=sys.argv[2], ultraserver="a", first_chip=int(sys.argv[3]),
                  chips=int(sys.argv[4]), cores_per_chip=4, directory=Path(sys.argv[1]))
print("held", flush=True)
if sys.stdin.readline():
    claim.release()
    print("released", flush=True)
    sys.stdin.readline()
"""


@contextmanager
def held(
    directory: Path, *, first_chip: int, chips: int, system: str = "trn3"
) -> Iterator["subprocess.Popen[str]"]:
    """Another process that has claimed chips, until it is told or the block ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(directory), system, str(first_chip), str(chips)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def claim(
    directory: Path, *, first_chip: int, chips: int, system: str = "trn3", ultraserver: str = "a"
) -> CoreClaim:
    return CoreClaim(
        system=system,
        ultraserver=ultraserver,
        first_chip=first_chip,
        chips=chips,
        cores_per_chip=4,
        directory=directory,
    )


@pytest.mark.process
def test_chips_of_another_process_are_refused_and_its_id_is_named(tmp_path: Path) -> None:
    with held(tmp_path, first_chip=2, chips=2) as holder, pytest.raises(NeuronError) as caught:
        claim(tmp_path, first_chip=0, chips=4)

    assert str(caught.value) == (
        "NRT_NC_BUSY (1005): NEURON_RT_VISIBLE_CORES=0-15: expected cores that no other process "
        f"has; 8-11: held by process {holder.pid}"
    )


@pytest.mark.process
def test_a_refused_claim_leaves_nothing_behind(tmp_path: Path) -> None:
    with held(tmp_path, first_chip=2, chips=1):
        with pytest.raises(NeuronError):
            claim(tmp_path, first_chip=0, chips=3)
        with held(tmp_path, first_chip=0, chips=2):
            pass


@pytest.mark.process
def test_chips_beside_and_chips_of_another_ultraserver_are_free(tmp_path: Path) -> None:
    with held(tmp_path, first_chip=2, chips=2):
        claim(tmp_path, first_chip=0, chips=2).release()
        claim(tmp_path, first_chip=4, chips=140).release()
        claim(tmp_path, first_chip=2, chips=2, system="trn3-gen1").release()
        claim(tmp_path, first_chip=2, chips=2, ultraserver="b").release()


@pytest.mark.process
def test_a_claim_ends_with_its_process_however_that_ends(tmp_path: Path) -> None:
    with held(tmp_path, first_chip=0, chips=4):
        pass  # the block kills it
    claim(tmp_path, first_chip=0, chips=4).release()


@pytest.mark.process
def test_a_released_claim_is_free_while_its_process_lives(tmp_path: Path) -> None:
    with held(tmp_path, first_chip=0, chips=4) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        holder.stdin.write("release\n")
        holder.stdin.flush()
        assert holder.stdout.readline() == "released\n"
        own = claim(tmp_path, first_chip=0, chips=4)
        own.release()
        own.release()  # idempotent


def test_a_claims_file_is_the_users_own(tmp_path: Path) -> None:
    directory = tmp_path / "new"
    own = claim(directory, first_chip=0, chips=1)

    assert directory.stat().st_mode & 0o777 == 0o700
    assert (directory / "trn3.a.claims").stat().st_mode & 0o777 == 0o600
    own.release()


@pytest.mark.process
def test_who_lets_go_last_leaves_no_file(tmp_path: Path) -> None:
    own = claim(tmp_path, first_chip=0, chips=1)
    with held(tmp_path, first_chip=2, chips=2):
        own.release()
        assert [path.name for path in tmp_path.iterdir()] == ["trn3.a.claims"]
        with pytest.raises(NeuronError):
            claim(tmp_path, first_chip=3, chips=1)
    claim(tmp_path, first_chip=2, chips=2).release()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.process
def test_of_two_that_let_go_together_one_removes_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = claim(tmp_path, first_chip=0, chips=1)
    with held(tmp_path, first_chip=2, chips=2) as other:
        lock_range = core_claims._lock_range

        def looks_first(file: int, start: int, length: int) -> bool:
            """The other process lets go between our look at the file and its closing."""
            is_alone = lock_range(file, start, length)
            tell(other, "released")
            return is_alone

        monkeypatch.setattr(core_claims, "_lock_range", looks_first)
        own.release()
        assert list(tmp_path.iterdir()) == []


_LOOKER = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.readline()
fcntl.lockf(file, fcntl.LOCK_UN)
print("released", flush=True)
"""


@pytest.mark.process
def test_chips_beside_one_that_lets_go_in_that_moment_are_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = tmp_path / "trn3.a.claims"
    claims.touch(mode=0o600)
    with subprocess.Popen(
        [sys.executable, "-c", _LOOKER, str(claims)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as looker:
        assert looker.stdout is not None
        assert looker.stdout.readline() == "held\n"
        waits: list[float] = []

        def sleep(seconds: float) -> None:
            waits.append(seconds)
            if len(waits) == 1:
                tell(looker, "released")

        monkeypatch.setattr("emulator.memory.core_claims.time.sleep", sleep)
        claim(tmp_path, first_chip=3, chips=1).release()
    assert len(waits) == 1


def tell(process: "subprocess.Popen[str]", expected: str) -> None:
    """Let another process go on, until it has said that it did."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("go on\n")
    process.stdin.flush()
    assert process.stdout.readline() == f"{expected}\n"


def test_a_file_that_its_holder_removes_meanwhile_is_not_claimed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, removed = os.open, []

    def opens_too_early(path: Path, *args: int, **more: int) -> int:
        file = opened(path, *args, **more)
        if not removed:
            removed.append(path)
            Path(path).unlink()
        return file

    monkeypatch.setattr(os, "open", opens_too_early)
    own = claim(tmp_path, first_chip=0, chips=1)
    assert (tmp_path / "trn3.a.claims").exists()
    own.release()
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")

    with pytest.raises(ConfigError, match="runtime directory"):
        claim(tmp_path / "link", first_chip=0, chips=1)


@pytest.mark.parametrize("target", ["nothing", "file"])
def test_what_is_no_directory_is_refused(target: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / target)
    for path in (tmp_path / "link", tmp_path / "file"):
        with pytest.raises(ConfigError, match="runtime directory"):
            claim(path, first_chip=0, chips=1)


@pytest.mark.parametrize("mode", [0o777, 0o750, 0o701])
def test_a_directory_that_others_can_enter_is_refused(mode: int, tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(mode)

    with pytest.raises(ConfigError, match="runtime directory"):
        claim(tmp_path / "open", first_chip=0, chips=1)


def test_claims_lie_in_the_sessions_directory_or_a_users_own_temporary_one() -> None:
    assert claims_directory({"XDG_RUNTIME_DIR": "/run/user/7"}) == Path("/run/user/7/ultraserve")
    assert claims_directory({}).name == f"ultraserve-{os.getuid()}"
