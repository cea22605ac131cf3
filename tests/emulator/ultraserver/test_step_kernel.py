"""Compiled kernels cost a step as arrays do: to the nanosecond, and to the microjoule a chip."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.fabric.all_to_all import AllToAll
from emulator.fabric.link_health import LinkHealth
from emulator.fabric.tiers import Tier
from emulator.specs.attention_split import AttentionSplit
from emulator.specs.batch import StepBatch
from emulator.specs.calibration import ROOFLINE
from emulator.specs.expert_loads import ExpertLoads
from emulator.specs.models import MODELS
from emulator.specs.overlap import Overlap
from emulator.specs.partition import Partition
from emulator.specs.shipped_fits import calibration_for
from emulator.specs.systems import SYSTEMS
from emulator.timing.expert_distribution import ExpertDistribution
from emulator.ultraserver.count_tables import RankTableStore, rank_tables
from emulator.ultraserver.step_cost import StepCost, StepCostModel
from emulator.ultraserver.step_counter import StepCounter
from tests.emulator.ultraserver.step_cost_reference import cost_slowly
from tests.emulator.ultraserver.tiny_steps import Row, batch_of

TRN3: Final = SYSTEMS["trn3-nl72x2"]
EVERY_RANK: Final = [(rank, 1, 100 + 37 * rank) for rank in range(16) for _ in range(3)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A model on a machine, and what is particular about them."""

    model: str
    system: str = "trn3-nl72x2"
    partition: Partition
    fitted: bool = False
    routing: str = "uniform"
    draft_tokens: int = 0
    units: int = 1  # systems of a cluster

    def costs(self, overlap: Overlap) -> StepCostModel:
        model, system = MODELS[self.model], SYSTEMS[self.system]
        return StepCostModel(
            system if self.units == 1 else system.cluster(self.units),
            model,
            self.partition,
            distribution=ExpertDistribution.parse(self.routing, model, seed=3),
            calibration=calibration_for(SYSTEMS[self.system].chip.name)
            if self.fitted
            else ROOFLINE,
            overlap=overlap,
            draft_tokens=self.draft_tokens,
        )


def cut(costs: StepCostModel) -> StepCostModel:
    """A chip lost, one without its tray's lanes, one with half of its backplane's."""
    chips = costs.partition.chips
    links = LinkHealth.whole(costs.system)
    links.share[1, Tier.TRAY] = 0.0
    links.share[2, Tier.BACKPLANE] = 0.5
    up = np.ones(chips, dtype=np.bool_)
    up[-1] = False
    physical = np.arange(chips, dtype=np.int64)
    physical[0] = chips  # a spare has taken a seat
    fabric = AllToAll(costs.system, chips, physical=physical, links=links)
    return costs.with_machine(all_to_all=fabric, chips_up=up, physical=physical)


MACHINES: Final[dict[str, Machine]] = {
    "experts on every chip": Machine(
        model="qwen3-30b-a3b", partition=Partition(chips=16, ep=16), fitted=True
    ),
    "domains of four": Machine(
        model="qwen3-30b-a3b", partition=Partition(chips=16, ep=4), routing="zipf:1"
    ),
    "a window": Machine(model="gpt-oss-20b", partition=Partition(chips=16, ep=16), fitted=True),
    "a rank in two racks": Machine(
        model="gpt-oss-20b",
        partition=Partition(chips=8, tp=4, ep=8, first_chip=70),
        fitted=True,
        routing="zipf:0.7",
    ),
    "a latent": Machine(model="deepseek-v3", partition=Partition(chips=16, ep=16), fitted=True),
    "a latent on two chips": Machine(
        model="deepseek-v3", system="gb200-nvl72", partition=Partition(chips=4, tp=2, ep=4, lnc=152)
    ),
    "a latent by batch": Machine(
        model="deepseek-v3",
        partition=Partition(chips=16, ep=16, attention_split=AttentionSplit.BATCH),
        fitted=True,
    ),
    "drafts by sequence": Machine(
        model="deepseek-v3",
        partition=Partition(chips=16, ep=16, lnc=1, attention_split=AttentionSplit.SEQUENCE),
        fitted=True,
        draft_tokens=2,
    ),
    "a window by batch": Machine(
        model="gpt-oss-20b",
        partition=Partition(chips=8, tp=4, ep=8, lnc=1, attention_split=AttentionSplit.BATCH),
    ),
    "a window by sequence": Machine(
        model="gpt-oss-20b",
        partition=Partition(chips=8, tp=4, ep=8, attention_split=AttentionSplit.SEQUENCE),
    ),
    "drafts": Machine(
        model="deepseek-v3", partition=Partition(chips=16, ep=16), fitted=True, draft_tokens=2
    ),
    "columns of experts divided": Machine(
        model="mixtral-8x7b", partition=Partition(chips=16, tp=2, ep=4, expert_tp=4), fitted=True
    ),
    "experts inside a rank": Machine(
        model="mixtral-8x7b", partition=Partition(chips=16, tp=8, ep=8), fitted=True
    ),
    "dense": Machine(model="llama-3.1-8b", partition=Partition(chips=16, tp=2, ep=1), fitted=True),
    "a torus": Machine(
        model="mixtral-8x7b", system="trn2.48xlarge", partition=Partition(chips=16, ep=8)
    ),
    "a part of a torus": Machine(
        model="gpt-oss-20b",
        system="trn2-ultraserver",
        partition=Partition(chips=5, ep=5, first_chip=3),
        fitted=True,
        routing="zipf:1",
    ),
    "domains of a cluster that forward": Machine(
        model="gpt-oss-20b",
        system="dgx-h100",
        partition=Partition(chips=16, ep=16, lnc=132),
        fitted=True,
        units=2,
    ),
    "a mesh": Machine(
        model="gpt-oss-20b",
        system="mi300x-8",
        partition=Partition(chips=8, tp=2, ep=8, lnc=304),
        fitted=True,
    ),
}


@lru_cache
def costs_of(name: str, overlap: Overlap, *, faulty: bool = False) -> StepCostModel:
    costs = MACHINES[name].costs(overlap)
    return cut(costs) if faulty else costs


def assert_alike(fast: StepCost, slow: StepCost) -> None:
    assert fast.duration_ns == slow.duration_ns
    assert fast.rank_ns.tolist() == slow.rank_ns.tolist()
    assert fast.engine_ns.keys() == slow.engine_ns.keys()
    for engine, busy_ns in slow.engine_ns.items():
        assert fast.engine_ns[engine].tolist() == busy_ns.tolist(), engine
    seconds = slow.duration_ns / 1e9
    np.testing.assert_allclose(
        fast.chip_watts * seconds, slow.chip_watts * seconds, rtol=0, atol=1e-6
    )
    assert fast.chip_joules == pytest.approx(slow.chip_joules, rel=0, abs=1e-6)
    for name in ("flops", "hbm_bytes", "link_bytes", "dispatched_bytes"):
        np.testing.assert_allclose(
            getattr(fast, name), getattr(slow, name), rtol=1e-12, err_msg=name
        )
    assert fast.parts_ns == pytest.approx(slow.parts_ns, rel=1e-9, abs=1e-3)
    assert fast.bound == slow.bound


def rows_on(ranks: int) -> st.SearchStrategy[list[Row]]:
    """Requests of any rank in any order: tokens that decode, and prompts."""
    rank = st.integers(0, ranks - 1)
    decode = st.tuples(rank, st.just(1), st.integers(1, 40_000))
    prompt = st.tuples(rank, st.integers(1, 3_000), st.integers(0, 3_000))
    return st.lists(st.one_of(decode, decode, prompt), min_size=1, max_size=40)


def loads_of(costs: StepCostModel, seed: int) -> ExpertLoads:
    generator, chips = np.random.default_rng(seed), costs.partition.chips
    layers = costs.model.moe_layers
    pairs = generator.integers(0, 60, (layers, chips))
    return ExpertLoads(
        pairs=pairs,
        distinct=np.minimum(pairs, generator.integers(0, 9, (layers, chips))),
        sent=generator.integers(0, 9, (layers, chips, chips)),
    )


@pytest.mark.long
@pytest.mark.parametrize("overlap", Overlap)
@pytest.mark.parametrize("name", MACHINES)
@settings(max_examples=3)
@given(data=st.data())
def test_a_step_costs_what_arrays_say(name: str, overlap: Overlap, data: st.DataObject) -> None:
    costs = costs_of(name, overlap)
    batch = batch_of(costs.partition.ranks, data.draw(rows_on(costs.partition.ranks)))
    factors = st.lists(st.sampled_from((1.0, 1.0, 1.7)), min_size=16, max_size=16)
    slow = np.array(data.draw(factors))[: costs.partition.chips]
    loads = loads_of(costs, data.draw(st.integers(0, 99))) if costs.model.experts else None
    counted = data.draw(st.sampled_from((None, loads)))

    assert_alike(costs.cost(batch, counted, slow), cost_slowly(costs, batch, counted, slow))


@pytest.mark.long
@pytest.mark.parametrize("overlap", Overlap)
@pytest.mark.parametrize(
    "name", [name for name, machine in MACHINES.items() if machine.system == "trn3-nl72x2"]
)
@settings(max_examples=3)
@given(data=st.data())
def test_so_does_a_step_among_faults(name: str, overlap: Overlap, data: st.DataObject) -> None:
    costs = costs_of(name, overlap, faulty=MACHINES[name].partition.first_chip == 0)
    ranks = costs.partition.ranks - 1  # the last one's chip is lost
    batch = batch_of(costs.partition.ranks, data.draw(rows_on(max(ranks, 1))))

    assert_alike(costs.cost(batch), cost_slowly(costs, batch))


@pytest.mark.parametrize("name", MACHINES)
def test_so_does_a_step_of_every_rank(name: str) -> None:
    costs = costs_of(name, Overlap.NONE)
    rows = [(rank % costs.partition.ranks, new, context) for rank, new, context in EVERY_RANK]

    batch = batch_of(costs.partition.ranks, rows)
    assert_alike(costs.cost(batch), cost_slowly(costs, batch))


@pytest.mark.parametrize("name", ["a torus", "a part of a torus", "a mesh"])
def test_tables_are_all_that_a_step_over_links_needs(name: str) -> None:
    assert costs_of(name, Overlap.NONE).step_tables() is not None


def test_a_chip_over_its_budget_stretches_the_step_alike() -> None:
    small = replace(TRN3.chip.budget_watts, value=600.0, source="made up")
    system = replace(TRN3, chip=replace(TRN3.chip, budget_watts=small))
    model = MODELS["llama-3.1-8b"].at_precision("fp8")
    costs = StepCostModel(system, model, Partition(chips=2, ep=1), calibration=ROOFLINE)
    batch = batch_of(2, [(0, 4_000, 0), (1, 1, 70)])

    fast = costs.cost(batch)
    assert fast.parts_ns["throttle"] > 0
    assert_alike(fast, cost_slowly(costs, batch))


@pytest.mark.parametrize("tokens", [1, 511, 512, 513, 5_000, 70_000])
def test_a_table_grows_to_any_number_of_tokens(tokens: int) -> None:
    costs = costs_of("a window", Overlap.NONE)
    batch = batch_of(16, [(3, tokens, 9), (5, 1, 200_000)])

    assert_alike(costs.cost(batch), cost_slowly(costs, batch))


def test_a_chunk_of_a_prompt_makes_no_logits() -> None:
    costs = costs_of("experts on every chip", Overlap.NONE)
    batch = batch_of(16, [(3, 700, 9), (5, 300, 0)])
    batch = replace(batch, logit_rows=np.zeros_like(batch.logit_rows))

    assert_alike(costs.cost(batch), cost_slowly(costs, batch))


def test_bytes_for_a_chip_without_links_are_refused_by_their_positions() -> None:
    links = LinkHealth.whole(TRN3)
    links.share[2] = 0.0
    fabric = AllToAll(TRN3, 16, links=links)
    costs = costs_of("experts on every chip", Overlap.NONE)
    alone = costs.with_machine(all_to_all=fabric, chips_up=np.ones(16, dtype=np.bool_))

    with pytest.raises(ValueError, match="no links lead from position 0 to 2"):
        alone.cost(batch_of(16, [(0, 1, 9)]))


def test_bytes_that_go_around_a_cut_load_every_chip_on_their_way() -> None:
    whole = StepCostModel(
        TRN3, MODELS["qwen3-30b-a3b"], Partition(chips=4, ep=4, first_chip=70), calibration=ROOFLINE
    )
    links = LinkHealth.whole(TRN3)
    links.share[70, Tier.CROSS_RACK] = 0.0  # its rows for the other rack pass its neighbour
    fabric = AllToAll(TRN3, 4, first_chip=70, links=links)
    costs = whole.with_machine(all_to_all=fabric, chips_up=np.ones(4, dtype=np.bool_))
    batch = batch_of(4, [(0, 900, 0), (1, 700, 5), (2, 1, 60), (3, 40, 0)])

    around = costs.cost(batch)
    assert around.duration_ns > whole.cost(batch).duration_ns
    assert_alike(around, cost_slowly(costs, batch))


@pytest.mark.long
def test_one_model_costs_steps_in_two_threads() -> None:
    machine = Machine(model="qwen3-30b-a3b", partition=Partition(chips=64, ep=64, lnc=2))
    costs = machine.costs(Overlap.NONE)
    batches = [batch_of(64, [(rank, new, 1_000) for rank in range(64)]) for new in (1, 400)]
    expected = [costs.cost(batch).duration_ns for batch in batches]

    def often(batch: StepBatch) -> set[int]:
        return {costs.cost(batch).duration_ns for _ in range(2_000)}

    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(often, batches))
    assert found == [{each} for each in expected]


@pytest.mark.long
def test_machines_with_the_same_ranks_share_their_tables_and_no_others_do() -> None:
    def costs(system: str = "trn3-nl72x2", precision: str = "mxfp4", **sizes: int) -> StepCostModel:
        model = MODELS["gpt-oss-120b"].at_precision(precision)
        partition = Partition(**{"chips": 8, "tp": 4, "ep": 8, **sizes})
        return StepCostModel(SYSTEMS[system], model, partition, calibration=ROOFLINE)

    def store(of: StepCostModel) -> RankTableStore:
        return rank_tables(StepCounter(of.layout).phases, of.layout, ranks_per_domain=2)[1]

    own = costs()
    assert store(costs(ep=1)) is store(costs(chips=16)) is store(own)
    others = [
        costs(precision="bf16"),
        costs(lnc=1),
        costs(tp=2),
        costs(ep=2),  # in a rank, which adds up its experts
        costs(first_chip=2),  # ranks of two trays
        costs("trn2-ultraserver"),
    ]
    assert len({id(store(each)) for each in (own, *others)}) == 1 + len(others)
    for each in (own, *others):
        batch = batch_of(each.partition.ranks, [(0, 3, 900), (1, 700, 0)])
        assert_alike(each.cost(batch), cost_slowly(each, batch))
