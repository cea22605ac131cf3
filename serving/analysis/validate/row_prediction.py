"""Predictions of measured rows: counted steps, a fit's factors, a closed loop."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from emulator.specs.stack_factors import StackFactors
from emulator.units import NS_PER_S
from serving.analysis.validate.closed_loop import LoopRows, closed_loop
from serving.analysis.validate.counted_rows import CountedRows, RowLoad
from serving.analysis.validate.measured_row import METRICS
from serving.analysis.validate.row_deployment import handover_s

Bools = NDArray[np.bool_]
Float64s = NDArray[np.float64]

REFERENCE_DAY: Final = date(2026, 6, 1)
"""Origin of software ages: the month of the newest fitted rows."""
DAYS_PER_MONTH: Final = 30.4


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowResults:
    """Seconds, and tokens/s of prompts and outputs per chip, all [rows]; NaN if not measured."""

    tpot_s: Float64s
    ttft_s: Float64s
    tokens_per_s_per_chip: Float64s

    def of(self, metric: str) -> Float64s:
        """By the metric's name, one of METRICS."""
        found: Float64s = getattr(self, METRICS[metric])
        return found

    def taken(self, rows: Bools) -> "RowResults":
        """Those of the masked rows."""
        return RowResults(**{name: getattr(self, name)[rows] for name in METRICS.values()})


def months_before(day: date) -> float:
    """Months from `day` to the reference day; negative for later software."""
    return (REFERENCE_DAY - day).days / DAYS_PER_MONTH


class RowPredictor:
    """Predicts `loads` under any factors; steps are counted once."""

    def __init__(self, loads: Sequence[RowLoad]) -> None:
        self._counted = CountedRows(loads) if loads else None
        deployments = [load.deployment for load in loads]
        self._tokens = np.array([each.prompt_tokens + each.output_tokens for each in deployments])
        self._chips = np.array([each.chips for each in deployments], dtype=np.float64)
        self._given: dict[str, NDArray[Any]] = {  # columns of LoopRows that no factor changes
            "users": np.array([load.users for load in loads], dtype=np.float64),
            "output_tokens": np.array([each.output_tokens for each in deployments]),
            "disaggregated": np.array([each.disaggregated for each in deployments]),
            "prefill_workers": np.array([float(each.prefill.workers) for each in deployments]),
            "decode_workers": np.array([float(each.decode.workers) for each in deployments]),
            "slots": np.array([each.slots for each in deployments]),
            "handover_s": np.array([handover_s(each) for each in deployments]),
        }
        self._drafts = np.array([each.draft_tokens for each in deployments])

    def predict(self, factors: StackFactors) -> RowResults:
        """Every row under `factors`."""
        counted = self._counted
        if counted is None:
            return RowResults(**dict.fromkeys(METRICS.values(), np.zeros(0)))
        calibrations = [
            factors.calibration(each.machine, each.framework, months=each.months, fp4=each.fp4)
            for each in counted.stacks
        ]
        times = counted.times(calibrations)
        front_end_s = np.array(  # a request's way in, its first token's way out
            [
                each.front_end_request_ns.value + each.front_end_token_ns.value
                for each in calibrations
            ]
        )
        places = np.arange(1, self._drafts.max(initial=0) + 1)
        accepted = (factors.acceptance**places * (places <= self._drafts[:, None])).sum(axis=1)
        found = closed_loop(
            LoopRows(
                **self._given,
                batches=counted.batches,
                decode_s=times.decode_s,
                tokens_per_step=1 + accepted,
                solo_s=times.solo_s,
                full_s=times.full_s,
                solo_steal_s=times.solo_steal_s,
                full_steal_s=times.full_steal_s,
                front_end_s=front_end_s[counted.stack_of_row] / NS_PER_S,
            )
        )
        return RowResults(
            tpot_s=found.tpot_s,
            ttft_s=found.ttft_s,
            tokens_per_s_per_chip=found.requests_per_s * self._tokens / self._chips,
        )
