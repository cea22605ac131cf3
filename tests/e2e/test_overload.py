"""Five times what a real server can take, for a minute, by both protocols: nobody who enters is
late, whoever does not is told at once, and afterwards nothing is left.

How late is a matter of processors too: it is judged where other programs left them alone.
"""

import asyncio
import re
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import psutil
import pytest

from tests.attacks.other_load import CpuUse, others_share
from tests.benchmarks.soak.memory import MemoryWatch, changes
from tests.e2e.overload_client import Ask, Endpoints, Seen, one_by_one, overload, saturate
from tests.e2e.server_process import HOST, ULTRASERVE, ServerProcess, free_port, started

MODEL = "qwen3-30b-a3b"
DILATION = 4
SEATS = 32
TARGET_S = 1.0
REFUSAL_WALL_S_MAX = 0.5
TIMES = 5.0
OVERLOAD_WALL_S = 60.0
INTERACTIVE = Ask(model=MODEL, prompt_tokens=200, answer_tokens=16)
BY_GRPC = Ask(model=MODEL, prompt_tokens=200, answer_tokens=16, by_grpc=True)
BATCH = Ask(model=MODEL, prompt_tokens=200, answer_tokens=16, batch=True)
SHARES = {"http": (INTERACTIVE, 19 / 30), "grpc": (BY_GRPC, 1 / 6), "batch": (BATCH, 1 / 5)}
"""Of the load."""
IDLE_REQUESTS = 60
OTHERS_SHARE_MAX = 0.1
"""Of all processors, beyond which times are other programs' as much as the server's."""

pytestmark = [pytest.mark.slow, pytest.mark.engine, pytest.mark.timeout(900)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """The server and its endpoints."""

    server: ServerProcess
    endpoints: Endpoints


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    grpc_port = free_port()
    arguments = (
        *("--model", MODEL, "--chips", "1", "--weights", "none", "--disable-uvicorn-access-log"),
        *("--max-num-seqs", str(SEATS), "--max-model-len", "4096"),
        *("--clock", f"dilated:{DILATION}", "--ttft-target", str(TARGET_S)),
        *("--grpc-port", str(grpc_port), "--batch-queue-requests", str(4 * SEATS)),
    )
    with started(ULTRASERVE, *arguments) as server:
        server.wait_ready()
        endpoints = Endpoints(url=server.url, grpc_address=f"{HOST}:{grpc_port}")
        yield Running(server=server, endpoints=endpoints)


def metrics(server: ServerProcess) -> dict[str, float]:
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    pairs = re.findall(r"^(\w+(?:\{[^}]*\})?) (\S+)$", text, flags=re.MULTILINE)
    return {name: float(value) for name, value in pairs}


def requests(seen: dict[str, float], work_class: str, outcome: str) -> float:
    name = f'ultraserve_admission_requests_total{{class="{work_class}",outcome="{outcome}"}}'
    return seen.get(name, 0.0)


def waits(seen: dict[str, float]) -> float:
    return seen['ultraserve_admission_wait_seconds_count{class="interactive"}']


def waited_s(seen: dict[str, float]) -> float:
    """To all first tokens, summed; emulated."""
    return seen['ultraserve_admission_wait_seconds_sum{class="interactive"}']


def within_target(seen: dict[str, float]) -> float:
    """First tokens that came in time, by the server's own measure."""
    name = f'ultraserve_admission_wait_seconds_bucket{{class="interactive",le="{TARGET_S}"}}'
    return seen[name]


def in_time_share(before: dict[str, float], after: dict[str, float]) -> float:
    return (within_target(after) - within_target(before)) / (waits(after) - waits(before))


def settled(server: ServerProcess) -> dict[str, float]:
    """The metrics once nobody is inside: a request leaves a moment after its last bytes."""
    seen: dict[str, float] = {}

    def empty() -> bool:
        seen.update(metrics(server))
        return not any(
            seen[f'ultraserve_admission_in_flight{{class="{name}"}}']
            for name in ("interactive", "batch")
        )

    server.wait_until(empty, "no request")
    return seen


def added_s(running: Running) -> float:
    """Emulated seconds that a client sees beyond the server's, of a server with nothing else to do:
    the larger one of both protocols, each the 99th percentile of its requests.
    """
    found = []
    for ask in (INTERACTIVE, BY_GRPC):
        before = settled(running.server)
        seen = asyncio.run(one_by_one(running.endpoints, ask, IDLE_REQUESTS))
        after = settled(running.server)
        assert seen.finished == IDLE_REQUESTS, (seen.statuses, seen.failures)
        at_door_s = (waited_s(after) - waited_s(before)) / IDLE_REQUESTS
        found.append(float(np.percentile(seen.first_wall_s, 99)) / DILATION - at_door_s)
    return max(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Minute:
    """The overload, as the server counted it and as its clients saw it.

    `client_s` as in `added_s`; `grown` as `changes` has it; `others` are other programs' share of
    all processors.
    """

    before: dict[str, float]
    after: dict[str, float]
    seen: dict[str, Seen]
    client_s: float
    grown: list[str]
    others: float


def cpu_use(server: ServerProcess) -> CpuUse:
    server.look()
    return CpuUse.now([psutil.Process(pid) for pid, _ in server.running()])


@pytest.fixture(scope="module")
def minute(running: Running) -> Minute:
    server, endpoints = running.server, running.endpoints
    began = cpu_use(server)
    per_s = asyncio.run(saturate(endpoints, INTERACTIVE, at_once=SEATS, wall_s=15.0))
    client_s = added_s(running)
    asks = {name: (ask, TIMES * share * per_s) for name, (ask, share) in SHARES.items()}
    asyncio.run(overload(endpoints, asks, wall_s=10.0, seed=1))
    before, memory = settled(server), MemoryWatch(server)
    memory.read(0.0)

    seen = asyncio.run(overload(endpoints, asks, wall_s=OVERLOAD_WALL_S, seed=2))

    memory.read(OVERLOAD_WALL_S)
    after = settled(server)
    others = others_share(began, cpu_use(server))
    show(per_s, client_s, seen)
    print(f"other programs had {others:.0%} of the processors")
    grown = changes(memory.readings[:1], memory.readings[1:], 0.05)
    return Minute(
        before=before, after=after, seen=seen, client_s=client_s, grown=grown, others=others
    )


def test_everybody_is_answered_and_nothing_is_left(running: Running, minute: Minute) -> None:
    everybody_is_answered(minute.seen)
    # Admission goes by the pace that it sees, and others may change that at any moment.
    assert in_time_share(minute.before, minute.after) >= 0.9
    assert minute.grown == []
    nothing_is_left(minute.before, minute.after, minute.seen)
    alone = asyncio.run(one_by_one(running.endpoints, INTERACTIVE, 1))
    assert alone.finished == 1


def test_the_admitted_are_in_time_and_the_others_are_refused_at_once(minute: Minute) -> None:
    if minute.others > OTHERS_SHARE_MAX:
        pytest.skip(f"times: other programs had {minute.others:.0%} of the processors")
    the_admitted_are_in_time(minute.before, minute.after, minute.seen, minute.client_s)
    the_others_are_refused_at_once(minute.seen)


def first_s(seen: dict[str, Seen]) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """[requests] emulated seconds to the first bytes of interactive answers."""
    return np.array(seen["http"].first_wall_s + seen["grpc"].first_wall_s) / DILATION


def show(per_s: float, client_s: float, seen: dict[str, Seen]) -> None:
    """Print what was measured."""
    print(f"capacity {per_s:.1f}/s wall; a client adds {1e3 * client_s:.0f} ms emulated")
    p50_s, p99_s = np.percentile(first_s(seen), [50, 99])
    print(f"TTFT p50 {p50_s:.3f} s, p99 {p99_s:.3f} s emulated")
    for name, each in seen.items():
        refused = np.percentile(each.refusal_wall_s, [50, 99]) if each.refusal_wall_s else [0, 0]
        p50_ms, p99_ms = (1e3 * float(wall_s) for wall_s in refused)
        print(f"{name}: {each.statuses}; refused in p50 {p50_ms:.0f} ms, p99 {p99_ms:.0f} ms wall")


def everybody_is_answered(seen: dict[str, Seen]) -> None:
    assert [failure for each in seen.values() for failure in each.failures] == []
    assert set(seen["http"].statuses) == {200, 429}
    assert set(seen["grpc"].statuses) == {"OK", "RESOURCE_EXHAUSTED"}
    assert set(seen["batch"].statuses) <= {200, 429}
    assert sum(each.without_retry_after for each in seen.values()) == 0


def the_admitted_are_in_time(
    before: dict[str, float], after: dict[str, float], seen: dict[str, Seen], client_s: float
) -> None:
    assert in_time_share(before, after) >= 0.99, "by the server's measure"
    assert np.percentile(first_s(seen), 99) <= TARGET_S + client_s, "as clients saw it"


def the_others_are_refused_at_once(seen: dict[str, Seen]) -> None:
    """Interactive work; batch work may wait for its turn before it is refused."""
    for name in ("http", "grpc"):
        assert np.percentile(seen[name].refusal_wall_s, 99) < REFUSAL_WALL_S_MAX, name


def nothing_is_left(
    before: dict[str, float], after: dict[str, float], seen: dict[str, Seen]
) -> None:
    finished = {
        "interactive": seen["http"].finished + seen["grpc"].finished,
        "batch": seen["batch"].finished,
    }
    for work_class, counted in finished.items():
        came, ended, refused = (
            requests(after, work_class, outcome) - requests(before, work_class, outcome)
            for outcome in ("entered", "finished", "refused")
        )
        assert came - refused == ended == counted
        assert refused == 0 or work_class == "batch", "who waits for a turn may be refused then"
        assert after[f'ultraserve_admission_waiting_tokens{{class="{work_class}"}}'] == 0
