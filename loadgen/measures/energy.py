"""Figures of the server's meters: power, energy per token, tokens per megawatt."""

from dataclasses import replace

from loadgen.measures.run_measures import EnergyMeasures
from loadgen.records.run_record import RunRecord
from loadgen.records.server_reading import ServerReading, ServerWindow


def metered_window(record: RunRecord) -> ServerWindow:
    """The readings around the measured window; unknown values stay unknown.

    With a skipped part it begins with the reading at that part's end; without one, no meter is
    known for the window, but clock, chips and watts are those of the start.
    """
    start = record.header.start
    end = ServerReading(problem="the run has no end") if record.end is None else record.end.end
    if record.header.skip_s > 0:
        at_skip = ServerReading() if record.skipped is None else record.skipped
        start = replace(
            at_skip,
            dilation=start.dilation,
            provisioned_watts=start.provisioned_watts,
            chips=start.chips,
            info=start.info,
            problem=start.problem,
        )
    return ServerWindow(start=start, end=end)


def energy_of(server: ServerWindow, *, output_tokens_per_s: float | None) -> EnergyMeasures:
    """Figures from the meters; tokens are those of the measured window.

    The readings enclose the window, and a meter may move in steps, so the metered time exceeds it,
    sometimes by far. So the average power between the readings stands for that of the window, and
    no joule outside it counts for a token.
    """
    grown, provisioned_watts = server.growth(), server.start.provisioned_watts
    watts = _ratio(grown.facility_joules, grown.emulated_s)
    queue_ms = None if grown.queue_s is None else 1e3 * grown.queue_s
    return EnergyMeasures(
        metered_s=grown.emulated_s,
        average_watts=watts,
        chip_average_watts=_ratio(grown.chip_joules, grown.emulated_s),
        provisioned_watts=provisioned_watts,
        joules_per_output_token=_ratio(watts, output_tokens_per_s),
        output_tokens_per_s_per_mw=_per_megawatt(output_tokens_per_s, watts),
        output_tokens_per_s_per_provisioned_mw=_per_megawatt(
            output_tokens_per_s, provisioned_watts
        ),
        tokens_per_s_per_chip=_ratio(output_tokens_per_s, server.start.chips),
        server_queue_ms=_ratio(queue_ms, grown.queued_requests),
        prefix_hit_share=_ratio(grown.prefix_hits, grown.prefix_queries),
    )


def _ratio(numerator: float | None, denominator: float | None) -> float | None:
    """The quotient; None if either is unknown or the denominator is not above 0."""
    if numerator is None or denominator is None or denominator <= 0:
        return None
    return numerator / denominator


def _per_megawatt(tokens_per_s: float | None, watts: float | None) -> float | None:
    return _ratio(tokens_per_s, None if watts is None else watts / 1e6)
