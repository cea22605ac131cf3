"""Money and grams: each hour's energy at the meter times that hour's price."""

from pathlib import Path

import numpy as np
import pytest

from serving.analysis.day.day_bill import bill_data, billed, per_mwh
from serving.analysis.day.day_comparison import DayQuestion, LoadComparison, compare
from serving.analysis.day.day_demand import WalkTerms
from serving.analysis.day.day_trace_file import sample_week
from serving.policy.day_night.policy_text import parse_policy
from serving.policy.day_night.price import Price, PriceCurve
from tests.serving.analysis.day.days import HANDOVER, machine


@pytest.fixture(scope="module")
def load() -> LoadComparison:
    question = DayQuestion(
        trace=sample_week(),
        begin_s=86_400.0,
        length_s=6 * 3_600.0,
        policies=("demand",),
        peak_shares=(0.7,),
        terms=WalkTerms(),
    )
    (load,) = compare(question, machine(4), HANDOVER, oracle=False)
    return load


def curve(prices: list[float]) -> PriceCurve:
    return PriceCurve(name="prices.csv", source="by hand", prices=tuple(prices))


def test_a_flat_price_is_the_energy_times_it(load: LoadComparison) -> None:
    flat = per_mwh(curve([80.0] * 24), load.demand)

    assert billed(load.never, flat) == pytest.approx(80.0 * load.never.energy_mwh)


def test_each_hours_energy_has_its_own_price(load: LoadComparison) -> None:
    prices = per_mwh(curve([0.0, 0.0, 10.0, *[0.0] * 21]), load.demand)
    third_hour = load.never.facility_watts[120:180].mean() / 1e6  # MWh of one hour

    assert np.flatnonzero(prices).tolist() == list(range(120, 180))
    assert billed(load.never, prices) == pytest.approx(10.0 * third_hour)


def test_grams_a_kwh_make_kilograms_of_every_policy(load: LoadComparison, tmp_path: Path) -> None:
    path = tmp_path / "carbon.csv"
    path.write_text("hour,gco2_per_kwh\n" + "".join(f"{hour},400\n" for hour in range(24)))
    policy = parse_policy(f"carbon:{path}")
    assert isinstance(policy, Price)
    (data,) = bill_data(load, [policy])

    assert (data["kind"], data["unit"]) == ("carbon", "kg")
    assert set(data["amounts"]) == {each.policy for each in load.everything}
    # 400 g a kWh are 400 kg a MWh.
    assert data["amounts"]["never"] == pytest.approx(400.0 * load.never.energy_mwh)
