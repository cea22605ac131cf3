"""Planning questions simulated within a second or two."""

from dataclasses import replace
from typing import Any

from emulator.memory.chip_contents import HbmTerms
from emulator.specs.calibration import ROOFLINE
from emulator.specs.models import model_by_name
from emulator.specs.systems import system_by_name
from loadgen.measures.slo import Slo
from loadgen.workloads.length_pairs import IndependentLengths
from loadgen.workloads.lengths import lognormal_of_median
from serving.analysis.plan.night import deepseek_day
from serving.analysis.plan.plan_check import CheckTerms
from serving.analysis.plan.plan_demand import RateDemand
from serving.analysis.plan.plan_question import PlanQuestion, SearchTerms
from serving.analysis.steady_state.partitions import PartitionFilter
from serving.analysis.steady_state.request_shape import RequestShape
from serving.analysis.steady_state.step_assumptions import StepAssumptions
from serving.analysis.steady_state.sweep import Sweep
from serving.traffic.engine_limits import SchedulerLimits

SYSTEM = system_by_name("trn3-nl72x2")
MODEL = model_by_name("qwen3-30b-a3b")
SWEEP = Sweep(
    system=SYSTEM,
    model=MODEL,
    shape=RequestShape(prompt_tokens=400, output_tokens=16),
    asked=PartitionFilter(chips=(1, 2), lnc=(2,)),
    precisions=("stored",),
    terms=HbmTerms(utilization=0.92),
    assumptions=StepAssumptions(calibration=ROOFLINE),
)
DEMAND = RateDemand(
    rate_per_s=250.0,
    lengths=IndependentLengths(
        prompt=lognormal_of_median(median=380, sigma=0.3),
        output=lognormal_of_median(median=15, sigma=0.3),
    ),
    context_tokens=MODEL.max_context_tokens,
    lengths_in_words="short ones",
)
CHECK = CheckTerms(
    schedulers=SchedulerLimits(max_num_seqs=64, max_num_batched_tokens=2_048, block_tokens=32),
    judged=120,
    seed=1,
)
QUESTION = PlanQuestion(
    sweep=SWEEP,
    demand=DEMAND,
    slo=Slo.parse("ttft=300ms,tpot=20ms@p95"),
    day=deepseek_day(),
    check=CHECK,
    search=SearchTerms(policies=("balanced:64:256:1024", "capped:64"), tries=2),
)


def question(**changes: Any) -> PlanQuestion:
    return replace(QUESTION, **changes)
