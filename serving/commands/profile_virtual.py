"""Traffic, machine and limits of `ultraserve profile --model`."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING

from serving.commands.analysis_options import one_of
from serving.settings import PartitionOptions
from serving.traffic.engine_limits import SchedulerLimits
from startup.typed_options import option, read_options

if TYPE_CHECKING:
    from emulator.ultraserver.ceilings import Ceilings
    from loadgen.workloads.traffic import Traffic
    from serving.analysis.profile.profiled_run import ProfiledRun


@dataclass(frozen=True, kw_only=True)
class VirtualOptions(PartitionOptions):
    """Traffic in virtual time and its engine."""

    GROUP = "traffic in virtual time"

    model: str | None = option(
        None, "a catalog name: simulate instead of recording a server", metavar="NAME"
    )
    rate: float = option(10.0, "requests per second, Poisson", metavar="R")
    requests: int = option(200, "requests to serve")
    prompt_tokens: int = option(1_024, "median prompt")
    output_tokens: int = option(128, "median reply")
    spread: float = option(0.5, "of both lengths, lognormal; 0 for fixed ones", metavar="SIGMA")
    seed: int = option(0, "of arrivals and lengths")


def profile_virtual(args: argparse.Namespace) -> tuple[ProfiledRun, Ceilings]:
    """Simulate; raises ConfigError or HbmExhausted."""
    from emulator.specs.assumptions import with_assumptions
    from emulator.specs.models import model_by_name
    from emulator.specs.overlap import Overlap
    from emulator.specs.shipped_fits import calibration_for
    from emulator.specs.systems import system_by_name
    from emulator.timing.expert_distribution import ExpertDistribution
    from serving.analysis.profile.profile_traffic import profile_traffic
    from serving.analysis.steady_state.step_assumptions import StepAssumptions
    from serving.engine.step_recording import STEPS_DEFAULT

    options = read_options(VirtualOptions, args)
    assert options.model is not None
    system = with_assumptions(system_by_name(options.system), options.assumptions)
    model = model_by_name(options.model)
    return profile_traffic(
        _traffic(options),
        system,
        model,
        options.partition(system),
        distribution=ExpertDistribution.parse(options.routing or "uniform", model, seed=0),
        limits=read_options(SchedulerLimits, args),
        steps_max=STEPS_DEFAULT if args.steps is None else args.steps,
        assumed=StepAssumptions(
            overlap=one_of(Overlap, "overlap", options.overlap),
            calibration=calibration_for(system.chip.name, name=options.calibration),
        ),
    )


def _traffic(options: VirtualOptions) -> Traffic:
    from loadgen.workloads.length_pairs import IndependentLengths
    from loadgen.workloads.lengths import lognormal_of_median
    from loadgen.workloads.traffic import Traffic

    lengths = IndependentLengths(
        prompt=lognormal_of_median(median=options.prompt_tokens, sigma=options.spread),
        output=lognormal_of_median(median=options.output_tokens, sigma=options.spread),
    )
    return Traffic.drawn(
        rate_per_s=options.rate, lengths=lengths, seed=options.seed, requests=options.requests
    )
