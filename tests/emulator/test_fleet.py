"""Live chips: four Ray actors compute what four chips in this process compute, and are gone after.

One fleet serves the whole file; the last test that uses it takes it down.
"""

import logging
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from emulator.data import SMALL_MOE_DIR
from emulator.errors import ChannelError, CheckpointError, ChipLost
from emulator.fleet import Fleet
from emulator.specs.placement import ExpertPlacement, ExpertTransfer
from emulator.specs.step import RankStep, Scheduled
from emulator.ultraserver.lockstep import StepResult
from tests.emulator.chip.placements import shuffled_placement
from tests.emulator.fleet_steps import (
    BLOCK_TOKENS,
    EXPERTS,
    GRAMMAR,
    GREEDY,
    KV_BLOCKS,
    LAYERS,
    RANDOM,
    VOCAB,
    assert_same,
    decode_steps,
    descendants,
    even_placement,
    in_process,
    last_steps,
    make_fleet,
    prefill_steps,
    process_of,
    start,
)

pytestmark = pytest.mark.fleet

CHIPS = 4
SLOTS_MAX = 40
PSS_BYTES_MAX = 75_000_000
KINDS = ((0, GREEDY), (1, RANDOM), (3, GRAMMAR))  # rank 2 has no request


@pytest.fixture(scope="module")
def scratch() -> Iterator[Path]:
    """Where fleets put their files. A short path, since Unix sockets lie in it."""
    directory = Path(tempfile.mkdtemp(prefix="fleet-"))
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(scope="module")
def before() -> set[psutil.Process]:
    """The processes from before the fleet's start."""
    return descendants()


@pytest.fixture(scope="module")
def fleet(before: set[psutil.Process], scratch: Path) -> Iterator[Fleet]:
    fleet = make_fleet(CHIPS, slots_max=SLOTS_MAX)
    try:
        start(fleet, scratch)
        yield fleet
    finally:
        fleet.stop()


def test_actors_compute_the_bits_that_chips_in_one_process_compute(fleet: Fleet) -> None:
    machine = in_process(CHIPS)
    allowed = np.zeros((1, VOCAB // 32), dtype=np.int32)
    allowed[0, 700 // 32] = 1 << 700 % 32

    steps = prefill_steps(KINDS, tokens=200)
    rounds = [(steps, {3: allowed})]
    rounds += [(decode_steps(steps, made), {}) for made in range(1, 4)]
    for given, bitmasks in rounds:
        found = fleet.step(given, bitmasks)
        lockstep = machine.drive(machine.begin(given, bitmasks))
        expected = lockstep.result(lockstep.outputs)
        assert sorted(found.outputs) == [0, 1, 3]
        for rank, output in expected.outputs.items():
            assert_same(found.outputs[rank], output)
        if bitmasks:
            assert found.outputs[3].token_ids[0] == 700
            assert list(found.outputs[1].prompt_logprobs) == ["1-long"]
        assert found.loads is not None
        assert expected.loads is not None
        for name in ("pairs", "distinct", "sent"):
            assert (getattr(found.loads, name) == getattr(expected.loads, name)).all()
        assert (found.expert_pairs == expected.expert_pairs).all()


def test_a_step_in_which_no_rank_has_a_token_is_heard_by_all(fleet: Fleet) -> None:
    steps = [
        RankStep(rank=rank, new=[], scheduled=[], finished=[f"{rank}-long", f"{rank}-short"])
        for rank in range(CHIPS)
    ]

    result = fleet.step(steps, {})

    assert {rank: output.request_ids for rank, output in result.outputs.items()} == {
        rank: [] for rank in range(CHIPS)
    }
    assert result.loads is result.expert_pairs is None


def transfers_to(
    after: ExpertPlacement, before: ExpertPlacement, *, from_checkpoint: bool
) -> list[ExpertTransfer]:
    """Every slot of `after` that holds another expert than in `before`, from where it lies."""
    transfers = []
    changed = after.expert_of_slot != before.expert_of_slot
    for layer, chip, slot in np.argwhere(changed).tolist():
        expert = int(after.expert_of_slot[layer, chip, slot])
        if expert < 0:
            continue
        source = np.argwhere(before.expert_of_slot[layer] == expert)[0].tolist()
        source_chip, source_slot = (-1, -1) if from_checkpoint else source
        transfers.append(
            ExpertTransfer(
                layer=layer,
                expert=expert,
                source_chip=source_chip,
                source_slot=source_slot,
                chip=chip,
                slot=slot,
            )
        )
    return transfers


def swapped(placement: ExpertPlacement, layer: int) -> ExpertPlacement:
    """The first slots of chips 0 and 3 have changed places."""
    slots = placement.expert_of_slot.copy()
    slots[layer, [0, 3], 0] = slots[layer, [3, 0], 0]
    return ExpertPlacement(experts=EXPERTS, ep=CHIPS, expert_of_slot=slots)


def assert_loads_follow(result: StepResult, placement: ExpertPlacement) -> None:
    """Each chip computed what chose the experts that lie on it, and nothing else."""
    assert result.loads is not None
    assert result.expert_pairs is not None
    for layer, chip in np.ndindex(LAYERS, CHIPS):
        held = placement.expert_of_slot[layer, chip]
        on_chip = result.expert_pairs[layer, 0, held[held >= 0]].sum()
        assert result.loads.pairs[layer, chip] == on_chip


@pytest.mark.parametrize("from_checkpoint", [False, True])
def test_experts_move_in_the_middle_of_a_text_and_its_bits_stay(
    fleet: Fleet, from_checkpoint: bool
) -> None:
    machine = in_process(CHIPS)
    steps = prefill_steps(KINDS[:2], tokens=90)
    shuffled = shuffled_placement(
        layers=LAYERS, experts=EXPERTS, chips=CHIPS, ep=CHIPS, slots=SLOTS_MAX, seed=1
    )
    home = even_placement(CHIPS)
    padded = np.pad(home.expert_of_slot, ((0, 0), (0, 0), (0, 4)), constant_values=-1)
    wide_home = ExpertPlacement(experts=EXPERTS, ep=CHIPS, expert_of_slot=padded)
    placements = [swapped(wide_home, layer=2), shuffled, wide_home]

    for outputs in (fleet.step(steps, {}).outputs, machine.step(steps)):
        assert sorted(outputs) == [0, 1]
    here = wide_home
    for made, placement in enumerate(placements, start=1):
        moves = transfers_to(placement, here, from_checkpoint=from_checkpoint)
        fleet.place(placement, moves)
        here = placement
        given = decode_steps(steps, made)
        found, expected = fleet.step(given, {}), machine.step(given)
        for rank, output in expected.items():
            assert_same(found.outputs[rank], output)
        if placement.copies().max() == 1:
            assert_loads_follow(found, placement)
    fleet.place(home, [])
    fleet.step(last_steps(steps), {})


def test_it_knows_its_architecture_and_what_its_chips_cost_the_host(fleet: Fleet) -> None:
    memory = fleet.conditions()
    print("chip processes:", ", ".join(f"{m.pss_bytes / 1e6:.0f} MB" for m in memory))

    assert fleet.architecture.experts == EXPERTS
    assert fleet.chips == CHIPS
    assert fleet.live_chips == frozenset(range(CHIPS))
    assert len(memory) == CHIPS
    sizes = sorted(m.pss_bytes for m in memory)
    assert 10_000_000 < sizes[0] <= sizes[-1] < PSS_BYTES_MAX, sizes
    assert all(m.pss_bytes <= m.rss_bytes for m in memory)
    assert fleet.cpu_s() > 0


def test_a_chip_that_fails_is_a_lost_chip_and_its_reason_is_logged(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    unknown = Scheduled(request_id="nobody", first_position=0, new_tokens=1)
    failing = RankStep(rank=2, new=[], scheduled=[unknown], finished=[])
    log = logging.getLogger("vllm.emulator.fleet")
    log.addHandler(caplog.handler)
    try:
        with pytest.raises(ChipLost) as loss:
            fleet.step([failing], {})
    finally:
        log.removeHandler(caplog.handler)

    assert loss.value.chips == (2,)
    assert "chip 2 failed" in caplog.text
    assert "nobody" in caplog.text
    fleet.remove([2], [2])
    assert fleet.resume([2]).outputs == {}
    fleet.add(2, even_placement(CHIPS))
    steps = prefill_steps([(2, GREEDY)], tokens=20)
    assert fleet.step(steps, {}).outputs[2].request_ids == ["2-long", "2-short"]


def test_stopping_a_fleet_whose_chips_are_gone_leaves_nothing(
    fleet: Fleet, before: set[psutil.Process], scratch: Path
) -> None:
    chips = [process_of(fleet, chip) for chip in range(CHIPS)]
    assert set(chips) <= descendants() - before
    for process in chips:
        process.kill()
    with pytest.raises(ChipLost):
        fleet.conditions()

    assert list(scratch.glob("ultraserve-ray-*")) != []
    fleet.stop()
    fleet.stop()

    assert descendants() - before == set()
    assert list(scratch.glob("ultraserve*")) == []


@pytest.mark.slow  # a Ray of its own
def test_a_chip_that_cannot_start_is_a_channel_error_and_leaves_nothing(
    before: set[psutil.Process], scratch: Path
) -> None:
    too_large = Fleet(
        weights_dir=SMALL_MOE_DIR,
        placement=even_placement(1),
        kv_blocks=10**12,
        block_tokens=BLOCK_TOKENS,
    )

    with pytest.raises(ChannelError, match="did not start"):
        start(too_large, scratch)

    assert descendants() - before == set()
    assert list(scratch.glob("ultraserve*")) == []


def test_a_checkpoint_that_cannot_be_computed_is_told_before_anything_starts(
    before: set[psutil.Process], scratch: Path, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        Fleet(
            weights_dir=tmp_path,
            placement=even_placement(1),
            kv_blocks=KV_BLOCKS,
            block_tokens=BLOCK_TOKENS,
        )

    assert descendants() - before == set()


def test_stopping_a_fleet_that_never_started_does_nothing() -> None:
    make_fleet(1).stop()


@pytest.mark.parametrize(("layers", "experts"), [(LAYERS, 16), (3, EXPERTS)])
def test_a_placement_of_another_model_is_a_programming_error(layers: int, experts: int) -> None:
    placement = ExpertPlacement.even(layers=layers, experts=experts, chips=1, ep=1)
    with pytest.raises(AssertionError):
        Fleet(weights_dir=SMALL_MOE_DIR, placement=placement, kv_blocks=8, block_tokens=32)
