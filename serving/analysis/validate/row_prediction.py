"""Predictions of measured rows: counted steps, a fit's factors, and runs of closed loops.

The steady state's formula is for fits, which ask for hundreds of predictions of all rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emulator.specs.calibration import Calibration
from emulator.specs.figure import Figure
from emulator.specs.stack_factors import StackFactors
from emulator.timing.draft_acceptance import accepted_tokens
from emulator.units import NS_PER_S
from serving.analysis.validate.closed_loop import LoopRows, LoopTimes, closed_loop
from serving.analysis.validate.counted_rows import CountedRows, RowLoad
from serving.analysis.validate.measured_row import METRICS
from serving.analysis.validate.row_deployment import Stack, handover_s
from serving.analysis.validate.row_runs import run_rows

Bools = NDArray[np.bool_]
Float64s = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowResults:
    """Seconds, and tokens/s of prompts and outputs per chip, all [rows]; NaN where unknown.

    `ttft_s` is a median, `tpot_s` a mean.
    """

    tpot_s: Float64s
    ttft_s: Float64s
    mean_ttft_s: Float64s
    tokens_per_s_per_chip: Float64s
    median_tpot_s: Float64s
    p99_tpot_s: Float64s
    p99_ttft_s: Float64s

    def of(self, metric: str) -> Float64s:
        """By the metric's name, one of METRICS."""
        found: Float64s = getattr(self, METRICS[metric])
        return found

    def taken(self, rows: Bools) -> "RowResults":
        """Those of the masked rows."""
        return RowResults(**{name: getattr(self, name)[rows] for name in METRICS.values()})


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
        self._tokens_per_step = np.array(
            [1 + accepted_tokens("mtp", each.draft_tokens) for each in deployments]
        )

    def predict(self, factors: StackFactors, *, stores: bool = True) -> RowResults:
        """Every row under `factors`, by the formula of the steady state; percentiles are NaN.

        `stores`: whether exchanges inside a box are told apart from those between boxes. Rows over
        several boxes are the same either way: their loads are counted, and such rows go straight.
        """
        if self._counted is None:
            return unknown_results(0)
        found = self._loop(self._counted, factors, stores=stores)
        return replace(
            unknown_results(len(self._counted.loads)),
            tpot_s=found.tpot_s,
            ttft_s=found.steady_ttft_s,
            mean_ttft_s=found.ttft_s,
            tokens_per_s_per_chip=found.requests_per_s * self._tokens / self._chips,
        )

    def loop(self, factors: StackFactors) -> LoopTimes:
        """The closed loop of every row under `factors`; there is one at least."""
        assert self._counted is not None
        return self._loop(self._counted, factors)

    def _loop(
        self, counted: CountedRows, factors: StackFactors, *, stores: bool = True
    ) -> LoopTimes:
        calibrations = [as_deployed(factors, each) for each in counted.stacks]
        if not stores:
            calibrations = [replace(each, store_share=None, store_ns=None) for each in calibrations]
        times = counted.times(calibrations)
        front_end_s = np.array(  # a request's way in, its first token's way out
            [
                each.front_end_request_ns.value + each.front_end_token_ns.value
                for each in calibrations
            ]
        )
        return closed_loop(
            LoopRows(
                **self._given,
                batches=counted.batches,
                decode_s=times.decode_s,
                tokens_per_step=self._tokens_per_step,
                solo_s=times.solo_s,
                full_s=times.full_s,
                solo_steal_s=times.solo_steal_s,
                full_steal_s=times.full_steal_s,
                front_end_s=front_end_s[counted.stack_of_row] / NS_PER_S,
            )
        )

    def prompt_s(self, factors: StackFactors) -> Float64s:
        """Seconds a prompt that all engines for prompts need together, at their best: [rows]."""
        counted = self._counted
        if counted is None:
            return np.zeros(0)
        times = counted.times([as_deployed(factors, each) for each in counted.stacks])
        seconds: Float64s = np.minimum(times.solo_s, times.full_s) / self._given["prefill_workers"]
        return seconds

    def simulate(self, factors: StackFactors, rows: Bools) -> RowResults:
        """The masked rows under `factors`, each run as the benchmark ran it; others are NaN."""
        found = unknown_results(len(rows))
        counted = self._counted
        if counted is None or not rows.any():
            return found
        calibrations = [as_deployed(factors, each) for each in counted.stacks]
        places = np.flatnonzero(rows).tolist()
        runs = run_rows(counted, counted.times(calibrations), calibrations, places)
        for place, run in zip(places, runs, strict=True):
            found.ttft_s[place], found.mean_ttft_s[place] = run.median_ttft_s, run.mean_ttft_s
            found.tpot_s[place], found.median_tpot_s[place] = run.mean_tpot_s, run.median_tpot_s
            found.p99_ttft_s[place], found.p99_tpot_s[place] = run.p99_ttft_s, run.p99_tpot_s
            found.tokens_per_s_per_chip[place] = run.tokens_per_s / self._chips[place]
        return found


def unknown_results(rows: int) -> RowResults:
    """NaN everywhere."""
    return RowResults(**{name: np.full(rows, np.nan) for name in METRICS.values()})


def as_deployed(factors: StackFactors, stack: Stack) -> Calibration:
    """A measured deployment's: its overheads, and the uneven routing of its exchanges."""
    made = measured_calibration(factors, stack.machine, stack.release)
    return made.of_work(fp4=stack.fp4, drafts=stack.drafts)


def measured_calibration(factors: StackFactors, machine: str, release: str) -> Calibration:
    """Of the measured deployments of a machine, by their exchanges and the release of their stack;
    of no work yet.
    """
    made = factors.calibration(machine, release=release)
    skew = factors.exchange_skew

    def skewed(figure: Figure, times: float) -> Figure:
        words = f"times exchange_skew {skew:.3g}, {factors.source}"
        return Figure(figure.value * times, figure.unit, f"{figure.source}; {words}")

    share, start = made.store_share, made.store_ns
    return replace(
        made,
        exchange_share=skewed(made.exchange_share, 1 / skew),
        exchange_ns=skewed(made.exchange_ns, skew),
        store_share=None if share is None else skewed(share, 1 / skew),
        store_ns=None if start is None else skewed(start, skew),
    )
