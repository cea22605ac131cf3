import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import FileError, OptionError
from loadgen.records.result import ABORTED, Result
from loadgen.records.results_file import ResultsWriter, read_results
from loadgen.records.run_record import (
    AskedArrivals,
    ClassHeader,
    LoopLag,
    Recount,
    RunEnd,
    RunHeader,
    RunRecord,
    SendSummary,
)
from loadgen.records.server_reading import ServerReading

HEADER = RunHeader(
    command="ultraserve-loadgen run --url http://h",
    url="http://h",
    model="m",
    seed=3,
    workers=2,
    started_at="2025-01-01T00:00:00+00:00",
    classes=(
        ClassHeader(
            name="chat",
            api="grpc",
            workload="some",
            prompts="ids",
            arrivals=AskedArrivals(words="Poisson", time="emulated", rate_per_s=4.0, gap_cv=1.0),
            sessions=2,
            requests=3,
            notes=("a note",),
        ),
    ),
    start=ServerReading(dilation=4.0, info={"chips": "4"}),
    skip_s=1.5,
)
END = RunEnd(
    end=ServerReading(problem="status 404"),
    wall_s=2.5,
    sending={"chat": SendSummary(held_back=1, unsent=2, interrupted=True, repeated=3)},
    lags=(LoopLag(worker=1, p50_ms=0.1, p99_ms=0.2, max_ms=3.0, cpu_share=0.5),),
    recount=Recount(replies=2, apart=1, usage_tokens=9, counted_tokens=8),
    problem="worker 0 died",
)


def result(request_id: int, chunk_ns: list[int], **fields: object) -> Result:
    given: dict[str, object] = {
        "traffic_class": "chat",
        "session_id": 1,
        "turn": 0,
        "worker": 0,
        "intended_ns": 5,
        "sent_ns": 6,
        "ended_ns": 2**40,
        "asked_input_tokens": 7,
        "asked_output_tokens": 8,
        "input_tokens": None,
        "output_tokens": 9,
    }
    values = given | fields
    return Result(request_id=request_id, chunk_ns=np.array(chunk_ns, dtype=np.int64), **values)  # type: ignore[arg-type]


def same(one: Result, other: Result) -> bool:
    fields = [name for name in Result.__slots__ if name != "chunk_ns"]
    assert one.chunk_ns.dtype == other.chunk_ns.dtype == np.int64
    return [getattr(one, name) for name in fields] == [
        getattr(other, name) for name in fields
    ] and (one.chunk_ns.tolist() == other.chunk_ns.tolist())


def write_results(path: Path, record: RunRecord) -> None:
    with ResultsWriter(path) as writer:
        writer.header(record.header)
        for each in record.results:
            writer.result(each)
        assert record.skipped is not None
        assert record.end is not None
        writer.skipped(record.skipped)
        writer.end(record.end)


RECORD = RunRecord(
    header=HEADER,
    results=[
        result(0, [6, 9], text='said "so"\nand so', cached_tokens=4),
        result(1, [], error=ABORTED, message="the run was interrupted"),
    ],
    end=END,
    skipped=ServerReading(emulated_s=1.0),
)


def test_a_record_is_shown_without_its_results() -> None:
    """The event loop shows what its main task returned as it ends: a million requests take long."""
    assert "chunk_ns" not in repr(RECORD)
    assert len(repr(RECORD)) < 4_000


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    write_results(path, RECORD)
    back = read_results(path)

    assert (back.header, back.end, back.skipped) == (HEADER, END, RECORD.skipped)
    assert len(back.results) == 2
    assert all(map(same, back.results, RECORD.results))


def test_every_line_is_json_with_the_names_of_the_record(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    write_results(path, RECORD)
    first, reply, _, skipped, end = [json.loads(line) for line in path.read_text().splitlines()]

    assert first["format"] == "ultraserve-loadgen/1"
    assert first["run"]["classes"][0]["arrivals"]["rate_per_s"] == 4.0
    assert (reply["request_id"], reply["chunk_ns"], reply["output_tokens"]) == (0, [6, 9], 9)
    assert skipped["skipped"]["emulated_s"] == 1.0
    assert end["end"]["sending"]["chat"]["unsent"] == 2


@given(st.integers(0, 4_000))
def test_wherever_a_killed_process_left_off_what_was_whole_is_read(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    path = tmp_path_factory.mktemp("cut") / "r.jsonl"
    write_results(path, RECORD)
    whole = path.read_bytes()
    first_end = whole.index(b"\n") + 1
    kept = whole[: min(len(whole), first_end + cut)]
    path.write_bytes(kept)
    back = read_results(path)

    lines = [line for line in kept.split(b"\n")[1:] if line]
    assert back.header == HEADER
    left_out = len(lines) - (
        len(back.results) + (back.skipped is not None) + (back.end is not None)
    )
    assert 0 <= left_out <= (not kept.endswith(b"\n"))
    assert back.cut == bool(left_out)


def edited(tmp_path: Path, line: int, text: str) -> Path:
    path = tmp_path / "edited.jsonl"
    path.unlink(missing_ok=True)
    write_results(path, RECORD)
    lines = path.read_text().splitlines()
    lines[line - 1] = text
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize(
    ("line", "text", "reason"),
    [
        (1, '{"id": 0}', "does not begin a results file of ultraserve-loadgen/1"),
        (1, "not json", "does not begin a results file"),
        (2, "not json", "is not JSON"),
        (2, '{"request_id": 0}', "missing required field"),
        (3, '{"format": "ultraserve-loadgen/1", "run": {}}', "begins a second run"),
        (4, '{"skipped": 3}', "Expected `object`, got `int`"),
        (4, '{"end": {"end": {}, "wall_s": 1.0, "sending": {}}}', None),
    ],
)
def test_a_malformed_line_is_refused_with_file_line_and_reason(
    tmp_path: Path, line: int, text: str, reason: str | None
) -> None:
    path = edited(tmp_path, line, text)
    with pytest.raises(FileError) as caught:
        read_results(path)

    message = str(caught.value)
    if reason is None:  # the end is fine; what stands behind it is not
        assert message == f"{path}:{line + 1}: stands after the end of the run"
    else:
        assert message.startswith(f"{path}:{line}: ")
        assert reason in message


def test_times_out_of_order_and_chunks_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    write_results(path, RECORD)
    good = path.read_text().splitlines()[1]
    for bad, reason in (
        (good.replace('"sent_ns":6', '"sent_ns":4'), "sent at 4 ns, before 5 ns"),
        (good.replace("[6,9]", "[6,9.5]"), "chunk_ns is a list of whole numbers"),
    ):
        assert bad != good
        with pytest.raises(FileError, match=reason):
            read_results(edited(tmp_path, 2, bad))


def test_another_format_an_empty_file_and_none_are_refused(tmp_path: Path) -> None:
    newer = edited(tmp_path, 1, '{"format": "ultraserve-loadgen/9", "run": null}')
    with pytest.raises(FileError, match="is of format ultraserve-loadgen/9, not"):
        read_results(newer)
    empty = tmp_path / "empty"
    empty.touch()
    with pytest.raises(FileError, match="empty: is empty"):
        read_results(empty)
    with pytest.raises(FileError, match="No such file"):
        read_results(tmp_path / "none")
    with pytest.raises(OptionError, match="--results"):
        write_results(tmp_path, RECORD)


def test_a_full_disk_is_a_line() -> None:
    with pytest.raises(OptionError, match=r"--results=/dev/full: .*No space left"):
        write_results(Path("/dev/full"), RECORD)
