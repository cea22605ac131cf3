"""Time until a new replica serves: processes start, chips read their weights, ranks warm up.

As a live engine's chips come back: every tray reads from its own drives over its host's link, then
each rank computes a short prompt. Whether a machine is there, and who notices that it is needed, is
not in it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from emulator.faults.recovery_time import RecoveryRates
from emulator.faults.survival import WeightBytes
from emulator.specs.figure import Figure
from emulator.specs.model import ModelSpec
from emulator.ultraserver.handover_cost import weights_read
from emulator.units import NS_PER_S
from serving.analysis.steady_state.partitions import PartitionCandidate
from serving.analysis.steady_state.sweep import Sweep
from serving.engine.step_batch import warm_up_batch


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdStart:
    """Of some replicas that start at once; `read_bytes` are those of one, `tray_rate` the slower of
    a tray's drives and its host's link.
    """

    start_s: float
    read_bytes: int
    read_s: float
    tray_rate: Figure
    warm_up_s: float

    @property
    def total_s(self) -> float:
        """Until all of them serve."""
        return self.start_s + self.read_s + self.warm_up_s


def cold_start_of(
    sweep: Sweep,
    precision: str,
    engines: Sequence[PartitionCandidate],
    *,
    start_s: float,
    replicas: int = 1,
) -> ColdStart:
    """Of `replicas` of so many `engines` each, on neighbouring chips of one machine, as many as it
    holds; further machines read beside it. `start_s`: until processes run.
    """
    model, rates = sweep.model_at(precision), RecoveryRates()
    chip_bytes = np.repeat(
        [_chip_bytes(model, engine) for engine in engines],
        [engine.partition.chips for engine in engines],
    )  # [chips of a replica]
    held = min(replicas, max(1, sweep.system.chips.count // len(chip_bytes)))
    of_machine = np.tile(chip_bytes, held)
    read = weights_read(sweep.system, np.arange(len(of_machine)), of_machine, rates)
    warm_up_ns = max(_warm_up_ns(sweep, precision, engine) for engine in dict.fromkeys(engines))
    return ColdStart(
        start_s=start_s,
        read_bytes=int(chip_bytes.sum()),
        read_s=read.duration_ns / NS_PER_S,
        tray_rate=min(
            rates.drives_bytes_per_s, rates.host_link_bytes_per_s, key=lambda each: each.value
        ),
        warm_up_s=warm_up_ns / NS_PER_S,
    )


def _chip_bytes(model: ModelSpec, engine: PartitionCandidate) -> int:
    """Of the fullest chip: its experts, and all else of its position."""
    weights = WeightBytes.of(model, tp=engine.partition.tp)
    experts = -(-model.experts // engine.partition.ep)
    return weights.replica_bytes + model.moe_layers * experts * weights.expert_bytes


def _warm_up_ns(sweep: Sweep, precision: str, engine: PartitionCandidate) -> int:
    ranks = engine.partition.ranks
    batch = warm_up_batch(range(ranks), ranks)
    return sweep.cost_model(precision, engine).cost(batch).duration_ns
