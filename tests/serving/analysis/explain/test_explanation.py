"""Explained steps: their sums, layouts and sensitivities, held against the cost model itself."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.memory.chip_contents import HbmTerms
from emulator.specs.overlap import Overlap
from emulator.specs.partition import Partition
from emulator.specs.shipped_fits import calibration_for, shipped_fits
from emulator.specs.systems import system_by_name
from emulator.timing.expert_distribution import ExpertDistribution
from serving.analysis.explain.explanation import Explanation, explain
from serving.analysis.explain.other_layouts import other_layouts
from serving.analysis.explain.sensitivity import Sensitivity, sensitivities
from serving.analysis.explain.step_load import DeclaredLoad, PromptLoad, SteadyLoad, StepLoad
from serving.analysis.explain.step_question import StepQuestion, left_out_calibrations
from serving.analysis.steady_state.partitions import declared_candidate
from serving.analysis.steady_state.replica import Replica
from serving.analysis.steady_state.request_shape import RequestShape
from serving.analysis.steady_state.step_assumptions import StepAssumptions
from tests.serving.analysis.steady_state.small_machines import MODEL

TRN3 = system_by_name("trn3-nl72x2")
SHAPE = RequestShape(prompt_tokens=700, output_tokens=300, prefill_chunk_tokens=512)
PARTITIONS = st.sampled_from([(1, 1, 1), (2, 2, 2), (4, 1, 4), (4, 2, 2), (8, 4, 8)])


def question(
    load: StepLoad, shape: tuple[int, int, int] = (4, 2, 4), requests: int = 8, **assumed: object
) -> StepQuestion:
    chips, tp, ep = shape
    calibration = calibration_for(TRN3.chip.name)
    terms = HbmTerms()
    partition = Partition(chips=chips, tp=tp, ep=ep, lnc=2)
    return StepQuestion(
        subject="a step",
        system=TRN3,
        model=MODEL,
        precision="stored",
        candidate=declared_candidate(TRN3, MODEL, partition, terms=terms),
        load=load,
        requests=requests,
        assumptions=StepAssumptions(calibration=calibration, **assumed),  # type: ignore[arg-type]
        distribution=ExpertDistribution.uniform(MODEL),
        terms=terms,
        left_out=left_out_calibrations(TRN3.chip.name, name=calibration.name),
    )


DECODES = DeclaredLoad(context_tokens=1_000)


@pytest.mark.long
@given(
    shape=PARTITIONS,
    overlap=st.sampled_from(list(Overlap)),
    load=st.sampled_from(
        [
            DECODES,
            DeclaredLoad(context_tokens=300, prefill_tokens=900, prompt_tokens=400),
            SteadyLoad(shape=SHAPE),
            PromptLoad(shape=replace(SHAPE, batched_tokens_max=512)),
        ]
    ),
    requests=st.integers(1, 70),
)
def test_terms_of_any_steps_sum_to_what_the_kernels_cost(
    shape: tuple[int, int, int], overlap: Overlap, load: StepLoad, requests: int
) -> None:
    counted = question(load, shape, requests, overlap=overlap).counted()
    step_ns = counted.cost_ns()
    assert counted.duration_ns() == pytest.approx(step_ns, abs=2)  # whole ns of both
    assert sum(term.ns for term in counted.waterfall()) == pytest.approx(step_ns, abs=2)


@pytest.mark.parametrize("batch", [1, 5, 64])
def test_a_steady_step_is_the_point_that_sweeps_have(batch: int) -> None:
    asked = question(SteadyLoad(shape=SHAPE), requests=2 * batch)
    replica = Replica(TRN3, MODEL, asked.candidate, shape=SHAPE, assumptions=asked.assumptions)
    assert asked.counted().duration_ns() == pytest.approx(
        replica.operating_point(batch).tpot_ns, rel=1e-9
    )
    prompt = replace(asked, load=PromptLoad(shape=SHAPE), requests=0)
    assert prompt.counted().duration_ns() == pytest.approx(replica.prompt_ns, rel=1e-9)


def explained(**changes: object) -> Explanation:
    return explain(replace(question(DECODES, requests=64), **changes))  # type: ignore[arg-type]


def by_name(found: tuple[Sensitivity, ...]) -> dict[str, Sensitivity]:
    return {each.name: each for each in found}


@pytest.mark.long
def test_a_linear_constant_has_its_share_of_the_step_as_elasticity() -> None:
    found = explained()
    moved = by_name(found.sensitivities)
    # Requests' overheads are a sum; the format's factor multiplies all of the engine's overheads.
    share = found.parts_ns["request"] / found.step_ns
    assert moved["request_ns"].elasticity == pytest.approx(share, rel=1e-4)
    overheads = sum(found.parts_ns[part] for part in ("request", "layer", "step"))
    overheads += sum(t.ns for t in found.terms if t.term == "launches of collectives")
    assert moved["fp4_overhead"].elasticity == pytest.approx(overheads / found.step_ns, rel=1e-4)


@pytest.mark.long
def test_a_constant_moves_over_the_fits_that_left_a_machine_out() -> None:
    found = explained()
    without = [fit.calibration("trainium3") for fit in shipped_fits().without.values()]
    moved = by_name(found.sensitivities)["layer_ns"]
    values = [each.layer_ns.value for each in without]
    assert (moved.low, moved.high) == (min(values), max(values))
    share = found.parts_ns["layer"] / found.step_ns
    own = calibration_for("trainium3").layer_ns.value
    assert moved.low_ns / found.step_ns - 1 == pytest.approx(
        share * (min(values) / own - 1), rel=1e-3
    )
    assert moved.why == f"{len(values)} fits without one machine"


@pytest.mark.long
def test_an_assumption_moves_the_step_as_a_machine_that_has_it() -> None:
    asked = question(DECODES, requests=64)
    found = by_name(sensitivities(asked, asked.counted()))
    other = replace(asked, system=TRN3.assuming("hop", "switch-chip"))
    assert found["--assumption hop=switch-chip"].low_ns == other.counted().duration_ns()
    full = asked.with_overlap(Overlap.FULL)
    assert found["--overlap full"].high_ns == full.counted().duration_ns()


@pytest.mark.long
def test_the_strongest_come_first_and_what_moves_nothing_is_left_out() -> None:
    found = explained()
    widest = [each.widest(found.step_ns) for each in found.sensitivities]
    assert widest == sorted(widest, reverse=True)
    names = by_name(found.sensitivities)
    assert "front_end_token_ns" not in names  # it delays a client, and no step
    assert "draft_overhead" not in names


@pytest.mark.long
def test_layouts_are_all_others_of_the_same_chips_fastest_first() -> None:
    asked = question(DECODES, (4, 2, 4), requests=64)
    found = other_layouts(asked)
    shapes = {(one.engines, one.partition.tp, one.partition.ep) for one in found}
    assert (1, 2, 4) in {
        (one.engines, one.partition.tp, one.partition.ep) for one in found if one.partition.lnc == 1
    }
    assert {(1, 1, 4), (1, 4, 4), (2, 2, 2), (4, 1, 1)} <= shapes
    assert [one.step_ns for one in found] == sorted(one.step_ns for one in found)
    for one in found:
        assert one.engines * one.partition.chips == 4
        assert one.requests == 64 // one.engines
        there = question(
            DECODES,
            (one.partition.chips, one.partition.tp, one.partition.ep),
            one.requests,
        )
        if one.partition.lnc == 2:
            assert there.counted().cost_ns() == one.step_ns


@pytest.mark.long
def test_what_the_next_best_layout_changes_is_the_difference_of_the_steps() -> None:
    found = explained()
    assert found.best_layout is not None
    difference_ns = found.layouts[0].step_ns - found.step_ns
    assert sum(found.changes_ns.values()) == pytest.approx(difference_ns, abs=2)
    rate = 64 / found.layouts[0].step_ns * 1e9 / 4
    assert found.rate_at(found.layouts[0].step_ns) == pytest.approx(rate)


@pytest.mark.long
def test_a_layout_without_room_for_the_requests_is_left_out() -> None:
    asked = question(DeclaredLoad(context_tokens=100_000), (8, 1, 8), requests=8 * 10)
    for one in other_layouts(asked):
        room = declared_candidate(TRN3, MODEL, one.partition, terms=HbmTerms()).kv_capacity_tokens
        assert -(-one.requests // one.partition.ranks) * 100_001 <= room


@pytest.mark.long
def test_engines_and_parts_are_the_terms_again() -> None:
    found = explained()
    assert sum(found.engines_ns.values()) == pytest.approx(found.step_ns)
    assert sum(found.parts_ns.values()) == pytest.approx(found.step_ns)
    assert found.what_ifs[0].shorter_share == max(each.shorter_share for each in found.what_ifs)
