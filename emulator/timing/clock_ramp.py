"""The dI/dt throttle: an idle matrix engine starts below its rate and ramps up, in every burst.

Assumed: the rate grows linearly from `ramp_share` to the whole during `ramp_ns`, and every phase of
a layer is a burst of its own.
"""

import numpy as np

from emulator.arrays import Float64s
from emulator.specs.matrix_engine import MatrixEngine


def ramp_loss_ns(engine: MatrixEngine, burst_ns: Float64s) -> Float64s:
    """Time lost to the ramp by bursts of `burst_ns` at the full rate: [...] -> [...].

    With share s and ramp R, the work done until t is s t + (1 - s) t^2 / (2 R) inside the ramp; a
    burst that outlasts it loses (1 - s) R / 2.
    """
    share, ramp_ns = engine.ramp_share.value, engine.ramp_ns.value
    if share >= 1 or ramp_ns == 0:
        return np.zeros_like(burst_ns)
    whole_loss_ns = (1 - share) * ramp_ns / 2
    steepness = (1 - share) / ramp_ns
    inside_ns = np.minimum(burst_ns, ramp_ns - whole_loss_ns)  # the work that a whole ramp does
    lasts_ns = (np.sqrt(share**2 + 2 * steepness * inside_ns) - share) / steepness
    loss_ns: Float64s = lasts_ns - inside_ns
    return loss_ns
