"""What a sweep keeps of a run's measures."""

import asyncio
from dataclasses import replace

import pytest

from loadgen.measures.measurement import measure_run
from loadgen.sweeps.sweep import point_figures
from tests.loadgen.sweeps.queue_run import QueueRun, fixed, queue_options


def test_what_was_aborted_is_no_part_of_the_share_that_failed() -> None:
    options = queue_options(requests=10)
    (each,) = options.classes
    loaded = replace(options, classes=(replace(each, arrivals=replace(each.arrivals, rate="5")),))
    run = asyncio.run(QueueRun(service=fixed(0.01))(loaded, ""))
    errors = ["aborted"] * 5 + ["status 503"] + [None] * 4
    results = [
        result if error is None else replace(result, error=error, chunk_ns=result.chunk_ns[:0])
        for result, error in zip(run.results, errors, strict=True)
    ]

    figures = point_figures(measure_run(replace(run, results=results)))

    assert figures.failed_share == pytest.approx(0.2)
