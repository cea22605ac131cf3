"""Peak rates of one chip: the denominators of utilisation."""

from dataclasses import dataclass

from emulator.timing.product_rate import product_rate
from emulator.timing.roofline import engine_rates
from emulator.ultraserver.step_cost import StepCostModel
from emulator.units import NS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """One chip's peaks.

    Attributes:
        flops_format: the fastest format of the model's matrix products, with rate `flops_per_s`.
        hbm_bytes_per_s: real streaming rate.
    """

    flops_format: str
    flops_per_s: float
    hbm_bytes_per_s: float
    idle_watts: float


def ceilings_of(cost_model: StepCostModel) -> Ceilings:
    """The ceilings of a model's steps on a chip of its partition."""
    model, chip = cost_model.model, cost_model.system.chip
    rates = engine_rates(chip, model.dtype)
    used = {
        product_rate(storage, chip, model.sparsity)
        for storage in (model.projection_format, model.expert_format)
    }
    fastest = max(used, key=lambda rate: float(rates.flops[rate]))
    name = fastest.name.lower()
    return Ceilings(
        flops_format=model.dtype if name == "plain" else name,
        flops_per_s=float(rates.flops[fastest]) * NS_PER_S,
        hbm_bytes_per_s=rates.hbm_bytes * NS_PER_S,
        idle_watts=cost_model.idle_chip_watts,
    )
