"""The checked-in code is what the generator makes of the contract, and nothing else."""

import subprocess
from pathlib import Path

import pytest

from protos import generate
from protos.ultraserve.v1 import control_pb2 as pb

pytestmark = pytest.mark.process


def test_the_checked_in_code_is_what_the_generator_makes(tmp_path: Path) -> None:
    made = {path.relative_to(tmp_path): path.read_text() for path in generate.generate(tmp_path)}
    kept = {
        path.relative_to(generate.SOURCES): path.read_text()
        for path in generate.SOURCES.rglob("*_pb2*.py*")
        if path.suffix in (".py", ".pyi")
    }

    assert len(made) == 32  # two of each file, and two of the service
    assert made == kept


@pytest.mark.parametrize(
    "code",
    [
        "from {}ultraserve.v1 import control_pb2 as ultraserve_dot_v1",
        "import {}ultraserve.v1.control_pb2",
        "BuildTopDescriptorsAndMessages(DESCRIPTOR, '{}ultraserve.v12.control_pb2', _globals)",
    ],
)
def test_a_module_is_prefixed_once(code: str) -> None:
    prefixed = code.format("protos.")

    assert generate.with_prefix(code.format("")) == prefixed
    assert generate.with_prefix(prefixed) == prefixed


@pytest.mark.parametrize(
    "code", ["'/ultraserve.v1.ControlService/Heal'", "# source: ultraserve/v1/control.proto"]
)
def test_names_on_the_wire_are_left_alone(code: str) -> None:
    assert generate.with_prefix(code) == code


def test_the_wire_has_the_contract_s_own_names() -> None:
    assert pb.DESCRIPTOR.name == "ultraserve/v1/control.proto"
    assert pb.DESCRIPTOR.package == "ultraserve.v1"
    assert list(pb.DESCRIPTOR.services_by_name) == ["ControlService"]
    assert pb.HealRequest.__module__ == "protos.ultraserve.v1.control_pb2"
    assert pb.GetStateResponse().state.DESCRIPTOR.file.name == "ultraserve/v1/machine.proto"


def test_a_contract_that_does_not_compile_ends_the_generator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken.proto").write_text('syntax = "proto3"; message { }')
    monkeypatch.setattr(generate, "SOURCES", tmp_path)

    with pytest.raises(subprocess.CalledProcessError):
        generate.generate(tmp_path)
    assert "broken.proto" in capfd.readouterr().err
    assert sorted(tmp_path.iterdir()) == [tmp_path / "broken.proto"]
