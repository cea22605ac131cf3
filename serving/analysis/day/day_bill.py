"""What a day's energy costs and emits at the curves of its `price` and `carbon` policies.

Every policy of a load is billed by each curve, hour by hour at the meter: also those that do not
look at it. Machines and their hire are not in it (`ultraserve compare`).
"""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from emulator.arrays import Float64s
from reporting.document import Column, Table, table_of
from serving.analysis.day.compared_policies import highest, policy_column
from serving.analysis.day.day_comparison import LoadComparison
from serving.analysis.day.day_demand import DayDemand
from serving.analysis.day.day_oracle import ORACLE
from serving.analysis.day.day_result import JOULES_PER_MWH, DayResult
from serving.analysis.day.virtual_day import VirtualDay
from serving.policy.day_night.policy_text import parse_policy
from serving.policy.day_night.price import Carbon, Price, PriceCurve

_EXA: Final = 1e18


def billing_policies(day: VirtualDay) -> list[Price]:
    """The asked policies that have a curve, each curve once."""
    asked = (parse_policy(text) for text in day.settings.question.policies if text != ORACLE)
    priced = [policy for policy in asked if isinstance(policy, Price)]
    return list({(each.name, each.curve): each for each in priced}.values())


def per_mwh(curve: PriceCurve, demand: DayDemand) -> Float64s:
    """The curve's price in each interval, [intervals]."""
    first_s, interval_s = demand.begins.timestamp(), demand.interval_s
    middles_s = first_s + (np.arange(len(demand.arrivals)) + 0.5) * interval_s
    return np.array([curve.at(middle_s) for middle_s in middles_s.tolist()])


def billed(result: DayResult, prices_per_mwh: Float64s) -> float:
    """Of all machines: money, or kg where prices are gCO2/kWh, which are kg/MWh."""
    joules = result.facility_watts * result.walk.demand.interval_s
    return float((joules * prices_per_mwh).sum()) / JOULES_PER_MWH


def bill_tables(day: VirtualDay) -> Iterator[Table]:
    """One for each load and curve."""
    for policy in billing_policies(day):
        for load in day.loads:
            yield _table(load, policy)


def _table(load: LoadComparison, policy: Price) -> Table:
    prices = per_mwh(policy.curve, load.demand)
    amount, unit = ("carbon", "kg") if isinstance(policy, Carbon) else ("money", "")
    columns: tuple[Column[DayResult], ...] = (
        policy_column(load),
        Column("MWh", lambda result: result.energy_mwh, ",.3f"),
        Column(amount, lambda result: billed(result, prices), ",.2f", unit=unit),
        Column("a MWh", lambda r: billed(r, prices) / r.energy_mwh, ",.2f", unit=unit),
        Column("an Eflop", lambda r: billed(r, prices) / _eflops(r), ",.4f", unit=unit),
    )
    foot = f"energy at the meter by {policy.name} curve {policy.curve.name}, which is per MWh: "
    return table_of(columns, load.everything, title=highest(load), foot=foot + policy.curve.source)


def _eflops(result: DayResult) -> float:
    return (result.served_flops + result.training_flops) / _EXA


def bill_data(load: LoadComparison, policies: list[Price]) -> list[dict[str, Any]]:
    """The same as plain data: amounts by policy for each curve."""
    return [
        {
            "kind": policy.name,
            "curve": policy.curve.name,
            "unit": "kg" if isinstance(policy, Carbon) else "the curve's per MWh, times MWh",
            "amounts": {each.policy: billed(each, prices) for each in load.everything},
        }
        for policy in policies
        for prices in [per_mwh(policy.curve, load.demand)]
    ]
