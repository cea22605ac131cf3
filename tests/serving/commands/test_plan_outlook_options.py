"""Options of a plan's outlook: their words, defaults and refusals."""

import pytest

from emulator.errors import ConfigError
from serving.analysis.plan.growth import LEAD_TIME_S, MONTHS, WEEK_S
from serving.analysis.plan.plan_outlook import OutlookTerms
from serving.commands.plan_outlook_options import OutlookOptions
from serving.traffic.start_time import START_S


def test_without_options_nothing_is_asked() -> None:
    assert OutlookOptions().terms() == OutlookTerms()


def test_a_lead_time_that_is_not_given_is_assumed() -> None:
    growth = OutlookOptions(growth="8%/month").terms().growth
    given = OutlookOptions(growth="8%/month", months=6, lead_time="4w").terms().growth

    assert growth is not None
    assert given is not None
    assert (growth.months, growth.lead_time_s, growth.lead_time_is_assumed) == (
        MONTHS,
        LEAD_TIME_S,
        True,
    )
    assert (given.months, given.lead_time_s, given.lead_time_is_assumed) == (6, 4 * WEEK_S, False)


def test_a_surge_asks_for_the_cold_start_too() -> None:
    plain = OutlookOptions(cold_start=True).terms().cold_start
    surge = OutlookOptions(surge="30%", start_seconds=90.0).terms().cold_start

    assert plain is not None
    assert surge is not None
    assert (plain.start_s, plain.surge) == (START_S, None)
    assert (surge.start_s, surge.surge) == (90.0, pytest.approx(0.3))


def test_each_of_several_models_has_its_growth_or_all_have_one() -> None:
    models = ["deepseek-r1", "gpt-oss-120b"]
    own = OutlookOptions(growth="GPT-OSS-120B=21%/year", months=6, cold_start=True).terms_of(models)
    same = OutlookOptions(growth="8%/month").terms_of(models)

    assert own[0].growth is None
    assert own[1].growth is not None
    assert own[1].growth.monthly == pytest.approx(1.21 ** (1 / 12) - 1)
    assert [each.cold_start is not None for each in own] == [True, True]
    assert same[0] == same[1] == OutlookOptions(growth="8%/month").terms()


@pytest.mark.parametrize(
    ("growth", "expected"),
    [
        ("gpt-oss-20b=8%/month", "growth=gpt-oss-20b: expected one of deepseek-r1, gpt-oss-120b"),
        ("deepseek-r1=8%/month,2%/month", "each model once, or one rate for all"),
        ("deepseek-r1=8%/month,deepseek-r1=2%/month", "each model once, or one rate for all"),
        ("deepseek-r1=fast", "growth=fast: expected such as 8%/month"),
        ("deepsek-r1=8%/month", "model=deepsek-r1: expected one of"),
    ],
)
def test_a_wrong_growth_of_several_models_is_refused(growth: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected) as refusal:
        OutlookOptions(growth=growth).terms_of(["deepseek-r1", "gpt-oss-120b"])

    assert "\n" not in str(refusal.value)


def test_one_model_has_one_rate_of_growth() -> None:
    with pytest.raises(ConfigError, match="one rate, such as 8%/month, for one model"):
        OutlookOptions(growth="deepseek-r1=8%/month").terms()


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"months": 12}, "months=12: expected nothing without --growth"),
        ({"lead_time": "12w"}, "lead-time=12w: expected nothing without --growth"),
        ({"growth": "fast"}, "growth=fast: expected such as 8%/month"),
        ({"growth": "0%/month"}, "growth=0%/month: expected above 0"),
        ({"growth": "8%/month", "months": 0}, "months=0: expected 1 to 120"),
        ({"growth": "8%/month", "lead_time": "soon"}, "lead-time=soon: expected weeks or days"),
        ({"surge": "0.3"}, "surge=0.3: expected a percentage, such as 30%"),
        ({"surge": "0%"}, "surge=0%: expected above 0"),
        ({"surge": "3%", "start_seconds": -1.0}, "start-seconds=-1.0: expected from 0 on"),
    ],
)
def test_a_wrong_option_is_refused_in_one_line(options: dict[str, object], field: str) -> None:
    with pytest.raises(ConfigError, match=field) as refusal:
        OutlookOptions(**options)  # type: ignore[arg-type]

    assert "\n" not in str(refusal.value)
