"""The systemd unit: what systemd itself says of it, and that the server means what it says.

There is no systemd running here: the unit was read by it, and never started.
"""

import configparser
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from serving.access.control_key import read_control_key
from serving.access.secret import draw_secret
from tests.deploy.docker.image_file import PREFIX, ROOT
from tests.deploy.served_command import end_wall_s_max, gateway_options_of, served, settings_of
from tests.system_programs import program

UNIT = ROOT / "deploy/systemd/ultraserve.service"
EXPOSURE_MAX = 2.0
"""systemd-analyze's own scale, 0 to 10; below 2.1 it says OK. Serving needs a network: 1.5."""


def settings_by_section() -> dict[str, list[tuple[str, str]]]:
    """Each section's lines in their order; a name may be there several times."""
    found: dict[str, list[tuple[str, str]]] = {}
    for line in UNIT.read_text(encoding="utf-8").replace("\\\n", "").splitlines():
        if line.startswith("["):
            found[line.strip("[]")] = lines = []
        elif line and not line.startswith("#"):
            name, _, value = line.partition("=")
            lines.append((name, value))
    return found


def value(name: str, section: str = "Service") -> str:
    (found,) = (value for each, value in settings_by_section()[section] if each == name)
    return found


def environment() -> dict[str, str]:
    lines = [value for name, value in settings_by_section()["Service"] if name == "Environment"]
    pairs = (word.partition("=") for line in lines for word in shlex.split(line))
    return {name: value for name, _, value in pairs}


def words() -> list[str]:
    """The command's words after the program, variables filled in as systemd does it."""
    filled = value("ExecStart").replace("$ULTRASERVE_FLAGS", environment()["ULTRASERVE_FLAGS"])
    return shlex.split(filled)[1:]


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit with the command of this checkout: systemd looks whether it is there."""
    command = str(Path(sys.executable).with_name("ultraserve"))
    here = tmp_path / UNIT.name
    here.write_text(UNIT.read_text().replace(f"{PREFIX}/bin/ultraserve", command), "utf-8")
    return here


def test_systemd_finds_nothing_wrong_with_it(unit: Path) -> None:
    said = subprocess.run(
        [program("systemd-analyze"), "verify", str(unit)],
        check=False,
        capture_output=True,
        text=True,
    )

    assert (said.returncode, said.stderr) == (0, "")


def test_systemd_would_find_a_wrong_word(unit: Path) -> None:
    unit.write_text(unit.read_text().replace("ProtectSystem=strict", "ProtectSystem=srict"))

    said = subprocess.run(
        [program("systemd-analyze"), "verify", str(unit)],
        check=False,
        capture_output=True,
        text=True,
    )

    assert "srict" in said.stderr


def test_systemd_calls_it_walled_in(unit: Path) -> None:
    said = subprocess.run(
        [program("systemd-analyze"), "security", "--offline=true", "--no-pager", str(unit)],
        check=True,
        capture_output=True,
        text=True,
    )
    found = re.search(r"Overall exposure level for ultraserve.service: ([\d.]+)", said.stdout)

    assert found is not None
    assert float(found[1]) <= EXPOSURE_MAX


def test_it_is_one_section_each_and_starts_with_the_system() -> None:
    assert list(settings_by_section()) == ["Unit", "Service", "Install"]
    parser = configparser.RawConfigParser(strict=False)
    parser.read_string(UNIT.read_text(encoding="utf-8"))
    assert value("WantedBy", "Install") == "multi-user.target"


def test_the_command_is_one_that_the_server_takes(tmp_path: Path) -> None:
    key = tmp_path / "control.key"
    key.write_text(draw_secret(), encoding="utf-8")
    key.chmod(0o600)
    args = served(words())
    credentials = [
        line.partition(":")[0]
        for name, line in settings_by_section()["Service"]
        if name == "LoadCredential"
    ]

    assert [str(args.key_file), str(args.control_key_file)] == [
        f"${{CREDENTIALS_DIRECTORY}}/{name}" for name in credentials
    ]
    args.control_key_file = key
    assert read_control_key(key)
    assert gateway_options_of(args, tmp_path / "keys.toml", {}).settings.control_key_file == key
    assert settings_of(args).chips == 4
    assert args.host == "127.0.0.1"


def test_it_is_given_the_time_that_its_end_takes() -> None:
    found = re.fullmatch(r"(\d+)s", value("TimeoutStopSec"))

    assert found is not None
    assert int(found[1]) > end_wall_s_max(served(words()))
    assert value("KillMode") == "mixed"


def test_its_type_is_true() -> None:
    """`notify` would wait for a word that nothing in the product sends."""
    senders = [
        path
        for room in ("serving", "emulator")
        for path in (ROOT / room).rglob("*.py")
        if re.search("NOTIFY_SOCKET|sd_notify", path.read_text(encoding="utf-8"))
    ]

    assert value("Type") == "exec"
    assert senders == []


def test_it_may_write_where_the_server_writes_and_run_what_lies_there() -> None:
    assert environment()["XDG_RUNTIME_DIR"] == f"/run/{value('RuntimeDirectory')}"
    assert environment()["HOME"] == value("WorkingDirectory") == "/tmp"
    assert value("PrivateTmp") == "yes"
    # Ray's workers are started by a script in /tmp, and PyTorch and gRPC make code writable.
    names = {name for name, _ in settings_by_section()["Service"]}
    assert not names & {"NoExecPaths", "MemoryDenyWriteExecute", "ProcSubset"}
