"""What a point of a curve waits for: the bottleneck of its mean step, as `explain point` has it."""

from emulator.specs.precisions import model_at
from serving.analysis.explain.explanation import what_ifs_of
from serving.analysis.explain.step_load import DeclaredLoad, SteadyLoad, StepLoad
from serving.analysis.explain.step_question import StepQuestion
from serving.analysis.steady_state.operating_point import OperatingPoint
from serving.analysis.steady_state.sweep import Sweep


def point_bottleneck(sweep: Sweep, point: OperatingPoint) -> str:
    """Of the point's mean step between a request's tokens, as `HBM, 62.0 % of the step`; empty if
    nothing alone would shorten it. Of pools it is the one that decodes.
    """
    shape = sweep.shape
    load: StepLoad = SteadyLoad(shape=shape)
    if point.prefill is not None:
        load = DeclaredLoad(context_tokens=shape.decode_context_tokens)
    question = StepQuestion(
        subject="a point",
        system=sweep.system,
        model=model_at(point.precision, sweep.model, sweep.system.chip),
        precision=point.precision,
        candidate=point.candidate,
        load=load,
        requests=point.batch * point.candidate.partition.ranks,
        assumptions=sweep.assumptions,
        routing=sweep.routing,
        distribution=sweep.distribution,
        terms=sweep.terms,
        across_units=sweep.asked.across_units,
    )
    counted = question.counted()
    strongest = what_ifs_of(counted, counted.duration_ns())[0]
    return strongest.as_bottleneck() if strongest.shorter_share > 0 else ""
