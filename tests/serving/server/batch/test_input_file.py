"""Input files: what is right is read back, what is wrong is told by line."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.server.batch.input_file import ERRORS_MAX, InputFile, WrongInput, read_input
from tests.serving.server.batch.served_batch import CHAT, chat, jsonl


def read(path: Path, content: bytes, *, requests_max: int = 1_000) -> InputFile:
    path.write_bytes(content)
    return read_input(path, endpoint=CHAT, requests_max=requests_max, body_bytes_max=10_000)


@given(
    names=st.lists(st.text(min_size=1, max_size=20), min_size=1, max_size=10, unique=True),
    blanks=st.lists(st.sampled_from((b"", b"\n", b"  \n", b"\r\n")), min_size=10, max_size=10),
)
def test_every_request_is_read_back_by_its_number(
    names: list[str], blanks: list[bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    lines = [jsonl([chat(name, seed=number)]) for number, name in enumerate(names)]
    content = b"".join(blank + line for blank, line in zip(blanks, lines, strict=False))
    requests = read(tmp_path_factory.mktemp("input") / "a", content)
    assert len(requests) == len(names)
    for number in reversed(range(len(names))):
        request = requests.request(number)
        assert request.custom_id == names[number]
        assert json.loads(request.body)["seed"] == number
    requests.close()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"{", "the line is no JSON object: "),
        (b"[]", "the line is no JSON object: "),
        (b"\xff", "the line is no JSON object: "),
        ({"custom_id": None}, "custom_id: expected a text of 1 to 512 characters, got null"),
        ({"custom_id": ""}, 'custom_id: expected a text of 1 to 512 characters, got ""'),
        ({"custom_id": "a"}, "custom_id: expected another for each request, got 'a' again"),
        ({"method": "GET"}, 'method: expected POST, got "GET"'),
        ({"url": "/v1/models"}, f'url: expected {CHAT}, the batch\'s endpoint, got "/v1/models"'),
        ({"body": []}, "body: expected an object, got []"),
        ({"body": {"stream": True}}, "body.stream: expected false: a batch's answers are whole"),
        (b'{"body": "' + b"x" * 20_000 + b'"}', "the line is longer than 13,072 bytes"),
    ],
)
def test_a_wrong_line_is_told_with_its_number(
    tmp_path: Path, line: bytes | dict[str, Any], words: str
) -> None:
    if isinstance(line, dict):
        line = jsonl([chat("b") | line]).strip()
    with pytest.raises(WrongInput) as wrong:
        read(tmp_path / "a", jsonl([chat("a")]) + b"\n" + line + b"\n" + jsonl([chat("c")]))
    (error,) = wrong.value.errors
    assert error.line == 3
    assert error.message.startswith(words)


def test_files_without_requests_or_with_too_many_are_wrong(tmp_path: Path) -> None:
    with pytest.raises(WrongInput, match="the file has no request"):
        read(tmp_path / "a", b"\n\n")
    three = jsonl([chat(name) for name in "abc"])
    with pytest.raises(WrongInput, match="more than 2 requests"):
        read(tmp_path / "a", three, requests_max=2)
    with pytest.raises(WrongInput) as wrong:
        read(tmp_path / "a", b"x\n" * (ERRORS_MAX + 5))
    assert len(wrong.value.errors) == ERRORS_MAX
