"""Unintended differences between two sides of a comparison."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from loadgen.measures.run_measures import RunMeasures
from loadgen.records.run_record import RunHeader, RunRecord
from loadgen.records.server_reading import FOLLOWING_CLOCK

SHORT_RUN: Final = 1_000
"""Requests. Of equal M/M/1 queues at a load of 0.7 some figure was called different in 10 of 100
comparisons of 300 requests each and in 6 of 100 of 1,000; it should be 5.
"""


def apart_settings(a: Sequence[RunRecord], b: Sequence[RunRecord]) -> Mapping[str, tuple[str, str]]:
    """Settings that differ between the sides, with both values.

    Between measured and simulated runs only those that both have: a simulator has no client, and
    says more of its schedulers than a server does.
    """
    on_a, on_b = ([_settings(run.header) for run in side] for side in (a, b))
    names = dict.fromkeys(name for settings in (*on_a, *on_b) for name in settings)
    if len({run.header.simulated for run in (*a, *b)}) > 1:
        names = {name: None for name in names if all(name in each for each in (*on_a, *on_b))}
    found = {name: (_values(on_a, name), _values(on_b, name)) for name in names}
    return {name: (left, right) for name, (left, right) in found.items() if left != right}


def comparison_notes(
    a: Sequence[RunMeasures],
    b: Sequence[RunMeasures],
    *,
    fewest: int,
    enough: int,
    simulated: bool = False,
) -> Iterator[str]:
    """Yield every reason why a verdict may not hold; `simulated`: no server is on either side."""
    if fewest < enough and not simulated:
        yield (
            "a restart of the server, another placement or a busier host are not in this noise: "
            f"{enough} runs or more a side show how far equal runs lie apart"
        )
    fewest_requests = min((run.total.completed for run in (*a, *b)), default=0)
    if fewest < enough and fewest_requests < SHORT_RUN:
        yield (
            f"a run of {fewest_requests:,} requests shows too little of its own noise: of equal "
            "servers some figure is called different in about 1 of 10 comparisons of 300 requests "
            f"each; {SHORT_RUN:,} or more, or more runs a side, cure it"
        )
    for side, runs in (("a", a), ("b", b)):
        failed = sum(run.total.failed for run in runs)
        if failed:
            yield (
                f"side {side} has {failed} failed requests: latencies are of those that completed"
            )
        if any(run.saturated for run in runs):
            yield f"side {side} was held back by the load generator: see its own report"
        if any(run.total.aborted for run in runs):
            yield f"side {side} has a run that was interrupted"


def _settings(header: RunHeader) -> Mapping[str, str]:
    """Every option of a run, and the server's facts."""
    settings = {
        "run": "simulated" if header.simulated else "measured",
        "model": header.model,
        "seed": str(header.seed),
        "skip": f"{header.skip_s:g} s",
    }
    if not header.simulated:
        settings["workers"] = str(header.workers)
        if header.start.info.get("clock") != FOLLOWING_CLOCK:  # there it is the load's
            dilation = header.start.dilation
            settings["dilation"] = "wall" if dilation is None else f"{dilation:g}"
    settings |= {f"server {name}": value for name, value in header.start.info.items()}
    for each in header.classes:
        prefix = "" if len(header.classes) == 1 else f"{each.name}: "
        if each.api is not None:
            settings |= {f"{prefix}api": each.api, f"{prefix}prompts": each.prompts}
        settings |= {
            f"{prefix}workload": each.workload,
            f"{prefix}arrivals": each.arrivals.words,
            f"{prefix}requests": "as many as fit" if each.requests is None else str(each.requests),
            f"{prefix}slo": each.slo,
        }
    return settings


def _values(side: Sequence[Mapping[str, str]], name: str) -> str:
    """The distinct values of a setting on one side, in the order of its runs."""
    return ", ".join(dict.fromkeys(settings.get(name, "-") for settings in side))
