from dataclasses import replace
from math import lcm
from typing import Final

import numpy as np
import pytest

from emulator.errors import ConfigError, NeuronError
from emulator.fabric.tiers import rack_of, tray_of
from emulator.memory.chip_contents import HbmTerms, kv_capacity_tokens
from emulator.specs.attention_split import AttentionSplit
from emulator.specs.calibration import ROOFLINE
from emulator.specs.model import ModelSpec
from emulator.specs.models import MODELS, model_by_name
from emulator.specs.partition import Partition
from emulator.specs.systems import SYSTEMS, system_by_name
from emulator.ultraserver.step_cost import StepCostModel
from serving.analysis.steady_state.partitions import PartitionFilter, candidate_partitions
from serving.analysis.steady_state.step_batches import steady_batch
from tests.serving.analysis.steady_state.small_machines import DENSE, MODEL, SHAPE, trays

ULTRASERVER: Final = system_by_name("trn3-nl72x2")


def shapes(candidates):
    return [(c.partition.chips, c.partition.tp, c.partition.ep) for c in candidates]


def test_the_partitions_of_one_tray_are_those_counted_by_hand() -> None:
    # A block is lcm(tp, ep) chips: whole ranks and whole expert groups, of at most 4 chips.
    by_heads = PartitionFilter(lnc=(2,), attention_split=(AttentionSplit.HEADS,))
    candidates = candidate_partitions(trays(1), MODEL, asked=by_heads)

    assert shapes(candidates) == [
        *[(1, 1, 1), (2, 1, 2), (2, 2, 1), (2, 2, 2), (3, 1, 3)],
        *[(4, 1, 4), (4, 2, 4), (4, 4, 1), (4, 4, 2), (4, 4, 4)],
    ]
    assert [c.replicas for c in candidates] == [4, 2, 2, 2, 1, 1, 1, 1, 1, 1]


def test_a_dense_model_is_divided_by_its_heads_alone() -> None:
    by_heads = PartitionFilter(lnc=(2,), attention_split=(AttentionSplit.HEADS,))
    candidates = candidate_partitions(trays(2), DENSE, asked=by_heads)

    assert shapes(candidates) == [(1, 1, 1), (2, 2, 1), (4, 4, 1), (8, 8, 1)]


def splits_of(model: ModelSpec, *, context_tokens: int) -> dict[tuple[int, int], set[str]]:
    """By tp and LNC, for DeepSeek-V3 and GPT-OSS on an UltraServer."""
    found: dict[tuple[int, int], set[str]] = {}
    for each in candidate_partitions(ULTRASERVER, model, context_tokens=context_tokens):
        at = (each.partition.tp, each.partition.lnc)
        found.setdefault(at, set()).add(each.partition.attention_split.value)
    return found


EVERY: Final = {split.value for split in AttentionSplit}


@pytest.mark.long
def test_a_latent_is_split_in_every_way_on_every_partition() -> None:
    splits = splits_of(model_by_name("deepseek-v3").at_precision("fp8"), context_tokens=1_000)

    assert all(found == EVERY for found in splits.values())


@pytest.mark.long
def test_other_keys_are_split_where_one_long_request_gains_by_it() -> None:
    model = model_by_name("gpt-oss-120b")
    short = splits_of(model, context_tokens=2_000)
    long = splits_of(model, context_tokens=100_000)

    assert all(found == {"heads"} for found in short.values())
    # two exchanges of 1,300 ns: on 4 chips of 4 cores, 1/4 of 2,048 bytes a token are spared
    assert long[4, 2] == EVERY
    assert long[1, 2] == long[2, 2] == {"heads"}  # 8 key heads on at most 8 cores


def test_a_logical_core_that_is_the_whole_chip_has_nothing_to_split() -> None:
    asked = PartitionFilter(lnc=(8,), attention_split=(AttentionSplit.BATCH,))

    found = candidate_partitions(trays(1), MODEL, asked=asked)
    assert {each.partition.attention_split for each in found} == {AttentionSplit.HEADS}


def test_released_lncs_are_tried_and_an_announced_one_when_it_is_named() -> None:
    system = trays(1)

    tried = {c.partition.lnc for c in candidate_partitions(system, MODEL)}
    named = {
        c.partition.lnc
        for c in candidate_partitions(system, MODEL, asked=PartitionFilter(lnc=(8,)))
    }
    every = PartitionFilter(announced_lnc=True)
    all_of_them = {c.partition.lnc for c in candidate_partitions(system, MODEL, asked=every)}

    assert (tried, named, all_of_them) == ({1, 2}, {8}, {1, 2, 8})


def test_a_larger_group_with_as_many_experts_on_its_fullest_chip_must_use_more_chips() -> None:
    # 32 experts over 11 to 15 chips are 3 on the fullest chip. Of 16 chips 11 use 11, 12 use 12 ...
    # each uses more than the one before; 8 chips with 4 each use all 16, so 9 and 10 (4 each) go.
    candidates = candidate_partitions(trays(4), MODEL, asked=PartitionFilter(tp=(1,), lnc=(2,)))
    groups = [c.partition.ep for c in candidates]

    assert groups == [1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 14, 15, 16]


def test_of_groups_that_do_the_same_the_smallest_is_tried() -> None:
    # Of 48 chips, groups of 16 and of 24 both use all and put 2 experts on their fullest chip.
    candidates = candidate_partitions(trays(12), MODEL, asked=PartitionFilter(tp=(1,), lnc=(2,)))
    groups = [c.partition.ep for c in candidates]

    assert 16 in groups
    assert 24 not in groups


def test_every_group_that_is_asked_for_is_tried() -> None:
    asked = PartitionFilter(tp=(1,), ep=(9, 10), lnc=(2,))

    assert shapes(candidate_partitions(trays(4), MODEL, asked=asked)) == [(9, 1, 9), (10, 1, 10)]


@pytest.mark.long
@pytest.mark.parametrize("name", ["trn3-nl72x2", "trn2-ultraserver", "dgx-h200"])
def test_every_candidate_obeys_the_rules_and_fits(name: str) -> None:
    system, model = SYSTEMS[name], MODELS["gpt-oss-120b"]
    terms = HbmTerms(utilization=0.9)
    model = model if name != "trn2-ultraserver" else model.at_precision("fp8")

    candidates = candidate_partitions(system, model, terms=terms, least_kv_tokens=4_096)

    assert len({c.partition for c in candidates}) == len(candidates)
    for candidate in candidates:
        partition = candidate.partition
        assert model.heads % partition.tp == 0
        assert partition.chips == lcm(partition.tp, partition.ep)
        assert candidate.replicas == system.chips.count // partition.chips
        room = kv_capacity_tokens(model, system, partition, terms=terms)
        assert candidate.kv_capacity_tokens == room >= 4_096


def test_the_replica_that_lies_on_most_racks_and_trays_stands_for_all() -> None:
    system = SYSTEMS["trn3-nl72x2"]  # trays of 4, racks of 72
    asked = PartitionFilter(tp=(1,), ep=(3, 4, 16), lnc=(2,))
    of_three, of_four, of_sixteen = candidate_partitions(system, MODEL, asked=asked)

    def lies_on(first: int, chips: int) -> tuple[int, int]:
        physical = np.arange(first, first + chips)
        return len(np.unique(rack_of(system, physical))), len(np.unique(tray_of(system, physical)))

    assert lies_on(of_three.first_chip, 3) == (1, 2)  # chips 3, 4, 5
    assert lies_on(of_four.first_chip, 4) == (1, 1)
    assert lies_on(of_sixteen.first_chip, 16) == (2, 4)  # chips 64 to 79, across chip 72


def test_replicas_of_a_cluster_stay_inside_their_unit() -> None:
    one = SYSTEMS["dgx-h200"]
    asked = PartitionFilter(tp=(1,), ep=(3,))

    (candidate,) = candidate_partitions(one.cluster(3), MODEL, asked=asked)

    assert candidate.replicas == 3 * (8 // 3)


def test_a_replica_may_lie_across_units_where_that_is_asked_for() -> None:
    cluster = SYSTEMS["dgx-h200"].cluster(3)
    wide = PartitionFilter(tp=(1,), ep=(16,), across_units=True)

    (candidate,) = candidate_partitions(cluster, MODEL, asked=wide)

    assert candidate.replicas == 24 // 16
    with pytest.raises(ConfigError, match="at most 8 chips"):
        candidate_partitions(cluster, MODEL, asked=replace(wide, across_units=False))


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (PartitionFilter(tp=(3,)), r"^partition=tp=3: expected tp that divides the 64 heads"),
        (PartitionFilter(ep=(5,)), r"^partition=ep=5: expected .* at most 4 chips of 1-trays"),
        (PartitionFilter(chips=(7,)), r"^partition=chips=7: "),
        (PartitionFilter(lnc=(3,)), r"^lnc=3: expected one of 1, 2, 8 on trainium3"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(asked: PartitionFilter, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as refused:
        candidate_partitions(trays(1), MODEL, asked=asked)

    assert "\n" not in str(refused.value)


def test_a_model_that_fits_nowhere_is_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match=r"none of .* on 1-trays has it"):
        candidate_partitions(trays(1), MODELS["kimi-k2"])


def test_a_size_below_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="tp=0"):
        PartitionFilter(tp=(0,))


def test_an_lnc_that_the_compiler_does_not_know_is_not_a_candidate() -> None:
    chip = replace(trays(1).chip, lnc_sizes=(1, 2))
    system = replace(trays(1), chip=chip)

    with pytest.raises((ConfigError, NeuronError), match="lnc=8"):
        candidate_partitions(system, MODEL, asked=PartitionFilter(lnc=(8,)))


@pytest.mark.long
@pytest.mark.parametrize("name", ["gpt-oss-20b", "deepseek-v3"])
@pytest.mark.parametrize(("tp", "chips"), [(8, 8), (1, 8), (4, 16)])
def test_experts_divided_by_columns_are_never_faster_than_whole_ones(
    name: str, tp: int, chips: int
) -> None:
    # which is why no candidate divides them
    model, system = MODELS[name], SYSTEMS["trn3-nl72x2"]

    def step_ns(expert_tp: int, batch: int) -> int:
        partition = Partition(chips=chips, tp=tp, ep=chips // expert_tp, expert_tp=expert_tp, lnc=2)
        steps = steady_batch(partition.ranks, decodes=batch, shape=SHAPE, prefill_tokens=batch)
        return StepCostModel(system, model, partition, calibration=ROOFLINE).cost(steps).duration_ns

    for batch in (1, 16, 256):
        whole_ns = step_ns(1, batch)
        assert all(step_ns(expert_tp, batch) >= whole_ns for expert_tp in (2, 4, chips))
