"""A chaos run's figures, as lines of text."""

from collections.abc import Iterator, Sequence

from tests.simulation.over_http.clients import Tally
from tests.simulation.over_http.served_machine import ServedMachine, Size
from tests.simulation.over_http.trouble import Figures


def report_lines(
    size: Size, seed: int, figures: Figures, tally: Tally, machine: ServedMachine
) -> Iterator[str]:
    """Faults, outcomes of requests, and durations in wall seconds."""
    yield f"{size.chips} + {size.spares} chips, seed {seed}: {figures.wall_s:,.0f} s"
    yield (
        f"faults: {figures.faults:,} by {figures.struck.total():,} strikes; left out because they "
        f"would not be survived or cannot be: {figures.left_out.total():,}"
    )
    for name in sorted(figures.struck):
        left_out = figures.left_out[name]
        took = figures.met_s[name]
        yield (
            f"  {name}: {figures.struck[name]} ({left_out} left out), until served again "
            f"{_median(took):.1f} s, at most {max(took):.1f} s"
        )
    yield f"kills inside a recovery or a repair: {figures.killed_inside}"
    yield (
        f"requests: {tally.asked:,} asked, {tally.accepted:,} accepted, {tally.whole:,} whole and "
        f"right, {tally.hung_up:,} given up by their client, {len(tally.failures):,} lost or "
        f"wrong, {tally.refused:,} refused; {tally.tokens:,} tokens; "
        f"slowest {tally.slowest_s:.1f} s"
    )
    yield (
        f"requests moved: {figures.moved_requests:,} by faults, {figures.lease_moved_requests:,} "
        f"by {figures.leases} hand-overs, in which {figures.training_steps:,} steps were trained"
    )
    calls = sorted(machine.call_s)
    yield (
        f"looks at the state: {len(calls):,}, median {_median(calls):.2f} s, at most "
        f"{calls[-1]:.1f} s; "
        f"books closed {figures.rests} times"
    )
    yield f"resident memory of server and chips: {figures.resident_bytes / 1e9:.1f} GB"


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2]
