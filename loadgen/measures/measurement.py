"""From a run's record to all its figures: pure, so that any of them can be computed again.

Every duration is in the run's time: emulated if the server keeps emulated time, otherwise wall.
Only requests that completed have latencies; the others are counted by kind.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from loadgen.measures.arrivals_kept import arrivals_kept
from loadgen.measures.columns import UNKNOWN, Bools, Columns
from loadgen.measures.distributions import distributions_of
from loadgen.measures.doubts import doubts, is_saturated
from loadgen.measures.energy import energy_of, metered_window
from loadgen.measures.goodput import Judgement, judge
from loadgen.measures.intervals import share_estimate
from loadgen.measures.rates import amounts_of, rates_of
from loadgen.measures.run_measures import ClassMeasures, Estimate, RunMeasures, SloKept
from loadgen.measures.samples import Float64s, Samples, samples_of
from loadgen.measures.slo import ServiceLevel, parse_slo
from loadgen.measures.window import Window
from loadgen.records.result import Result
from loadgen.records.run_record import RunHeader, RunRecord


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MeasuredClass:
    """All requests of a class (or of all), and what is needed to measure them.

    `columns` has the skipped part too, requests due before `skip_ns`. `window` is the whole run's.
    """

    name: str
    results: Sequence[Result]
    columns: Columns
    skip_ns: int
    window: Window | None
    dilation: float
    wall_per_s: float
    level: ServiceLevel | None

    @property
    def measured(self) -> Bools:
        """Those after the skipped part, [requests]."""
        return self.columns.intended_ns >= self.skip_ns

    @property
    def rows(self) -> Columns:
        """Those that are measured."""
        return self.columns.where(self.measured)

    def samples(self) -> Mapping[str, Samples]:
        """Latencies of those that are measured, see `samples_of`."""
        return samples_of(self.rows, self.dilation)

    def judgement(self) -> Judgement | None:
        """Who kept the SLO; None without one."""
        if self.level is None:
            return None
        return judge(self.columns, self.level, dilation=self.dilation, measured=self.measured)

    def amounts(self, judgement: Judgement | None) -> Mapping[str, Float64s]:
        """What came in each cell of the window, see `amounts_of`; empty without a window."""
        if self.window is None:
            return {}
        return amounts_of(self.columns, self.window, None if judgement is None else judgement.good)


def measure_run(record: RunRecord) -> RunMeasures:
    """Compute every figure of a run, also of one without an end."""
    total, classes = measured_classes(record)
    found = {each.name: _class_measures(each) for each in classes}
    if len(found) == 1:  # its SLO and the time of its arrivals are the whole's too
        whole = replace(next(iter(found.values())), name=total.name)
    else:
        whole = _class_measures(total)
    server = metered_window(record)
    window, dilation = total.window, total.dilation
    window_s = None if window is None else window.wall_s / dilation
    rate = whole.rates.get("output_tokens_per_s")
    lags = () if record.end is None else record.end.lags
    measures = RunMeasures(
        time="emulated" if server.emulated else "wall",
        dilation=dilation,
        window_s=window_s,
        wall_s=None if window is None else window.wall_s,
        lag_s=server.lag_s,
        total=whole,
        classes=found,
        energy=energy_of(
            server,
            output_tokens=0.0 if rate is None or window_s is None else rate.value * window_s,
            output_tokens_per_s=None if rate is None else rate.value,
        ),
        loop_lag_p99_ms=max((lag.p99_ms for lag in lags), default=None),
        cpu_share=max((lag.cpu_share for lag in lags), default=None),
        saturated=False,
    )
    measures = replace(measures, saturated=is_saturated(measures))
    return replace(measures, warnings=tuple(doubts(record, measures)))


def measured_classes(record: RunRecord) -> tuple[MeasuredClass, tuple[MeasuredClass, ...]]:
    """Return all requests together, and each class of the header by itself."""
    header = record.header
    dilation = header.start.dilation or 1.0
    skip_ns = int(header.skip_s * dilation * 1e9)
    by_class: dict[str, list[Result]] = {each.name: [] for each in header.classes}
    for result in record.results:
        by_class.setdefault(result.traffic_class, []).append(result)
    columns = Columns.of(record.results)
    window = Window.of(columns, skip_ns=skip_ns)
    classes = tuple(
        _measured(
            name,
            results,
            columns if len(by_class) == 1 else Columns.of(results),
            skip_ns=skip_ns,
            window=window,
            header=header,
        )
        for name, results in by_class.items()
    )
    total = MeasuredClass(
        name="all",
        results=record.results,
        columns=columns,
        skip_ns=skip_ns,
        window=window,
        dilation=dilation,
        wall_per_s=dilation,
        level=None,
    )
    return total, classes


def _measured(
    name: str,
    results: Sequence[Result],
    columns: Columns,
    *,
    skip_ns: int,
    window: Window | None,
    header: RunHeader,
) -> MeasuredClass:
    known = next((each for each in header.classes if each.name == name), None)
    dilation = header.start.dilation or 1.0
    in_wall_time = known is not None and known.arrivals.time == "wall"
    return MeasuredClass(
        name=name,
        results=results,
        columns=columns,
        skip_ns=skip_ns,
        window=window,
        dilation=dilation,
        wall_per_s=1.0 if in_wall_time else dilation,
        level=parse_slo(known.slo) if known is not None and known.slo else None,
    )


def _class_measures(measured: MeasuredClass) -> ClassMeasures:
    rows = measured.rows
    begun_ns = rows.sent_ns[rows.turn == 0]  # [sessions]
    done = rows.where(rows.done)
    judgement = measured.judgement()
    rates: dict[str, Estimate] = {}
    if measured.window is not None:
        amounts = measured.amounts(judgement)
        rates.update(rates_of(amounts, measured.window, measured.dilation))
    answered = rows.where(~rows.aborted)
    if len(answered):
        rates["failed_share"] = share_estimate(
            Samples.in_order((~answered.done).astype(np.float64)),
            like=Samples.in_order((answered.ended_ns - answered.intended_ns).astype(np.float64)),
        )
    if judgement is not None and judgement.attainment is not None:
        rates["attainment"] = judgement.attainment
    cached = done.cached_tokens[done.cached_tokens != UNKNOWN]
    errors, examples = _errors(measured)
    return ClassMeasures(
        name=measured.name,
        requests=len(rows),
        completed=len(done),
        failed=int(rows.failed.sum()),
        aborted=int(rows.aborted.sum()),
        errors=errors,
        example_errors=examples,
        input_tokens=int(done.input_tokens.sum()),
        cached_tokens=int(cached.sum()) if cached.size else None,
        output_tokens=int(done.output_tokens.sum()),
        chunks=int(done.chunks.sum()),
        uncounted_replies=int((~done.counted).sum()),
        short_replies=int((done.output_tokens != done.asked_output_tokens).sum()),
        resized_prompts=int((done.input_tokens != done.asked_input_tokens).sum()),
        distributions=distributions_of(measured.samples()),
        rates=rates,
        arrivals=arrivals_kept(begun_ns, wall_per_s=measured.wall_per_s),
        slo=_slo_kept(measured, judgement, rates),
    )


def _errors(measured: MeasuredClass) -> tuple[Mapping[str, int], Mapping[str, str]]:
    """Count errors by kind, and give the first message of each; of the measured part."""
    wrong = [
        result
        for result in measured.results
        if result.error is not None and result.intended_ns >= measured.skip_ns
    ]
    counts = Counter(result.error for result in wrong if result.error is not None)
    examples = {result.error: result.message for result in reversed(wrong) if result.error}
    return dict(sorted(counts.items())), dict(sorted(examples.items()))


def _slo_kept(
    measured: MeasuredClass, judgement: Judgement | None, rates: Mapping[str, Estimate]
) -> SloKept | None:
    if measured.level is None or judgement is None:
        return None
    goodput, tokens = rates.get("goodput_per_s"), rates.get("goodput_tokens_per_s")
    return SloKept(
        words=measured.level.words,
        bounds=judgement.bounds,
        attainment=judgement.attainment,
        goodput_per_s=None if goodput is None else goodput.value,
        goodput_tokens_per_s=None if tokens is None else tokens.value,
    )
