"""What FP8 KV would save a plan."""

from dataclasses import replace

import pytest

from emulator.specs.precisions import kv_dtype, with_kv_dtype
from serving.analysis.plan.plan_narrow_kv import NarrowKv, narrow_kv_of
from serving.analysis.plan.plan_narrow_kv_report import narrow_kv_data, narrow_kv_line
from serving.analysis.plan.plan_options import Option
from serving.analysis.plan.plan_question import PlanQuestion, SearchTerms
from serving.analysis.plan.plan_race import Race, option_terms
from serving.analysis.plan.plan_setting import Setting
from serving.analysis.steady_state.partitions import PartitionFilter
from serving.simulator import THIS_PROCESS
from tests.serving.analysis.plan.planned import DEMAND, SWEEP, question

pytestmark = pytest.mark.long

ASKED = question(
    demand=DEMAND.sped_up(2.0), search=SearchTerms(policies=("none", "capped:64"), tries=2)
)


def option(asked: PlanQuestion, chips: int) -> Option:
    sweep = replace(asked.sweep, asked=PartitionFilter(chips=(chips,), lnc=(2,)))
    task, *_ = sweep.tasks()
    found = option_terms(asked).option(task)
    assert found is not None
    return found


def saved(
    asked: PlanQuestion, setting: Setting, *, ends_s: float = float("inf")
) -> NarrowKv | None:
    return narrow_kv_of(asked, setting, THIS_PROCESS, lambda _: None, ends_s=ends_s)


def test_what_is_said_keeps_the_target_with_fp8_kv_and_fewer_chips() -> None:
    setting = Setting(option=option(ASKED, 1), policy="none", replicas=12)
    found = saved(ASKED, setting)

    assert found is not None
    assert found.check is not None
    assert found.check.surely_meets
    assert found.check.chips < 12
    # The same size and seeds, asked for with that format.
    model = with_kv_dtype("fp8", SWEEP.model, SWEEP.system.chip)
    narrow = replace(ASKED, sweep=replace(SWEEP, model=model))
    fewer = Setting(option=option(narrow, 1), policy="none", replicas=found.check.replicas)
    race = Race(narrow, THIS_PROCESS, lambda _: None)
    assert race.stands(fewer)
    assert race.checks[fewer].terms == found.check.terms


def test_kv_that_is_narrow_already_saves_nothing_more() -> None:
    model = with_kv_dtype("fp8", SWEEP.model, SWEEP.system.chip)
    narrow = replace(ASKED, sweep=replace(SWEEP, model=model))
    setting = Setting(option=option(narrow, 1), policy="none", replicas=3)

    assert kv_dtype(model) == "fp8"
    assert saved(narrow, setting) is None


def test_one_chip_has_no_size_below_it() -> None:
    setting = Setting(option=option(ASKED, 1), policy="none", replicas=1)
    found = saved(ASKED, setting)

    assert found == NarrowKv(check=None)
    (line,) = narrow_kv_line(found, lambda _: "")
    assert "saves no chips here" in line
    assert narrow_kv_data(found) == {
        "kv_cache_dtype": "fp8",
        "chips": None,
        "surely_meets": None,
        "is_whole": True,
    }
    assert [*narrow_kv_line(None, lambda _: "")] == []
