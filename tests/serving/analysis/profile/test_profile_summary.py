"""The sums of a run, by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.analysis.profile.profile_summary import (
    EngineUse,
    PartShare,
    PhaseSummary,
    WhatIf,
    summarize,
)
from serving.wire.step_record import StepPhase
from tests.serving.analysis.profile.profiled_runs import CEILINGS, a_run, a_what_if
from tests.serving.telemetry.step_records import MS, a_prefill, a_step

FULL_SPEED = "slow chips at full speed"


def phase_of(phases: tuple[PhaseSummary, ...], phase: StepPhase) -> PhaseSummary:
    (found,) = (one for one in phases if one.phase is phase)
    return found


def test_a_run_by_hand() -> None:
    summary = summarize(a_run(expert_imbalance=1.5), CEILINGS)

    assert (summary.window_s, summary.step_s, summary.pause_s) == (0.05, 0.03, 0.005)
    assert (summary.prefill_tokens, summary.decode_tokens) == (90, 34)
    # Each of three steps: 3 GFLOP and 6 GB in 10 ms on two chips of 1 TFLOP/s and 1 TB/s.
    assert summary.mfu == pytest.approx(3e9 / (2 * 1e12 * 0.01))
    assert summary.mbu == pytest.approx(6e9 / (2 * 1e12 * 0.01))
    assert summary.flops_per_hbm_byte == pytest.approx(0.5)
    assert summary.engines == (
        EngineUse(engine="tensor", mean_share=0.15, busiest_share=0.2, busiest_chip=0),
        EngineUse(engine="dma", mean_share=pytest.approx(0.6), busiest_share=0.8, busiest_chip=0),
        EngineUse(engine="collectives", mean_share=0.05, busiest_share=0.1, busiest_chip=0),
    )
    # 2 GFLOP on the busiest chip where the mean has 1.5.
    assert summary.work_imbalance == pytest.approx(2 / 1.5)
    assert summary.expert_imbalance == 1.5
    # 1,100 W in steps; between them two chips at 200 W for 20 ms, and a spare for all 50 ms.
    assert summary.chip_joules == pytest.approx(1100 * 0.03 + 400 * 0.02 + 200 * 0.05)
    assert summary.chip_joules_per_token == pytest.approx(51 / 124)


def test_phases_by_hand() -> None:
    phases = summarize(a_run(), CEILINGS).phases

    assert [phase.phase for phase in phases] == [StepPhase.PREFILL, StepPhase.DECODE]
    decode = phase_of(phases, StepPhase.DECODE)
    assert (decode.steps, decode.mean_ns, decode.decode_tokens) == (2, 10 * MS, 24)
    assert decode.time_share == pytest.approx(2 / 3)
    assert decode.parts == (
        PartShare(part="experts", share=0.5, bound="tensor"),
        PartShare(part="attention", share=0.4, bound="dma"),
        PartShare(part="dispatch_combine", share=0.1, bound=None),
    )
    assert decode.chip_joules_per_token == pytest.approx(1100 * 0.02 / 24)


def test_the_bottleneck_is_what_shortens_the_sampled_steps_most() -> None:
    phases = summarize(a_run(), CEILINGS).phases

    decode = phase_of(phases, StepPhase.DECODE)
    # 10 and 30 ms become 6 and 24 with memory twice as fast, 10 and 28 with the matrix engine.
    assert decode.samples == 2
    assert decode.what_ifs == (
        WhatIf(what="memory", factor=2.0, shorter_share=pytest.approx(0.25)),
        WhatIf(what="tensor", factor=2.0, shorter_share=pytest.approx(0.05)),
    )
    assert decode.bottleneck == decode.what_ifs[0]
    prefill = phase_of(phases, StepPhase.PREFILL)
    assert prefill.bottleneck == WhatIf(what="tensor", factor=2.0, shorter_share=0.5)


def test_a_resource_that_some_steps_were_not_tried_with_leaves_those_as_they_are() -> None:
    what_ifs = (
        a_what_if(0, StepPhase.DECODE, 10 * MS, memory=9 * MS),
        a_what_if(2, StepPhase.DECODE, 30 * MS, memory=27 * MS, **{FULL_SPEED: 10 * MS}),
    )
    decode = phase_of(summarize(a_run(what_ifs=what_ifs), CEILINGS).phases, StepPhase.DECODE)

    assert decode.what_ifs == (
        WhatIf(what=FULL_SPEED, factor=None, shorter_share=0.5),
        WhatIf(what="memory", factor=2.0, shorter_share=pytest.approx(0.1)),
    )


def test_nothing_is_named_where_nothing_was_tried_or_helps() -> None:
    untried = summarize(a_run(what_ifs=()), CEILINGS)
    assert [phase.bottleneck for phase in untried.phases] == [None, None]
    what_if = a_run().what_ifs[0]
    same = type(what_if)(
        step=0,
        phase=StepPhase.DECODE,
        duration_ns=MS,
        factor=2.0,
        what_if_ns={"memory": MS},
        samples=1,
    )
    decode = phase_of(summarize(a_run(what_ifs=(same,)), CEILINGS).phases, StepPhase.DECODE)
    assert (decode.samples, decode.bottleneck) == (1, None)


def test_steps_that_were_dropped_are_not_idle_time() -> None:
    steps = (a_step(5), a_step(6))
    summary = summarize(a_run(steps=steps, dropped=5, end_ns=70 * MS), CEILINGS)

    assert (summary.window_s, summary.step_s, summary.dropped) == (0.02, 0.02, 5)


def test_a_step_under_way_at_the_end_counts_as_a_whole() -> None:
    summary = summarize(a_run(end_ns=35 * MS), CEILINGS)

    assert summary.window_s == 0.04


def test_without_steps_there_is_nothing_to_divide() -> None:
    with pytest.raises(ValueError, match="no shares"):
        summarize(a_run(steps=()), CEILINGS)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 10**9)), min_size=1, max_size=20))
def test_phases_add_up_to_the_run(drawn: list[tuple[bool, int]]) -> None:
    begin_ns, steps = 0, []
    for number, (prefills, duration_ns) in enumerate(drawn):
        make = a_prefill if prefills else a_step
        steps.append(make(number, begin_ns=begin_ns, duration_ns=duration_ns))
        begin_ns += duration_ns
    summary = summarize(a_run(steps=tuple(steps), end_ns=begin_ns), CEILINGS)

    phases = summary.phases
    assert sum(phase.steps for phase in phases) == summary.steps
    assert sum(phase.time_share for phase in phases) == pytest.approx(1.0)
    assert sum(phase.prefill_tokens for phase in phases) == summary.prefill_tokens
    weighted = sum(phase.time_share * phase.mfu for phase in phases)
    assert weighted == pytest.approx(summary.mfu)
    for phase in phases:
        assert phase.steps * phase.mean_ns == pytest.approx(phase.time_share * summary.step_s * 1e9)
