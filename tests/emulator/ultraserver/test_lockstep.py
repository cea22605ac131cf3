"""The same bits whatever the partition, the placement, and how often a step was broken off."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.chip.commands import RepeatStep, ResetRank, SendExperts, TakeExperts
from emulator.chip.effects import CommandDone, Dispatch, ExpertRows, ExpertWeights
from emulator.specs.placement import EMPTY, ExpertPlacement
from emulator.specs.sampling import SamplingSpec
from emulator.specs.step import RankStep, Scheduled
from emulator.ultraserver.exchange import ExpertMap
from emulator.ultraserver.lockstep import Lockstep
from tests.emulator.chip.in_process import InProcessChips, new_requests, serve
from tests.emulator.chip.placements import shuffled_placement

NEW_TOKENS = 6
LAYERS, EXPERTS = 3, 16


def prompts(vocab: int = 96) -> dict[str, list[int]]:
    rng = np.random.default_rng(3)
    return {f"r{n}": rng.integers(1, vocab, 3 + 37 * n).tolist() for n in range(5)}


def random_placement(chips: int, ep: int, slots: int, seed: int) -> ExpertPlacement:
    return shuffled_placement(
        layers=LAYERS, experts=EXPERTS, chips=chips, ep=ep, slots=slots, seed=seed
    )


@pytest.fixture(scope="module")
def directory(small_checkpoints: Mapping[str, Path]) -> Path:
    return small_checkpoints["as_many_kv_heads"]


@pytest.fixture(scope="module")
def alone(directory: Path) -> InProcessChips:
    chips = InProcessChips(directory, chips=1)
    serve(chips, prompts(), new_tokens=NEW_TOKENS)
    return chips


def assert_same_bits(machine: InProcessChips, alone: InProcessChips) -> None:
    for name in prompts():
        assert (machine.rows(name) == alone.rows(name)).all(), name


@pytest.mark.long
@pytest.mark.parametrize(
    ("chips", "tp"), [(2, 1), (2, 2), (4, 1), (4, 2), (4, 4), (8, 2), (8, 4), (16, 1), (16, 4)]
)
def test_logits_have_the_same_bits_on_any_number_of_chips_and_ranks(
    chips: int, tp: int, directory: Path, alone: InProcessChips
) -> None:
    machine = InProcessChips(directory, chips=chips, tp=tp)

    texts = serve(machine, prompts(), new_tokens=NEW_TOKENS, chunk_tokens=50)

    assert_same_bits(machine, alone)
    assert all(len(text) == NEW_TOKENS for text in texts.values())


@pytest.mark.long
@pytest.mark.parametrize(("chips", "ep", "slots"), [(4, 4, 5), (4, 2, 9), (6, 3, 8), (3, 1, 17)])
def test_logits_have_the_same_bits_wherever_experts_lie(
    chips: int, ep: int, slots: int, directory: Path, alone: InProcessChips
) -> None:
    for seed in range(3):
        machine = InProcessChips(
            directory, chips=chips, placement=random_placement(chips, ep, slots, seed)
        )
        serve(machine, prompts(), new_tokens=NEW_TOKENS)
        assert_same_bits(machine, alone)


def first_step(machine: InProcessChips, sampling: SamplingSpec) -> list[RankStep]:
    texts = prompts()
    rank_of = {name: index % machine.ranks for index, name in enumerate(texts)}
    new = new_requests(machine, texts, rank_of, NEW_TOKENS, sampling, None)
    return [
        RankStep(
            rank=rank,
            new=requests,
            scheduled=[
                Scheduled(request_id=r.request_id, first_position=0, new_tokens=len(r.token_ids))
                for r in requests
            ],
            finished=[],
        )
        for rank, requests in new.items()
    ]


@pytest.mark.slow
@settings(max_examples=6)
@given(tp=st.sampled_from([1, 2]), rounds=st.lists(st.integers(1, 12), max_size=3))
def test_a_step_that_was_broken_off_is_repeated_to_the_same_outcome(
    directory: Path, tp: int, rounds: list[int]
) -> None:
    sampling = SamplingSpec(temperature=0.9, seed=11, logprobs=2)
    calm, broken = (InProcessChips(directory, chips=4, tp=tp) for _ in range(2))
    expected = calm.step(first_step(calm, sampling))

    begin = broken.begin(first_step(broken, sampling))
    for count in rounds:
        # The step ends after at most 3 layers x 3 rounds; then there is nothing left to repeat.
        lockstep = broken.drive(begin, min(count, 5))
        assert lockstep.outputs == {}
        begin = {chip: RepeatStep() for chip in begin}
    found = broken.drive(begin).outputs

    for rank, output in expected.items():
        assert found[rank].request_ids == output.request_ids
        assert found[rank].token_ids.tolist() == output.token_ids.tolist()
        assert output.logprobs is not None
        assert (found[rank].logprobs.logprobs == output.logprobs.logprobs).all()


@pytest.mark.long
def test_experts_that_moved_between_steps_give_the_same_bits(
    directory: Path, alone: InProcessChips
) -> None:
    machine = InProcessChips(directory, chips=4, placement=random_placement(4, 4, 5, 0))
    after = random_placement(4, 4, 5, 1)
    for layer in range(LAYERS):
        weights = {}
        for chip in range(4):
            read = machine.chips[chip].handle(SendExperts(layer=layer, slots=list(range(5))))
            assert isinstance(read, ExpertWeights)
            for slot, expert in enumerate(machine.placement.expert_of_slot[layer, chip].tolist()):
                weights[expert] = tuple(
                    part[slot].copy() for part in (read.gate_up, read.down, read.biases)
                )
        for chip in range(4):
            wanted = after.expert_of_slot[layer, chip].tolist()
            slots = [slot for slot, expert in enumerate(wanted) if expert != EMPTY]
            parts = zip(*(weights[wanted[slot]] for slot in slots), strict=True)
            gate_up, down, biases = (np.array(part) for part in parts)
            took = machine.chips[chip].handle(
                TakeExperts(layer=layer, slots=slots, gate_up=gate_up, down=down, biases=biases)
            )
            assert took == CommandDone()
    machine.experts = ExpertMap(after)

    serve(machine, prompts(), new_tokens=NEW_TOKENS)

    assert_same_bits(machine, alone)


@pytest.mark.long
def test_a_rank_that_was_reset_has_forgotten_its_requests(directory: Path) -> None:
    machine = InProcessChips(directory, chips=2)
    expected = machine.step(first_step(machine, SamplingSpec(temperature=0.0)))
    for chip in machine.chips:
        assert chip.handle(ResetRank()) == CommandDone()
        assert len(chip._requests) == 0

    again = machine.step(first_step(machine, SamplingSpec(temperature=0.0)))

    for rank, output in expected.items():
        assert again[rank].token_ids.tolist() == output.token_ids.tolist()


@pytest.mark.long
def test_it_counts_where_tokens_went(directory: Path) -> None:
    machine = InProcessChips(directory, chips=4, tp=2)
    steps = first_step(machine, SamplingSpec(temperature=0.0))

    lockstep = machine.drive(machine.begin(steps))
    result = lockstep.result(lockstep.outputs)
    loads = result.loads

    tokens = sum(item.new_tokens for step in steps for item in step.scheduled)
    assert loads is not None
    assert result.expert_pairs is not None
    k = loads.pairs.sum(axis=1) / tokens
    assert len(set(k.tolist())) == 1
    assert (result.expert_pairs.sum(axis=(1, 2)) == loads.pairs.sum(axis=1)).all()
    # Chips of a rank dispatch their share of its tokens each: none more than half, rounded up.
    by_source = loads.sent.max(axis=2)  # [layers, chips]
    by_rank = [sum(item.new_tokens for item in step.scheduled) for step in steps]
    assert (by_source.reshape(LAYERS, 2, 2).max(axis=2) <= [-(-n // 2) for n in by_rank]).all()


@pytest.mark.parametrize("passes", [0, 1, 3])
def test_passes_of_a_layer_that_drafts_are_none_of_the_model_s_layers(passes: int) -> None:
    placement = ExpertPlacement.even(layers=2, experts=2, chips=1, ep=1)
    lockstep = Lockstep({0: RepeatStep()}, ExpertMap(placement, drafts=True), 1)
    row = np.zeros((1, 4), dtype=np.float32)
    has_run = []

    for layer in [0, 1, *[2] * passes]:
        lockstep.advance({0: Dispatch(layer=layer, hidden=row, chosen=np.array([[1]]))})
        has_run.append(lockstep.ran_all_layers)
        lockstep.advance({0: ExpertRows(layer=layer, rows=row)})
        has_run.append(lockstep.ran_all_layers)

    assert has_run == [False, False, False, True, *[True] * (2 * passes)]
    loads = lockstep.result({}).loads
    assert loads is not None
    assert len(loads.pairs) == 2
