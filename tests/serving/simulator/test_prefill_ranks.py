"""Ranks that prefill: live engine and simulator serve the same requests in the same steps."""

import itertools
from collections.abc import Sequence
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
from serving.policy.rank_roles import LASTS_S, LOOK_EVERY_S
from serving.simulator import SchedulerLimits, SimulatedDeployment, TimedCall, simulate
from serving.wire.control_call import InjectRequest
from tests.serving.simulator.live_serving import SeenStep, SeenSteps, serve_live

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
        pytest.param(15.0, 1, None, Partition(chips=4, ep=4, lnc=2), marks=pytest.mark.slow),
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


@pytest.mark.slow
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


@pytest.mark.slow
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


SMALL_STEPS = SchedulerLimits(max_num_seqs=16, max_num_batched_tokens=32)
SMALL_FLAGS = ("--max-num-seqs", "16", "--max-num-batched-tokens", "32")


def auto(limits: SchedulerLimits | None = None) -> SimulatedDeployment:
    return SimulatedDeployment.of(
        "trn3-nl72x2",
        MODEL,
        Partition(chips=4, ep=4, lnc=2),
        schedulers=limits or SchedulerLimits(),
        prefill_ranks="auto",
    )


def same_steps(asked: Traffic, deployment: SimulatedDeployment, *flags: str) -> list[SeenStep]:
    """The steps of `asked`, live as simulated."""
    live = serve_live(
        asked, *flags, **{"model": MODEL, "chips": 4, "ep": 4, "lnc": 2, "prefill_ranks": "auto"}
    )
    steps = SeenSteps()
    virtual = simulate(deployment, asked, on_step=steps).served
    assert live.steps == steps.seen
    assert live.last_token_s.tolist() == virtual.last_token_s.tolist()
    return steps.seen


def prompts_on(steps: Sequence[SeenStep]) -> set[int]:
    """The ranks that compute prompts."""
    return {rank for step in steps for rank, new, _ in step.rows if new > 1}


@pytest.mark.slow
def test_bursts_of_prompts_with_nothing_between_turn_no_rank() -> None:
    counts = [12, 13, 14, 15]
    asked = Traffic(
        arrival_s=np.repeat(4.0 * np.arange(4), counts),
        prompt_tokens=np.full(54, 200),
        output_tokens=np.full(54, 2),
    )
    steps = same_steps(asked, auto(SMALL_STEPS), *SMALL_FLAGS)
    assert all(step.begin_ns % (4 * NS_PER_S) < LASTS_S * NS_PER_S for step in steps)
    assert prompts_on(steps) == {0, 1}, "the first two"


@pytest.mark.slow
def test_a_burst_that_ends_at_a_look_changes_the_same_ones_after_it() -> None:
    # The next one begins before another look is due, and its last prompts show who prefills.
    prompts_s = (1.02 + 0.012 * np.arange(24)).repeat(2)
    asked = Traffic(
        arrival_s=np.array([0.0, 0.13, *prompts_s]),
        prompt_tokens=np.full(50, 10),
        output_tokens=np.array([15, 170, *[2] * 48]),
    )
    steps = same_steps(asked, auto())
    ends_ns = [step.begin_ns + step.duration_ns for step in steps]
    due_ns = ends_ns[0] + LOOK_EVERY_S * NS_PER_S
    assert ends_ns[13] < due_ns <= ends_ns[14] < steps[15].begin_ns < due_ns + 0.05 * NS_PER_S
    assert prompts_on(steps) == {0, 1}
    assert prompts_on([step for step in steps if step.begin_ns > 1.1 * NS_PER_S]) == {0}


@pytest.mark.slow
def test_a_light_load_with_pauses_gives_a_rank_back_to_decode() -> None:
    asked = Traffic(
        arrival_s=(0.25 * np.arange(12)).repeat(2),
        prompt_tokens=np.full(24, 200),
        output_tokens=np.full(24, 20),
    )
    steps = same_steps(asked, auto())
    pauses_ns = [
        after.begin_ns - step.begin_ns - step.duration_ns
        for step, after in itertools.pairwise(steps)
    ]
    assert sum(pause_ns > 0.05 * NS_PER_S for pause_ns in pauses_ns) == 11
    assert prompts_on(steps) == {0, 1}
    assert prompts_on([step for step in steps if step.begin_ns > 1.25 * NS_PER_S]) == {0}


@pytest.mark.long
def test_prompts_that_are_all_given_up_are_no_load_that_lasts() -> None:
    asked = Traffic(
        arrival_s=np.repeat([0.0, 4.0], 40),
        prompt_tokens=np.full(80, 200),
        output_tokens=np.full(80, 10),
    )
    steps = SeenSteps()
    simulate(auto(SMALL_STEPS), asked, on_step=steps, timeout_s=0.4)
    assert all(step.begin_ns % (4 * NS_PER_S) < 0.4 * NS_PER_S for step in steps.seen)
    assert prompts_on(steps.seen) == {0, 1}


@pytest.mark.long
def test_a_load_lasts_where_all_but_kv_on_its_way_is_given_up() -> None:
    timeout_s = 0.98
    asked = Traffic(
        arrival_s=np.array([0.0, 0.9, *[0.991] * 60]),
        prompt_tokens=np.array([6000, 190, *[100] * 60]),
        output_tokens=np.array([2, 20, *[2] * 60]),
    )
    steps = SeenSteps()
    served = simulate(auto(SMALL_STEPS), asked, on_step=steps, timeout_s=timeout_s).served
    ends_s = [(step.begin_ns + step.duration_ns) / NS_PER_S for step in steps.seen]
    given_up_s = min(end_s for end_s in ends_s if end_s >= timeout_s)
    assert np.isnan(served.last_token_s[0])
    assert served.first_token_s[1] == given_up_s < asked.arrival_s[2], "it leaves its first rank"
    assert prompts_on(steps.seen) == {0, 1, 2}


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
