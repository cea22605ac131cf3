"""InferenceMAX's launch numbers: tokens/s/MW of gpt-oss-120b at a given interactivity.

Predicted by the best partition and batch, with the fitted factors, on the project's all-in power.
"""

from dataclasses import dataclass
from typing import Final

from emulator.specs.models import model_by_name
from emulator.specs.shipped_fits import calibration_for
from emulator.specs.systems import system_by_name
from serving.analysis.steady_state.partitions import candidate_partitions
from serving.analysis.steady_state.replica import Replica
from serving.analysis.steady_state.request_shape import RequestShape
from serving.analysis.steady_state.step_assumptions import StepAssumptions

_MODEL: Final = "gpt-oss-120b"
_SHAPE: Final = RequestShape(prompt_tokens=1_024, output_tokens=8_192)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPoint:
    """A machine and the interactivity of its users, tokens/s."""

    key: str
    name: str
    system: str
    tokens_per_s_per_user: float
    conditions: str


def _point(key: str, system: str) -> LaunchPoint:
    return LaunchPoint(
        key=key,
        name=f"InferenceMAX, gpt-oss-120b on {system}",
        system=system,
        tokens_per_s_per_user=90.0,
        conditions="90 tokens/s/user, 1,024 + 8,192, all-in power",
    )


TOKENS_PER_MW_POINTS: Final = (
    _point("imax-oss-h100", "dgx-h100"),
    _point("imax-oss-b200", "dgx-b200"),
)


def tokens_per_mw(point: LaunchPoint) -> float:
    """Output tokens/s per all-in MW of the best partition and power-of-two batch, or 0."""
    system, model = system_by_name(point.system), model_by_name(_MODEL)
    assumptions = StepAssumptions(calibration=calibration_for(system.chip.name))
    best = 0.0
    for candidate in candidate_partitions(system, model, least_kv_tokens=_SHAPE.tokens):
        replica = Replica(system, model, candidate, shape=_SHAPE, assumptions=assumptions)
        for batch in replica.batches():
            found = replica.operating_point(batch)
            if 1e9 / found.tpot_ns < point.tokens_per_s_per_user:
                break
            best = max(best, found.output_tokens_per_s / found.all_in_watts * 1e6)
    return best
