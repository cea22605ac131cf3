"""From a run's record to all its figures. Pure.

Durations are in the run's time: emulated if the server keeps it, else wall. Only completed requests
have latencies; the others are counted by kind.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from loadgen.measures.client_warnings import is_busy, is_late
from loadgen.measures.columns import UNKNOWN, Bools, Columns
from loadgen.measures.data_quality_warnings import data_quality_warnings
from loadgen.measures.energy import energy_of, metered_window
from loadgen.measures.goodput import Judgement, judge, judged
from loadgen.measures.intervals import mean_estimate, percentile_estimate, share_estimate
from loadgen.measures.rates import amounts_of, rates_of
from loadgen.measures.run_measures import (
    PERCENTILES,
    ClassMeasures,
    Distribution,
    RunMeasures,
    SloKept,
)
from loadgen.measures.samples import Samples, samples_of
from loadgen.measures.slo import Slo
from loadgen.measures.window import MeasuredWindow
from loadgen.records.arrays import Float64s, Int64s
from loadgen.records.arrival_process import arrival_process
from loadgen.records.estimate import Estimate
from loadgen.records.result import Result
from loadgen.records.run_record import RunRecord


def distribution_of(samples: Samples) -> Distribution:
    """Sum up at least one sample; raises ValueError for one that is not finite."""
    if not np.isfinite(samples.values).all():
        raise ValueError("a sample is not a finite number")
    ordered = np.sort(samples.values)
    return Distribution(
        samples=len(samples),
        mean=mean_estimate(samples),
        deviation=float(ordered.std()),
        least=float(ordered[0]),
        most=float(ordered[-1]),
        percentiles={each: percentile_estimate(samples, ordered, each) for each in PERCENTILES},
    )


ALL: Final = "all"
"""The name of all classes together."""

PROBES_MIN: Final = 100
"""Of an event loop's lag: with fewer the 99th percentile lies beyond the last but one."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MeasuredClass:
    """All requests of a class (or of all), and the inputs of its figures.

    `columns` has the skipped part too; `measured`, [requests], are those after it, with `results`
    and `rows`; `begun_ns`, [sessions], is when their sessions began, in the arrivals' time, a
    second of which is `wall_per_s` 10^9 of these. `window` is the whole run's. `samples` are the
    latencies of `rows` (see `samples_of`), `amounts` those of each cell of the window (see
    `amounts_of`), empty without a window; `judgement` is None without an SLO.
    """

    name: str
    results: Sequence[Result]
    window: MeasuredWindow | None
    dilation: float
    begun_ns: Int64s
    wall_per_s: float
    level: Slo | None
    columns: Columns
    measured: Bools
    rows: Columns
    samples: Mapping[str, Samples]
    judgement: Judgement | None
    amounts: Mapping[str, Float64s]


def measure_run(record: RunRecord) -> RunMeasures:
    """Compute every figure of a run, also of one without an end."""
    return measures_of(record, *measured_classes(record))


def measures_of(
    record: RunRecord, total: MeasuredClass, classes: Sequence[MeasuredClass]
) -> RunMeasures:
    """Compute every figure of a run from its `measured_classes`."""
    found = {each.name: _class_measures(each) for each in classes}
    if len(found) == 1:
        whole = replace(next(iter(found.values())), name=total.name)
    else:
        whole = _class_measures(total)
    server = metered_window(record)
    window, dilation = total.window, total.dilation
    window_s = None if window is None else window.wall_s / dilation
    rate = whole.rates.get("output_tokens_per_s")
    lags = () if record.end is None else record.end.lags
    probed = [lag for lag in lags if lag.probes is None or lag.probes >= PROBES_MIN]
    measures = RunMeasures(
        time="emulated" if server.emulated else "wall",
        dilation=dilation,
        window_s=window_s,
        wall_s=None if window is None or record.header.simulated else _wall_s(record, window),
        lag_s=server.growth().lag_s,
        total=whole,
        classes=found,
        energy=energy_of(server, output_tokens_per_s=None if rate is None else rate.value),
        loop_lag_p99_ms=max((lag.p99_ms for lag in probed), default=None),
        cpu_share=max((lag.cpu_share for lag in lags), default=None),
        busy=False,
        late=False,
    )
    measures = replace(measures, busy=is_busy(measures), late=is_late(measures))
    return replace(measures, warnings=tuple(data_quality_warnings(record, measures)))


def _wall_s(record: RunRecord, window: MeasuredWindow) -> float:
    """Wall seconds of the window, whose ends are steady."""
    start_ns, end_ns = record.wall_ns(np.array([window.start_ns, window.end_ns])).tolist()
    return float(end_ns - start_ns) / 1e9


def measured_classes(record: RunRecord) -> tuple[MeasuredClass, tuple[MeasuredClass, ...]]:
    """All requests together, and each class of the header.

    The whole of a single class is that class, with its SLO and the time of its arrivals.
    """
    header = record.header
    by_class: dict[str, list[Result]] = {each.name: [] for each in header.classes}
    for result in record.results:
        by_class.setdefault(result.traffic_class, []).append(result)
    columns = Columns.of(record.results)
    window = MeasuredWindow.of(columns, skip_ns=header.skip_ns)
    if len(by_class) == 1:
        (name,) = by_class
        only = _measured(name, record.results, columns, window=window, record=record)
        return replace(only, name=ALL), (only,)
    classes = tuple(
        _measured(name, results, Columns.of(results), window=window, record=record)
        for name, results in by_class.items()
    )
    total = _measured(ALL, record.results, columns, window=window, record=record)
    judgement = _judged_together(record.results, total, classes)
    if judgement is not None:
        amounts = {} if window is None else amounts_of(columns, window, judgement.good)
        total = replace(total, judgement=judgement, amounts=amounts)
    return total, classes


def _judged_together(
    results: Sequence[Result], total: MeasuredClass, classes: Sequence[MeasuredClass]
) -> Judgement | None:
    """Join the classes' judgements; None unless each class that sent has one."""
    judgements = {each.name: each.judgement for each in classes if len(each.columns)}
    if not judgements or None in judgements.values():
        return None
    names = np.array([result.traffic_class for result in results])
    names = names[np.argsort([result.intended_ns for result in results], kind="stable")]
    good = np.zeros(len(total.columns), dtype=np.bool_)  # [requests]
    for name, judgement in judgements.items():
        assert judgement is not None
        good[names == name] = judgement.good  # both in the order in which they were due
    return judged(total.columns, good, measured=total.measured)


def _measured(
    name: str,
    results: Sequence[Result],
    columns: Columns,
    *,
    window: MeasuredWindow | None,
    record: RunRecord,
) -> MeasuredClass:
    header = record.header
    known = next((each for each in header.classes if each.name == name and name != ALL), None)
    level = Slo.parse(known.slo) if known is not None and known.slo else None
    dilation, skip_ns = header.dilation, header.skip_ns
    in_wall_time = known is not None and known.arrivals.time == "wall"
    measured = columns.intended_ns >= skip_ns
    rows = columns.where(measured)
    begun_ns = rows.sent_ns[rows.turn == 0]
    judgement = None
    if level is not None:
        judgement = judge(columns, level, dilation=dilation, measured=measured)
    amounts: Mapping[str, Float64s] = {}
    if window is not None:
        amounts = amounts_of(columns, window, None if judgement is None else judgement.good)
    return MeasuredClass(
        name=name,
        results=[result for result in results if result.intended_ns >= skip_ns],
        window=window,
        dilation=dilation,
        begun_ns=record.wall_ns(begun_ns) if in_wall_time else begun_ns,
        wall_per_s=1.0 if in_wall_time else dilation,
        level=level,
        columns=columns,
        measured=measured,
        rows=rows,
        samples=samples_of(rows, dilation, simulated=header.simulated),
        judgement=judgement,
        amounts=amounts,
    )


def _class_measures(measured: MeasuredClass) -> ClassMeasures:
    rows = measured.rows
    done = rows.where(rows.done)
    judgement = measured.judgement
    rates: dict[str, Estimate] = {}
    if measured.window is not None:
        rates.update(rates_of(measured.amounts, measured.window, measured.dilation))
    answered = rows.where(~rows.aborted)
    if len(answered):
        failed = (~answered.done).astype(np.float64)
        rates["failed_share"] = share_estimate(Samples.in_order(failed))
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
        short_replies=int((done.output_tokens < done.asked_output_tokens).sum()),
        long_replies=int((done.output_tokens > done.asked_output_tokens).sum()),
        overfull_replies=int((done.chunks > done.output_tokens).sum()),
        resized_prompts=int((done.input_tokens != done.asked_input_tokens).sum()),
        distributions={name: distribution_of(each) for name, each in measured.samples.items()},
        rates=rates,
        arrivals=arrival_process(measured.begun_ns, ns_per_s=1e9 * measured.wall_per_s),
        slo=_slo_kept(measured, judgement, rates),
        resent=sum(result.resent for result in measured.results),
    )


def _errors(measured: MeasuredClass) -> tuple[Mapping[str, int], Mapping[str, str]]:
    """Errors of the measured part by kind, with each one's most frequent message."""
    said = Counter(
        (result.error, result.message) for result in measured.results if result.error is not None
    )
    counts: Counter[str] = Counter()
    for (kind, _), count in said.items():
        counts[kind] += count
    # The first has the last word.
    examples = dict(reversed([pair for pair, _ in said.most_common()]))
    return dict(sorted(counts.items())), dict(sorted(examples.items()))


def _slo_kept(
    measured: MeasuredClass, judgement: Judgement | None, rates: Mapping[str, Estimate]
) -> SloKept | None:
    if measured.level is None or judgement is None or judgement.attainment is None:
        return None
    goodput, tokens = rates.get("goodput_per_s"), rates.get("goodput_tokens_per_s")
    return SloKept(
        words=measured.level.words,
        bounds=judgement.bounds,
        attainment=judgement.attainment,
        goodput_per_s=None if goodput is None else goodput.value,
        goodput_tokens_per_s=None if tokens is None else tokens.value,
    )
