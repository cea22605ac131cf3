"""Whole runs against a server of known delays: what is in their record is held against what the
server knows.
"""

import asyncio
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadgen.arrivals.arrival_spec import ArrivalSpec
from loadgen.errors import FileError, LoadError, OptionError
from loadgen.live.live_counts import LiveCounts
from loadgen.records.result import ABORTED, CONNECT, CUT_OFF, Result
from loadgen.records.results_file import ResultsWriter, read_results
from loadgen.records.run_record import RunRecord
from loadgen.records.server_reading import ServerReading
from loadgen.runs import unreachable
from loadgen.runs.options import ClassOptions, RunOptions, ServerOptions
from loadgen.runs.run import run
from loadgen.workloads.lengths import parse_lengths
from loadgen.workloads.workload_spec import WorkloadSpec
from tests.loadgen.known_server import MODEL, KnownServer
from tests.loadgen.truth_process import truth_process

pytestmark = [pytest.mark.process, pytest.mark.timeout(60)]


def a_class(
    *, sessions: int | None = 20, name: str = "default", output: str = "8", **fields: Any
) -> ClassOptions:
    arrivals = {
        key: fields.pop(key)
        for key in ("rate", "gaps", "concurrency", "duration_s", "wall_time", "start_s")
        if key in fields
    }
    workload = WorkloadSpec(
        input_lengths=parse_lengths("uniform:8-40"),
        output_lengths=parse_lengths(output),
        sessions=sessions,
        turns=fields.pop("turns", None),
        history=fields.pop("history", "planned"),
    )
    return ClassOptions(name=name, workload=workload, arrivals=ArrivalSpec(**arrivals), **fields)


def recorded(
    server: KnownServer,
    *classes: ClassOptions,
    live: LiveCounts | None = None,
    count_words: bool = False,
    **fields: Any,
) -> RunRecord:
    asked = ServerOptions(url=server.url, count_words=count_words)
    options = RunOptions(server=asked, classes=classes, **fields)
    return asyncio.run(run(options, command="the command", key="a key", live=live))


def wrong_percentiles(record: RunRecord, server: KnownServer) -> set[str]:
    """Percentiles further from the server's own than 2 % and 2 wall ms."""
    replies = server.replies[1:]  # the first was the warm-up's
    results = record.results
    pairs = {
        "ttft": (
            [reply.ttft_s for reply in replies],
            [(each.chunk_ns[0] - each.sent_ns) / 1e9 for each in results],
        ),
        "e2e": (
            [reply.e2e_s for reply in replies],
            [(each.chunk_ns[-1] - each.intended_ns) / 1e9 for each in results],
        ),
    }
    return {
        f"{name} p{percentile}"
        for name, (known_s, measured_s) in pairs.items()
        for percentile in (50, 90, 99)
        if np.percentile(measured_s, percentile)
        != pytest.approx(np.percentile(known_s, percentile), rel=0.02, abs=0.002)
    }


def test_a_run_keeps_every_request_once_and_its_times_are_the_server_s() -> None:
    wrong: set[str] | None = None
    for _ in range(6):  # a busy machine is late now here, now there; a fault always in one place
        with KnownServer(seed=5, ttft_s=(0.1, 0.3), itl_s=(0.01, 0.03)).serving() as server:
            record = recorded(server, a_class(sessions=40, rate="40"))
        assert sorted(each.request_id for each in record.results) == list(range(40))
        assert {each.error for each in record.results} == {None}
        found = wrong_percentiles(record, server)
        wrong = found if wrong is None else wrong & found
        if not wrong:
            break

    assert wrong == set()
    assert record.end is not None
    assert record.end.lags[0].cpu_share > 0
    assert not record.end.interrupted
    assert all(each.sent_ns <= each.chunk_ns[0] <= each.ended_ns for each in record.results)


def test_what_the_server_was_asked_is_what_was_planned() -> None:
    with KnownServer().serving() as server:
        record = recorded(server, a_class(sessions=10, concurrency="4"), warmup=2)
    bodies = server.bodies[2:]

    assert record.header.model == MODEL
    assert server.keys == {"Bearer a key"}
    assert sorted(len(body["prompt"]) for body in bodies) == sorted(
        each.asked_input_tokens for each in record.results
    )
    assert {body["max_tokens"] for body in bodies} == {8}
    assert [each.input_tokens for each in record.results] == [
        each.asked_input_tokens for each in record.results
    ]


def test_rates_are_in_the_server_s_time_unless_wall_time_is_asked_for() -> None:
    with KnownServer(dilation=4.0).serving() as server:
        emulated = recorded(server, a_class(sessions=5, rate="100", gaps="constant"))
        wall = recorded(server, a_class(sessions=5, rate="50", gaps="constant", wall_time=True))

    def due_ms(record: RunRecord) -> list[float]:
        return sorted(each.intended_ns / 1e6 for each in record.results)

    assert due_ms(emulated) == [0, 40, 80, 120, 160]
    assert due_ms(wall) == [0, 20, 40, 60, 80]
    assert emulated.header.classes[0].arrivals.time == "emulated"
    assert wall.header.classes[0].arrivals.time == "wall"
    assert emulated.end is not None
    assert (emulated.header.start.dilation, emulated.end.end.chips) == (4.0, 4.0)


def sent(server: KnownServer) -> list[Any]:
    return sorted(body["prompt"] for body in server.bodies)


def intended(record: RunRecord) -> dict[tuple[str, int], int]:
    return {(each.traffic_class, each.request_id): each.intended_ns for each in record.results}


def test_one_seed_sends_the_same_requests_at_the_same_times_whatever_the_number_of_workers() -> (
    None
):
    def once(workers: int, seed: int = 1) -> tuple[list[Any], dict[tuple[str, int], int]]:
        with KnownServer().serving() as server:
            record = recorded(
                server,
                a_class(sessions=11, rate="100", name="a"),
                a_class(sessions=7, rate="50", name="b"),
                seed=seed,
                workers=workers,
            )
        assert len(record.results) == 18
        assert {each.worker for each in record.results} == set(range(workers))
        assert len(record.end.lags if record.end else ()) == workers
        return sent(server), intended(record)

    alone, again, three, other = once(1), once(1), once(3), once(1, seed=2)
    assert alone == again == three
    assert other[0] != alone[0]


def test_open_and_closed_loops_go_at_once_and_turns_follow_one_another() -> None:
    with KnownServer(ttft_s=(0.02, 0.02)).serving() as server:
        record = recorded(
            server,
            a_class(sessions=10, rate="50", name="open", gaps="constant"),
            a_class(sessions=6, concurrency="2", name="talk", turns=parse_lengths("3")),
        )
    by_class: dict[str, list[Result]] = {"open": [], "talk": []}
    for each in record.results:
        by_class[each.traffic_class].append(each)

    assert {name: len(each) for name, each in by_class.items()} == {"open": 10, "talk": 18}
    for earlier, later in _turns(by_class["talk"]):
        assert later.intended_ns >= earlier.ended_ns
        assert later.asked_input_tokens > earlier.asked_input_tokens
    assert min(each.intended_ns for each in by_class["talk"]) < 30_000_000


def _turns(results: list[Result]) -> list[tuple[Result, Result]]:
    ordered = sorted(results, key=lambda each: (each.session_id, each.turn))
    pairs = itertools.pairwise(ordered)
    return [(one, two) for one, two in pairs if one.session_id == two.session_id]


def test_a_time_ends_a_closed_loop() -> None:
    with KnownServer(ttft_s=(0.02, 0.02)).serving() as server:
        record = recorded(server, a_class(sessions=None, concurrency="2", duration_s=0.5))

    assert record.end is not None
    assert 0.5 < record.end.wall_s < 5
    assert max(each.intended_ns for each in record.results) < 0.5e9
    assert record.end.sending["default"].unsent == 0


def test_the_server_is_read_again_when_the_skipped_part_is_over() -> None:
    with KnownServer(dilation=2.0).serving() as server:
        record = recorded(server, a_class(sessions=20, rate="50"), skip_s=0.1)
        without = recorded(server, a_class(sessions=2, rate="50"))

    assert record.skipped is not None
    assert record.end is not None
    times_s = [record.header.start.emulated_s, record.skipped.emulated_s, record.end.end.emulated_s]
    assert times_s == sorted(times_s)  # type: ignore[type-var]
    assert record.skipped.emulated_s - record.header.start.emulated_s >= 0.1  # type: ignore[operator]
    assert record.header.skip_s == 0.1
    assert without.skipped is None


def test_replies_are_counted_again() -> None:
    with KnownServer().serving() as server:
        record = recorded(server, a_class(sessions=6, concurrency="3"), recount=4)
        without = recorded(server, a_class(sessions=3, concurrency="3"), recount=0)

    assert record.end is not None
    assert without.end is not None
    assert record.end.recount.replies == 4
    assert record.end.recount.problem == ""
    assert without.end.recount.replies == 0


def test_the_results_file_is_the_record(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    with KnownServer(dilation=2.0).serving() as server:
        record = recorded(server, a_class(rate="100"), results=path, skip_s=0.05)
    back = read_results(path)

    assert (back.header, back.end, back.skipped) == (record.header, record.end, record.skipped)
    assert intended(back) == intended(record)
    assert "a key" not in path.read_text()


def test_failures_are_results_of_their_kind() -> None:
    for server, kind in (
        (KnownServer(fail_status=503), "status 503"),
        (KnownServer(fail_in_stream=True), "stream"),
        (KnownServer(fail_by_closing=True), CUT_OFF),
    ):
        with server.serving():
            record = recorded(server, a_class(sessions=4, concurrency="2"))
        assert [each.error for each in record.results] == [kind] * 4
        assert any("warm-up" in note for note in record.header.notes)


def interrupting(server: KnownServer, replies: int) -> threading.Thread:
    """Sends this process a SIGINT once the server has begun so many replies."""

    def wait_and_interrupt() -> None:
        give_up_s = time.monotonic() + 20
        while len(server.replies) < replies and time.monotonic() < give_up_s:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    return threading.Thread(target=wait_and_interrupt)


@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_ends_the_sending_and_keeps_what_was_done(tmp_path: Path, workers: int) -> None:
    before = signal.getsignal(signal.SIGINT)
    with KnownServer(endless=True).serving() as server:
        thread = interrupting(server, replies=4)
        thread.start()
        record = recorded(
            server,
            a_class(sessions=50, concurrency="4"),
            warmup=0,
            workers=workers,
            results=tmp_path / "r.jsonl",
        )
        thread.join()

    assert record.end is not None
    assert record.end.interrupted
    assert [each.error for each in record.results] == [ABORTED] * 4
    assert record.end.sending["default"].unsent == 46
    assert read_results(tmp_path / "r.jsonl").end == record.end
    assert signal.getsignal(signal.SIGINT) is before


class Killer(LiveCounts):
    """Ends one worker process when the first result has come."""

    def add_result(self, result: Result) -> None:
        super().add_result(result)
        for child in _children() if self.classes["default"].ended == 1 else []:
            os.kill(child, signal.SIGKILL)
            return


def _children() -> list[int]:
    task = Path(f"/proc/self/task/{os.getpid()}/children")
    workers = []
    for child in map(int, task.read_text().split()):
        if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
            workers.append(child)
    return workers


def test_a_worker_that_dies_ends_the_run_with_what_was_received() -> None:
    with KnownServer().serving() as server:
        record = recorded(server, a_class(sessions=400, concurrency="4"), workers=2, live=Killer())

    assert record.end is not None
    assert "died (signal 9, SIGKILL)" in record.end.problem
    assert 0 < len(record.results) < 400
    assert record.end.sending["default"].unsent == 400 - len(record.results)
    assert record.end.interrupted


class Ender(LiveCounts):
    """Ends the server's process when the first result has come."""

    def __init__(self, process_id: int) -> None:
        super().__init__()
        self._process_id = process_id

    def add_result(self, result: Result) -> None:
        super().add_result(result)
        if self.classes["default"].ended == 1:
            os.kill(self._process_id, signal.SIGTERM)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_server_that_goes_away_ends_the_run_with_what_was_done(
    workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unreachable, "UNREACHABLE_S", 0.3)
    with truth_process() as server:
        options = RunOptions(
            server=ServerOptions(url=server.url, count_words=True),
            classes=(a_class(sessions=3_000, rate="100", prompts="text"),),
            workers=workers,
        )
        record = asyncio.run(run(options, command="", live=Ender(server.pid)))

    assert record.end is not None
    assert record.end.problem.startswith("the server could not be reached for 0.")
    errors = [each.error for each in record.results if each.error != ABORTED]
    assert (errors[0], errors[-1]) == (None, CONNECT)
    assert record.end.sending["default"].unsent == 3_000 - len(record.results)
    assert record.end.wall_s < 15  # of 30


@pytest.mark.parametrize("workers", [1, 2])
def test_the_meters_are_read_when_all_is_ready_to_begin(workers: int, tmp_path: Path) -> None:
    """Else the start of the workers, which takes seconds, is metered as if it were load."""
    path = tmp_path / "r.jsonl"
    with KnownServer(dilation=1.0).serving() as server:
        record = recorded(server, a_class(rate="100"), workers=workers, results=path)

    assert record.end is not None
    start_s, end_s = record.header.start.emulated_s, record.end.end.emulated_s
    assert start_s is not None
    assert end_s is not None
    assert end_s - start_s < record.end.wall_s + 0.3
    assert read_results(path).header == record.header


@pytest.mark.parametrize(("warmup", "workers", "sent"), [(0, 1, 1), (2, 1, 2), (2, 2, 3)])
def test_an_emulated_server_makes_a_step_right_before_its_meters_are_read(
    warmup: int, workers: int, sent: int
) -> None:
    with KnownServer(dilation=1.0).serving() as server:
        record = recorded(server, a_class(sessions=3, rate="100"), workers=workers, warmup=warmup)

    assert len(server.bodies) == 3 + sent
    assert any("--warmup 0" in note for note in record.header.notes) == (warmup == 0)


def test_a_closed_loop_ends_by_its_number_or_by_its_time_whichever_is_first() -> None:
    with KnownServer().serving() as server:
        few = recorded(server, a_class(sessions=5, concurrency="2", duration_s=30.0))
        short = recorded(server, a_class(sessions=5_000, concurrency="2", duration_s=0.2))

    assert len(few.results) == 5
    assert few.end is not None
    assert few.end.sending["default"].repeated == 0
    assert (few.header.classes[0].requests, few.header.classes[0].ends_s) == (5, 30.0)
    assert 0 < len(short.results) < 5_000


def test_of_a_class_that_time_alone_ends_no_number_is_said() -> None:
    with KnownServer().serving() as server:
        record = recorded(server, a_class(sessions=None, concurrency="2", duration_s=0.2))

    (header,) = record.header.classes
    assert (header.sessions, header.requests, header.output_tokens) == (None, None, None)
    assert "as many requests as time allows" in header.workload
    assert record.end is not None
    assert record.end.sending["default"].unsent == 0


def test_what_could_not_be_written_after_the_skipped_part_is_no_secret(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(_: ResultsWriter, reading: ServerReading) -> None:
        raise OptionError("--results", "r.jsonl", expected="room")

    monkeypatch.setattr(ResultsWriter, "skipped", full)
    with KnownServer().serving() as server, pytest.raises(OptionError, match="expected room"):
        recorded(server, a_class(rate="100"), skip_s=0.05, results=tmp_path / "r.jsonl")


def test_files_are_read_before_the_server_is_asked(tmp_path: Path) -> None:
    missing = WorkloadSpec(trace=tmp_path / "none.csv")
    options = RunOptions(
        server=ServerOptions(url="http://127.0.0.1:9"),
        classes=(ClassOptions(workload=missing, arrivals=ArrivalSpec(rate="1")),),
    )

    with pytest.raises(FileError, match=r"none\.csv: No such file"):
        asyncio.run(run(options, command=""))


class FullDisk(LiveCounts):
    """Fails as a results file does on a disk that has become full."""

    def add_result(self, result: Result) -> None:
        raise OptionError("--results", result.request_id, expected="room")


@pytest.mark.parametrize("workers", [1, 2])
def test_a_disk_that_becomes_full_ends_the_run_in_one_line(workers: int) -> None:
    with KnownServer().serving() as server, pytest.raises(OptionError, match="--results=") as full:
        recorded(server, a_class(sessions=50, concurrency="4"), workers=workers, live=FullDisk())

    assert "\n" not in str(full.value)


def test_later_turns_carry_what_the_server_said_if_that_was_asked_for() -> None:
    with KnownServer().serving() as server:
        record = recorded(
            server,
            a_class(
                sessions=2,
                concurrency="1",
                turns=parse_lengths("2"),
                prompts="text",
                history="served",
            ),
            count_words=True,
            warmup=0,
        )
    prompts = [body["prompt"] for body in server.bodies]

    assert all("word " * 8 not in prompt for prompt in prompts[::2])
    assert all(("word " * 8).strip() in prompt for prompt in prompts[1::2])
    assert record.end is not None
    assert record.end.sending["default"].planned_histories == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda url: {"server": ServerOptions(url=url, model="x")}, r"no model 'x'"),
        (lambda _: {"server": ServerOptions(url="http://127.0.0.1:9")}, r"/v1/models: "),
        (lambda _: {"results": Path("/proc/self/none")}, r"--results=/proc/self/none: "),
        (lambda _: {"workers": 3}, r"--workers=3: expected at most 2"),
    ],
)
def test_what_cannot_be_run_is_one_line_and_nothing_is_sent(
    change: Callable[[str], dict[str, Any]], message: str
) -> None:
    with KnownServer().serving() as server:
        fields = {"server": ServerOptions(url=server.url)} | change(server.url)
        options = RunOptions(classes=(a_class(sessions=2, rate="9"),), warmup=0, **fields)
        with pytest.raises(LoadError, match=message) as caught:
            asyncio.run(run(options, command=""))

    assert "\n" not in str(caught.value)
    assert server.bodies == []


def test_a_server_without_a_tokenizer_is_driven_with_counted_words() -> None:
    with KnownServer(with_tokenizer=False).serving() as server:
        with pytest.raises(LoadError, match="--tokenizer words needs none") as caught:
            recorded(server, a_class(rate="9"))
        counted = a_class(sessions=3, rate="90", prompts="text")
        record = recorded(server, counted, count_words=True)
        prompts = [body["prompt"] for body in server.bodies[1:]]

    assert str(caught.value).count("--tokenizer") == 2  # a path, or words: said once
    assert sorted(len(prompt.split()) for prompt in prompts) == sorted(
        each.asked_input_tokens for each in record.results
    )


def test_two_classes_of_one_name_are_refused() -> None:
    with pytest.raises(OptionError, match="--traffic-class"):
        RunOptions(
            server=ServerOptions(url="http://h"), classes=(a_class(rate="1"), a_class(rate="2"))
        )
