"""Tables of a virtual day: tokens per MWh under each policy, and what they cost."""

from typing import Final

from emulator.specs.shipped_fits import PredictionInterval
from reporting.document import Column, Table, table_of
from serving.analysis.day.day_comparison import LoadComparison
from serving.analysis.day.day_result import DayResult
from serving.analysis.day.day_trace import HOUR_S
from serving.analysis.steady_state.model_error import range_column

MILLION: Final = 1e6
BILLION: Final = 1e9
EXA: Final = 1e18
KWH_J: Final = 3.6e6


def headline_table(load: LoadComparison, rate: PredictionInterval | None) -> Table:
    """Tokens and flops per MWh, with ratios to the baselines, if the policy keeps the target.

    `rate` is the interval of tokens/s: at the same share of what the machines can serve, and the
    modelled watts, served tokens have it too.
    """

    def times(name: str, other: DayResult) -> Column[DayResult]:
        def ratio(result: DayResult) -> float | None:
            return result.flops_per_mwh / other.flops_per_mwh if result.keeps_target else None

        return Column(f"x {name}", ratio, ".2f")

    columns: list[Column[DayResult]] = [
        _policy(load),
        Column("SLO kept", lambda result: result.slo_attainment, ".3%"),
        Column("served", lambda r: r.output_tokens_per_mwh, ",.0f", unit="Mtok/MWh", scale=MILLION),
        *range_column(rate, lambda result: result.output_tokens_per_mwh, scale=MILLION),
        Column(
            "trained", lambda r: r.training_tokens_per_mwh, ",.0f", unit="Mtok/MWh", scale=MILLION
        ),
        Column("both,", lambda result: result.flops_per_mwh, ",.1f", unit="Eflop/MWh", scale=EXA),
        times("never", load.never),
        times(load.fixed.policy, load.fixed),
        times("oracle", load.oracle),
        Column("", lambda result: "" if result.keeps_target else "FAILED"),
    ]
    return table_of(columns, load.everything, title=_highest(load))


def account_table(load: LoadComparison) -> Table:
    """Limits kept, tokens, chip-hours, hand-overs and energy."""
    columns: tuple[Column[DayResult], ...] = (
        _policy(load),
        Column("TTFT kept", lambda result: result.attainment("ttft_share"), ".3%"),
        Column("TPOT kept", lambda result: result.attainment("tpot_share"), ".3%"),
        Column("served", lambda r: r.served_output_tokens, ",.2f", unit="Gtok", scale=BILLION),
        Column("trained", lambda r: r.training_tokens, ",.2f", unit="Gtok", scale=BILLION),
        Column("training chip-h", lambda result: result.training_chip_hours, ",.0f"),
        Column("chip-h freed", lambda result: result.freed_share, ".1%"),
        Column("groups left+back", lambda r: f"{r.walk.totals.left}+{r.walk.totals.came_back}"),
        Column("MWh", lambda result: result.energy_mwh, ",.3f"),
    )
    return table_of(columns, load.everything, title=_highest(load))


def handover_table(load: LoadComparison, *, title: str, foot: str = "") -> Table:
    """Chip-hours freed, of all and of the peak's groups, and the costs of hand-overs."""

    def chip_hours(result: DayResult) -> float:
        return result.walk.totals.seconds * result.machine.group_chips / HOUR_S

    columns: tuple[Column[DayResult], ...] = (
        _policy(load),
        Column("of all chip-h", lambda result: result.freed_share, ".1%"),
        Column("of its peak's", lambda result: result.freed_share_of_peak, ".1%"),
        Column("on the way, chip-h", chip_hours, ",.1f"),
        Column("kWh", lambda result: result.walk.totals.joules, ",.2f", scale=KWH_J),
        Column("Mtok not trained", lambda r: r.walk.totals.tokens_lost, ",.0f", scale=MILLION),
        Column("job starts", lambda result: result.walk.totals.job_starts, "d"),
        Column("requests moved", lambda result: result.walk.moved, ",.0f"),
    )
    return table_of(columns, load.everything, title=title, foot=foot)


def _policy(load: LoadComparison) -> Column[DayResult]:
    def name(result: DayResult) -> str:
        return f"{result.policy} (best split)" if result is load.fixed else result.policy

    return Column("policy", name, align="left")


def _highest(load: LoadComparison) -> str:
    return (
        f"Highest rate {load.peak_share:.0%} of what the machines serve within the target: "
        f"{load.peak_per_s:,.4g} requests/s"
    )
