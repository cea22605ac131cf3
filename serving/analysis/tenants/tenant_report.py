"""A fleet's day as a report and as plain data for JSON, in base units."""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from reporting.document import Column, Document, Lines, Table, table_of
from serving.analysis.day.compared_policies import MISSED, MISSED_5MIN, mark
from serving.analysis.day.day_tables import BILLION, KWH_J, MILLION
from serving.analysis.day.day_trace import HOUR_S
from serving.analysis.tenants.allocation import KEEP_S, UNCERTAIN_SHARE
from serving.analysis.tenants.batch_pool import BatchPool
from serving.analysis.tenants.claims import WorthUnit
from serving.analysis.tenants.job_pool import JobPool
from serving.analysis.tenants.tenant import BatchInferenceTenant
from serving.analysis.tenants.tenant_accounts import ModelAccount, NightAccount, TenantAccount

_UNITS: Final = {
    WorthUnit.TOKENS: ("weighted Gtok", BILLION),
    WorthUnit.USD: ("USD", 1.0),
    WorthUnit.JOULES: ("MJ", 1e6),
}
"""Of a value, and its scale."""
_PAUSES: Final = ("paused_s",)


def tenant_document(account: NightAccount) -> Document:
    """The day for a reader, the answer first."""
    day = account.day
    settings = day.settings
    names = " and ".join(each.name for each in account.models)
    begins = day.models[0].walk.demand.begins
    return Document(
        title=f"{names} served, and {len(account.tenants)} tenants of the night, on a "
        f"{settings.system.name}, {settings.length_s / HOUR_S:g} hours from "
        f"{begins:%a %Y-%m-%d %H:%M %Z}",
        subtitle=f"{day.groups} groups of {day.group_chips} chips; {account.energy_mwh:,.3f} MWh "
        f"at the meter, {float(account.chip_joules.sum()) / KWH_J:,.1f} kWh of it the chips'",
        verdict=f"a model with fewer requests within its target than that asks for is marked "
        f"{MISSED}, one that has them over the day but not in its worst 5 minutes {MISSED_5MIN}",
        sections=(
            _models_table(account),
            _tenants_table(account),
            _costs_table(account),
            Lines(title="Method", rows=tuple(f"- {line}" for line in _method(account))),
            Lines(
                title="Assumed, modelled, not measured",
                rows=tuple(f"- {line}" for line in _assumptions(account)),
            ),
            Lines(rows=(_wall(account),)),
        ),
    )


def _wall(account: NightAccount) -> str:
    wall_s = account.day.wall_s
    parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in wall_s.items())
    return f"wall time: {sum(wall_s.values()):.1f} s ({parts})"


def _models_table(account: NightAccount) -> Table:
    columns: tuple[Column[ModelAccount], ...] = (
        Column("model", lambda each: each.name, align="left"),
        Column("highest requests/s", _peak_per_s, ",.4g"),
        Column("a group serves", lambda each: each.result.machine.curve.capacity_per_s, ",.4g"),
        Column("groups", lambda each: each.mean_groups, ",.1f"),
        Column("SLO kept", lambda each: each.result.slo_attainment, ".3%"),
        Column("worst 5 min", lambda each: each.result.worst_5min_attainment, ".2%"),
        Column("Gtok", lambda each: each.result.served_output_tokens, ",.2f", scale=BILLION),
        Column("chips' kWh", lambda each: _kwh(each.joules_by_interval), ",.1f"),
        Column("groups left+back", lambda each: f"{_totals(each).left}+{_totals(each).came_back}"),
        Column("too few groups", lambda each: each.denied_share, ".1%"),
        Column("", lambda each: mark(each.result)),
    )
    return table_of(columns, account.models, title="Served models")


def _tenants_table(account: NightAccount) -> Table:
    unit, scale = _UNITS[account.day.settings.worth.unit]
    columns: tuple[Column[TenantAccount], ...] = (
        Column("tenant", lambda each: each.pool.tenant.name, align="left"),
        Column("work", _work, align="left"),
        Column("priority", lambda each: each.pool.tenant.priority, "d"),
        Column("Gtok", lambda each: each.tokens, ",.3f", scale=BILLION),
        Column("value,", lambda each: each.value, ",.3f", unit=unit, scale=scale),
        Column("left", lambda each: each.left_share, ".1%"),
        Column("done at", lambda each: _hour(each.done_s)),
        Column("due, in time", lambda each: each.due_share, ".1%"),
        Column("group-h", lambda each: each.hours(), ",.1f"),
        Column("chips' kWh", lambda each: each.joules, ",.1f", scale=KWH_J),
    )
    foot = (
        f"{account.idle_hours:,.1f} group-h without a tenant; with those of the models "
        f"{account.group_hours:,.1f} in all; {_of_bound(account)}"
    )
    return table_of(columns, account.tenants, title="Tenants of the night", foot=foot)


def _of_bound(account: NightAccount) -> str:
    unit, scale = _UNITS[account.day.settings.worth.unit]
    bound = account.value_bound
    share = f", of which this is {account.value / bound:.1%}" if bound > 0 else ""
    return (
        f"no allocation of the groups that the models left is worth more than "
        f"{bound / scale:,.3f} {unit}{share}"
    )


def _costs_table(account: NightAccount) -> Table:
    columns: tuple[Column[TenantAccount], ...] = (
        Column("tenant", lambda each: each.pool.tenant.name, align="left"),
        Column("groups taken back", lambda each: each.totals.came_back, ",d"),
        Column("starts", lambda each: each.totals.job_starts, ",d"),
        Column("resizes", lambda each: each.resizes, ",d"),
        Column("pauses, group-h", lambda each: each.hours(*_PAUSES), ",.1f"),
        Column("missed in them, Mtok", lambda each: each.totals.tokens_lost, ",.1f", scale=MILLION),
        Column("lost, Mtok", lambda each: each.totals.tokens_undone, ",.1f", scale=MILLION),
        Column("idle, group-h", lambda each: each.hours("idle_s"), ",.1f"),
    )
    return table_of(columns, account.tenants, title="What preemption cost")


def _peak_per_s(each: ModelAccount) -> float:
    demand = each.result.walk.demand
    return float(demand.arrivals.max()) / demand.interval_s


def _totals(each: ModelAccount) -> Any:
    return each.result.totals


def _kwh(joules: Any) -> float:
    return float(np.sum(joules)) / KWH_J


def _work(each: TenantAccount) -> str:
    tenant = each.pool.tenant
    if isinstance(tenant, BatchInferenceTenant):
        return f"batch, {tenant.model}"
    return f"training, {tenant.trained.model}"


def _hour(at_s: float | None) -> str | None:
    return None if at_s is None else f"{at_s / HOUR_S:.1f} h"


def _method(account: NightAccount) -> Iterator[str]:
    terms = account.day.settings.terms
    yield (
        "simulated, every step: one replica of each served model at several rates, and one of each "
        "batch model that never lacks requests, by vLLM's own schedulers in virtual time"
    )
    yield (
        f"aggregated: everything else, in intervals of {terms.interval_s:g} s, as in a day of one "
        f"model; every {terms.look_s:g} s each model's policy says how many groups it needs, and "
        "the others are divided among the tenants"
    )
    yield (
        "models that together ask for more groups than there are get them one by one, the one with "
        "the smallest part of what it asks for first"
    )
    yield (
        "tenants: strictly by priority; within one, work that would miss its deadline if it waited "
        "comes first, by deadline, and the rest goes where a group adds the most value; a change "
        f"is weighed against the pause that it takes, as if it lasted {KEEP_S / HOUR_S:g} h "
        "(assumed)"
    )
    yield (
        "free groups of the day to come are foretold to be those of the day before, of which "
        f"deadlines count on {1 - UNCERTAIN_SHARE:.0%} (assumed)"
    )


def _assumptions(account: NightAccount) -> Iterator[str]:
    settings = account.day.settings
    for each, of in zip(account.models, settings.served, strict=True):
        handover = account.day.walk.fleet.models[settings.served.index(of)].handover
        yield (
            f"{each.name}: target {of.slo}; demand: {of.trace.source}, its highest rate "
            f"{of.peak_share:.0%} of what all groups serve; {of.replica.lengths_in_words}; "
            f"{each.result.describes}; a group leaves in {handover.drain_s:.3g} s and is back, or "
            f"comes from another model, in {handover.restore_s:.3g} s"
        )
    yield (
        "a group that changes between models drains, starts anew and reads the weights from its "
        "tray's drives, as if all groups read at once"
    )
    for account_of in account.tenants:
        yield _tenant_words(account_of)
    yield (
        "a job pauses while it saves and starts; it starts when no further group is on its way to "
        "it, and groups that are called back wait until it has saved"
    )
    yield (
        f"{settings.handovers.start_s:g} s until processes and compiled models run (assumed); "
        "chips that do nothing are powered and idle; no faults: a checkpoint in host memory, which "
        "a loss of the machine takes too, is never needed"
    )
    unit = settings.worth.unit
    yield {
        WorthUnit.TOKENS: "value: the tenant's tokens times its weight",
        WorthUnit.USD: "value: dollars a million tokens by the tenant's weight, less "
        f"{settings.worth.kwh_dollars:g} USD a kWh of its chips beyond idle",
        WorthUnit.JOULES: "value: joules that its tokens are worth by the tenant's weight, less "
        "those of its chips beyond idle",
    }[unit]


def _tenant_words(each: TenantAccount) -> str:
    tenant = each.pool.tenant
    if isinstance(tenant, BatchInferenceTenant):
        return (
            f"{tenant.name}: {tenant.model}, prompts of {tenant.prompt_tokens:,.0f} tokens and "
            f"replies of {tenant.output_tokens:,.0f} in the mean; a group serves "
            f"{tenant.requests_per_s:,.4g} requests/s without a latency target, after "
            f"{tenant.load_s:.3g} s for weights; one that is taken back loses half of "
            f"{tenant.in_flight:,.0f} running requests (assumed)"
        )
    trained = tenant.trained
    words = (
        f"{tenant.name}: {trained.model} on {trained.least_chips:g} chips or more, "
        f"{trained.tokens_per_s[-1]:,.0f} tokens/s at most, by {trained.recipe}; checkpoints on "
    ) + {
        "drives": "its trays' drives",
        "neighbours": "other trays' hosts, over the hosts' links",
    }[tenant.checkpoint]
    save_s = trained.save_s[trained.save_s > 0]
    words += f", in {save_s.min():.3g} to {save_s.max():.3g} s"
    if tenant.resharding is None:
        return f"{words}; it starts anew with each number of groups"
    known = np.isfinite(tenant.resharding.seconds) & (tenant.resharding.seconds > 0)
    if not known.any():
        return f"{words}; no two of its sizes have one recipe, so that it starts anew each time"
    moved = tenant.resharding.seconds[known]  # [pairs of sizes]
    return (
        f"{words}; between sizes of one recipe its state goes over the fabric in "
        f"{moved.min():.3g} to {moved.max():.3g} s"
    )


def tenant_data(account: NightAccount) -> dict[str, Any]:
    """The same as plain data."""
    day = account.day
    settings = day.settings
    return {
        "system": settings.system.name,
        "length_s": settings.length_s,
        "groups": day.groups,
        "group_chips": day.group_chips,
        "worth": str(settings.worth.unit),
        "value": account.value,
        "value_bound": account.value_bound,
        "energy_mwh": account.energy_mwh,
        "chip_joules": float(account.chip_joules.sum()),
        "group_hours": account.group_hours,
        "idle_group_hours": account.idle_hours,
        "idle_joules": account.idle_joules,
        "models": [_model_data(each) for each in account.models],
        "tenants": [_tenant_data(each) for each in account.tenants],
        "method": list(_method(account)),
        "assumptions": list(_assumptions(account)),
        "wall_s": sum(day.wall_s.values()),
    }


def _model_data(each: ModelAccount) -> dict[str, Any]:
    result = each.result
    return {
        "model": each.name,
        "policy": result.policy,
        "capacity_per_s": result.machine.curve.capacity_per_s,
        "saturated_per_s": result.machine.curve.saturated_per_s,
        "requests": result.requests,
        "served_requests": result.served_requests,
        "served_output_tokens": result.served_output_tokens,
        "slo_attainment": result.slo_attainment,
        "worst_5min_attainment": result.worst_5min_attainment,
        "missed": mark(result) or None,
        "mean_groups": each.mean_groups,
        "group_hours": each.group_hours,
        "groups_left": result.totals.left,
        "groups_came_back": result.totals.came_back,
        "requests_moved": result.moved_requests,
        "denied_share": each.denied_share,
        "joules": float(each.joules_by_interval.sum()),
    }


def _tenant_data(each: TenantAccount) -> dict[str, Any]:
    pool, totals = each.pool, each.totals
    data: dict[str, Any] = {
        "name": pool.tenant.name,
        "work": _work(each),
        "priority": pool.tenant.priority,
        "tokens": each.tokens,
        "value": each.value,
        "left_share": each.left_share,
        "done_s": each.done_s,
        "due_share": each.due_share,
        "group_hours": each.hours(),
        "working_group_hours": each.hours("training_s"),
        "paused_group_hours": each.hours(*_PAUSES),
        "idle_group_hours": each.hours("idle_s"),
        "groups_taken_back": totals.came_back,
        "starts": totals.job_starts,
        "resizes": each.resizes,
        "tokens_not_done_in_pauses": totals.tokens_lost,
        "tokens_lost": totals.tokens_undone,
        "joules": each.joules,
    }
    if isinstance(pool, BatchPool):
        data["submissions"] = [
            {"at_s": of.at_s, "due_s": of.due_s, "requests": of.requests}
            | {"in_time": pool.in_time[n], "left": pool.left[n], "done_s": pool.done_s[n]}
            for n, of in enumerate(pool.tenant.submissions)
        ]
    elif isinstance(pool, JobPool):
        data["deadline_s"] = pool.tenant.deadline_s
    return data
