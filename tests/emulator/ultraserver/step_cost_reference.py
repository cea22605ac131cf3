"""The cost of a step in arrays of all ranks: slow, obvious, and what the compiled kernels must be.

Stands on what counts and times steps for fits and what-ifs, and adds power and rounding.
"""

import numpy as np

from emulator.arrays import Float64s
from emulator.specs.batch import StepBatch
from emulator.specs.expert_loads import ExpertLoads
from emulator.timing.roofline import ENGINES
from emulator.ultraserver.step_cost import COLLECTIVES, StepCost, StepCostModel
from emulator.ultraserver.step_parts import THROTTLE
from emulator.ultraserver.step_time import ROUNDING, combine, whole_ns
from emulator.ultraserver.step_work import step_work
from emulator.units import NS_PER_S


def cost_slowly(
    costs: StepCostModel,
    batch: StepBatch,
    loads: ExpertLoads | None = None,
    slow_factor: Float64s | None = None,
) -> StepCost:
    """`costs.cost`, of a step that has requests."""
    terms = costs.terms(batch, loads, slow_factor)
    assert terms is not None
    time, work = combine(terms, costs.calibration, costs.overlap), step_work(terms)
    free_ns, idle_watts = time.duration_ns, costs.idle_chip_watts
    factor = costs.throttle(work, free_ns)
    duration_ns = whole_ns(factor * free_ns)
    busy = dict(zip(ENGINES, terms.slow * work.engine_ns, strict=True))
    busy[COLLECTIVES] = work.link_ns
    watts = idle_watts + (costs.wanted_watts(work, free_ns) - idle_watts) / factor
    return StepCost(
        duration_ns=duration_ns,
        rank_ns=np.ceil(factor * time.rank_ns * (1 - ROUNDING)).astype(np.int64),
        engine_ns={name: (ns * (1 + ROUNDING)).astype(np.int64) for name, ns in busy.items()},
        chip_watts=watts,
        chip_joules=float(watts.sum()) * duration_ns / NS_PER_S,
        parts_ns={**time.parts_ns, THROTTLE: (factor - 1) * free_ns},
        bound=time.bound,
        flops=work.flops.sum(axis=0),
        hbm_bytes=work.hbm_bytes,
        link_bytes=work.link_bytes,
        dispatched_bytes=np.broadcast_to(work.dispatched_bytes, work.link_bytes.shape),
    )
