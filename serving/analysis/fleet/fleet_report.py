"""A fleet's days as a report, and as plain data for JSON in base units."""

from collections.abc import Iterator
from typing import Any, Final

from reporting.document import Column, Document, Facts, Lines, Table, table_of
from reporting.numbers import number
from serving.analysis.day.day_trace import HOUR_S
from serving.analysis.fleet.fleet_account import FleetAccount
from serving.analysis.fleet.fleet_plan import WATTS_PER_MEGAWATT, FailureClass
from serving.analysis.fleet.sampled_machines import SAMPLE_S, MeanError, SampledMachines
from serving.analysis.fleet.virtual_fleet import VirtualFleet

_BILLION: Final = 1e9
_MILLION: Final = 1e6
_LABELS: Final = {
    "kept_error": "requests within the target",
    "watts_error": "energy of the chips",
    "tpot_error": "mean time per output token",
}


def fleet_document(fleet: VirtualFleet) -> Document:
    """The fleet for a reader, all buildings together first."""
    plan, everything = fleet.question.plan, fleet.everything
    names = ", ".join(plan.systems)
    return Document(
        title=f"{plan.name}: {everything.chips:,} chips in {everything.machines:,} machines "
        f"({names}) of {len(fleet.buildings)} buildings, {everything.length_h:,.0f} hours from "
        f"{everything.rows[0].result.walk.demand.begins:%a %Y-%m-%d %H:%M %Z}",
        subtitle="Modelled, not measured.",
        sections=(
            Facts(title="All buildings", rows=tuple(_facts(everything))),
            _buildings_table(fleet),
            _caps_table(fleet),
            *([_failures_table(fleet)] if plan.failures else []),
            *([] if fleet.sampled is None else [_sampled_section(fleet.sampled)]),
            Lines(title="Method", rows=tuple(f"- {line}" for line in _method(fleet))),
            Lines(title="Sources of the plan", rows=tuple(f"- {line}" for line in _sources(fleet))),
        ),
    )


def _facts(account: FleetAccount) -> Iterator[tuple[str, str]]:
    cap = account.cap_watts
    yield "requests", f"{account.arrived:,.0f}, of which {account.served:,.0f} were served"
    yield "within the target", f"{account.attainment:.3%}"
    yield "in the worst 5 minutes", f"{account.worst_5min_attainment:.2%}"
    yield "served", f"{number(account.output_tokens / _BILLION)} billion output tokens"
    yield "trained", f"{number(account.trained_tokens / _BILLION)} billion tokens"
    yield (
        "goodput",
        f"{account.goodput:.2%} of the tokens that jobs would train if nothing failed, stood still "
        "or was paused",
    )
    yield (
        "energy",
        f"{number(account.energy_mwh)} MWh at the meter, at a PUE of {account.mean_pue:.3f}",
    )
    yield (
        "highest draw",
        f"{number(account.peak_watts / WATTS_PER_MEGAWATT)} MW"
        + (
            "" if cap is None else f" of at most {number(float(cap.max()) / WATTS_PER_MEGAWATT)} MW"
        ),
    )
    yield (
        "out of service",
        f"{account.out_share:.2%} of the machines' time, with {account.failures:,} failures; "
        f"spares stood in for all but {account.missing_hours:,.0f} machine-hours",
    )


def _buildings_table(fleet: VirtualFleet) -> Table:
    columns: tuple[Column[FleetAccount], ...] = (
        Column("building", lambda account: account.name, align="left"),
        Column("machines", lambda account: account.machines, ",d"),
        Column("chips", lambda account: account.chips, ",d"),
        Column("within target", lambda account: account.attainment, ".3%"),
        Column("worst 5 min", lambda account: account.worst_5min_attainment, ".2%"),
        Column("served", lambda a: a.output_tokens, unit="Gtok", scale=_BILLION),
        Column("trained", lambda a: a.trained_tokens, unit="Gtok", scale=_BILLION),
        Column("goodput", lambda account: account.goodput, ".2%"),
        Column("energy", lambda account: account.energy_mwh, ",.1f", unit="MWh"),
        Column(
            "served", lambda a: a.output_tokens_per_mwh, ",.0f", unit="Mtok/MWh", scale=_MILLION
        ),
        Column("PUE", lambda account: account.mean_pue, ".3f"),
        Column("out", lambda account: account.out_share, ".2%"),
    )
    return table_of(columns, (*fleet.buildings, fleet.everything), title="By building")


def _caps_table(fleet: VirtualFleet) -> Table:
    columns: tuple[Column[FleetAccount], ...] = (
        Column("building", lambda account: account.name, align="left"),
        Column("highest draw", lambda a: a.peak_watts, ",.2f", unit="MW", scale=WATTS_PER_MEGAWATT),
        Column("lowest cap", _lowest_cap, ",.2f", unit="MW", scale=WATTS_PER_MEGAWATT),
        Column("of the cap at most", _cap_share, ".1%"),
        Column("jobs paused", lambda a: a.paused_hours, ",.1f", unit="machine-h"),
        Column("off for the cap", lambda a: a.shed_hours, ",.1f", unit="machine-h"),
        Column("failures", lambda account: account.failures, ",d"),
        Column("without a spare", lambda a: a.missing_hours, ",.1f", unit="machine-h"),
    )
    foot = "a cap pauses jobs first, then takes machines out of serving"
    return table_of(
        columns,
        (*fleet.buildings, fleet.everything),
        title="Power caps, failures and spares",
        foot=foot,
    )


def _lowest_cap(account: FleetAccount) -> float | None:
    return None if account.cap_watts is None else float(account.cap_watts.min())


def _cap_share(account: FleetAccount) -> float | None:
    """The highest share of its cap that is drawn."""
    if account.cap_watts is None:
        return None
    return float((account.meter_watts / account.cap_watts).max())


def _failures_table(fleet: VirtualFleet) -> Table:
    everything = fleet.everything

    def expected(each: FailureClass) -> float:
        return sum(
            row.task.row.machines
            * everything.length_h
            / each.machine_mtbf_hours(row.result.machine.system)
            for row in everything.rows
        )

    columns: tuple[Column[FailureClass], ...] = (
        Column("what fails", lambda each: each.name, align="left"),
        Column("one of a", lambda each: each.per, align="left"),
        Column("every", lambda each: each.mtbf_hours, ",.0f", unit="h"),
        Column("repaired in", lambda each: each.repair_hours, ",.4g", unit="h"),
        Column("failures", lambda each: everything.failures_of(each.name), ",d"),
        Column("expected", expected, ",.1f"),
    )
    foot = "a failure takes its whole machine out of service until it is repaired (assumed)"
    return table_of(columns, fleet.question.plan.failures, title="Failures", foot=foot)


def _sampled_section(sampled: SampledMachines) -> Lines:
    count, minutes = len(sampled.samples), SAMPLE_S / 60
    steps = sum(each.exact.steps for each in sampled.samples)
    requests = sum(each.exact.requests for each in sampled.samples)
    words = [f"- {_LABELS[name]}: {_error_words(error)}" for name, error in sampled.errors.items()]
    return Lines(
        title=f"The walk against {count} exact runs, of {minutes:g} minutes of a machine each",
        rows=(
            *words,
            f"- walked less exact, the mean of {count} machines drawn at random (the first in "
            f"points, the others relative), with the 95 % interval of the draw; {requests:,} "
            f"requests in {steps:,} steps, simulated on one of each machine's alike replicas; "
            f"drawn from {sampled.candidates:.1%} of the machines' time, which had no backlog",
        ),
    )


def _error_words(error: MeanError) -> str:
    if error.half_width is None:
        return f"{error.mean:+.3%}, of one sample without an interval"
    return f"{error.mean:+.3%} ± {error.half_width:.3%}"


def _method(fleet: VirtualFleet) -> Iterator[str]:
    terms = fleet.everything.rows[0].result
    question = next(iter(fleet.question.settings.values())).question
    yield (
        "simulated, every step: one replica of each system at several rates, as by `ultraserve "
        "day`; walked: one machine of each row, which counts as many times as machines work; "
        "machines share their row's requests, spares and power, and nothing else"
    )
    yield (
        f"policy: {terms.policy}, at every machine by itself and every "
        f"{question.terms.look_s:g} s; all machines of a row decide alike in the same minute, so "
        "that its worst 5 minutes are as bad as one machine's"
    )
    yield (
        "hot spares take over at the next look, cold ones, which are off, at the next full hour; "
        "requests of a machine that fails are not counted as lost"
    )
    yield (
        "caps hold at the meter, hour by hour, and are divided over a building's rows by what the "
        "racks are provisioned for; for an hour jobs are paused on as many machines as its most "
        "demanding minute needs (known ahead: assumed), and machines are off where the cap does "
        "not hold the serving of all; those that return are ready when the hour begins (assumed)"
    )
    yield (
        "a paused job saves and starts again at the times of its recipe; failures cost it what "
        "Daly's formula says at its best interval of checkpoints; machines that are off or out "
        "draw nothing (assumed)"
    )
    yield (
        "random: arrivals, alike for every machine, and each machine's failures; a failed machine "
        "returns as the others are (assumed)"
    )


def _sources(fleet: VirtualFleet) -> Iterator[str]:
    plan = fleet.question.plan
    yield f"fleet: {plan.source}"
    for name, settings in fleet.question.settings.items():
        walkable = fleet.walkable[name]
        yield (
            f"{name}: {walkable.machine.groups} groups of {walkable.choice.chips} chips, of which "
            f"one serves {walkable.machine.curve.capacity_per_s:.4g} requests/s within "
            f"{settings.slo}; {walkable.machine.trained.recipe}; {settings.lengths_in_words}"
        )
        yield from walkable.machine.system.turned_in_words()
    yield f"traffic: {plan.traffic.source}"
    for building in plan.buildings:
        yield f"{building.name}: {building.source}"
    for name, weather in plan.weather.items():
        yield f"weather {name}: {weather.source}"
    for failure in plan.failures:
        yield f"{failure.name} fails: {failure.source}; repair: {failure.repair_source}"


def fleet_data(fleet: VirtualFleet) -> dict[str, Any]:
    """The report in base units; watts by hour of each building."""
    sampled = fleet.sampled
    return {
        "plan": fleet.question.plan.name,
        "everything": _account_data(fleet.everything),
        "buildings": [_account_data(each) for each in fleet.buildings],
        "systems": {
            name: {
                "chips": each.machine.system.chips.count,
                "assumptions": each.machine.system.turned_switches(),
                "groups": each.machine.groups,
                "group_chips": each.choice.chips,
                "group_capacity_per_s": each.machine.curve.capacity_per_s,
            }
            for name, each in fleet.walkable.items()
        },
        "sampled": None if sampled is None else _sampled_data(sampled),
    }


def _sampled_data(sampled: SampledMachines) -> dict[str, Any]:
    return {
        "candidates_share": sampled.candidates,
        "errors": {
            name: {"mean": error.mean, "half_width_95": error.half_width}
            for name, error in sampled.errors.items()
        },
        "samples": [
            {
                "building": each.building,
                "system": each.system,
                "begin_s": each.begin_s,
                "length_s": SAMPLE_S,
                "requests": each.exact.requests,
                **{
                    name: {"exact": both.exact, "walked": both.walked}
                    for name, both in (
                        ("kept_share", each.exact.both),
                        ("ttft_share", each.exact.ttft),
                        ("tpot_share", each.exact.tpot),
                        ("joules", each.exact.joules),
                    )
                },
            }
            for each in sampled.samples
        ],
    }


def _account_data(account: FleetAccount) -> dict[str, Any]:
    names = (
        *("name", "machines", "chips", "attainment", "worst_5min_attainment", "output_tokens"),
        *("trained_tokens", "goodput", "energy_mwh", "mean_pue", "peak_watts", "out_share"),
        *("failures", "missing_hours", "paused_hours", "shed_hours"),
    )
    hour = round(HOUR_S / account.interval_s)
    by_hour = account.meter_watts.reshape(-1, hour).mean(axis=1)
    cap = account.cap_watts
    return {
        "arrived_requests": account.arrived,
        "served_requests": account.served,
        **{name: getattr(account, name) for name in names},
        "meter_watts_by_hour": by_hour.tolist(),
        "cap_watts_by_hour": None if cap is None else cap[::hour].tolist(),
    }
