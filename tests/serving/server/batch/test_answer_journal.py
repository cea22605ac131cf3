"""The journal of answers: whatever is cut off at its end, no request has two lines."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.server.batch.answer_journal import ERRORS, OUTPUT, AnswerJournal


def an_answer(journal: AnswerJournal, number: int, status: int = 200) -> None:
    body = b'{"choices": [],\n "n": %d}' % number
    journal.answer(number, f"request-{number}", status=status, request_id="r", body=body)


def test_answers_and_errors_are_lines_of_two_files(tmp_path: Path) -> None:
    journal = AnswerJournal(tmp_path / "batch_1")
    an_answer(journal, 0)
    an_answer(journal, 2, status=400)
    journal.fail(1, "request-1", code="batch_expired", message="too late")
    journal.close()
    (line,) = map(json.loads, (tmp_path / "batch_1" / OUTPUT).read_text().splitlines())
    assert line == {
        "id": "batch_req_batch_1_0",
        "custom_id": "request-0",
        "response": {"status_code": 200, "request_id": "r", "body": {"choices": [], "n": 0}},
        "error": None,
    }
    errors = [*map(json.loads, (tmp_path / "batch_1" / ERRORS).read_text().splitlines())]
    assert errors[0]["response"]["status_code"] == 400
    assert errors[1]["error"] == {"code": "batch_expired", "message": "too late"}


@given(statuses=st.lists(st.sampled_from((200, 400)), min_size=1, max_size=8), data=st.data())
def test_a_torn_journal_is_read_up_to_its_last_whole_line(
    statuses: list[int], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("journal") / "batch_1"
    journal = AnswerJournal(directory)
    for number, status in enumerate(statuses):
        an_answer(journal, number, status)
    journal.close()
    kept = 0
    for name in (OUTPUT, ERRORS):
        content = (directory / name).read_bytes()
        cut = data.draw(st.integers(0, len(content)))
        (directory / name).write_bytes(content[:cut])
        kept += content[:cut].count(b"\n")
    again = AnswerJournal(directory)
    assert len(again.completed) + len(again.failed) == kept
    for number in range(len(statuses)):
        if not again.has(number):
            an_answer(again, number)
    again.close()
    lines = b"".join((directory / name).read_bytes() for name in (OUTPUT, ERRORS)).splitlines()
    names = sorted(json.loads(line)["custom_id"] for line in lines)
    assert names == [f"request-{number}" for number in range(len(statuses))]


def test_a_full_disk_leaves_no_part_of_a_line(tmp_path: Path) -> None:
    journal = AnswerJournal(tmp_path / "batch_1")
    an_answer(journal, 0)
    whole = (tmp_path / "batch_1" / OUTPUT).read_bytes()

    class Full:
        """The output's file on a disk with room for 10 bytes."""

        def __init__(self) -> None:
            self.file = journal._output

        def fileno(self) -> int:
            return self.file.fileno()

        def write(self, content: bytes) -> int:
            return self.file.write(content[:10])

        def truncate(self, size: int) -> int:
            return self.file.truncate(size)

    output = journal._output
    journal._output = Full()  # type: ignore[assignment]
    with pytest.raises(OSError, match="No space left"):
        an_answer(journal, 1)
    assert (tmp_path / "batch_1" / OUTPUT).read_bytes() == whole
    assert not journal.has(1)
    journal._output = output
    journal.close()
