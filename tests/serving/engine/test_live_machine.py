"""Chips are lost while requests run: the machine and its processes go on, no text changes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.chip.commands import (
    BeginStep,
    Combine,
    Command,
    LoadExperts,
    Reduce,
    RepeatStep,
    ResetRank,
    RunExperts,
)
from emulator.errors import ConfigError
from emulator.specs.batch import StepBatch
from emulator.specs.fault import Fault, FaultKind, LinkTier
from emulator.specs.seating import VACANT
from serving.engine import fault_log
from serving.wire.machine_state import FaultStage
from tests.half_of_all import half_of_all
from tests.serving.plugin.live_parts import LiveParts, Requests, live_parts, texts_of_one_chip

MS = 1_000_000


@pytest.fixture(scope="module")
def expected() -> dict[str, list[int]]:
    return texts_of_one_chip()


def take(kind: FaultKind, chip: int) -> Fault:
    return Fault(kind=kind, chip=chip, stack=1 if kind is FaultKind.FAIL_STACK else -1)


def lose(chip: int) -> Fault:
    return take(FaultKind.LOSE_CHIP, chip)


def check_agreement(parts: LiveParts) -> None:
    """The machine, the processes and the weights in their slots are as each other says."""
    machine, fleet = parts.machine, parts.fleet
    up = np.flatnonzero(machine.chips_up).tolist()
    assert sorted(fleet.live_chips) == up
    assert (machine.health.in_service == parts.live.actual.in_service).all()
    if parts.deployment.time_model is parts.deployment.weights:
        slots = min(machine.placement.slots, fleet.placement.slots)
        for placement in (machine.placement, fleet.placement):
            assert (placement.expert_of_slot[..., slots:] == -1).all()
        same = (
            machine.placement.expert_of_slot[..., :slots]
            == fleet.placement.expert_of_slot[..., :slots]
        )
        assert same.all()
    machine.hbm.check()


@pytest.mark.long
def test_the_loss_of_a_chip_by_hand(expected: dict[str, list[int]]) -> None:
    parts = live_parts()
    requests = Requests(parts)
    requests.step()
    parts.clock.wait_until_ns(1_500_000_000)
    number, recovery = parts.live.inject(lose(1))
    assert (number, recovery.survivable) == (1, True)
    assert [record.stage for record in parts.live.faults.records] == [FaultStage.PENDING]
    met = requests.step()

    # Rank 1 is down, its 36 experts of each of 4 layers are read again by the survivors, all of
    # which sit on one tray that reads at 28 GB/s; 1 ms passes until the loss is noticed.
    assert met.lost_ranks == (1,)
    assert parts.machine.ranks_up.tolist() == [True, False, True, True]
    (record,) = parts.live.faults.records
    assert (record.stage, record.injected_emulated_s) == (FaultStage.RECOVERING, 1.5)
    assert record.recovery is not None
    assert record.recovery.experts_reloaded == 4 * 36
    expert_bytes = 3 * 112 * 16 * 2
    assert met.pause_ns == 1 * MS + -(-4 * 36 * expert_bytes * 10**9 // (28 * 10**9))
    assert record.recovery.emulated_ns == met.pause_ns
    assert len(parts.changes) == 1
    check_agreement(parts)
    assert requests.serve() == expected
    assert all(step.pause_ns == 0 and step.lost_ranks == () for step in requests.steps[2:])


TAKEN = [FaultKind.LOSE_CHIP, FaultKind.HANG_CHIP, FaultKind.FAIL_STACK]


@pytest.mark.long
@pytest.mark.parametrize(("kind", "spares", "tp"), half_of_all(TAKEN, [0, 1], [1, 2]))
@pytest.mark.parametrize("model", [None, pytest.param("qwen3-30b-a3b", marks=pytest.mark.slow)])
def test_whatever_takes_a_chip_changes_no_text(
    kind: FaultKind, spares: int, tp: int, model: str | None, expected: dict[str, list[int]]
) -> None:
    parts = live_parts(tp=tp, spares=spares, model=model)
    requests = Requests(parts)
    texts = requests.serve({3: lambda: parts.live.inject(take(kind, 2))})

    assert texts == expected
    rank = 2 // tp
    assert [step.lost_ranks for step in requests.steps if step.lost_ranks] == [(rank,)]
    assert parts.machine.ranks_up[rank] == bool(spares)
    seats = parts.machine.seating.chip_of_position
    assert seats[2] == (4 if spares else VACANT)
    pause_ns = sum(step.pause_ns for step in requests.steps)
    assert pause_ns > (30_000 * MS if kind is FaultKind.HANG_CHIP else MS)
    check_agreement(parts)


@pytest.mark.long
@pytest.mark.parametrize("spares", [0, 1])
def test_a_stand_in_with_fewer_head_groups_than_a_rank_has_chips_writes_the_same_text(
    spares: int, expected: dict[str, list[int]]
) -> None:
    # Its four head groups lie on four of the eight chips; the experts lie on all sixteen.
    parts = live_parts(chips=16, tp=8, model="qwen3-30b-a3b", spares=spares)
    requests = Requests(parts)
    assert requests.serve({2: lambda: parts.live.inject(lose(1))}) == expected
    assert [step.lost_ranks for step in requests.steps if step.lost_ranks] == [(0,)]
    check_agreement(parts)


@pytest.mark.long
def test_copies_of_experts_take_over_and_are_not_read_again(expected: dict[str, list[int]]) -> None:
    # 72 slots a chip hold every expert twice.
    parts = live_parts(eplb={"num_redundant_experts": 144})
    before = parts.machine.placement
    requests = Requests(parts)
    assert requests.serve({2: lambda: parts.live.inject(lose(3))}) == expected

    left = before.without([3])
    lacking = len(left.missing())
    (record,) = parts.live.faults.records
    assert record.recovery is not None
    assert record.recovery.experts_reloaded == lacking < 4 * 36
    check_agreement(parts)


@pytest.mark.long
@pytest.mark.parametrize("kind", [BeginStep, RunExperts, Combine])
def test_a_chip_that_stops_by_itself_in_a_step_is_a_fault_too(
    kind: type[Command], expected: dict[str, list[int]]
) -> None:
    parts = live_parts()
    requests = Requests(parts)
    assert requests.serve({2: lambda: parts.fleet.doom(1, kind)}) == expected

    (record,) = parts.live.faults.records
    assert record.fault == lose(1)
    assert record.stage is FaultStage.RECOVERING
    check_agreement(parts)


@pytest.mark.long
@pytest.mark.parametrize("during", [LoadExperts, RepeatStep, RunExperts])
@pytest.mark.parametrize("spares", [0, 1, 2])
def test_a_second_chip_is_lost_while_the_first_is_recovered_from(
    during: type[Command], spares: int, expected: dict[str, list[int]]
) -> None:
    parts = live_parts(spares=spares)
    requests = Requests(parts)

    def two() -> None:
        parts.live.inject(lose(0))
        parts.fleet.doom(2, during)

    assert requests.serve({2: two}) == expected
    # With a spare nobody but it reads experts, so the other goes on.
    lost = {record.fault.chip for record in parts.live.faults.records}
    assert lost == ({0} if during is LoadExperts and spares else {0, 2})
    assert {record.stage for record in parts.live.faults.records} == {FaultStage.RECOVERING}
    check_agreement(parts)


@pytest.mark.long
def test_a_chip_that_is_lost_while_its_rank_is_reset_is_met_too(
    expected: dict[str, list[int]],
) -> None:
    parts = live_parts(tp=2)
    requests = Requests(parts)

    def two() -> None:
        parts.live.inject(lose(0))
        parts.fleet.doom(1, ResetRank)

    assert requests.serve({2: two}) == expected
    assert {record.fault.chip for record in parts.live.faults.records} == {0, 1}
    check_agreement(parts)


@pytest.mark.long
def test_reduce_is_a_moment_like_any_other(expected: dict[str, list[int]]) -> None:
    parts = live_parts(tp=2)
    requests = Requests(parts)
    assert requests.serve({1: lambda: parts.fleet.doom(3, Reduce)}) == expected
    check_agreement(parts)


HARMLESS = [
    Fault(kind=FaultKind.SLOW_CHIP, chip=1, factor=3.0),
    Fault(kind=FaultKind.CUT_LINK, chip=1, tier=LinkTier.TRAY, lanes=1),
    Fault(kind=FaultKind.PULL_SWITCH_TRAY, rack=0),
]


@pytest.mark.parametrize("fault", HARMLESS, ids=lambda fault: str(fault.kind))
def test_what_takes_no_chip_is_settled_at_once_and_loses_no_request(
    fault: Fault, expected: dict[str, list[int]]
) -> None:
    parts = live_parts()
    requests = Requests(parts)
    requests.step()
    parts.live.inject(fault)
    assert [record.stage for record in parts.live.faults.records] == [FaultStage.RECOVERING]
    step = requests.step()

    assert step.lost_ranks == ()
    # The loss of a link is noticed after 1 ms; a slow chip is only waited for.
    assert step.pause_ns == (0 if fault.kind is FaultKind.SLOW_CHIP else MS)
    assert parts.machine.ranks_up.all()
    assert requests.serve() == expected


@pytest.mark.long
def test_a_slow_chip_makes_every_step_longer() -> None:
    parts = live_parts(model="qwen3-30b-a3b", calibration="roofline")  # hosts are none the slower
    ones = np.ones(4, dtype=np.int64)
    batch = StepBatch(
        ranks=4, rank=np.arange(4), new_tokens=ones, context_tokens=ones, logit_rows=ones
    )
    before_ns = parts.machine.costing().cost(batch).duration_ns
    parts.live.inject(HARMLESS[0])
    slow_ns = parts.machine.costing().cost(batch).duration_ns
    parts.live.heal()

    assert 2 * before_ns < slow_ns < 3 * before_ns
    assert parts.machine.costing().cost(batch).duration_ns == before_ns


@pytest.mark.long
def test_a_dry_run_says_what_would_happen_and_changes_nothing(
    expected: dict[str, list[int]],
) -> None:
    parts = live_parts(chips=1, spares=0)
    number, recovery = parts.live.inject(lose(0), dry_run=True)

    assert (number, recovery.survivable) == (None, False)
    assert recovery.reason.startswith("no rank can go on")
    assert (len(parts.live.faults), parts.live.actual.lost.any()) == (0, False)
    assert Requests(parts).serve() == expected


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (lose(5), "chip=5: expected 0 to 4, of the partition's 4 chips and 1 spares"),
        (lose(3), "chip=3: expected a chip in service; it is lost"),
        (Fault(kind=FaultKind.FAIL_STACK, chip=0, stack=4), "stack=4: expected 0 to 3"),
        (Fault(kind=FaultKind.PULL_SWITCH_TRAY, rack=2), "rack=2: expected 0 to 1"),
    ],
)
def test_what_cannot_happen_is_refused_and_not_noted(fault: Fault, message: str) -> None:
    parts = live_parts(spares=1)
    parts.live.inject(lose(3))
    with pytest.raises(ConfigError) as raised:
        parts.live.inject(fault)

    assert str(raised.value).startswith(message)
    assert len(parts.live.faults) == 1


@pytest.mark.long
def test_a_full_log_refuses_the_next_fault_before_it_happens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fault_log, "RECORDS_MAX", 1)
    parts = live_parts()
    parts.live.inject(lose(3))
    with pytest.raises(ConfigError, match=r"^faults=1: expected at most 1"):
        parts.live.inject(lose(2))

    assert parts.live.actual.in_service.tolist() == [True, True, True, False]


@pytest.mark.long
def test_a_lost_spare_takes_nothing_but_itself(expected: dict[str, list[int]]) -> None:
    parts = live_parts(spares=1)
    requests = Requests(parts)
    assert requests.serve({1: lambda: parts.live.inject(lose(4))}) == expected
    assert not any(step.lost_ranks for step in requests.steps)

    # It can replace nobody now.
    assert not parts.live.inject(lose(0))[1].ranks_up[0]


@pytest.mark.long
@pytest.mark.parametrize("met", [True, False])
@pytest.mark.parametrize("kind", TAKEN)
def test_a_repaired_chip_takes_its_seat_again(
    kind: FaultKind, met: bool, expected: dict[str, list[int]]
) -> None:
    parts = live_parts()
    requests = Requests(parts)
    requests.step()
    parts.live.inject(take(kind, 2))
    if met:
        requests.step()
    parts.clock.wait_until_ns(9_000_000_000)
    assert parts.live.heal(chip=2) == (1,)

    assert parts.machine.ranks_up.all()
    assert parts.live.faults.records[0].stage is FaultStage.HEALED
    assert parts.live.faults.records[0].healed_emulated_s == 9.0
    assert requests.step().lost_ranks == (2,)
    check_agreement(parts)
    assert requests.serve() == expected


@pytest.mark.long
def test_a_chip_that_is_lost_while_a_repaired_one_comes_back_is_met_too(
    expected: dict[str, list[int]],
) -> None:
    parts = live_parts(tp=2)
    requests = Requests(parts)
    requests.step()
    parts.live.inject(lose(2))
    requests.step()
    parts.fleet.doom(3, ResetRank)
    parts.live.heal(chip=2)

    assert [record.fault.chip for record in parts.live.faults.records] == [2, 3]
    assert parts.machine.ranks_up.tolist() == [True, False]
    check_agreement(parts)
    assert requests.serve() == expected


@pytest.mark.long
def test_nothing_that_happens_again_is_counted_twice() -> None:
    parts = live_parts(spares=1)
    parts.live.inject(lose(0))
    parts.live.inject(HARMLESS[0])
    parts.live.inject(HARMLESS[2])

    assert parts.live.heal(rack=0) == (3,)
    assert parts.live.heal(chip=1) == (2,)
    assert parts.live.heal() == (1,)
    assert parts.live.heal() == ()


@pytest.mark.parametrize(
    ("where", "message"),
    [({"chip": 4}, "chip=4: expected "), ({"rack": 2}, "rack=2: expected 0 to 1")],
)
def test_what_does_not_exist_cannot_be_repaired(where: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        live_parts().live.heal(**where)


@pytest.mark.long
def test_when_no_rank_is_left_steps_are_empty_until_a_chip_is_repaired(
    expected: dict[str, list[int]],
) -> None:
    parts = live_parts(chips=2)
    requests = Requests(parts)
    requests.step()
    for chip in (0, 1):
        _, recovery = parts.live.inject(lose(chip))
    assert not recovery.survivable
    step = requests.step()

    assert (step.result.outputs, step.lost_ranks) == ({}, (0, 1))
    parts.live.faults.finish(emulated_s=0.0)
    assert {record.stage for record in parts.live.faults.records} == {FaultStage.FAILED}
    assert requests.step().result.outputs == {}
    parts.live.heal()
    assert requests.serve() == expected


@pytest.mark.long
def test_a_pause_is_the_next_step_s_alone() -> None:
    parts = live_parts()
    requests = Requests(parts)
    parts.live.pause(5)
    parts.live.pause(7)

    assert [requests.step().pause_ns for _ in range(2)] == [12, 0]


@pytest.mark.parametrize("spares", [0, 1])
def test_tokens_that_are_made_up_survive_in_the_same_way(spares: int) -> None:
    undisturbed = Requests(live_parts(computes=False)).serve()
    parts = live_parts(computes=False, spares=spares)
    requests = Requests(parts)
    faults: dict[int, Callable[[], Any]] = {2: lambda: parts.live.inject(lose(1))}
    assert requests.serve(faults) == undisturbed

    assert [step.lost_ranks for step in requests.steps if step.lost_ranks] == [(1,)]
    assert parts.machine.ranks_up[1] == bool(spares)


FAULTS = st.one_of(
    st.builds(take, st.sampled_from(TAKEN), st.integers(0, 5)),
    st.sampled_from(HARMLESS),
)


@pytest.mark.long
@settings(max_examples=8)
@given(
    happenings=st.lists(st.tuples(st.integers(0, 6), FAULTS | st.integers(0, 5)), max_size=5),
    shape=st.sampled_from([{}, {"spares": 2}, {"tp": 2, "spares": 1}, {"eplb": {}, "ep": 2}]),
)
def test_while_a_rank_is_up_no_sequence_of_faults_and_repairs_changes_a_text(
    happenings: list[tuple[int, Fault | int]],
    shape: dict[str, Any],
    expected: dict[str, list[int]],
) -> None:
    parts = live_parts(**shape)
    requests = Requests(parts)
    for number in range(100):
        for at, what in happenings:
            if at != number:
                continue
            try:
                if isinstance(what, int):
                    parts.live.heal(chip=what)
                else:
                    parts.live.inject(what)
            except ConfigError:
                continue  # no such chip, or it is gone already
        survivable = parts.machine.recovery_plan(parts.live.actual).recovery.survivable
        requests.step()
        assert parts.machine.ranks_up.any() == survivable
        check_agreement(parts)
        if not requests.unfinished or not survivable:
            break
    if survivable:
        assert requests.texts == expected
    else:
        assert all(expected[name][: len(text)] == text for name, text in requests.texts.items())
