from pathlib import Path

import pytest

from loadgen.errors import FileError
from loadgen.workloads.workload_spec import read_output_schema


def test_a_schema_is_read_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    path.write_text('{"type": "object",\n "properties": {"name": {"type": "string"}}}')

    assert read_output_schema(path) == {
        "type": "object",
        "properties": {"name": {"type": "string"}},
    }


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ('{"type":\n', ":2: is not JSON: "),
        ("[1]", ":1: expected a JSON object"),
        ("[" * 100_000, ": is nested too deep"),
        ("", ":1: is not JSON: "),
    ],
)
def test_what_is_no_object_is_refused_with_file_line_and_reason(
    tmp_path: Path, text: str, where: str
) -> None:
    path = tmp_path / "schema.json"
    path.write_text(text)

    with pytest.raises(FileError) as refused:
        read_output_schema(path)

    assert str(refused.value).startswith(f"{path}{where}")
