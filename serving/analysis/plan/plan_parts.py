"""What a plan draws and costs at its peak, by part."""

from collections.abc import Iterator

from serving.analysis.plan.plan_bill import Bill


def part_lines(bill: Bill) -> Iterator[str]:
    """Each part's share of the watts at the meter; with prices, dollars an hour."""
    watts = sum(bill.peak_parts.values())
    shares = {name: part / watts for name, part in bill.peak_parts.items()}
    words = ", ".join(f"{name} {100 * share:.3g} %" for name, share in shares.items())
    yield f"drawn at the peak by part: {words}"
    cost = bill.peak_cost
    if cost is not None:
        energy = cost.energy_dollars_per_hour
        words = ", ".join(f"{name} ${energy * share:,.4g}" for name, share in shares.items())
        yield (
            f"an hour at the peak: ${cost.machine_dollars_per_hour:,.2f} for the machines, "
            f"${energy:,.2f} for energy ({words})"
        )
