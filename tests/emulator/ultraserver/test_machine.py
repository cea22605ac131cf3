"""How the machine goes on after faults and repairs: seats, experts, memory, and what steps cost."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.errors import ConfigError, HbmExhausted
from emulator.faults.recovery_time import RecoveryRates
from emulator.specs.calibration import ROOFLINE
from emulator.specs.catalog.qwen3_moe import QWEN3_30B_A3B
from emulator.specs.catalog.trn3_nl72x2 import TRN3_NL72X2
from emulator.specs.fault import Fault, FaultKind, LinkTier
from emulator.specs.figure import Figure
from emulator.specs.health import Health
from emulator.specs.model import ModelSpec
from emulator.specs.models import model_by_name
from emulator.specs.partition import Partition
from emulator.specs.placement import EMPTY, ExpertPlacement
from emulator.specs.seating import VACANT
from emulator.ultraserver.machine import Machine, RecoveryPlan
from tests.emulator.ultraserver.tiny_steps import TINY, batch_of, same_on_each

LAYERS, EXPERTS = QWEN3_30B_A3B.moe_layers, QWEN3_30B_A3B.experts

# One byte a nanosecond, noticed after 100: recovery times can be read as bytes.
SLOW_DRIVES = RecoveryRates(
    notice_ns=Figure(value=100, unit="ns", source="a test"),
    drives_bytes_per_s=Figure(value=1e9, unit="bytes/s", source="a test"),
)


def make_machine(
    *,
    model: ModelSpec = QWEN3_30B_A3B,
    spare_slots: int = 0,
    rates: RecoveryRates | None = None,
    **fields: int,
) -> Machine:
    partition = Partition(**{"ep": fields["chips"], **fields})
    placement = ExpertPlacement.even(
        layers=model.moe_layers,
        experts=model.experts,
        chips=partition.chips,
        ep=partition.ep,
        spare_slots=spare_slots,
    )
    return Machine(TRN3_NL72X2, model, partition, placement, rates=rates, calibration=ROOFLINE)


def lose(chip: int) -> Fault:
    return Fault(kind=FaultKind.LOSE_CHIP, chip=chip)


def slow(chip: int, factor: float) -> Fault:
    return Fault(kind=FaultKind.SLOW_CHIP, chip=chip, factor=factor)


PULL = Fault(kind=FaultKind.PULL_SWITCH_TRAY, rack=0)


def go_on(machine: Machine, health: Health, kinds: Iterable[FaultKind] = ()) -> RecoveryPlan:
    recovery_plan = machine.recovery_plan(health, kinds)
    machine.apply(health, recovery_plan)
    machine.hbm.check()
    return recovery_plan


def strike(machine: Machine, *faults: Fault) -> RecoveryPlan:
    return go_on(machine, machine.after(faults), [fault.kind for fault in faults])


def leave_slots(machine: Machine, slots: int) -> None:
    """Give the pool all but the memory of so many slots of each chip."""
    expert_bytes = 3 * 2_048 * 768 * 2  # of Qwen3-30B-A3B: three matrices in BF16
    tokens = slots * LAYERS * expert_bytes // machine.model.kv_bytes_per_token
    machine.take_kv(machine.kv_tokens_per_rank - tokens - 1)
    assert machine.capacity().tolist() == [32 + slots] * 4


def expert_bytes_held(machine: Machine, position: int) -> int:
    stacks = machine.hbm.usage()[position]
    return sum(stack.owner_bytes["weights/experts"] for stack in stacks)


def step_ns(machine: Machine, *, requests: int = 8) -> int:
    """A decode of so many requests on every rank that is up."""
    rows = [(rank, 1, 1_000) for rank in np.flatnonzero(machine.ranks_up) for _ in range(requests)]
    return machine.costing().cost(batch_of(machine.partition.ranks, rows)).duration_ns


class TestWhole:
    def test_everyone_sits_at_home_and_is_up(self) -> None:
        machine = make_machine(chips=8, tp=2, ep=4, first_chip=20, spares=2)

        assert machine.seating.chip_of_position.tolist() == list(range(8))
        assert machine.seating.system_chips(machine.partition).tolist() == list(range(20, 28))
        assert machine.ranks_up.tolist() == [True] * 4
        assert machine.chips_up.all()
        assert machine.placement.missing() == []
        machine.hbm.check()

    def test_a_pool_takes_what_is_left_and_not_a_token_more(self) -> None:
        machine = make_machine(chips=4)
        tokens = machine.kv_tokens_per_rank
        assert machine.capacity().tolist() == [EXPERTS] * 4  # the emptiest way to serve

        machine.take_kv(tokens)
        assert machine.capacity().tolist() == [32] * 4
        with pytest.raises(HbmExhausted):
            machine.take_kv(tokens + 1)
        machine.hbm.check()
        assert machine.capacity().tolist() == [32] * 4

    def test_a_model_that_does_not_fit_is_refused_with_what_would(self) -> None:
        with pytest.raises(HbmExhausted, match="deepseek-v3") as caught:
            make_machine(model=model_by_name("deepseek-v3"), chips=2)

        assert "--chips" in caught.value.hint

    def test_bytes_that_stay_take_no_time_and_more_bytes_take_longer(self) -> None:
        machine = make_machine(chips=4)
        payload = np.diag([1e9] * 4)
        assert machine.moving(payload).duration_ns == 0

        payload[0, 1] = 1e6
        some = machine.moving(payload).duration_ns
        payload[0, 1] = 3e6
        more = machine.moving(payload).duration_ns

        tray_ns = 2e6 / TRN3_NL72X2.chip.link_tray_bytes_per_s.value * 1e9
        assert more - some == pytest.approx(tray_ns, abs=1.0)


class TestLogicalCores:
    # Two key/value heads: eight, four and one logical cores of a chip hold 8, 4 and 2 copies.
    TWO_KV_HEADS = replace(QWEN3_30B_A3B, name="two-kv-heads", kv_heads=2)

    def test_they_set_the_pool_by_the_heads_that_cores_must_repeat(self) -> None:
        four = {lnc: make_machine(chips=4, lnc=lnc).kv_tokens_per_rank for lnc in (1, 2, 8)}
        two = {
            lnc: make_machine(model=self.TWO_KV_HEADS, chips=4, lnc=lnc).kv_tokens_per_rank
            for lnc in (1, 2, 8)
        }

        # Four heads are repeated on eight cores, and on four or one they are not.
        assert four[2] / four[1] == pytest.approx(2, rel=0.01)
        assert four[8] == pytest.approx(four[2], rel=0.001)
        assert two[2] / two[1] == pytest.approx(2, rel=0.01)
        assert two[8] / two[2] == pytest.approx(2, rel=0.01)

    def test_fewer_of_them_add_up_less_and_step_faster(self) -> None:
        one, two, eight = (step_ns(make_machine(chips=4, lnc=lnc)) for lnc in (1, 2, 8))

        assert one > two > eight

    def test_one_that_the_chip_has_not_is_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"lnc=4: expected .* 1, 2, 8 "):
            make_machine(chips=4, lnc=4)


class TestLosses:
    def test_a_spare_takes_the_seat_and_reads_what_lay_there_by_hand(self) -> None:
        machine = make_machine(model=TINY, chips=2, spares=1, rates=SLOW_DRIVES)
        before = machine.placement.expert_of_slot

        recovery_plan = strike(machine, lose(1))

        # Two experts of 3 x 4 x 3 weights in each of two layers, 2 bytes each: 288. Embedding and
        # head 80 each; attention 2 x 48 weights, 192; norms 56; routers 64: 472.
        assert recovery_plan.duration_ns == 100 + 288 + 472
        assert recovery_plan.recovery.restored == ((1, 2),)
        assert recovery_plan.recovery.restarted_ranks == (1,)
        assert machine.seating.chip_of_position.tolist() == [0, 2]
        assert machine.ranks_up.all()
        assert (machine.placement.expert_of_slot == before).all()

    def test_a_chip_of_a_pair_reads_its_half_and_keys_and_values_that_both_hold(self) -> None:
        machine = make_machine(model=TINY, chips=2, tp=2, spares=1, rates=SLOW_DRIVES)

        # Halves of 80, 80 and of the 128 bytes of queries and output; all 64 of the one head of
        # keys and values; norms and routers whole.
        assert strike(machine, lose(0)).duration_ns == 100 + 288 + 40 + 40 + 64 + 64 + 56 + 64

    def test_without_spares_survivors_read_its_experts_and_its_rank_is_down(self) -> None:
        machine = make_machine(chips=4)
        machine.take_kv(machine.kv_tokens_per_rank // 2)
        whole_ns = step_ns(machine)

        recovery_plan = strike(machine, lose(2))

        assert machine.ranks_up.tolist() == [True, True, False, True]
        assert machine.seating.chip_of_position.tolist() == [0, 1, VACANT, 3]
        assert machine.placement.missing() == []
        assert (machine.placement.expert_of_slot[:, 2] == EMPTY).all()
        assert len(recovery_plan.recovery.reloads) == LAYERS * EXPERTS // 4
        held = (machine.placement.expert_of_slot != EMPTY).sum(axis=2)  # [layers, positions]
        assert set(held[:, 2]) == {0}
        assert set(held[:, [0, 1, 3]].ravel()) == {42, 43}
        # Three chips do the experts of four, for three quarters of the tokens.
        assert step_ns(machine) != whole_ns

    @pytest.mark.parametrize(("spare_slots", "survives"), [(10, False), (11, True)])
    def test_survivors_need_a_slot_for_every_expert(self, spare_slots: int, survives: bool) -> None:
        # Three chips with 42 slots have 126, with 43 they have 129, and there are 128 experts.
        machine = make_machine(chips=4)
        leave_slots(machine, spare_slots)

        recovery_plan = machine.recovery_plan(machine.after([lose(2)]))

        assert recovery_plan.recovery.survivable == survives

    def test_a_position_without_a_chip_computes_nothing_and_draws_idle_power(self) -> None:
        machine = make_machine(chips=4)
        strike(machine, lose(2))

        cost = machine.costing().cost(batch_of(4, [(0, 1, 1_000), (3, 1, 1_000)]))

        busy = np.array(list(cost.engine_ns.values()))  # [engines, positions]
        assert not busy[:, 2].any()
        assert busy[:, 1].any()  # it has a dummy token and experts
        assert cost.chip_watts[2] == machine.cost_model.idle_chip_watts

    def test_a_loss_that_nobody_has_room_for_is_not_survived_and_said(self) -> None:
        machine = make_machine(chips=4)
        machine.take_kv(machine.kv_tokens_per_rank)

        recovery_plan = strike(machine, lose(2))

        assert not recovery_plan.recovery.survivable
        assert recovery_plan.recovery.reason.startswith("no rank can go on: ")
        assert not machine.ranks_up.any()

    def test_redundant_copies_take_over_and_nothing_is_read(self) -> None:
        machine = make_machine(chips=4, spare_slots=32, rates=SLOW_DRIVES)
        slots = machine.placement.expert_of_slot.copy()
        slots[:, :, 32:] = slots[:, [1, 2, 3, 0], :32]
        machine.place_experts(ExpertPlacement(experts=EXPERTS, ep=4, expert_of_slot=slots))
        machine.take_kv(machine.kv_tokens_per_rank)

        recovery_plan = strike(machine, lose(1))

        assert recovery_plan.duration_ns == 100
        assert recovery_plan.recovery.reloads == ()
        assert recovery_plan.recovery.taken_over == LAYERS * 64
        assert machine.ranks_up.tolist() == [True, False, True, True]

    def test_a_repaired_chip_comes_back_to_its_seat_and_experts_may_come_home(self) -> None:
        machine = make_machine(chips=4)
        home = machine.placement
        machine.take_kv(machine.kv_tokens_per_rank // 2)
        whole_ns = step_ns(machine)
        strike(machine, lose(2))

        recovery_plan = go_on(machine, machine.health.healed(2))

        assert recovery_plan.recovery.restored == ((2, 2),)
        assert machine.ranks_up.all()
        assert machine.placement.missing() == []
        assert step_ns(machine) > whole_ns  # three chips still hold all experts
        machine.place_experts(home)
        machine.hbm.check()
        assert step_ns(machine) == whole_ns

    def test_a_question_changes_nothing(self) -> None:
        machine = make_machine(chips=4)
        health, placement, costing = machine.health, machine.placement, machine.cost_model
        usage = machine.hbm.usage()

        machine.recovery_plan(machine.after([lose(2)]))

        assert machine.health is health
        assert machine.placement is placement
        assert machine.cost_model is costing
        assert machine.hbm.usage() == usage
        assert machine.ranks_up.all()

    def test_a_fault_that_cannot_happen_is_refused_and_faults_add_up(self) -> None:
        machine = make_machine(chips=4, spares=1)

        with pytest.raises(ConfigError, match=r"^chip=5: expected 0 to 4"):
            machine.after([lose(5)])
        with pytest.raises(ConfigError, match=r"^chip=1: expected a chip in service; it is lost"):
            machine.after([lose(1), lose(1)])
        assert machine.after([lose(1), slow(0, 3.0)]).slow_factor[0] == 3.0
        assert machine.health.in_service.all()


class TestRoom:
    """What `capacity` offers must be there, however unevenly layers are filled."""

    def assert_it_is_there(self, machine: Machine) -> None:
        for position, slots in enumerate(machine.capacity().tolist()):
            machine.hbm.hold_expert_copies(position, slots * LAYERS)
        machine.hbm.check()

    def test_a_layer_with_more_experts_than_others_leaves_less_room_for_all(self) -> None:
        machine = make_machine(chips=4)
        leave_slots(machine, 5)
        slots = np.pad(
            machine.placement.expert_of_slot, ((0, 0), (0, 0), (0, 4)), constant_values=EMPTY
        )
        slots[7, 1, 32:] = [0, 1, 2, 3]

        machine.place_experts(ExpertPlacement(experts=EXPERTS, ep=4, expert_of_slot=slots))

        assert machine.capacity().tolist() == [37] * 4
        assert expert_bytes_held(machine, 1) == 36 * LAYERS * 3 * 2_048 * 768 * 2
        self.assert_it_is_there(machine)

    def test_slots_of_the_start_stay_reserved_while_they_are_empty(self) -> None:
        machine = make_machine(chips=4, spare_slots=3)
        before = machine.hbm.usage()

        machine.place_experts(machine.placement)

        assert machine.hbm.usage() == before
        assert expert_bytes_held(machine, 0) == 35 * LAYERS * 3 * 2_048 * 768 * 2

    @pytest.mark.long
    @given(st.integers(0, 2**32))
    def test_so_it_is_for_any_placement_that_fits(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        machine = make_machine(chips=4)
        machine.take_kv(int(rng.integers(0, machine.kv_tokens_per_rank + 1)))
        most = machine.capacity()
        slots = np.full((LAYERS, 4, int(most.max())), EMPTY)
        for layer in range(LAYERS):
            for position in range(4):
                count = rng.integers(0, most[position] + 1)
                slots[layer, position, :count] = rng.integers(0, EXPERTS, count)

        machine.place_experts(ExpertPlacement(experts=EXPERTS, ep=4, expert_of_slot=slots))

        assert (machine.capacity() <= most).all()
        self.assert_it_is_there(machine)


class TestCost:
    def test_a_slow_chip_holds_up_every_step_until_it_is_repaired(self) -> None:
        machine = make_machine(chips=4)
        whole_ns = step_ns(machine)

        assert strike(machine, slow(2, 2.0)).duration_ns == 0
        slow_ns = step_ns(machine)
        strike(machine, slow(2, 3.0))
        slower_ns = step_ns(machine)

        assert whole_ns < slow_ns < 2 * whole_ns
        assert slower_ns - whole_ns == pytest.approx(2 * (slow_ns - whole_ns), rel=0.1)
        assert machine.ranks_up.all()
        go_on(machine, machine.health.healed())
        assert step_ns(machine) == whole_ns

    def test_a_slow_chip_that_is_replaced_slows_nobody(self) -> None:
        machine = make_machine(chips=4, spares=1)
        strike(machine, slow(2, 2.0))
        slow_ns = step_ns(machine)

        strike(machine, lose(2))

        assert machine.seating.chip_of_position.tolist() == [0, 1, 4, 3]
        assert step_ns(machine) < slow_ns

    @pytest.mark.long
    def test_two_pulled_trays_cost_nothing_and_the_third_slows_the_exchange(self) -> None:
        # 80 lanes over ten trays, 64 of them active: two trays carry the 16 redundant ones.
        machine = make_machine(chips=72)
        times = [step_ns(machine, requests=64)]
        for _ in range(4):
            strike(machine, PULL)
            times.append(step_ns(machine, requests=64))

        assert times[0] == times[1] == times[2] < times[3] < times[4]
        go_on(machine, machine.health.healed())
        assert step_ns(machine, requests=64) == times[0]

    def test_cut_lanes_slow_the_exchange_of_a_tray(self) -> None:
        machine = make_machine(chips=4)
        whole_ns = step_ns(machine, requests=64)

        cut = Fault(kind=FaultKind.CUT_LINK, chip=0, tier=LinkTier.TRAY, lanes=48)
        strike(machine, cut)

        assert step_ns(machine, requests=64) > whole_ns

    def test_a_rank_that_a_chip_of_another_tray_has_joined_adds_up_more_slowly(self) -> None:
        # Without experts nothing else is sent.
        machine = make_machine(model=model_by_name("llama-3.1-8b"), chips=4, tp=2, spares=1)
        home_ns = step_ns(machine)

        strike(machine, lose(1))

        assert machine.seating.chip_of_position.tolist() == [0, 4, 2, 3]
        assert step_ns(machine) > home_ns

    def test_a_spare_passes_on_what_cannot_go_directly(self) -> None:
        # Chips 71 and 72 of the system are in different racks; the spare is beside the second.
        alone, helped = (make_machine(chips=2, first_chip=71, spares=spares) for spares in (0, 1))
        whole_ns = step_ns(helped)
        cut = Fault(kind=FaultKind.CUT_LINK, chip=1, tier=LinkTier.CROSS_RACK)

        assert strike(alone, cut).recovery.fenced == (1,)
        assert strike(helped, cut).recovery.fenced == ()
        assert helped.seating.chip_of_position.tolist() == [0, 1]
        assert step_ns(helped) > whole_ns

    def test_what_steps_cost_then_can_be_asked_later(self) -> None:
        machine = make_machine(chips=4)
        before = machine.costing()
        batch = same_on_each(4, 8, 1, 1_000)
        expected = before.cost(batch)

        strike(machine, slow(2, 2.0))

        assert before.cost(batch).duration_ns == expected.duration_ns
        assert machine.costing().cost(batch).duration_ns > expected.duration_ns


@st.composite
def troubles(draw: st.DrawFn) -> list[tuple[str, int]]:
    kinds = st.sampled_from(["lose", "hang", "stack", "slow", "cut", "pull", "heal", "heal all"])
    return draw(st.lists(st.tuples(kinds, st.integers(0, 9)), max_size=12))


def fault_of(kind: str, chip: int) -> Fault:
    match kind:
        case "lose":
            return lose(chip)
        case "hang":
            return Fault(kind=FaultKind.HANG_CHIP, chip=chip)
        case "stack":
            return Fault(kind=FaultKind.FAIL_STACK, chip=chip, stack=chip % 4)
        case "slow":
            return slow(chip, 1.0 + chip / 2 if chip else 4.0)
        case "cut":
            tier = list(LinkTier)[chip % 3]
            return Fault(kind=FaultKind.CUT_LINK, chip=chip, tier=tier)
        case _:
            return PULL


@pytest.mark.long
@given(
    shape=st.sampled_from([(8, 1, 8), (8, 2, 8), (8, 2, 4), (8, 4, 2)]),
    left_share=st.sampled_from([0.0, 0.2, 1.0]),
    events=troubles(),
)
def test_whatever_happens_the_machine_agrees_with_itself(
    shape: tuple[int, int, int], left_share: float, events: list[tuple[str, int]]
) -> None:
    chips, tp, ep = shape
    machine = make_machine(chips=chips, tp=tp, ep=ep, spares=2)
    pool = int(machine.kv_tokens_per_rank * (1 - left_share))
    machine.take_kv(pool)
    for kind, chip in events:
        try:
            if kind.startswith("heal"):
                go_on(machine, machine.health.healed(None if kind == "heal all" else chip))
            else:
                strike(machine, fault_of(kind, chip))
        except ConfigError:  # of a chip, stack, lane or tray that is gone already
            continue
        assert_agrees(machine)


def assert_agrees(machine: Machine) -> None:
    partition, seats = machine.partition, machine.seating.chip_of_position
    sitting = seats[seats != VACANT]
    assert machine.health.in_service[sitting].all()
    complete = machine.chips_up.reshape(-1, partition.tp).all(axis=1)
    assert (machine.ranks_up <= complete).all()
    held = (machine.placement.expert_of_slot != EMPTY).sum(axis=2).max(axis=0)
    assert (held <= machine.capacity()).all()
    assert (machine.placement.expert_of_slot[:, seats == VACANT] == EMPTY).all()
    lost = {group for group, _, _ in machine.placement.missing()}
    for rank in np.flatnonzero(machine.ranks_up).tolist():
        groups = {chip // partition.ep for chip in partition.chips_of_rank(rank)}
        assert groups.isdisjoint(lost)
    if machine.ranks_up.any():
        assert step_ns(machine, requests=1) > 0
