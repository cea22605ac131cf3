"""A virtual day's tables: what a megawatt-hour gave under each policy, and what that took."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from serving.analysis.day.day_comparison import LoadComparison
from serving.analysis.day.day_result import DayResult

MILLION: Final = 1e6
BILLION: Final = 1e9
EXA: Final = 1e18
HOUR_S: Final = 3_600.0
KWH_J: Final = 3.6e6


def headline_lines(load: LoadComparison) -> Iterator[str]:
    """Tokens per MWh of serving and of training, apart, and both by their flops, held against
    `never`, the best fixed split and the oracle; of a policy that fails the target no ratio.
    """
    best = load.fixed.policy
    header = (
        "policy",
        "SLO kept",
        "served Mtok/MWh",
        "trained Mtok/MWh",
        "both, Eflop/MWh",
        "x never",
        f"x {best}",
        "x oracle",
        "",
    )
    against = (load.never, load.fixed, load.oracle)
    yield from _table(header, load, lambda result: _headline_row(result, against))


def _headline_row(result: DayResult, against: Sequence[DayResult]) -> tuple[str, ...]:
    kept = result.keeps_target
    return (
        f"{result.slo_attainment:.3%}",
        f"{result.output_tokens_per_mwh / MILLION:,.0f}",
        f"{result.training_tokens_per_mwh / MILLION:,.0f}",
        f"{result.flops_per_mwh / EXA:,.1f}",
        *(f"{result.flops_per_mwh / each.flops_per_mwh:.2f}" if kept else "-" for each in against),
        "" if kept else "FAILED",
    )


def account_lines(load: LoadComparison) -> Iterator[str]:
    """Limits kept, tokens, chip-hours, hand-overs and energy."""
    header = (
        "policy",
        "TTFT kept",
        "TPOT kept",
        "served Gtok",
        "trained Gtok",
        "training chip-h",
        "chip-h freed",
        "groups left+back",
        "MWh",
    )
    yield from _table(header, load, _account_row)


def _account_row(result: DayResult) -> tuple[str, ...]:
    totals = result.walk.totals
    return (
        f"{result.attainment('ttft_share'):.3%}",
        f"{result.attainment('tpot_share'):.3%}",
        f"{result.served_output_tokens / BILLION:,.2f}",
        f"{result.training_tokens / BILLION:,.2f}",
        f"{result.training_chip_hours:,.0f}",
        f"{result.freed_share:.1%}",
        f"{totals.left}+{totals.came_back}",
        f"{result.energy_mwh:,.3f}",
    )


def handover_lines(load: LoadComparison) -> Iterator[str]:
    """What was freed, of all chip-hours and of those of the groups that serve at the highest
    demand, and what the hand-overs cost.
    """
    header = (
        "policy",
        "of all chip-h",
        "of its peak's",
        "on the way, chip-h",
        "kWh",
        "Mtok not trained",
        "job starts",
        "requests moved",
    )
    yield from _table(header, load, _handover_row)


def _handover_row(result: DayResult) -> tuple[str, ...]:
    totals = result.walk.totals
    return (
        f"{result.freed_share:.1%}",
        f"{result.freed_share_of_peak:.1%}",
        f"{totals.seconds * result.machine.group_chips / HOUR_S:,.1f}",
        f"{totals.joules / KWH_J:,.2f}",
        f"{totals.tokens_lost / MILLION:,.0f}",
        f"{totals.job_starts}",
        f"{result.walk.moved:,.0f}",
    )


def _table(
    header: tuple[str, ...],
    load: LoadComparison,
    row: Callable[[DayResult], tuple[str, ...]],
) -> Iterator[str]:
    """Columns wide enough for all, the first one to the left."""
    rows = [header]
    for result in load.everything:
        name = f"{result.policy} (best split)" if result is load.fixed else result.policy
        rows.append((name, *row(result)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for cells in rows:
        first, *others = (
            cell.ljust(width) if index == 0 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        yield "  ".join(["", first, *others]).rstrip()
