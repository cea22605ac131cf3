"""The live engine and the simulator serve the same requests in the same steps.

The engine's part of a server's `serve`, in this process and in virtual time; what comes before and
after it, HTTP and the host's pace, is in tests/e2e/test_live_and_virtual.py.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from emulator.data import SMALL_MOE_DIR
from emulator.specs.fault import Fault, FaultKind
from emulator.specs.partition import Partition
from loadgen.workloads.length_pairs import IndependentLengths
from loadgen.workloads.lengths import parse_lengths
from loadgen.workloads.traffic import Traffic
from serving.simulator import SchedulerLimits, SimulatedDeployment, TimedCall, simulate
from serving.wire.control_call import DrainRequest, HealRequest, InjectRequest, ResumeRequest
from tests.serving.simulator.live_serving import SeenSteps, serve_live

pytestmark = pytest.mark.long

MODEL = "qwen3-30b-a3b"
LENGTHS = IndependentLengths(
    prompt=parse_lengths("lognormal:300,200,1-600"), output=parse_lengths("uniform:1-40")
)
TIGHT = ("--max-num-seqs", "4", "--max-num-batched-tokens", "256", "--block-size", "16")


def seldom(*case: Any) -> Any:
    """A case that is like another of the everyday ones."""
    return pytest.param(*case, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("rate", "flags", "limits", "settings", "partition"),
    [
        seldom(15.0, (), {}, {}, Partition(chips=4, ep=4, lnc=2)),
        (400.0, (), {}, {}, Partition(chips=4, ep=4, lnc=2)),
        (
            100.0,
            (*TIGHT, "--num-gpu-blocks-override", "60", "--max-model-len", "640"),
            {
                "max_num_seqs": 4,
                "max_num_batched_tokens": 256,
                "block_tokens": 16,
                "max_model_len": 640,
                "prefill_policy": "capped:100",
            },
            {"prefill_policy": "capped:100"},
            Partition(chips=2, ep=2, lnc=2),
        ),
        (
            60.0,
            ("--gpu-memory-utilization", "0.92"),
            {},
            {"overlap": "full", "routing": "zipf:0.8", "calibration": "roofline"},
            Partition(chips=8, tp=2, ep=4, lnc=1),
        ),
    ],
    ids=["idle at times", "busy", "preempting", "another machine"],
)
def test_every_step_every_token_and_every_joule_is_the_same(
    rate: float,
    flags: tuple[str, ...],
    limits: dict[str, Any],
    settings: dict[str, Any],
    partition: Partition,
) -> None:
    asked = Traffic.drawn(rate_per_s=rate, lengths=LENGTHS, seed=5, requests=30)
    live = serve_live(
        asked,
        *flags,
        model=MODEL,
        chips=partition.chips,
        tp=partition.tp,
        ep=partition.ep,
        lnc=partition.lnc,
        **settings,
    )
    known = {name: value for name, value in settings.items() if name != "prefill_policy"}
    deployment = SimulatedDeployment.of(
        "trn3-nl72x2", MODEL, partition, schedulers=SchedulerLimits(**limits), **known
    )
    if "--num-gpu-blocks-override" in flags:
        tight = replace(deployment.limits, kv_blocks_per_rank=live.kv_blocks)
        deployment = replace(deployment, limits=tight)
    steps = SeenSteps()
    virtual = simulate(deployment, asked, on_step=steps).served

    assert deployment.limits.kv_blocks_per_rank == live.kv_blocks
    assert live.steps == steps.seen
    assert live.first_token_s.tolist() == virtual.first_token_s.tolist()
    assert live.last_token_s.tolist() == virtual.last_token_s.tolist()
    assert live.chip_joules == pytest.approx(virtual.joules, rel=1e-12)
    assert virtual.preemptions > 0 or "--num-gpu-blocks-override" not in flags


@pytest.mark.slow
def test_a_drafting_model_takes_the_same_time_and_energy_step_by_step() -> None:
    asked = Traffic.drawn(rate_per_s=60.0, lengths=LENGTHS, seed=5, requests=12)
    partition = Partition(chips=2, ep=2, lnc=2)
    drafts = {
        "method": "draft_model",
        "model": str(SMALL_MOE_DIR),
        "num_speculative_tokens": 3,
    }
    live = serve_live(
        asked,
        *("--speculative-config", json.dumps(drafts), "--num-gpu-blocks-override", "200"),
        *("--block-size", "16", "--max-num-seqs", "4", "--max-num-batched-tokens", "256"),
        *("--max-model-len", "700"),
        model=MODEL,
        chips=2,
        computes=True,  # by the weights that draft: all drafts are right
    )
    schedulers = SchedulerLimits(
        speculative_tokens=3,
        draft_method="draft_model",
        draft_model=str(SMALL_MOE_DIR),
        acceptance=(1.0,),
        block_tokens=16,
        max_num_seqs=4,
        max_num_batched_tokens=256,
        max_model_len=700,
    )
    deployment = SimulatedDeployment.of("trn3-nl72x2", MODEL, partition, schedulers=schedulers)
    limits = replace(deployment.limits, kv_blocks_per_rank=live.kv_blocks)
    steps = SeenSteps()
    virtual = simulate(replace(deployment, limits=limits), asked, on_step=steps).served

    assert live.steps == steps.seen
    assert live.last_token_s.tolist() == virtual.last_token_s.tolist()
    assert live.chip_joules == pytest.approx(virtual.joules, rel=1e-12)
    # A pass over all new tokens, and two over one of each request that has got a token.
    without = SimulatedDeployment.of("trn3-nl72x2", MODEL, partition)
    assert virtual.steps < simulate(without, asked).served.steps


def fault(at_s: float, kind: FaultKind, **of: Any) -> TimedCall:
    return TimedCall(at_s=at_s, call=InjectRequest(fault=Fault(kind=kind, chip=5, **of)))


def heal(at_s: float) -> TimedCall:
    return TimedCall(at_s=at_s, call=HealRequest(chip=5))


def out_and_back(chips: range, *, back_s: float, grace_s: float, purpose: str) -> list[TimedCall]:
    leave = DrainRequest(chips=tuple(chips), grace_s=grace_s, purpose=purpose)
    return [
        TimedCall(at_s=0.3, call=leave),
        TimedCall(at_s=back_s, call=ResumeRequest(lease=1)),
    ]


HALF, OTHERS = range(4, 8), range(8, 16)
MAINTENANCE, TRAINING = "maintenance", "training"


@pytest.mark.parametrize(
    ("calls", "chips", "spares"),
    [
        ([fault(0.3, FaultKind.LOSE_CHIP)], 8, 0),
        seldom([fault(0.0001, FaultKind.LOSE_CHIP)], 8, 0),
        seldom([fault(0.3, FaultKind.LOSE_CHIP), heal(1.2)], 8, 0),
        seldom([fault(0.3, FaultKind.LOSE_CHIP)], 8, 1),
        seldom([fault(0.3, FaultKind.SLOW_CHIP, factor=2.0), heal(0.7)], 8, 0),
        seldom([fault(0.3, FaultKind.HANG_CHIP)], 8, 0),
        seldom([fault(0.3, FaultKind.FAIL_STACK, stack=0)], 8, 0),
        seldom(out_and_back(HALF, back_s=1.0, grace_s=0.3, purpose=MAINTENANCE), 8, 0),
        seldom(out_and_back(HALF, back_s=0.6, grace_s=0.0, purpose=MAINTENANCE), 8, 0),
        seldom(out_and_back(HALF, back_s=0.35, grace_s=0.3, purpose=MAINTENANCE), 8, 0),
        (out_and_back(OTHERS, back_s=1.0, grace_s=0.1, purpose=TRAINING), 16, 0),
    ],
    ids=[
        "a chip is lost",
        "a chip is lost at rest",
        "a lost chip comes back",
        "a spare takes the seat",
        "a chip is slow for a while",
        "a chip falls silent",
        "a stack fails",
        "chips leave and come back",
        "chips leave at once",
        "a drain is called off",
        "chips train",
    ],
)
def test_faults_and_hand_overs_take_the_same_time_and_energy(
    calls: Sequence[TimedCall], chips: int, spares: int
) -> None:
    asked = Traffic.drawn(rate_per_s=80.0, lengths=LENGTHS, seed=1, requests=130)
    partition = Partition(chips=chips, ep=4, lnc=2, spares=spares)
    live = serve_live(asked, calls=calls, model=MODEL, chips=chips, ep=4, lnc=2, spares=spares)
    steps = SeenSteps()
    deployment = SimulatedDeployment.of("trn3-nl72x2", MODEL, partition)
    virtual = simulate(deployment, asked, calls=calls, on_step=steps).served

    assert live.steps == steps.seen
    assert live.first_token_s.tolist() == virtual.first_token_s.tolist()
    assert live.last_token_s.tolist() == virtual.last_token_s.tolist()
    assert live.chip_joules == pytest.approx(virtual.joules, rel=1e-12)
    last_s = calls[-1].at_s
    assert last_s < virtual.emulated_s - 0.2, "it comes while requests run"
