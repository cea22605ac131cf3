"""A front's program: where it is, and a command line that has what smg asks and no secret."""

from pathlib import Path

import pytest

from emulator.errors import ConfigError
from serving.process.front_program import (
    KEYS_VARIABLE,
    PROGRAM_VARIABLE,
    FrontProgram,
    find_front,
    handshake_port,
)


def program(directory: Path, **changed: object) -> FrontProgram:
    fields = {
        "python": Path("/smg/bin/python"),
        "host": "127.0.0.1",
        "port": 8080,
        "metrics_port": 29000,
        "model": directory / "weights",
        "served": ("org/model",),
        "directory": directory,
        "requests_max": 6,
        "body_bytes_max": 7,
        "request_wall_s_max": 60.0,
        "drain_wall_s_max": 0.0,
    }
    return FrontProgram(**(fields | changed))  # type: ignore[arg-type]


def installed(directory: Path) -> Path:
    """A folder that looks like an environment with smg."""
    for name in ("smg", "python"):
        (directory / name).touch(mode=0o700)
    return directory


def test_the_port_is_the_one_of_smg_s_guide() -> None:
    assert handshake_port(Path("/tmp/smg-zmq/engine-0")) == 22670


def test_it_is_found_on_the_path_or_by_its_variable(tmp_path: Path) -> None:
    folder = installed(tmp_path)

    assert find_front({"PATH": str(folder)}) == folder / "python"
    assert find_front({"PATH": "", PROGRAM_VARIABLE: str(folder / "smg")}) == folder / "python"


@pytest.mark.parametrize("named", [{}, {PROGRAM_VARIABLE: "/nowhere/smg"}])
def test_a_missing_one_is_one_line_that_says_how_to_get_it(named: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"front=smg: expected smg on PATH.*pip install smg"):
        find_front({"PATH": "", **named})


def test_keys_are_in_the_environment_alone(tmp_path: Path) -> None:
    made = program(tmp_path, keys=("sk-one", "sk-two"))

    assert not any("sk-one" in word for word in made.command())
    assert made.environment({})[KEYS_VARIABLE] == '["sk-one", "sk-two"]'


def test_the_model_has_the_name_that_clients_use(tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    made = program(tmp_path, served=("org/model", "other"))

    made.prepare()
    words = made.command()

    assert words[words.index("--model-path") + 1] == "org/model"
    assert (tmp_path / "org/model").resolve() == tmp_path / "weights"
    assert words[words.index("--model-alias") + 1] == "other=org/model"
