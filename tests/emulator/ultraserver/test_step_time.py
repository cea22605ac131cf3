from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.specs.calibration import ROOFLINE, Calibration
from emulator.specs.catalog.trn3_nl72x2 import TRN3_NL72X2
from emulator.specs.figure import Figure
from emulator.specs.models import MODELS
from emulator.specs.overlap import Overlap
from emulator.specs.partition import Partition
from emulator.ultraserver.step_cost import StepCostModel
from emulator.ultraserver.step_rows import together_ns
from emulator.ultraserver.step_time import combine, two_batch_ns
from tests.emulator.ultraserver.tiny_steps import (
    LAUNCH_NS,
    SLOW_MEMORY,
    TINY,
    TINY_ENDS_BYTES,
    Row,
    batch_of,
    same_on_each,
    slow_memory,
)

LAYER_BYTES = 76 * 2 + (3 + 1) * 8 + 2 * 36 * 2  # of TINY: one token over three cached ones

rows_strategy = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 300), st.integers(0, 2_000)),
    min_size=1,
    max_size=10,
)


def calibrated(**values: float) -> Calibration:
    figures = {
        name: Figure(value=value, unit="of a test", source="a test")
        for name, value in values.items()
    }
    return replace(ROOFLINE, name="test", **figures)


def slow(calibration: Calibration, **partition: int) -> StepCostModel:
    made = Partition(**{"chips": 1, "ep": partition.get("chips", 1), "lnc": 8, **partition})
    return StepCostModel(SLOW_MEMORY, TINY, made, calibration=calibration)


def test_half_of_the_memory_rate_doubles_the_bytes_time_and_nothing_else_by_hand() -> None:
    cost = slow(calibrated(memory_share=0.5)).cost(batch_of(1, [(0, 1, 3)]))

    bytes_ns = 2 * LAYER_BYTES + TINY_ENDS_BYTES
    assert cost.duration_ns == 2 * bytes_ns + 2 * 1_300 + LAUNCH_NS
    assert cost.engine_ns["dma"].tolist() == [bytes_ns], "busy as at the peak rate"


def test_every_named_overhead_is_added_where_it_belongs_by_hand() -> None:
    calibration = calibrated(
        step_ns=10_000, layer_ns=100, expert_layer_ns=10, request_ns=7, prefill_step_ns=50_000
    )
    decode, prefill = batch_of(1, [(0, 1, 3)] * 3), batch_of(1, [(0, 1, 3), (0, 2, 3), (0, 1, 3)])
    costs, ceiling = slow(calibration), slow(ROOFLINE)

    of_decode, of_prefill = costs.cost(decode), costs.cost(prefill)

    own_ns = 10_000 + 2 * (100 + 10) + 3 * 7
    assert of_decode.duration_ns - ceiling.cost(decode).duration_ns == own_ns
    assert of_prefill.duration_ns - ceiling.cost(prefill).duration_ns == own_ns + 50_000
    parts = of_prefill.parts_ns
    named = ("step", "layer", "expert_layer", "request", "prefill_step", "graph_launch")
    assert [parts[name] for name in named] == [10_000, 200, 20, 21, 50_000, LAUNCH_NS]


def test_a_dense_layer_has_a_layers_overhead_and_not_that_of_experts_by_hand() -> None:
    model = replace(TINY, layers=3, first_dense_layers=1, dense_intermediate=6)
    calibration = calibrated(layer_ns=100, expert_layer_ns=10)
    made = Partition(chips=1, ep=1, lnc=8)

    cost = StepCostModel(SLOW_MEMORY, model, made, calibration=calibration).cost(
        batch_of(1, [(0, 1, 3)])
    )

    assert (cost.parts_ns["layer"], cost.parts_ns["expert_layer"]) == (3 * 100, 2 * 10)


def test_exchanges_are_launched_one_by_one_by_hand() -> None:
    calibration = calibrated(exchange_ns=500)
    batch = batch_of(4, [(rank, 1, 3) for rank in range(4)])

    cost = slow(calibration, chips=4).cost(batch)

    # a dispatch and a combine in each of two layers
    assert cost.parts_ns["collective_launch"] == 4 * 500
    assert cost.duration_ns - slow(ROOFLINE, chips=4).cost(batch).duration_ns == 4 * 500


def test_a_rank_of_several_chips_launches_its_collectives_by_hand() -> None:
    model = replace(TINY, kv_heads=2, experts=2)
    made = Partition(chips=2, tp=2, ep=2, lnc=8)
    with_it, without = (
        StepCostModel(SLOW_MEMORY, model, made, calibration=each).cost(batch_of(1, [(0, 1, 3)]))
        for each in (calibrated(collective_ns=500), ROOFLINE)
    )

    # two all-reduces in each of two layers, the embedded row's, and the gather of logits
    assert with_it.duration_ns - without.duration_ns == 6 * 500


def test_half_of_the_exchange_s_rate_doubles_its_bytes_and_not_its_hops() -> None:
    model = replace(TINY, hidden=4_096)
    batch = batch_of(4, [(rank, 100, 0) for rank in range(4)])
    made = Partition(chips=4, ep=4, lnc=8)
    half, whole = (
        StepCostModel(TRN3_NL72X2, model, made, calibration=each).cost(batch)
        for each in (calibrated(exchange_share=0.5), ROOFLINE)
    )

    # each chip sends half of its 100 tokens to each of three, four times
    moving_ns = 4 * 3 * 50 * 4_096 * 2 / 512
    assert half.duration_ns - whole.duration_ns == pytest.approx(moving_ns, abs=2)


def test_half_of_the_matrix_engines_rate_doubles_a_prefill() -> None:
    made, batch = Partition(chips=1, ep=1, lnc=8), same_on_each(1, requests=1, new=4_096, context=0)
    half, whole = (
        StepCostModel(TRN3_NL72X2, MODELS["llama-3.1-8b"], made, calibration=each).cost(batch)
        for each in (calibrated(tensor_share=0.5), ROOFLINE)
    )

    assert whole.bound["attention"] == whole.bound["dense"] == "tensor"
    assert half.duration_ns == pytest.approx(2 * whole.duration_ns, rel=0.02)


def slow_two_batch_ns(
    own: list[list[float]],
    experts: list[list[float]],
    dispatches: list[list[float]],
    combines: list[list[float]],
) -> float:
    """Slot after slot: what computes, and what communicates meanwhile."""
    layers = len(own[0])
    slots: list[tuple[float, float]] = [(own[0][0], 0.0)]
    for layer in range(layers):
        slots.append((own[1][layer], dispatches[0][layer]))
        slots.append((experts[0][layer], dispatches[1][layer]))
        slots.append((experts[1][layer], combines[0][layer]))
        last = layer + 1 == layers
        slots.append((0.0 if last else own[0][layer + 1], combines[1][layer]))
    return sum(max(slot) for slot in slots)


times = st.floats(0, 1_000)


@given(st.data(), st.integers(1, 6))
def test_two_batches_equal_walking_through_the_slots(data: st.DataObject, layers: int) -> None:
    def drawn() -> list[list[float]]:
        return [data.draw(st.lists(times, min_size=layers, max_size=layers)) for _ in range(2)]

    own, experts, dispatches, combines = drawn(), drawn(), drawn(), drawn()

    total = two_batch_ns(
        [np.array(each)[:, None] for each in own],
        [np.array(each)[:, None] for each in experts],
        [np.array(each) for each in zip(dispatches, combines, strict=True)],
    )

    assert total[0] == pytest.approx(slow_two_batch_ns(own, experts, dispatches, combines))
    computing = sum(map(sum, own)) + sum(map(sum, experts))
    talking = sum(map(sum, dispatches)) + sum(map(sum, combines))
    assert max(computing, talking) <= total[0] + 1e-6
    assert total[0] <= computing + talking + 1e-6


def with_overlap(overlap: Overlap, *, chips: int = 4, tp: int = 1) -> StepCostModel:
    made = Partition(chips=chips, tp=tp, ep=chips, lnc=8)
    return StepCostModel(
        TRN3_NL72X2, MODELS["qwen3-30b-a3b"], made, overlap=overlap, calibration=ROOFLINE
    )


OVERLAPS = {overlap: with_overlap(overlap) for overlap in Overlap}


@pytest.mark.long
@given(rows=rows_strategy)
def test_parts_sum_to_the_duration_under_every_overlap(rows: list[Row]) -> None:
    for costs in OVERLAPS.values():
        cost = costs.cost(batch_of(4, rows))

        assert sum(cost.parts_ns.values()) == pytest.approx(cost.duration_ns, abs=1.001)
        assert min(cost.parts_ns.values()) >= -1e-6
        assert cost.duration_ns >= cost.rank_ns.max() - 1


@pytest.mark.long
@given(rows=rows_strategy)
def test_full_overlap_is_a_bound_that_no_policy_beats(rows: list[Row]) -> None:
    batch = batch_of(4, rows)
    none, halves, full = (OVERLAPS[overlap].cost(batch) for overlap in Overlap)

    assert full.duration_ns <= none.duration_ns
    assert full.duration_ns <= halves.duration_ns
    hidden = ("tp_collectives", "dispatch_combine", "collective_launch")
    computing = sum(ns for name, ns in none.parts_ns.items() if name not in hidden)
    assert full.duration_ns >= computing - 1


def test_two_batches_read_the_weights_twice_and_hide_the_exchange() -> None:
    batch = same_on_each(4, requests=64, new=64, context=0)
    none, halves = OVERLAPS[Overlap.NONE].cost(batch), OVERLAPS[Overlap.TWO_BATCH].cost(batch)

    assert halves.parts_ns["dispatch_combine"] < 0.2 * none.parts_ns["dispatch_combine"]
    assert halves.duration_ns < none.duration_ns
    assert halves.flops.tolist() == pytest.approx(none.flops.tolist())
    # all of the layers' weights once more, but not the LM head's
    model = MODELS["qwen3-30b-a3b"]
    replica = model.parameters - 48 * 128 * model.expert_parameters - model.embedding_parameters
    again = 2 * (replica + 48 * 32 * model.expert_parameters)
    assert (halves.hbm_bytes - none.hbm_bytes).tolist() == pytest.approx([again] * 4, rel=1e-3)


def test_a_rank_with_one_request_runs_one_batch() -> None:
    batch = batch_of(4, [(0, 1, 9)] * 4 + [(1, 1, 9)])

    one, none = (OVERLAPS[each].cost(batch) for each in (Overlap.TWO_BATCH, Overlap.NONE))

    assert one.duration_ns == none.duration_ns


def test_nothing_is_run_in_two_batches_where_nothing_is_exchanged() -> None:
    batch = batch_of(1, [(0, 1, 500)] * 8)
    alone, none = (
        with_overlap(each, tp=4).cost(batch) for each in (Overlap.TWO_BATCH, Overlap.NONE)
    )

    assert alone.duration_ns == none.duration_ns
    assert alone.parts_ns["dispatch_combine"] == 0 < alone.parts_ns["tp_collectives"]


def test_counted_terms_combine_to_the_cost_with_any_calibration() -> None:
    batch = same_on_each(4, requests=8, new=1, context=500)
    calibration = calibrated(memory_share=0.8, layer_ns=3_000, collective_ns=2_000)
    made = Partition(chips=4, ep=4, lnc=8)
    model = MODELS["qwen3-30b-a3b"]
    cost = StepCostModel(TRN3_NL72X2, model, made, calibration=calibration).cost(batch)

    terms = OVERLAPS[Overlap.NONE].terms(batch)

    assert terms is not None
    assert np.ceil(combine(terms, calibration).duration_ns) == cost.duration_ns
    assert OVERLAPS[Overlap.NONE].terms(batch_of(4, [])) is None


def test_guesses_are_verified_and_drafted_by_hand() -> None:
    """TINY's draft module is one of its two layers, and has a projection of its own."""
    costs = StepCostModel(
        SLOW_MEMORY, TINY, Partition(chips=1, ep=1, lnc=8), draft_tokens=2, calibration=ROOFLINE
    )
    plain = slow_memory()
    decode = batch_of(1, [(0, 1, 3)])

    cost = costs.cost(decode)

    # three tokens are verified; then one pass over three tokens, and one over one more
    checked = plain.cost(batch_of(1, [(0, 3, 3)]))
    joined_bytes = 2 * 4 * 4 * 2
    drafts_ns = cost.parts_ns["draft"]
    one_layer = replace(TINY, layers=1)
    first = slow_memory(one_layer).cost(batch_of(1, [(0, 3, 3)]))
    second = slow_memory(one_layer).cost(batch_of(1, [(0, 1, 6)]))
    assert drafts_ns == pytest.approx(
        first.duration_ns + second.duration_ns + 2 * joined_bytes, abs=3
    )
    # two more rows of logits than one request has: 40 bytes each, written and read
    assert cost.duration_ns == pytest.approx(checked.duration_ns + 2 * (40 + 40) + drafts_ns, abs=3)


def test_drafting_adds_no_second_step_of_the_engine() -> None:
    calibration = calibrated(step_ns=10_000, request_ns=700, prefill_step_ns=9_000, layer_ns=100)
    made, decode = Partition(chips=1, ep=1, lnc=8), batch_of(1, [(0, 1, 3)])
    with_it, without = (
        StepCostModel(SLOW_MEMORY, TINY, made, calibration=each, draft_tokens=2).cost(decode)
        for each in (calibration, ROOFLINE)
    )

    # two layers of the model, and one of each of two draft passes
    assert with_it.duration_ns - without.duration_ns == 10_000 + 700 + 4 * 100


def test_the_slowest_chip_is_the_bottleneck_that_parts_tell_of() -> None:
    costs = with_overlap(Overlap.NONE)
    batch = same_on_each(4, requests=8, new=1, context=500)

    even = costs.cost(batch)
    slowed = costs.cost(batch, slow_factor=np.array([1.0, 1.0, 3.0, 1.0]))

    assert slowed.parts_ns["experts"] == pytest.approx(3 * even.parts_ns["experts"], rel=1e-6)
    assert slowed.parts_ns["dispatch_combine"] == even.parts_ns["dispatch_combine"]


def test_overlapped_engines_take_as_long_as_the_busiest() -> None:
    busy = np.array([[1.0, 0.0], [0.0, 3.0], [2.0, 0.0], [5.0, 1.0]])

    assert together_ns(busy, 0.0).tolist() == [5, 3]
