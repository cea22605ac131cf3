"""Charts of one run: latency over time and as distributions, arrivals, and what was in flight."""

from collections.abc import Iterator

from loadgen.measures.columns import Columns
from loadgen.measures.run_measures import RunMeasures
from loadgen.measures.samples import samples_of
from loadgen.records.run_record import RunRecord
from loadgen.reports.distribution_charts import gap_histogram, latency_distributions
from loadgen.reports.run_series import Bins
from loadgen.reports.time_charts import (
    in_flight_over_time,
    latency_over_time,
    rates_over_time,
    tokens_over_time,
)
from reporting.charts import TitledChart


def run_charts(record: RunRecord, measures: RunMeasures) -> Iterator[TitledChart]:
    """Draw all of them; those that have nothing to draw are left out."""
    if not record.results:
        return
    dilation = measures.dilation
    whole = Columns.of(record.results)
    bins = Bins.of(whole, dilation)
    headers = record.header.classes
    of_class = {
        header.name: Columns.of([r for r in record.results if r.traffic_class == header.name])
        for header in headers
    }
    shown = [header for header in headers if len(of_class[header.name])]
    whose = {each.name: f" of {each.name}" if len(headers) > 1 else "" for each in shown}
    for header in shown:
        if of_class[header.name].streamed.any():
            columns = of_class[header.name]
            yield latency_over_time(columns, bins, measures.time, whose[header.name])
    for header in shown:
        columns = of_class[header.name]
        yield rates_over_time(header, columns, bins, measures.time, whose[header.name])
    yield tokens_over_time({each.name: of_class[each.name] for each in shown}, bins, measures.time)
    yield in_flight_over_time(whole, bins, measures.time)
    for header in shown:
        columns = of_class[header.name]
        if columns.streamed.any():
            yield latency_distributions(columns, measures, header.name, whose[header.name])
        gaps = samples_of(columns, dilation).get("itl_ms")
        if gaps is not None and (gaps.values > 0).any():
            yield gap_histogram(gaps.values, measures.time, whose[header.name])
