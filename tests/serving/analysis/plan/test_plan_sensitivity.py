"""What a plan's setting takes on machines with other figures."""

from dataclasses import replace

import pytest

from emulator.power.token_cost import Prices
from emulator.specs.figure_changes import LAYOUT, with_changes
from emulator.specs.precisions import as_stored_or_narrowest
from emulator.specs.system import SystemSpec
from emulator.specs.systems import SYSTEMS
from emulator.units import NS_PER_S
from reporting.document import Lines, Table
from serving.analysis.plan.plan import Plan, plan
from serving.analysis.plan.plan_pools import PoolKinds, partitions_of
from serving.analysis.plan.plan_question import PlanQuestion, SearchTerms
from serving.analysis.plan.plan_sensitivity import (
    LEAST,
    FigureSwing,
    PlanSensitivity,
    sensitivity_data,
    sensitivity_of,
    sensitivity_section,
)
from serving.analysis.plan.plan_sensitivity_chart import sensitivity_chart, sensitivity_page_chart
from serving.analysis.plan.plan_steady import SteadyFleet, SteadySetting, Unable
from tests.serving.analysis.plan.planned import CHECK, SWEEP, question

pytestmark = pytest.mark.long

QUICK = SearchTerms(policies=("balanced:64:256:1024",), tries=1)


def quick(*, pools: bool = False, **changes: object) -> PlanQuestion:
    check = replace(CHECK, judged=30)
    prices = Prices(system_hour_dollars=500, kwh_dollars=0.1)
    return question(search=QUICK, check=check, pools=pools, prices=prices, **changes)


@pytest.fixture(scope="module")
def planned() -> Plan:
    return plan(quick())


@pytest.fixture(scope="module")
def setting(planned: Plan) -> SteadySetting:
    return SteadySetting.of(planned)


@pytest.fixture(scope="module")
def found(planned: Plan) -> PlanSensitivity:
    return sensitivity_of(planned)


def fleet(setting: SteadySetting, *changes: tuple[str, str]) -> SteadyFleet:
    found = setting.on(with_changes(setting.system, changes))
    assert isinstance(found, SteadyFleet)
    return found


def swing(found: PlanSensitivity, name: str) -> FigureSwing:
    return next(each for each in found.swings if each.name == name)


def test_the_fleet_is_the_rate_over_what_the_setting_serves(setting: SteadySetting) -> None:
    option = setting.option
    base = fleet(setting)

    assert base.chips == pytest.approx(250 / option.requests_per_s * option.replica_chips)
    assert base.dollars_per_million is not None
    tokens_per_hour = setting.rates.total_tokens_per_s * 3_600
    hourly = base.chips / 144 * 500 + base.watts / 1_000 * 0.1
    assert base.dollars_per_million == pytest.approx(hourly / tokens_per_hour * 1e6)


def test_cooling_takes_more_watts_of_the_same_chips(setting: SteadySetting) -> None:
    base, warmer = fleet(setting), fleet(setting, ("pue", "+10%"))

    assert warmer.chips == base.chips
    assert warmer.watts == pytest.approx(1.1 * base.watts)


def test_watts_beside_the_chips_leave_their_steps_as_they_are(setting: SteadySetting) -> None:
    for changes in ([("pue", "1.2")], [("winter_overhead", "0.5x")], [("cpus", "2x")]):
        system = with_changes(setting.system, changes)
        assert setting.serving(system) == setting.own


def test_more_bandwidth_takes_fewer_chips(found: PlanSensitivity) -> None:
    bandwidth, base = swing(found, "hbm_bandwidth"), found.base

    assert bandwidth.figures == ("hbm_bytes_per_s", "dma_bytes_per_s")
    assert isinstance(bandwidth.low.fleet, SteadyFleet)
    assert isinstance(bandwidth.high.fleet, SteadyFleet)
    assert base is not None
    assert bandwidth.high.fleet.chips < base.chips < bandwidth.low.fleet.chips
    assert (bandwidth.low.text, bandwidth.high.text) == ("0.5x", "2x")
    assert swing(found, "pue").low.text == "-10%"


def test_the_largest_swing_comes_first_and_every_figure_is_counted(
    found: PlanSensitivity, planned: Plan
) -> None:
    system, base = planned.question.sweep.system, found.base
    assert base is not None
    swings = [each.swing(base) for each in found.swings]
    aliases = 2  # of several figures: bandwidth of HBM, and of links
    figures = [name for name, _ in system.own_figures() if name not in LAYOUT]

    assert swings == sorted(swings, reverse=True)
    assert swings[-1] >= LEAST
    counted = len(swings) + found.without_effect + found.immovable
    assert counted == len(figures) + aliases


def test_what_a_slower_machine_does_not_feel_a_faster_one_does_not_either(
    setting: SteadySetting,
) -> None:
    base = fleet(setting)
    for name, figure in setting.system.own_figures():
        rates = ("bytes/s", "FLOP/s", "op/s", "bytes")
        if name in LAYOUT or figure.unit not in (*rates, "ns", "rows"):
            continue
        worse, better = ("0.5x", "2x") if figure.unit in rates else ("2x", "0.5x")
        if fleet(setting, (name, worse)) == base:
            assert fleet(setting, (name, better)) == base, name


def test_a_machine_without_room_or_too_slow_does_not_serve(setting: SteadySetting) -> None:
    def on(*changes: tuple[str, str]) -> object:
        return setting.on(with_changes(setting.system, changes))

    assert on(("hbm_bytes", "0.1x")) is Unable.NO_ROOM
    assert on(("hbm_bytes_per_s", "0.01x")) is Unable.TOO_SLOW


@pytest.mark.parametrize("name", ["dgx-h200", "trn2-ultraserver", "mi355x-8"])
def test_figures_of_other_systems_move_too(planned: Plan, name: str) -> None:
    system: SystemSpec = SYSTEMS[name]
    precision = as_stored_or_narrowest(system.chip, SWEEP.model)
    asked = replace(SWEEP.asked, chips=(1,), lnc=())
    sweep = replace(SWEEP, system=system, asked=asked, precisions=(precision,))
    setting = planned.choice.setting
    base = SteadySetting.of(planned).terms
    option = replace(base, sweep=sweep).option(sweep.tasks()[0])
    assert option is not None
    choice = replace(planned.choice, setting=replace(setting, option=option))
    asked_there = replace(planned.question, sweep=sweep)

    found = sensitivity_of(replace(planned, question=asked_there, choice=choice))

    assert {"pue", "idle_watts"} <= {each.name for each in found.swings}


def test_pools_are_sized_on_both_sides() -> None:
    found = plan(quick(pools=True))
    terms = SteadySetting.of(found).terms
    kinds = PoolKinds(terms, partitions_of(terms, terms.sweep.tasks(), pools=True))
    (_, pooled), *_ = kinds.promising(0, 2 * kinds.least_chips, 1)
    setting = replace(found.choice.setting, option=pooled, replicas=pooled.replicas)
    steady = SteadySetting.of(replace(found, choice=replace(found.choice, setting=setting)))
    base = fleet(steady)

    prefills = pooled.point.prefill
    assert prefills is not None
    own = prefills.replicas * prefills.partition.chips * pooled.replicas
    assert 0 < steady.prefill_busy_share <= 1
    # Prompts' engines are as many as in the plan, those that decode as many as the rate takes.
    decodes = base.chips - own
    assert 0 < decodes <= pooled.chips - own + 1e-6
    assert fleet(steady, ("tensor_bf16_flops_per_s", "0.5x")).chips > base.chips
    slow = with_changes(steady.system, [("hop_ns", f"{0.3 * NS_PER_S:.0f}")])
    assert steady.on(slow) is Unable.TOO_SLOW


def test_the_section_the_data_and_the_chart_have_the_same_swings(
    found: PlanSensitivity, planned: Plan
) -> None:
    section, data = sensitivity_section(found), sensitivity_data(found)
    chart = sensitivity_chart(found, planned).to_dict()

    assert isinstance(section, Table)
    assert "steady state" in section.title
    first = found.swings[0]
    assert section.rows[0][0].words == first.name == data["figures"][0]["name"]
    assert data["figures"][0]["moved"][1]["fleet"] == first.high.fleet
    assert first.name in str(chart)
    assert len(chart["vconcat"][0]["hconcat"]) == 3
    assert "left out" in sensitivity_page_chart(found).about


def test_without_a_steady_state_there_are_no_swings() -> None:
    nothing = PlanSensitivity(base=None, swings=())

    assert isinstance(sensitivity_section(nothing), Lines)
    assert sensitivity_data(nothing)["figures"] == []
