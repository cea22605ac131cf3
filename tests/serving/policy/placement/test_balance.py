from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from emulator.errors import ConfigError
from emulator.specs.placement import EMPTY, ExpertPlacement
from serving.policy.placement.balance import rebalance
from serving.policy.placement.chip_loads import chip_loads
from tests.serving.policy.placement.cases import Machine, imbalance, machine, machines, zipf_load

I64 = NDArray[np.int64]

ULTRASERVER = machine(racks=2, trays=18, chips=4)

# The example of DeepSeek's EPLB repository: two layers of twelve experts in four groups, sixteen
# slots on eight chips of two nodes, and the busiest chips of the placement printed there.
EPLB_LOAD = np.array(
    [
        [90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86],
        [20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27],
    ]
)
EPLB_BUSIEST = [156, 179.5]


def busiest(load: I64, placed: ExpertPlacement) -> list[float]:
    return chip_loads(load, placed).max(axis=1).tolist()  # type: ignore[no-any-return]


def has_twins(placed: ExpertPlacement) -> bool:
    chips = placed.expert_of_slot.reshape(-1, placed.slots).tolist()
    held = [[expert for expert in chip if expert != EMPTY] for chip in chips]
    return any(len(set(chip)) < len(chip) for chip in held)


def test_the_heavy_expert_gets_a_copy_and_light_ones_keep_it_company() -> None:
    # Loads per copy 6 6 | 5 4; the two 6 go apart, 5 joins one of them and 4 the other.
    placed = rebalance(
        np.array([[12, 5, 4]]), slots=2, ep=2, **machine(racks=1, trays=1, chips=2).places
    )

    assert placed.expert_of_slot.tolist() == [[[0, 1], [0, 2]]]
    assert imbalance(np.array([[12, 5, 4]]), placed).tolist() == [11 / 10.5]


def test_the_published_example_is_balanced_as_published() -> None:
    place = machine(racks=2, trays=1, chips=4)

    placed = rebalance(EPLB_LOAD, slots=2, ep=8, expert_groups=4, **place.places)

    assert busiest(EPLB_LOAD, placed) == EPLB_BUSIEST
    for rack in (placed.expert_of_slot[:, :4], placed.expert_of_slot[:, 4:]):
        assert [len(set((layer // 3).ravel())) for layer in rack] == [2, 2]  # whole groups


def test_without_expert_groups_copies_may_lie_in_both_racks_and_balance_is_better() -> None:
    place = machine(racks=2, trays=1, chips=4)

    placed = rebalance(EPLB_LOAD, slots=2, ep=8, **place.places)

    assert busiest(EPLB_LOAD, placed) == [142, 172]


def test_expert_groups_that_racks_do_not_divide_are_balanced_globally() -> None:
    place = machine(racks=2, trays=1, chips=4)
    plain = rebalance(EPLB_LOAD, slots=2, ep=8, **place.places)

    for groups in (3, 5):  # 2 racks do not divide 3 groups, nor 5 groups the 12 experts
        grouped = rebalance(EPLB_LOAD, slots=2, ep=8, expert_groups=groups, **place.places)

        assert grouped.expert_of_slot.tolist() == plain.expert_of_slot.tolist()


@pytest.mark.parametrize(
    ("experts", "chips", "slots", "most", "bound"),
    [
        (4, 2, 3, 5, 4 / 3),
        (4, 2, 2, 5, 1.0),
        (3, 2, 2, 5, 1.5),
        (4, 3, 2, 5, 1.5),
        (5, 3, 2, 4, 1.5),
        (6, 2, 3, 4, 7 / 6),
        (6, 3, 2, 4, 1.0),
    ],
)
def test_small_cases_stay_within_a_known_share_of_the_optimum(
    experts: int, chips: int, slots: int, most: int, bound: float
) -> None:
    """Every load below `most` against every placement: the greedy is at most half above the best.

    It makes copies before it packs, and cannot take back one that packs badly.
    """
    loads = np.array(list(product(range(most), repeat=experts)))
    choices = combinations(range(experts), slots)
    rows = []
    for chosen in product(choices, repeat=chips):
        row = np.zeros((chips, experts))
        for chip, held in enumerate(chosen):
            row[chip, list(held)] = 1
        if row.any(axis=0).all():
            rows.append(row)
    member = np.array(rows)  # [placements, chips, experts]
    share = member / member.sum(axis=1, keepdims=True)
    best = np.einsum("pce,le->lpc", share, loads).max(axis=2).min(axis=1)

    place = machine(racks=1, trays=1, chips=chips)
    found = np.array(busiest(loads, rebalance(loads, slots=slots, ep=chips, **place.places)))

    assert (found >= best - 1e-9).all()
    assert (found / np.maximum(best, 1e-9)).max() == pytest.approx(bound)


@pytest.mark.parametrize(
    ("place", "slots", "exponent", "above_bound"),
    [
        (ULTRASERVER, 2, 0.8, 1.14),
        (ULTRASERVER, 2, 1.2, 1.04),
        (ULTRASERVER, 3, 0.8, 1.05),
        (ULTRASERVER, 3, 1.2, 1.20),
        (machine(racks=1, trays=9, chips=4), 8, 1.2, 1.08),
        (machine(racks=1, trays=4, chips=4), 18, 1.2, 1.01),
    ],
)
def test_a_skewed_load_comes_near_to_what_its_copies_allow(
    place: Machine, slots: int, exponent: float, above_bound: float
) -> None:
    """No chip can have less than the mean, nor less than one copy of the heaviest expert."""
    load = zipf_load(layers=8, experts=256, exponent=exponent, seed=7)
    even = ExpertPlacement.even(
        layers=8, experts=256, chips=place.chips, ep=place.chips, spare_slots=1
    )

    placed = rebalance(load, slots=slots, ep=place.chips, **place.places)

    per_copy = (load / placed.copies()[0]).max(axis=1)
    bound = np.maximum(load.sum(axis=1) / place.chips, per_copy)
    assert (np.array(busiest(load, placed)) <= above_bound * bound).all()
    assert (imbalance(load, placed) <= imbalance(load, even) / 2).all()


def test_copies_spread_over_racks_and_trays() -> None:
    load = zipf_load(layers=4, experts=256, exponent=1.2, seed=3)

    placed = rebalance(load, slots=2, ep=144, **ULTRASERVER.places)

    heavy = load.argmax(axis=1)
    for layer, expert in enumerate(heavy):
        chips = np.flatnonzero((placed.expert_of_slot[layer] == expert).any(axis=1))
        by_rack = np.bincount(ULTRASERVER.rack_of_chip[chips])
        by_tray = np.bincount(ULTRASERVER.tray_of_chip[chips], minlength=36)
        assert np.ptp(by_rack) <= 1
        assert np.ptp(by_tray) <= 1


def group_imbalance(
    load: I64, placement: ExpertPlacement, usable: NDArray[np.bool_] | None = None
) -> NDArray[np.float64]:
    """The busiest chip's load over the mean within each group: [groups, layers]."""
    live = np.ones(placement.chips, dtype=np.bool_) if usable is None else usable
    loads = chip_loads(load, placement)
    rows = []
    for first in range(0, placement.chips, placement.ep):
        members = slice(first, first + placement.ep)
        of_group = loads[:, members][:, live[members]]
        mean = of_group.sum(axis=1) / max(1, of_group.shape[1])
        busiest = of_group.max(axis=1, initial=0.0)
        rows.append(np.divide(busiest, mean, out=np.ones_like(mean), where=mean > 0))
    return np.stack(rows)


def test_each_group_is_balanced_for_the_load_that_it_gets() -> None:
    place = machine(racks=1, trays=2, chips=2)
    load = np.array([[[12, 5, 4]], [[4, 5, 12]]])  # [groups, layers, experts]

    placed = rebalance(load, slots=2, ep=2, **place.places)

    assert placed.expert_of_slot.tolist() == [[[0, 1], [0, 2], [2, 1], [2, 0]]]
    assert group_imbalance(load, placed).ravel().tolist() == [11 / 10.5] * 2


def test_groups_that_lost_chips_in_different_places_are_placed_as_if_each_were_alone() -> None:
    place = machine(racks=1, trays=4, chips=3)  # two trays a group
    usable = np.ones(12, dtype=bool)
    usable[[0, 1, 6, 9]] = False  # both of one tray in group 0, one of each tray in group 1
    load = zipf_load(layers=4, experts=8, exponent=0.8, seed=2)

    placed = rebalance(load, slots=4, ep=6, usable=usable, **place.places)

    for members in (slice(0, 6), slice(6, 12)):
        places = {name: values[members] for name, values in place.places.items()}
        alone = rebalance(load, slots=4, ep=6, usable=usable[members], **places)

        assert placed.expert_of_slot[:, members].tolist() == alone.expert_of_slot.tolist()


def test_inside_a_rack_of_whole_groups_copies_still_spread_over_trays() -> None:
    place = machine(racks=2, trays=4, chips=4)
    load = zipf_load(layers=4, experts=16, exponent=0.5, seed=5)

    placed = rebalance(load, slots=2, ep=32, expert_groups=4, **place.places)

    for layer, expert in enumerate(load.argmax(axis=1)):
        chips = np.flatnonzero((placed.expert_of_slot[layer] == expert).any(axis=1))
        by_tray = np.bincount(place.tray_of_chip[chips], minlength=8)
        home = place.rack_of_chip[chips[0]]
        assert np.ptp(by_tray[4 * home : 4 * home + 4]) <= 1
        assert by_tray.sum() == by_tray[4 * home : 4 * home + 4].sum() > 4


def test_groups_of_experts_stay_in_their_racks_when_their_loads_change_places() -> None:
    place = machine(racks=2, trays=1, chips=2)
    before = np.array([[8, 7, 6, 5, 4, 3, 2, 1]])  # rack 0: 8 5 | 7 6, rack 1: 4 1 | 3 2
    after = np.array([[1, 1, 1, 1, 9, 1, 1, 9]])  # the second group now goes first, and apart
    arguments: dict[str, Any] = {"slots": 2, "ep": 4, "expert_groups": 2, **place.places}
    previous = rebalance(before, **arguments)

    placed = rebalance(after, **arguments, previous=previous)

    assert imbalance(after, previous).tolist() == [18 / 6]
    assert imbalance(after, placed).tolist() == [10 / 6]
    assert (placed.expert_of_slot // 4).tolist() == [[[0, 0], [0, 0], [1, 1], [1, 1]]]


def test_too_few_slots_are_refused_with_how_many_would_do() -> None:
    place = machine(racks=1, trays=1, chips=4)
    usable = np.array([True, True, True, False])

    with pytest.raises(ConfigError, match=r"slots=2: expected at least 3 on each of the 3 usable"):
        rebalance(np.ones((1, 8)), slots=2, ep=4, usable=usable, **place.places)
    with pytest.raises(ConfigError, match="at least one in expert group 1"):
        rebalance(np.ones((1, 2)), slots=2, ep=1, usable=usable[[0, 3]], **two_chips().places)


def two_chips() -> Machine:
    return machine(racks=1, trays=1, chips=2)


@pytest.mark.parametrize(
    "wrong",
    [
        {"ep": 3},
        {"ep": 0},
        {"usable": np.ones(3, dtype=bool)},
        {"previous": ExpertPlacement.even(layers=1, experts=4, chips=2, ep=1)},
        {"previous": ExpertPlacement.even(layers=1, experts=3, chips=2, ep=2)},
        {"previous": ExpertPlacement.even(layers=2, experts=4, chips=2, ep=2)},
    ],
)
def test_arguments_that_do_not_fit_each_other_are_refused(wrong: dict[str, Any]) -> None:
    fitting: dict[str, Any] = {"slots": 2, "ep": 2, **two_chips().places}

    with pytest.raises(ValueError, match=r"whole groups|previous placement"):
        rebalance(np.ones((1, 4)), **{**fitting, **wrong})


@st.composite
def tasks(draw: st.DrawFn) -> tuple[I64, dict[str, Any]]:
    """A load and the arguments that place it, with some chips lost but none of the groups."""
    place = draw(machines)
    divisors = [size for size in range(1, place.chips + 1) if place.chips % size == 0]
    ep = draw(st.sampled_from(divisors))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    usable = random.random(place.chips) < draw(st.sampled_from([0.6, 0.9, 1.0]))
    usable[::ep] = True
    least = usable.reshape(-1, ep).sum(axis=1).min()
    slots = draw(st.integers(1, 4))
    experts = draw(st.integers(1, int(least) * slots))
    layers = draw(st.integers(1, 3))
    shape: tuple[int, ...] = (layers, experts)
    if draw(st.booleans()):
        shape = (place.chips // ep, *shape)
    load = random.integers(0, draw(st.sampled_from([1, 4, 1000])), shape)
    arguments = {"slots": slots, "ep": ep, "usable": usable, **place.places}
    arguments["expert_groups"] = draw(st.integers(1, 4))
    return load, arguments


@given(task=tasks())
def test_every_expert_has_a_slot_on_a_usable_chip_and_no_chip_has_one_twice(
    task: tuple[I64, dict[str, Any]],
) -> None:
    load, arguments = task

    placed = rebalance(load, **arguments)

    held = (placed.expert_of_slot != EMPTY).sum(axis=2)  # [layers, chips]
    usable = arguments["usable"]
    assert placed.missing() == []
    assert not has_twins(placed)
    assert (held[:, ~usable] == 0).all()
    if arguments["expert_groups"] == 1:
        assert (held[:, usable] == min(placed.slots, placed.experts)).all()


@given(task=tasks())
def test_layers_are_placed_as_if_each_were_alone(task: tuple[I64, dict[str, Any]]) -> None:
    load, arguments = task
    together = rebalance(load, **arguments)

    for layer in range(load.shape[-2]):
        alone = rebalance(load[..., layer : layer + 1, :], **arguments)

        assert alone.expert_of_slot[0].tolist() == together.expert_of_slot[layer].tolist()


@given(data=st.data(), task=tasks())
def test_balancing_again_never_does_worse_and_moves_as_little_as_places_allow(
    data: st.DataObject, task: tuple[I64, dict[str, Any]]
) -> None:
    load, arguments = task
    seed = data.draw(st.integers(0, 2**32))
    later = np.random.default_rng(seed).permuted(load, axis=-1)
    previous = rebalance(load, **arguments)

    assert same(rebalance(load, **arguments, previous=previous), previous)
    placed = rebalance(later, **arguments, previous=previous)

    usable = arguments["usable"]
    gain = group_imbalance(later, previous, usable) - group_imbalance(later, placed, usable)
    assert (gain >= -1e-9).all()
    assert placed.missing() == []
    assert not has_twins(placed)
    # An expert that stays on its chip stays in its slot.
    old, new = previous.expert_of_slot, placed.expert_of_slot
    stays = (new[..., :, None] == old[..., None, :]) & (new != EMPTY)[..., None]
    off_diagonal = ~np.eye(placed.slots, dtype=bool)
    assert not (stays & off_diagonal).any()


def same(one: ExpertPlacement, other: ExpertPlacement) -> bool:
    return one.expert_of_slot.tolist() == other.expert_of_slot.tolist()


@given(task=tasks())
def test_starting_from_even_it_never_does_worse(task: tuple[I64, dict[str, Any]]) -> None:
    load, arguments = task
    arguments = {**arguments, "usable": None}
    chips, ep, experts = len(arguments["rack_of_chip"]), arguments["ep"], load.shape[-1]
    spare = arguments["slots"] - -(-experts // ep)
    even = ExpertPlacement.even(
        layers=load.shape[-2], experts=experts, chips=chips, ep=ep, spare_slots=spare
    )

    placed = rebalance(load, **arguments, previous=even)

    assert (group_imbalance(load, placed) <= group_imbalance(load, even) + 1e-9).all()


def test_matched_packs_spare_moves_on_the_whole_machine() -> None:
    before = zipf_load(layers=4, experts=256, exponent=0.8, seed=1)
    after = before + zipf_load(layers=4, experts=256, exponent=0.8, seed=2) // 10
    previous = rebalance(before, slots=2, ep=144, **ULTRASERVER.places)

    free = rebalance(after, slots=2, ep=144, **ULTRASERVER.places)
    sparing = rebalance(after, slots=2, ep=144, **ULTRASERVER.places, previous=previous)

    assert imbalance(after, sparing).tolist() == pytest.approx(imbalance(after, free).tolist())
    moved = [(p.expert_of_slot != previous.expert_of_slot).mean() for p in (free, sparing)]
    assert moved[1] < 0.9 * moved[0]
