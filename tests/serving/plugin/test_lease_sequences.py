"""Drains, returns, faults, repairs and new weights in any order: no request is lost."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from emulator.specs.fault import Fault, FaultKind
from emulator.specs.hbm_usage import HbmUse, use_of
from emulator.specs.placement import EMPTY
from serving.wire.control_call import (
    DrainRequest,
    HealRequest,
    InjectRequest,
    LeaseReport,
    PublishRequest,
    Refusal,
    ResumeRequest,
    RollbackRequest,
)
from tests.serving.plugin.counted_steps import CountedSteps
from tests.serving.plugin.leased_requests import Served, note
from tests.serving.plugin.live_parts import NEW_TOKENS
from tests.serving.plugin.other_weights import other_weights
from tests.serving.plugin.running_engine import Running

pytestmark = pytest.mark.long

CHIPS, TP = 8, 2
PROMPTS = {f"r{number}": list(range(300 + number, 312 + 3 * number)) for number in range(12)}
SHAPES: list[dict[str, Any]] = [
    {"ep": 8},
    {"ep": 4},
    {"ep": 8, "spares": 1},
    {"ep": 8, "model": "gpt-oss-20b"},
    {"ep": 4, "eplb": {"num_redundant_experts": 16, "step_interval": 3, "window_size": 6}},
]

chip = st.integers(0, CHIPS - 1)
acts = st.one_of(
    st.tuples(st.just("turn"), st.integers(1, 3)),
    st.tuples(
        st.just("drain"),
        st.sets(st.integers(0, CHIPS // TP - 1), min_size=1, max_size=3),
        st.sampled_from([0.0, 0.001, 100.0]),
    ),
    st.tuples(st.just("resume"), st.integers(1, 4)),
    st.tuples(st.just("note"), st.integers(1, 4), st.floats(0, 1e4)),
    st.tuples(st.just("strike"), st.sampled_from([FaultKind.LOSE_CHIP, FaultKind.HANG_CHIP]), chip),
    st.tuples(st.just("heal"), chip),
    st.tuples(st.just("publish"), st.sampled_from([2, 3])),
    st.tuples(st.just("roll back")),
)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Other weights, by the seed that made them."""
    directory = tmp_path_factory.mktemp("weights")
    return {seed: other_weights(directory / str(seed), seed=seed) for seed in (2, 3)}


def running_on(shape: dict[str, Any]) -> Running:
    return Running(chips=CHIPS, tp=TP, computes=False, **shape)


def chips_of(running: Running, ranks: Iterable[int]) -> tuple[int, ...]:
    seats = running.parts.machine.seating.chip_of_position
    positions = [TP * rank + offset for rank in sorted(ranks) for offset in range(TP)]
    return tuple(max(0, int(seats[position])) for position in positions)


def turn(served: Served, count: int) -> None:
    for _ in range(count):
        served.turn()


def act(
    running: Running, served: Served, each: tuple[Any, ...], checkpoints: dict[int, Path]
) -> None:
    """One thing that happens; what cannot be is refused in one line."""
    match each:
        case ("turn", count):
            turn(served, count)
            return
        case ("drain", ranks, grace_s):
            reply = running.ask(DrainRequest(chips=chips_of(running, ranks), grace_s=grace_s))
        case ("resume", lease):
            reply = running.ask(ResumeRequest(lease=lease))
        case ("note", lease, joules):
            reply = running.ask(note(lease, joules=joules, emulated_s=0.001))
        case ("strike", kind, number):
            reply = running.ask(InjectRequest(fault=Fault(kind=kind, chip=number)))
        case ("heal", number):
            reply = running.ask(HealRequest(chip=number))
        case ("publish", seed):
            reply = running.ask(PublishRequest(weights_dir=str(checkpoints[seed])))
        case ("roll back",):
            reply = running.ask(RollbackRequest())
    if isinstance(reply, Refusal | LeaseReport):
        said = reply.message if isinstance(reply, Refusal) else reply.reason
        assert said
        assert "\n" not in said


def check(running: Running) -> None:
    """What holds between any two things."""
    leases = running.state().leases  # an idle engine goes on with them before it answers
    machine, partition = running.parts.machine, running.parts.machine.partition
    machine.hbm.check()
    actual = running.engine._live.actual
    placement = machine.placement
    vacant = np.flatnonzero(~machine.chips_up)
    assert (placement.expert_of_slot[:, vacant] == EMPTY).all()
    up = np.flatnonzero(machine.ranks_up).tolist()
    groups = {position // partition.ep for r in up for position in partition.chips_of_rank(r)}
    assert not groups & {group for group, _, _ in placement.missing()}
    away = [c for lease in leases if lease.phase in ("training", "restoring") for c in lease.chips]
    assert sorted(away) == np.flatnonzero(actual.lent).tolist()
    assert len(set(away)) == len(away), "a chip is in two leases"
    for position in range(partition.chips):
        uses = {use_of(o) for s in machine.hbm.usage()[position] for o in s.owner_bytes}
        training = HbmUse.TRAINING in uses
        assert not training or position in machine.lent_positions
        assert not training or HbmUse.WEIGHTS not in uses


of_shapes = pytest.mark.parametrize(
    "shape", SHAPES, ids=lambda shape: ",".join(map(str, shape.values()))
)


@of_shapes
@given(happens=st.lists(acts, min_size=3, max_size=14))
@settings(max_examples=4)
def test_whatever_happens_every_text_is_written_once_and_as_without_it(
    shape: dict[str, Any], happens: list[tuple[Any, ...]], checkpoints: dict[int, Path]
) -> None:
    check_sequence(shape, happens, checkpoints)


@pytest.mark.slow
@of_shapes
@given(happens=st.lists(acts, min_size=6, max_size=24))
@example(  # a loss calls chips back, and the call in which that comes out is refused
    happens=[
        *(("turn", 1), ("turn", 1), ("drain", {3}, 0.0), ("turn", 1)),
        *(("strike", FaultKind.LOSE_CHIP, 4), ("drain", {2}, 0.0)),
    ]
)
def test_so_it_is_in_long_sequences(
    shape: dict[str, Any], happens: list[tuple[Any, ...]], checkpoints: dict[int, Path]
) -> None:
    check_sequence(shape, happens, checkpoints)


def check_sequence(
    shape: dict[str, Any], happens: list[tuple[Any, ...]], checkpoints: dict[int, Path]
) -> None:
    running = running_on(shape)
    counted = CountedSteps(running.engine)
    served = Served(running, PROMPTS)
    for each in happens:
        act(running, served, each, checkpoints)
        check(running)
        assert counted.end_ns == running.engine._time.accounted_ns

    running.ask(HealRequest())
    for _ in range(4 * NEW_TOKENS):
        if not served.unfinished:
            break
        served.turn()
        check(running)
    assert served.texts == quiet_texts()
    for lease in running.state().leases:
        running.ask(ResumeRequest(lease=lease.number))
    for _ in range(8):
        served.turn()
    target = next(version.number for version in running.state().versions if version.target)
    assert {rank.version for rank in running.state().ranks} == {target}
    assert {lease.phase for lease in running.state().leases} <= {"serving"}
    assert running.parts.machine.ranks_up.all()
    assert running.parts.machine.chips_up.all()
    assert counted.end_ns == running.engine._time.accounted_ns
    check(running)


_QUIET: dict[str, list[int]] = {}


def quiet_texts() -> dict[str, list[int]]:
    """The texts when nothing happens; made up, so they do not depend on the machine."""
    if not _QUIET:
        served = Served(running_on({"ep": 8}), PROMPTS)
        _QUIET.update(served.serve_on())
    return _QUIET
