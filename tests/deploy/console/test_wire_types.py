"""The page's types are those of what the stream says: checked in, and up to date."""

import msgspec
import pytest

from deploy import console_types
from serving.wire.machine_snapshot import MachineSnapshot
from serving.wire.machine_state import Plain


def test_the_types_that_are_checked_in_are_what_the_generator_makes() -> None:
    assert console_types.TARGET.read_text() == console_types.text(), "run: make protos"
    assert console_types.main(["--check"]) == 0


def test_a_type_has_the_fields_that_its_json_has() -> None:
    made = console_types.text()
    (declared,) = [each for each in made.split("\n\n") if "interface MachineSnapshot " in each]
    named = [line.strip().partition(":")[0] for line in declared.splitlines()[1:-1]]

    assert tuple(named) == MachineSnapshot.__struct_encode_fields__


def test_a_file_that_is_not_what_the_generator_makes_is_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console_types, "text", lambda: "")

    assert console_types.main(["--check"]) == 1
    assert "report.ts" in capsys.readouterr().err


class Words(Plain, frozen=True, kw_only=True):
    maybe: tuple[str | None, ...]
    counts: dict[str, tuple[int, ...]]


def test_what_may_be_null_in_a_list_is_in_brackets() -> None:
    (kind,) = msgspec.inspect.multi_type_info([Words])
    fields = {field.name: console_types._name(field.type) for field in kind.fields}

    assert fields == {"maybe": "(string | null)[]", "counts": "Record<string, number[]>"}
