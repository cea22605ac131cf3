"""Machines and models small enough to count by hand."""

from dataclasses import replace

from emulator.specs.calibration import ROOFLINE
from emulator.specs.model import ModelSpec
from emulator.specs.models import MODELS
from emulator.specs.system import SystemSpec
from emulator.specs.systems import SYSTEMS
from serving.analysis.steady_state.partitions import PartitionFilter
from serving.analysis.steady_state.request_shape import RequestShape
from serving.analysis.steady_state.step_assumptions import StepAssumptions
from serving.analysis.steady_state.sweep import Sweep

MODEL: ModelSpec = MODELS["gpt-oss-20b"]  # 32 experts, 64 heads, 8 key/value heads
DENSE: ModelSpec = MODELS["llama-3.1-8b"]
SHAPE = RequestShape(prompt_tokens=512, output_tokens=256)


def trays(count: int, *, chips_per_tray: int = 4) -> SystemSpec:
    """So many trays of Trainium3 chips in one rack, each chip with its share of the real power."""
    system = SYSTEMS["trn3-nl72x2"]
    chips = count * chips_per_tray
    share = chips / system.chips.value
    figures = {"racks": 1, "trays_per_rack": count, "chips_per_tray": chips_per_tray}
    return replace(
        system,
        name=f"{count}-trays",
        chips=replace(system.chips, value=chips),
        cpus=replace(system.cpus, value=count),
        provisioned_watts=replace(
            system.provisioned_watts, value=system.provisioned_watts.value * share
        ),
        power=None,
        variants=(),
        **{name: replace(getattr(system, name), value=value) for name, value in figures.items()},
    )


def small_sweep(**changes: object) -> Sweep:
    """One tray, gpt-oss-20b in its own format, a few partitions and batches."""
    sweep = Sweep(
        system=trays(1),
        model=MODEL,
        shape=SHAPE,
        asked=PartitionFilter(tp=(1, 2), lnc=(2,)),
        precisions=("mxfp4",),
        batches=(1, 8, 64),
        assumptions=StepAssumptions(calibration=ROOFLINE),
    )
    return replace(sweep, **changes)  # type: ignore[arg-type]
