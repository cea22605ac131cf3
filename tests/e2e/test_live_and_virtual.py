"""The same requests through `ultraserve serve` and through `simulate`: one time, one energy."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest

from emulator.specs.partition import Partition
from loadgen.workloads.length_pairs import IndependentLengths
from loadgen.workloads.lengths import parse_lengths
from loadgen.workloads.traffic import Traffic
from serving.simulator import SchedulerLimits, SimulatedDeployment, simulate
from tests.e2e.live_and_virtual import (
    Happens,
    LatencyGaps,
    LiveRun,
    TracedServer,
    chip_loss,
    hand_over,
    nothing,
    traced_server,
)

pytestmark = [pytest.mark.engine, pytest.mark.slow]

MODEL = "qwen3-30b-a3b"
CHIPS = 4
DILATION = 60
SEATS = 16
REQUESTS = 40
LENGTHS = IndependentLengths(
    prompt=parse_lengths("lognormal:300,150,1-2000"),
    output=parse_lengths("lognormal:40,20,1-200"),
)


def served(prefill_ranks: int) -> AbstractContextManager[TracedServer]:
    """A server whose first ranks prefill."""
    return traced_server(
        *("--model", MODEL, "--chips", str(CHIPS), "--weights", "none"),
        *("--max-num-seqs", str(SEATS), "--clock", f"dilated:{DILATION}"),
        *("--prefill-ranks", str(prefill_ranks)),
    )


def deployed(prefill_ranks: int) -> SimulatedDeployment:
    """The same for the simulator."""
    return SimulatedDeployment.of(
        "trn3-nl72x2",
        MODEL,
        Partition(chips=CHIPS, ep=CHIPS, lnc=2),
        schedulers=SchedulerLimits(max_num_seqs=SEATS),
        prefill_ranks=prefill_ranks,
    )


def sustained_per_s(deployment: SimulatedDeployment) -> float:
    """Requests a second that the machine gets through when there are always more."""
    asked = Traffic.drawn(rate_per_s=1e5, lengths=LENGTHS, seed=0, requests=1_000)
    return len(asked) / simulate(deployment, asked).served.emulated_s


@pytest.fixture(scope="module")
def server() -> Iterator[TracedServer]:
    with served(0) as started:
        yield started


@pytest.fixture(scope="module")
def server_with_roles() -> Iterator[TracedServer]:
    with served(1) as started:
        yield started


@pytest.mark.timeout(1_200)
@pytest.mark.parametrize(
    ("load", "seed", "happens"),
    [
        (0.1, 1, nothing),
        (0.5, 2, nothing),
        (0.85, 3, nothing),
        (0.5, 6, chip_loss),
        (0.5, 5, hand_over),
    ],
)
def test_latencies_and_joules_of_a_server_are_those_of_the_simulator(
    server: TracedServer,
    load: float,
    seed: int,
    happens: Happens,
    tmp_path: Path,
) -> None:
    check_agreement(server, deployed(0), load, seed, happens, tmp_path)


@pytest.mark.timeout(1_200)
@pytest.mark.parametrize(("load", "seed"), [(0.3, 1), (0.7, 2)])
def test_ranks_that_prefill_take_the_simulator_s_time_and_joules(
    server_with_roles: TracedServer, load: float, seed: int, tmp_path: Path
) -> None:
    check_agreement(server_with_roles, deployed(1), load, seed, nothing, tmp_path)


def check_agreement(
    server: TracedServer,
    deployment: SimulatedDeployment,
    load: float,
    seed: int,
    happens: Happens,
    tmp_path: Path,
) -> None:
    """Serve at a share of what the machine sustains, live and in virtual time; hold the bars."""
    rate_per_s = load * sustained_per_s(deployment)
    asked = Traffic.drawn(rate_per_s=rate_per_s, lengths=LENGTHS, seed=seed, requests=REQUESTS)
    calls = happens(0.3 * asked.span_s, 0.6 * asked.span_s)
    live = LiveRun.of(*server.serve(asked, tmp_path, seed=seed, calls=calls))
    assert live.lag_s == 0, "the host did not keep up, and the run says nothing"
    virtual = simulate(deployment, live.arrivals, calls=live.calls)
    times = live.simulated(virtual.served)

    # At the engine every token has the simulator's nanosecond.
    assert np.abs(live.engine.first_s - times.first_s).max() < 1e-9
    assert np.abs(live.engine.last_s - times.last_s).max() < 1e-9
    # At the client it comes a way through processes later, which takes wall time.
    assert LatencyGaps.between(live.client, times).most < 0.02
    joules, virtual_joules = live.joules(virtual, deployment)
    assert joules == pytest.approx(virtual_joules, rel=0.01)
