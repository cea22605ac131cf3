"""Times many counted steps at once, for fits and searches over calibrations.

`step_time.combine` without overlap, for steps of one shape whose slowest rank and experts are the
same under any calibration. A step is a column.
"""

from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np

from emulator.arrays import Bools, Float64s, Int64s
from emulator.ultraserver.step_rows import ColumnCalibrations, host_ns, row_times
from emulator.ultraserver.step_terms import PhaseTerms, StepTerms


class StepColumns:
    """The steps of `terms`; ValueError for none, unequal shapes, slow chips or unequal expert
    layers.

    Of unequal ranks and chips, the one with the most work counts.
    """

    def __init__(self, terms: Sequence[StepTerms]) -> None:
        if not terms:
            raise ValueError("at least one step")
        first = terms[0]
        if any(each.parts != first.parts or (each.slow != 1).any() for each in terms):
            raise ValueError("steps of one model on chips that are not slow")
        self.count = len(terms)
        ranks = [_busiest_rank(each) for each in terms]
        self._rank = PhaseTerms.joined(
            [each.rank.columns([rank]) for each, rank in zip(terms, ranks, strict=True)], axis=-1
        )
        self._weights = np.stack([each.runs @ each.times for each in terms], axis=1)
        self._layers = first.layers[:, None]
        self._expert_layers = first.expert_layers[:, None]
        self._experts = None
        if first.experts is not None:
            experts = [_expert_column(each.experts) for each in terms]
            self._experts = PhaseTerms.joined(experts, axis=-1)
        self._expert_runs = np.array([each.runs_of_kind.sum() for each in terms])
        self._dispatch_share = np.array([each.dispatch_share for each in terms])
        pairs = list(zip(terms, ranks, strict=True))
        self._busy: Bools = np.array([each.busy[rank] for each, rank in pairs])
        self._requests: Float64s = np.array([each.requests[rank] for each, rank in pairs])
        self._prefills: Float64s = np.array([each.prefills.max() for each in terms])
        self._launch_ns: Float64s = np.array([each.launch_ns for each in terms])
        drafts = [(place, draft) for place, each in enumerate(terms) for draft in each.drafts]
        self._drafts = StepColumns([draft for _, draft in drafts]) if drafts else None
        self._draft_of: Int64s = np.array([place for place, _ in drafts], dtype=np.int64)

    def durations_ns(self, calibrations: ColumnCalibrations, *, host: bool = True) -> Float64s:
        """Duration of each step under its column of `calibrations`: [steps].

        `host`: with the engine's own overheads, once per step.
        """
        rows = row_times(
            self._rank,
            calibrations,
            slow=np.ones(self.count),
            layers=self._layers,
            expert_layers=self._expert_layers,
            link_share=calibrations.values(lambda each: each.link_share),
            collective_ns=calibrations.values(lambda each: each.collective_ns),
        )
        total: Float64s = (self._weights * (rows.compute_ns + rows.communication_ns)).sum(axis=0)
        total += self._launch_ns
        if host:
            total += host_ns(
                calibrations,
                busy=self._busy,
                requests=self._requests,
                prefills=self._prefills,
                launch_ns=0.0,
            ).sum(axis=0)
        if self._experts is not None:
            total += self._expert_runs * self._experts_ns(self._experts, calibrations)
        if self._drafts is not None:
            drafts_ns = self._drafts.durations_ns(calibrations.taken(self._draft_of), host=False)
            total += np.bincount(self._draft_of, weights=drafts_ns, minlength=self.count)
        return total

    def _experts_ns(self, terms: PhaseTerms, calibrations: ColumnCalibrations) -> Float64s:
        """One layer's experts with dispatch and combine: [steps]."""
        exchange_share = calibrations.values(lambda each: each.exchange_share)
        rows = row_times(
            terms,
            calibrations,
            slow=np.ones(self.count),
            layers=0.0,
            expert_layers=0.0,
            link_share=exchange_share,
            collective_ns=calibrations.values(lambda each: each.exchange_ns),
        )
        spared = (1 - self._dispatch_share) * terms.link_ns / exchange_share
        both = rows.compute_ns + 2 * rows.communication_ns - spared
        only_row: Float64s = both[0]
        return only_row


def _busiest_rank(terms: StepTerms) -> int:
    return int(np.lexsort((terms.rank.engine_ns.sum(axis=(0, 1)), terms.busy))[-1])


def _expert_column(terms: PhaseTerms | None) -> PhaseTerms:
    """The chip with the most work, and the busiest links: [..., 1 row, 1 column]."""
    if terms is None:
        raise ValueError("steps with experts beside steps without")
    if any(np.ptp(getattr(terms, field.name), axis=-2).any() for field in fields(terms)):
        raise ValueError("layers of experts that are all alike")
    chip = int(terms.engine_ns.sum(axis=(0, 1)).argmax())
    links = ("link_ns", "latency_ns", "collectives")
    busiest = {name: getattr(terms, name)[:1].max(axis=1, keepdims=True) for name in links}
    return replace(terms.changed(lambda array: array[..., :1, [chip]]), **busiest)
