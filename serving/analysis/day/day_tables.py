"""Tables of a virtual day, tokens per MWh under each policy and their costs, and its method."""

from collections.abc import Iterator
from typing import Final

from reporting.document import Column, Table, table_of
from serving.analysis.day.compared_policies import (
    highest,
    mark,
    oracle_in_words,
    policy_column,
    ratio_column,
)
from serving.analysis.day.day_comparison import LoadComparison
from serving.analysis.day.day_result import DayResult
from serving.analysis.day.day_trace import HOUR_S
from serving.analysis.day.partition_curve import GroupCurve, PartitionCurve
from serving.analysis.day.virtual_day import VirtualDay
from serving.analysis.steady_state.model_error import TRAINING_RATE, ModelError, range_column
from serving.policy.prefill_throttle import parse_prefill_policy

MILLION: Final = 1e6
BILLION: Final = 1e9
EXA: Final = 1e18
KWH_J: Final = 3.6e6


def headline_table(load: LoadComparison, error: ModelError) -> Table:
    """Tokens and flops per MWh, with ratios to the baselines, if the day can be compared.

    At the same share of what the machines can serve, and the modelled watts, served tokens have the
    range of tokens/s.
    """
    columns: list[Column[DayResult]] = [
        policy_column(load),
        Column("SLO kept", lambda result: result.slo_attainment, ".3%"),
        Column("worst 5 min", lambda result: result.worst_5min_attainment, ".2%"),
        Column("served", lambda r: r.output_tokens_per_mwh, ",.0f", unit="Mtok/MWh", scale=MILLION),
        *range_column(error.get("tokens_per_s"), lambda r: r.output_tokens_per_mwh, scale=MILLION),
        Column(
            "trained", lambda r: r.training_tokens_per_mwh, ",.0f", unit="Mtok/MWh", scale=MILLION
        ),
        *range_column(error.get(TRAINING_RATE), lambda r: r.training_tokens_per_mwh, scale=MILLION),
        Column("both,", lambda result: result.flops_per_mwh, ",.1f", unit="Eflop/MWh", scale=EXA),
        ratio_column(load, "never", load.never),
        ratio_column(load, load.fixed.policy, load.fixed),
        ratio_column(load, "oracle", load.oracle),
        Column("", mark),
    ]
    return table_of(columns, load.everything, title=highest(load), foot=oracle_in_words(load))


def account_table(load: LoadComparison) -> Table:
    """Limits kept, tokens, chip-hours, hand-overs and energy."""
    columns: tuple[Column[DayResult], ...] = (
        policy_column(load),
        Column("TTFT kept", lambda result: result.attainment("ttft_share"), ".3%"),
        Column("TPOT kept", lambda result: result.attainment("tpot_share"), ".3%"),
        Column("served", lambda r: r.served_output_tokens, ",.2f", unit="Gtok", scale=BILLION),
        Column("trained", lambda r: r.training_tokens, ",.2f", unit="Gtok", scale=BILLION),
        Column("training chip-h", lambda result: result.training_chip_hours, ",.0f"),
        Column("chip-h freed", lambda result: result.freed_share, ".1%"),
        Column("groups left+back", lambda r: f"{r.totals.left}+{r.totals.came_back}"),
        Column("MWh", lambda result: result.energy_mwh, ",.3f"),
    )
    return table_of(columns, load.everything, title=highest(load))


def handover_table(load: LoadComparison, *, title: str, foot: str = "") -> Table:
    """Chip-hours freed, of all and of the peak's groups, and the costs of hand-overs."""

    def chip_hours(result: DayResult) -> float:
        return result.totals.seconds * result.machine.group_chips / HOUR_S

    columns: tuple[Column[DayResult], ...] = (
        policy_column(load),
        Column("of all chip-h", lambda result: result.freed_share, ".1%"),
        Column("of its peak's", lambda result: result.freed_share_of_peak, ".1%"),
        Column("on the way, chip-h", chip_hours, ",.1f"),
        Column("kWh", lambda result: result.totals.joules, ",.2f", scale=KWH_J),
        Column("Mtok not trained", lambda r: r.totals.tokens_lost, ",.0f", scale=MILLION),
        Column("job starts", lambda result: result.totals.job_starts, "d"),
        Column("requests moved", lambda result: result.moved_requests, ",.0f"),
    )
    return table_of(columns, load.everything, title=title, foot=foot)


_RANGE_IN_WORDS: Final = (
    "80 %: the prediction times these ratios; served tokens per MWh at the same share of what the "
    "machines can serve, trained ones by published runs on GPUs (ultraserve validate), both at the "
    "modelled watts"
)


def method(day: VirtualDay) -> tuple[str, ...]:
    """Which parts were simulated, which aggregated."""
    curve, terms = day.machine.curve, day.settings.question.terms
    return (
        *_simulated(curve),
        f"aggregated: everything else, in intervals of {terms.interval_s:g} s; requests are "
        "counted (Poisson), go evenly to the groups that serve, and get what a replica at that "
        "rate gives, in straight lines between rates; shares in time by the percentiles of "
        "latencies, which go by equal ratios, and an isotonic fit",
        f"above {curve.points[-1].rate_per_s:.4g} requests/s a group the share in time falls in a "
        f"straight line to none at {curve.saturated_per_s:.4g}, where queues have no end (assumed)",
        f"more than {curve.saturated_per_s:.4g} requests/s a group wait as a backlog, first come "
        "first served; whoever finds one counts as late",
        f"policies look every {terms.look_s:g} s; hand-overs run at their own times in between",
        "the oracle is the best plan that was found, walked as a policy is; a dynamic programme "
        "over looks, states of the groups and backlogs bounds every plan that keeps as many "
        "requests in time",
        "not simulated: prompts that share a prefix, faults, the front end and the way to the "
        "client",
    )


def _simulated(curve: GroupCurve) -> Iterator[str]:
    curves = curve.curves if isinstance(curve, PartitionCurve) else (curve,)
    points = [point for each in curves for point in each.points]
    steps, judged = sum(point.steps for point in points), [point.judged for point in points]
    what, arrivals = "one replica", "Poisson arrivals by turns of half the groups"
    if isinstance(curve, PartitionCurve):
        *fewer, _ = map(str, curve.serving)
        what = f"the engine, all of it and with {', '.join(fewer)} groups that serve,"
        arrivals = "Poisson arrivals"
    yield (
        f"simulated, every step: {what} at {len(points)} rates up to what it can serve ({steps:,} "
        f"steps, {min(judged)} to {max(judged)} judged requests a rate), by vLLM's own schedulers "
        f"in virtual time, {arrivals}"
    )
    if isinstance(curve, PartitionCurve):
        rates = ", ".join(
            f"{serving}: {of.capacity_per_s:.4g}"
            for serving, of in zip(curve.serving, curve.curves, strict=True)
        )
        yield (
            f"requests/s of a group within the target, by groups that serve: {rates}; figures of "
            "others lie between, at the same share of what a group can serve at all; policies "
            "decide by the lowest"
        )


def assumptions(day: VirtualDay) -> tuple[str, ...]:
    """The answer's assumptions, beside the catalog's figures."""
    settings = day.settings
    question, sweep, trained = settings.question, settings.sweep, day.machine.trained
    in_lines = len(question.trace.knots_s) == len(set(question.trace.knots_s.tolist()))
    said = [
        f"demand: {question.trace.source}; the rate runs in straight lines between the middles of "
        "its steps, and its highest value is scaled to the load"
        if in_lines
        else f"demand: {question.trace.source}; steps as recorded, the highest scaled to the load",
        f"{settings.lengths_in_words}; they do not depend on the hour"
        + ("" if question.trace.traffic is not None else ", nor come from the demand's source"),
        f"steps: {sweep.steps_in_words()}, weights as {day.choice.precision}, prefill policy "
        f"{parse_prefill_policy(settings.limits.prefill_policy).name}",
        *sweep.system.turned_in_words(),
        sweep.assumptions.model_error_in_words(),
        *([_RANGE_IN_WORDS] if sweep.assumptions.model_error else []),
        *_handovers_in_words(day),
        f"training: {trained.model}, sequences of {settings.job.recipe.sequence_tokens:,} tokens, "
        f"{settings.job.recipe.micro_batches} micro-batches a step, {settings.job.recipe.precision}"
        "; one job a machine on all leased chips, or as many as train the most; it fits "
        f"{trained.least_chips} chips or more; MFU on all of a machine {trained.mfu:.1%} of "
        f"{trained.peak_flops_per_s / 1e12:,.0f} TFLOP/s bf16 a chip, by {trained.recipe}",
        "hand-overs follow the rules of a running server: the job starts when no group is on its "
        "way to it; when groups come or go it ends its step (half a step, not counted), writes "
        "weights and optimizer state to the drives, and starts again from them; a drain that is "
        "called off costs nothing",
        *_machines_in_words(settings.machines),
        "chips that neither serve nor train are powered and idle; power at the utility's meter, "
        f"season {sweep.season.value} all day",
        "all groups serve when the walk begins",
    ]
    if question.begin_s == 0 and question.trace.is_of_whole_days and in_lines:
        said.append(
            "the trace is taken to repeat: the rate runs in a straight line from the middle of its "
            "last step to that of its first one"
        )
    if question.begin_s == 0 and question.cold:
        said.append("policies know nothing from before the walk")
    elif question.begin_s == 0:
        said.append(
            "the trace has no day before: policies are shown its last one, with chance of its own, "
            "and forget it after the first day"
            + (
                "; of a trace of one day this is what they walk, so that forecasts are better than "
                "they would be"
                if question.trace.days < 2
                else ""
            )
            + " (--cold: nothing is known)"
        )
    else:
        said.append("policies know the trace's days before the walk, at the same load")
    return tuple(said)


def _handovers_in_words(day: VirtualDay) -> tuple[str, str]:
    handover = day.handover
    empty = (
        f"it is empty {handover.drain_s:.3g} s after its last new request and draws as before "
        "until then"
    )
    if day.parts is None:
        return (
            f"every group is a replica with all experts of its own, so none move when it leaves; "
            f"{empty}",
            f"a group comes back in {handover.restore_s:.3g} s: {day.settings.job.start_s:g} s "
            "until processes and compiled models run (assumed), then weights from its tray's "
            "drives, as if all groups read at once",
        )
    return (
        f"the engine's own machine hands groups over: {empty}; its experts go to the chips that "
        "stay, in which all stand still, and come home with it, after which it warms up: "
        f"{1e3 * day.parts.still_s:.3g} ms at most, which is left out; {handover.groups_min} of "
        f"{day.machine.groups} groups serve at least",
        f"a group comes back in {handover.restore_s:.3g} s, the time that its weights take from "
        f"its tray's drives; leaving and coming back takes {handover.restore_joules:,.0f} J",
    )


def _machines_in_words(machines: int) -> tuple[str, ...]:
    if machines == 1:
        return ()
    return (
        f"each of the {machines} machines serves as many of the requests, has a job of its own and "
        "follows the policy by itself; one is walked, and chance is that of its requests",
    )
