import gzip
import json
from pathlib import Path

import pytest

from loadgen.errors import FileError, OptionError
from loadgen.workloads.recording import Recording
from loadgen.workloads.sharegpt import Conversations
from loadgen.workloads.trace_file import read_trace, trace_format
from loadgen.workloads.workload_spec import WorkloadSpec

AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:15:40.0000000,10,1\n"
    "2023-11-16 18:15:42.5000000,11,2\n"
    "2023-11-16 18:15:45.0000000,12,3\n"
)
BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\r\n5,G,1,1,2,API log"
MOONCAKE = '{"timestamp": 0, "input_length": 7, "output_length": 5, "hash_ids": [1]}\n'
CHAT = {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}


def written(folder: Path, text: str) -> Path:
    path = folder / "trace"
    path.write_bytes(text.encode())
    return path


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (AZURE, "azure2023"),
        ("\ufeff" + AZURE.replace("\n", "\r\n"), "azure2023"),
        (BURST, "burstgpt"),
        (MOONCAKE, "mooncake"),
        (json.dumps([CHAT]), "sharegpt"),
        (f"\n {json.dumps([CHAT])}", "sharegpt"),
        (json.dumps(CHAT), "sharegpt"),
    ],
)
def test_a_format_is_known_by_how_the_file_begins(tmp_path: Path, text: str, kind: str) -> None:
    path = written(tmp_path, text)
    trace = read_trace(WorkloadSpec(trace=path))

    assert trace_format(path) == kind
    assert trace is not None
    assert (trace.kind if isinstance(trace, Recording) else "sharegpt") == kind


@pytest.mark.parametrize(
    ("text", "found"), [("", "is empty"), ("a,b,c\n", "begins with 'a,b,c'"), ("\0\n", "begins")]
)
def test_a_file_of_no_format_is_refused_with_those_that_are_known(
    tmp_path: Path, text: str, found: str
) -> None:
    with pytest.raises(FileError) as refused:
        read_trace(WorkloadSpec(trace=written(tmp_path, text)))

    assert refused.value.line == 1
    assert refused.value.reason.startswith(found)
    for name in ("Azure 2023", "BurstGPT", "Mooncake", "ShareGPT"):
        assert name in refused.value.reason


def test_a_format_that_was_asked_for_is_not_guessed(tmp_path: Path) -> None:
    path = written(tmp_path, MOONCAKE)

    with pytest.raises(FileError, match=":1: expected the header TIMESTAMP"):
        read_trace(WorkloadSpec(trace=path, trace_format="azure2023"))


def test_a_window_keeps_what_arrived_from_its_start_to_before_its_end(tmp_path: Path) -> None:
    path = written(tmp_path, AZURE)

    def kept(from_s: float, to_s: float) -> tuple[list[int], list[int]]:
        trace = read_trace(WorkloadSpec(trace=path, window_s=(from_s, to_s)))
        assert isinstance(trace, Recording)
        return trace.input_tokens.tolist(), trace.arrivals_ns.tolist()

    assert kept(0, 5) == ([10, 11], [0, 2_500_000_000])
    assert kept(2.5, 5.001) == ([11, 12], [0, 2_500_000_000])


def test_a_window_without_any_arrival_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, AZURE)

    with pytest.raises(FileError, match="no row arrived in the window 6-9 s; the last is at 5 s"):
        read_trace(WorkloadSpec(trace=path, window_s=(6, 9)))


def test_a_window_needs_times(tmp_path: Path) -> None:
    path = written(tmp_path, json.dumps([CHAT]))

    with pytest.raises(OptionError, match="--window=0-9: expected a trace with times"):
        read_trace(WorkloadSpec(trace=path, window_s=(0, 9)))


def test_only_as_many_conversations_are_read_as_there_are_sessions(tmp_path: Path) -> None:
    path = written(tmp_path, json.dumps([CHAT, CHAT, {"not": "looked at"}]))

    trace = read_trace(WorkloadSpec(trace=path), sessions=2)

    assert isinstance(trace, Conversations)
    assert len(trace) == 2


def test_a_file_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="nothing: No such file"):
        read_trace(WorkloadSpec(trace=tmp_path / "nothing"))


def test_without_a_trace_there_is_none() -> None:
    assert read_trace(WorkloadSpec()) is None


@pytest.mark.parametrize("text", [AZURE, BURST, MOONCAKE, json.dumps([CHAT])])
def test_a_compressed_file_is_read_as_what_is_in_it(text: str, tmp_path: Path) -> None:
    plain = written(tmp_path, text)
    packed = tmp_path / "trace.gz"
    packed.write_bytes(gzip.compress(text.encode()))

    assert trace_format(packed) == trace_format(plain)
    found, wanted = (read_trace(WorkloadSpec(trace=path), sessions=1) for path in (packed, plain))
    assert type(found) is type(wanted)
    if isinstance(found, Recording):
        assert isinstance(wanted, Recording)
        assert found.arrivals_ns.tolist() == wanted.arrivals_ns.tolist()


def test_a_compressed_file_that_is_cut_off_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "trace.gz"
    path.write_bytes(gzip.compress(AZURE.encode())[:-9])

    with pytest.raises(FileError, match="its gzip data is damaged or not whole"):
        read_trace(WorkloadSpec(trace=path), sessions=1)
