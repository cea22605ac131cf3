"""`simulate`: its figures against the steps that it shows."""

from collections.abc import Sequence

import numpy as np
import pytest

from emulator.errors import ConfigError
from emulator.specs.batch import StepBatch
from emulator.specs.partition import Partition
from emulator.ultraserver.step_cost import StepCost
from emulator.units import NS_PER_S
from loadgen.measures.slo import Bound, Slo
from loadgen.workloads.traffic import Traffic
from serving.simulator import Run, SchedulerLimits, SimulatedDeployment, simulate
from serving.traffic.serving_run import Ending
from tests.serving.simulator import vllm_serving

DEPLOYMENT = SimulatedDeployment.of(
    "trn3-nl72x2",
    "qwen3-30b-a3b",
    Partition(chips=2, tp=1, ep=2, lnc=2),
    schedulers=SchedulerLimits(max_num_seqs=8, max_num_batched_tokens=256),
)
TRAFFIC = Traffic(
    arrival_s=np.array([0.0, 0.01, 0.02, 0.5, 0.9]),
    prompt_tokens=np.array([300, 40, 20, 30, 60]),
    output_tokens=np.array([5, 4, 1, 6, 3]),
)
MIDDLE = np.array([False, True, True, True, False])


class Steps:
    """Keeps what it is shown."""

    def __init__(self) -> None:
        self.begun_ns: list[int] = []
        self.costs: list[StepCost] = []

    def __call__(
        self, cost: StepCost, batch: StepBatch, *, begin_ns: int, queues: Sequence[object]
    ) -> None:
        del batch, queues
        self.begun_ns.append(begin_ns)
        self.costs.append(cost)


def test_all_requests_are_served_as_by_vllm_s_schedulers() -> None:
    run = simulate(DEPLOYMENT, TRAFFIC)
    alone = vllm_serving.serve_in_virtual_time(TRAFFIC, DEPLOYMENT.cost_model, DEPLOYMENT.limits)

    assert run.served.ending is Ending.SERVED
    assert run.judged.all()
    np.testing.assert_array_equal(run.ttft_s, alone.ttft_s)
    assert (run.begin_s, run.end_s) == (0.0, alone.emulated_s)
    assert run.chip_watts == pytest.approx(alone.joules / alone.emulated_s)
    assert run.busy_share == pytest.approx(alone.busy_s / alone.emulated_s)
    assert run.joules_per_token == alone.joules / TRAFFIC.output_tokens.sum()
    assert run.tpot_s[2] == 0  # a reply of one token
    assert len(run.tpot_of_several_s) == 4


def test_the_window_is_that_of_judged_arrivals_and_counts_steps_that_begin_in_it() -> None:
    steps = Steps()
    run = simulate(DEPLOYMENT, TRAFFIC, judged=MIDDLE, on_step=steps)

    assert (run.begin_s, run.end_s) == (0.01, 0.5)
    assert len(run.ttft_s) == len(run.tpot_s) == 3
    assert run.output_tokens == 11
    inside = [
        cost
        for cost, begin_ns in zip(steps.costs, steps.begun_ns, strict=True)
        if 0.01 * NS_PER_S <= begin_ns < 0.5 * NS_PER_S
    ]
    assert 0 < len(inside) < len(steps.costs)
    busy_s = sum(cost.duration_ns for cost in inside) / NS_PER_S
    joules = sum(cost.chip_joules for cost in inside)
    idle_joules = DEPLOYMENT.idle_watts * (0.49 - busy_s)
    assert run.chip_watts == pytest.approx((joules + idle_joules) / 0.49)
    assert run.busy_share == pytest.approx(busy_s / 0.49)
    assert run.begun_per_s == pytest.approx(
        ((run.served.first_token_s >= 0.01) & (run.served.first_token_s < 0.5)).sum() / 0.49
    )


def stopped(*, hopeless: bool) -> Run:
    crowd = Traffic(
        arrival_s=np.zeros(60),
        prompt_tokens=np.full(60, 200),
        output_tokens=np.full(60, 20),
    )
    if not hopeless:
        return simulate(DEPLOYMENT, crowd, until_s=0.05)
    return simulate(
        DEPLOYMENT, crowd, levels=(Bound(measure="ttft_ms", limit=1e-3, percentile=90),)
    )


def test_what_did_not_come_in_time_is_infinite_and_after_an_early_end_unknown() -> None:
    late, hopeless = stopped(hopeless=False), stopped(hopeless=True)

    assert late.served.ending is Ending.TIME_UP
    assert np.isinf(late.ttft_s).any()
    assert hopeless.served.ending is Ending.HOPELESS
    assert np.isnan(hopeless.ttft_s).any()
    assert late.ttft_percentile_s(99) is None
    assert hopeless.ttft_percentile_s(99) is None
    first = late.ttft_percentile_s(1)
    assert first == late.ttft_s.min()
    ttft, tpot, both = late.shares(Slo.parse("ttft=10s,tpot=1s"))
    assert ttft == np.isfinite(late.ttft_s).mean()
    assert both == min(ttft, tpot)


def test_a_rank_without_room_has_the_two_blocks_that_are_the_least() -> None:
    assert SchedulerLimits().with_kv(0).kv_blocks_per_rank == 2
    assert SchedulerLimits(block_tokens=32).with_kv(3_200).kv_blocks_per_rank == 100


def test_a_mask_without_a_request_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"judged=no request: expected at least one"):
        simulate(DEPLOYMENT, TRAFFIC, judged=np.zeros(5, dtype=np.bool_))


def test_unknown_names_are_refused() -> None:
    partition = Partition(chips=2, tp=1, ep=2, lnc=2)
    with pytest.raises(ConfigError, match="system=abacus"):
        SimulatedDeployment.of("abacus", "qwen3-30b-a3b", partition)
    with pytest.raises(ConfigError, match="calibration=guess"):
        SimulatedDeployment.of("trn3-nl72x2", "qwen3-30b-a3b", partition, calibration="guess")
