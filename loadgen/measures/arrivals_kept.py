"""How sessions really began, to be laid beside what was asked."""

from loadgen.measures.run_measures import ArrivalsKept
from loadgen.records.arrival_process import arrival_process
from loadgen.records.result import Int64s


def arrivals_kept(begun_ns: Int64s, *, wall_per_s: float) -> ArrivalsKept:
    """Describe when sessions began: `begun_ns`, int64[sessions], wall ns in any order.

    `wall_per_s` is wall seconds per second of the time that the arrivals were asked for in. The
    figures and their bins are those of `records.arrival_process`, which also describes what was
    asked, so that the two can be compared.
    """
    found = arrival_process(begun_ns, ns_per_s=1e9 * wall_per_s)
    return ArrivalsKept(
        rate_per_s=found.rate_per_s,
        gap_cv=found.gap_cv,
        dispersion=found.dispersion,
        bins=found.bins,
    )
