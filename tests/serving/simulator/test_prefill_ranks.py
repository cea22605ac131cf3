"""Ranks that prefill: live engine and simulator serve the same requests in the same steps."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from emulator.errors import ConfigError
from emulator.specs.assumptions import with_assumptions
from emulator.specs.fault import Fault, FaultKind
from emulator.specs.partition import Partition
from emulator.specs.systems import system_by_name
from emulator.units import NS_PER_S
from loadgen.workloads.length_pairs import IndependentLengths
from loadgen.workloads.lengths import parse_lengths
from loadgen.workloads.traffic import Traffic
from serving.policy.rank_roles import LASTS_S
from serving.simulator import SchedulerLimits, SimulatedDeployment, TimedCall, simulate
from serving.wire.control_call import InjectRequest
from tests.serving.simulator.live_serving import SeenSteps, serve_live

MODEL = "qwen3-30b-a3b"
LENGTHS = IndependentLengths(
    prompt=parse_lengths("lognormal:300,200,1-600"), output=parse_lengths("uniform:1-40")
)


def drawn(rate: float, requests: int = 40) -> Traffic:
    return Traffic.drawn(rate_per_s=rate, lengths=LENGTHS, seed=5, requests=requests)


@pytest.mark.long
@pytest.mark.parametrize(
    ("rate", "prefill_ranks", "policy", "partition"),
    [
        (15.0, 1, None, Partition(chips=4, ep=4, lnc=2)),
        (400.0, 1, None, Partition(chips=4, ep=4, lnc=2)),
        (400.0, 3, "none", Partition(chips=4, ep=4, lnc=2)),
        (60.0, 2, "capped:100", Partition(chips=8, tp=2, ep=4, lnc=1)),
    ],
    ids=["idle at times", "busy", "one rank decodes", "ranks of two chips"],
)
def test_every_step_every_token_and_every_joule_is_the_same(
    rate: float, prefill_ranks: int, policy: str | None, partition: Partition
) -> None:
    asked = drawn(rate)
    live = serve_live(
        asked,
        model=MODEL,
        chips=partition.chips,
        tp=partition.tp,
        ep=partition.ep,
        lnc=partition.lnc,
        prefill_ranks=prefill_ranks,
        prefill_policy=policy,
    )
    deployment = SimulatedDeployment.of(
        "trn3-nl72x2",
        MODEL,
        partition,
        schedulers=SchedulerLimits(prefill_policy=policy),
        prefill_ranks=prefill_ranks,
    )
    steps = SeenSteps()
    virtual = simulate(deployment, asked, on_step=steps).served

    assert live.steps == steps.seen
    assert live.first_token_s.tolist() == virtual.first_token_s.tolist()
    assert live.last_token_s.tolist() == virtual.last_token_s.tolist()
    assert live.chip_joules == pytest.approx(virtual.joules, rel=1e-12)
    prompts = sum(new for step in steps.seen for rank, new, _ in step.rows if rank < prefill_ranks)
    assert prompts == asked.prompt_tokens.sum(), "and nothing else is computed there"
    together = simulate(SimulatedDeployment.of("trn3-nl72x2", MODEL, partition), asked).served
    assert not np.array_equal(together.last_token_s, virtual.last_token_s)


@pytest.mark.long
@pytest.mark.parametrize("chip", [0, 2])
def test_a_chip_that_is_lost_on_the_way_takes_the_same_time(chip: int) -> None:
    asked = drawn(200.0)
    call = TimedCall(at_s=0.1, call=InjectRequest(fault=Fault(kind=FaultKind.LOSE_CHIP, chip=chip)))
    settings: dict[str, Any] = {"model": MODEL, "chips": 4, "ep": 4, "lnc": 2}
    live = serve_live(asked, calls=[call], prefill_ranks=1, **settings)
    deployment = SimulatedDeployment.of(
        "trn3-nl72x2", MODEL, Partition(chips=4, ep=4, lnc=2), prefill_ranks=1
    )
    steps = SeenSteps()
    virtual = simulate(deployment, asked, calls=[call], on_step=steps).served

    assert live.steps == steps.seen
    assert live.last_token_s.tolist() == virtual.last_token_s.tolist()
    assert live.chip_joules == pytest.approx(virtual.joules, rel=1e-12)


@pytest.mark.long
def test_roles_that_follow_the_load_change_at_the_same_steps() -> None:
    burst = drawn(400.0, requests=260)
    arrival_s = burst.arrival_s.copy()
    arrival_s[220:] = arrival_s[219] + 2.0 + 0.1 * np.arange(40)
    asked = replace(burst, arrival_s=arrival_s)
    live = serve_live(
        asked,
        *("--max-num-seqs", "64", "--max-num-batched-tokens", "128"),
        **{"model": MODEL, "chips": 4, "ep": 4, "lnc": 2, "prefill_ranks": "auto"},
    )
    deployment = SimulatedDeployment.of(
        "trn3-nl72x2",
        MODEL,
        Partition(chips=4, ep=4, lnc=2),
        schedulers=SchedulerLimits(max_num_seqs=64, max_num_batched_tokens=128),
        prefill_ranks="auto",
    )
    steps = SeenSteps()
    virtual = simulate(deployment, asked, on_step=steps).served
    assert live.steps == steps.seen
    assert live.last_token_s.tolist() == virtual.last_token_s.tolist()
    assert live.chip_joules == pytest.approx(virtual.joules, rel=1e-12)

    fewest_s = simulate(replace(deployment, prefill_ranks=1), asked).served
    assert virtual.first_token_s.mean() < fewest_s.first_token_s.mean()
    of_burst = {rank for step in steps.seen[:200] for rank, new, _ in step.rows if new > 1}
    of_end = {rank for step in steps.seen[-50:] for rank, new, _ in step.rows if new > 1}
    assert (of_burst, of_end) == ({0, 1, 2}, {0}), "as many as prompts need"


@pytest.mark.long
def test_bursts_with_nothing_between_turn_no_rank() -> None:
    # Their last steps end at eight places between two looks.
    begins_s = 4.0 * np.arange(8)
    asked = Traffic(
        arrival_s=(begins_s[:, None] + [0.0, 0.3, 0.3]).ravel(),
        prompt_tokens=np.full(24, 10),
        output_tokens=np.array([[30 + burst, 10, 10] for burst in range(8)]).ravel(),
    )
    live = serve_live(
        asked, **{"model": MODEL, "chips": 4, "ep": 4, "lnc": 2, "prefill_ranks": "auto"}
    )
    deployment = SimulatedDeployment.of(
        "trn3-nl72x2", MODEL, Partition(chips=4, ep=4, lnc=2), prefill_ranks="auto"
    )
    steps = SeenSteps()
    virtual = simulate(deployment, asked, on_step=steps).served
    assert live.steps == steps.seen
    assert live.last_token_s.tolist() == virtual.last_token_s.tolist()

    took_s = virtual.last_token_s.reshape(8, 3).max(axis=1) - begins_s
    assert (took_s < LASTS_S).all(), "none lasts for long enough"
    of_bursts = np.searchsorted([step.begin_ns / NS_PER_S for step in steps.seen], begins_s)
    for first, last in itertools.pairwise([*of_bursts, len(steps.seen)]):
        rows = [row for step in steps.seen[first:last] for row in step.rows]
        assert {rank for rank, new, _ in rows if new > 1} == {0, 1}, "the first two prefill"


@pytest.mark.long
def test_requests_that_are_all_given_up_are_no_load_that_lasts() -> None:
    deployment = SimulatedDeployment.of(
        "trn3-nl72x2", MODEL, Partition(chips=4, ep=4, lnc=2), prefill_ranks="auto"
    )
    asked = Traffic(
        arrival_s=np.array([0.0, 4.0, 4.1, 4.1]),
        prompt_tokens=np.full(4, 10),
        output_tokens=np.array([1000, 1000, 10, 10]),
    )
    steps = SeenSteps()
    simulate(deployment, asked, on_step=steps, timeout_s=0.4)
    assert all(step.begin_ns % (4 * NS_PER_S) < 0.6 * NS_PER_S for step in steps.seen)
    assert {rank for step in steps.seen for rank, new, _ in step.rows if new > 1} == {0, 1}


@pytest.mark.parametrize("prefill_ranks", [-1, 4])
def test_roles_that_do_not_fit_are_refused(prefill_ranks: int) -> None:
    with pytest.raises(ConfigError, match="prefill_ranks"):
        SimulatedDeployment.of(
            "trn3-nl72x2", MODEL, Partition(chips=4, ep=4, lnc=2), prefill_ranks=prefill_ranks
        )


@pytest.mark.long
def test_a_prompt_waits_for_blocks_that_are_kept_while_kv_is_on_a_slow_way() -> None:
    links = ["link_tray_bytes_per_s=0.00001x", "link_backplane_bytes_per_s=0.00001x"]
    deployment = SimulatedDeployment.of(
        with_assumptions(system_by_name("trn3-nl72x2"), links),
        MODEL,
        Partition(chips=4, ep=4, lnc=2),
        schedulers=SchedulerLimits(max_num_batched_tokens=256, max_num_seqs=8),
        prefill_ranks=1,
    )
    tight = replace(deployment.limits, kv_blocks_per_rank=20, max_model_len=576)
    deployment = replace(deployment, limits=tight)
    lengths = IndependentLengths(
        prompt=parse_lengths("uniform:1-526"), output=parse_lengths("uniform:1-40")
    )
    asked = Traffic.drawn(rate_per_s=5.0, lengths=lengths, seed=0, requests=40)
    served = simulate(deployment, asked).served
    assert (served.last_token_s >= served.first_token_s).all()
