"""The traffic, the machine and the limits that `ultraserve profile --model` is asked for."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from emulator.specs.assumptions import with_assumptions
from emulator.specs.models import model_by_name
from emulator.specs.overlap import Overlap
from emulator.specs.partition import Partition
from emulator.specs.shipped_fits import FITTED, calibration_for
from emulator.specs.systems import system_by_name
from emulator.timing.expert_distribution import ExpertDistribution
from loadgen.workloads.length_pairs import IndependentLengths
from loadgen.workloads.lengths import lognormal_of_median
from loadgen.workloads.traffic import Traffic
from serving.analysis.profile.profile_traffic import profile_traffic
from serving.analysis.steady_state.step_assumptions import StepAssumptions
from serving.engine.step_recording import STEPS_DEFAULT
from serving.settings import Settings
from serving.simulator import SchedulerLimits

if TYPE_CHECKING:
    from emulator.ultraserver.ceilings import Ceilings
    from serving.analysis.profile.profiled_run import ProfiledRun


def profile_virtual(args: argparse.Namespace) -> tuple[ProfiledRun, Ceilings]:
    """Simulate what the arguments say; raises ConfigError or HbmExhausted."""
    system = with_assumptions(
        system_by_name(_given(args.system, Settings().system)), _given(args.reading, ())
    )
    model = model_by_name(args.model)
    chips = _given(args.chips, Settings().chips)
    partition = Partition(
        chips=chips,
        tp=_given(args.tp, 1),
        ep=_given(args.ep, chips),
        lnc=_given(args.lnc, system.chip.default_lnc.count),
    )
    return profile_traffic(
        _traffic(args),
        system,
        model,
        partition,
        distribution=ExpertDistribution.parse(_given(args.routing, "uniform"), model, seed=0),
        limits=SchedulerLimits(
            max_num_seqs=_given(args.max_num_seqs, 64),
            max_num_batched_tokens=_given(args.max_num_batched_tokens, 8_192),
            prefill_policy=args.prefill_policy,
        ),
        steps_max=_given(args.steps, STEPS_DEFAULT),
        assumed=StepAssumptions(
            overlap=Overlap(_given(args.overlap, Overlap.NONE)),
            calibration=calibration_for(system.chip.name, name=_given(args.calibration, FITTED)),
        ),
    )


def _traffic(args: argparse.Namespace) -> Traffic:
    spread = _given(args.spread, 0.5)
    lengths = IndependentLengths(
        prompt=lognormal_of_median(median=_given(args.prompt_tokens, 1_024), sigma=spread),
        output=lognormal_of_median(median=_given(args.output_tokens, 128), sigma=spread),
    )
    return Traffic.poisson(
        rate_per_s=_given(args.rate, 10.0),
        lengths=lengths,
        seed=_given(args.seed, 0),
        requests=_given(args.requests, 200),
    )


def _given(value: Any, default: Any) -> Any:
    return default if value is None else value
