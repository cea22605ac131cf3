"""The plan's size at both ends of the cost model's 80 % range, its partition kept.

Steps that take f times as long serve traffic as these steps serve f times its rate within 1 / f of
its limits: that is simulated, and every queue with it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil

from emulator.specs.shipped_fits import PredictionInterval
from loadgen.measures.slo import Slo
from serving.analysis.plan.plan_choice import (
    Choice,
    PlanQuestion,
    Progress,
    SimulatedSizes,
    most_tried,
)
from serving.simulator import SimulationWorkers


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRange:
    """Replicas that keep the target with steps `steps.least` and `steps.most` times as long; None
    where none of the sizes tried did.
    """

    steps: PredictionInterval
    fewest: int | None
    most: int | None

    def ends(self) -> Iterator[tuple[float, int | None]]:
        """The steps' factor and the replicas, the good end first."""
        yield self.steps.least, self.fewest
        yield self.steps.most, self.most


def plan_range(
    question: PlanQuestion, choice: Choice, workers: SimulationWorkers, progress: Progress
) -> PlanRange | None:
    """Simulate both ends of TPOT's range; None for a roofline, whose steps are bounds."""
    steps = question.sweep.assumptions.model_error.get("tpot")
    if steps is None:
        return None
    chosen = choice.check
    option = next(
        each
        for each in choice.options
        if each.candidate == chosen.candidate and each.point.precision == chosen.precision
    )

    def replicas(factor: float) -> int | None:
        progress(f"with steps {factor:.2f} times as long")
        sizes = SimulatedSizes(slowed(question, factor), workers, progress)
        guess = max(1, ceil(factor * chosen.replicas))
        return sizes.smallest(option, guess=guess, most=most_tried(chosen.replicas))

    return PlanRange(steps=steps, fewest=replicas(steps.least), most=replicas(steps.most))


def slowed(question: PlanQuestion, factor: float) -> PlanQuestion:
    """The question whose answer is that of `question` with steps `factor` times as long."""
    bounds = (replace(bound, limit=bound.limit / factor) for bound in question.slo.bounds)
    return replace(
        question,
        demand=question.demand.sped_up(factor),
        slo=Slo(bounds=tuple(bounds), words=question.slo.words),
    )
