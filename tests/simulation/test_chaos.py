"""Faults under load, by seeds: clients lose nothing that the pure functions say can be kept.

Every day a few faults strike one engine; the slow tests strike five partitions, which lose and
recover in different ways.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from emulator.specs.fault import Fault, FaultKind
from tests.simulation.chaos import Blow, Chaos
from tests.simulation.fault_plan import plan_faults
from tests.simulation.troubled_engine import running_engine

KINDS = tuple(FaultKind)
PLAN_NS = 10**12
"""Only the order of a plan's events counts here: an engine in virtual time is struck when it is
under load."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """An engine, the seeded faults that strike it, and further ones that chance would not bring.

    `losses` chips are lost, each other kind happens `each` times, and `doubles` times two together.
    """

    settings: dict[str, Any]
    losses: int
    each: int
    doubles: int
    further: Sequence[tuple[Fault, ...]] = ()
    seed: int
    arguments: dict[str, Any] = field(default_factory=dict)

    @property
    def counts(self) -> dict[FaultKind, int]:
        return dict.fromkeys(KINDS, self.each) | {FaultKind.LOSE_CHIP: self.losses}


def losing(chips: int) -> tuple[Fault, ...]:
    return tuple(Fault(kind=FaultKind.LOSE_CHIP, chip=chip) for chip in range(chips))


ALL_SWITCHES = (Fault(kind=FaultKind.PULL_SWITCH_TRAY, rack=0),) * 10

EVERYDAY = Trial(
    settings={"chips": 4, "tp": 2, "spares": 1},
    losses=2,
    each=1,
    doubles=1,
    further=[losing(5)],
    seed=1,
)

TRIALS = {
    "one rank a chip, experts with copies that move": Trial(
        settings={
            "chips": 6,
            "eplb": {"num_redundant_experts": 48, "step_interval": 16, "window_size": 32},
        },
        losses=12,
        each=8,
        doubles=6,
        further=[losing(5)],
        seed=2,
    ),
    "two chips a rank, one that stands by, requests with priorities": Trial(
        settings={"chips": 4, "tp": 2, "spares": 1},
        losses=12,
        each=8,
        doubles=6,
        further=[losing(5)],
        seed=3,
        arguments={"scheduling_policy": "priority"},
    ),
    "two groups of experts across three trays": Trial(
        settings={"chips": 8, "ep": 4, "first_chip": 2},
        losses=10,
        each=8,
        doubles=6,
        further=[ALL_SWITCHES, losing(4)],
        seed=4,
    ),
    "a large model that leaves no room for lost experts": Trial(
        settings={"chips": 4, "model": "qwen3-235b-a22b"}, losses=4, each=3, doubles=3, seed=5
    ),
    "two ranks, each of which needs its four chips and their switches": Trial(
        settings={"chips": 8, "tp": 4, "ep": 4, "first_chip": 2},
        losses=6,
        each=5,
        doubles=4,
        further=[ALL_SWITCHES],
        seed=6,
    ),
}


def run(trial: Trial) -> Chaos:
    """All episodes of a trial, with all that has to hold in and after each."""
    with running_engine(trial.settings, **trial.arguments) as engine:
        machine = engine.machine
        arrivals = 0.3 * machine.partition.ranks
        chaos = Chaos(engine, seed=trial.seed, arrivals_per_step=arrivals)
        chaos.take_reference()
        events = plan_faults(
            trial.seed,
            counts=trial.counts,
            doubles=trial.doubles,
            duration_ns=PLAN_NS,
            partition=machine.partition,
            system=machine.system,
        )
        for event in events:
            chaos.episode(chaos.blows_of(event.faults))
        for faults in trial.further:
            chaos.episode([Blow(fault=fault) for fault in faults])
        engine.executor.check_health()
        planned = sum(trial.counts.values()) + 2 * trial.doubles + sum(map(len, trial.further))
        assert len(engine.live_machine.faults) == planned
    print(summary(chaos))
    assert chaos.ends["whole"] > 0
    assert (chaos.ends["failed"] > 0) == any(not met.survived for met in chaos.met)
    assert chaos.preemptions > 0, "the KV pools were never full"
    return chaos


def summary(chaos: Chaos) -> str:
    """What happened, and the worst of it."""
    kinds = Counter(str(kind) for met in chaos.met for kind in met.kinds)
    lines = [f"{kind}: {count}" for kind, count in sorted(kinds.items())]
    survived = [met for met in chaos.met if met.survived]
    lines += [
        f"met together: {sum(len(met.kinds) > 1 for met in chaos.met)}",
        f"survived: {len(survived)} of {len(chaos.met)}",
        f"worst recovery: {max(met.emulated_ns for met in chaos.met) / 1e9:.3f} emulated s, "
        f"{max(met.wall_s for met in chaos.met):.2f} wall s",
        f"requests: {dict(sorted(chaos.ends.items()))}; {chaos.preemptions} preemptions",
    ]
    return "\n".join(lines)


def test_all_trials_together_are_as_many_faults_as_promised() -> None:
    counts = Counter[FaultKind]()
    for trial in TRIALS.values():
        counts.update(trial.counts)

    assert min(counts.values()) >= 30
    assert counts[FaultKind.LOSE_CHIP] >= 40
    assert sum(trial.doubles for trial in TRIALS.values()) >= 20


@pytest.mark.engine
@pytest.mark.slow
def test_a_few_faults_of_every_kind_change_no_text() -> None:
    chaos = run(EVERYDAY)

    assert {kind for met in chaos.met for kind in met.kinds} == set(KINDS)
    assert {met.survived for met in chaos.met} == {True, False}


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", TRIALS)
def test_faults_end_only_what_cannot_be_kept(name: str) -> None:
    chaos = run(TRIALS[name])

    assert {kind for met in chaos.met for kind in met.kinds} == set(KINDS)
    assert any(met.survived for met in chaos.met)
