"""What FP8 KV would save a plan."""

import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from emulator.specs.precisions import kv_dtype, with_kv_dtype
from serving.analysis.plan import plan_race
from serving.analysis.plan.plan_narrow_kv import NarrowKv, narrow_kv_of, narrow_question
from serving.analysis.plan.plan_narrow_kv_report import narrow_kv_data, narrow_kv_line
from serving.analysis.plan.plan_options import Option
from serving.analysis.plan.plan_question import PlanQuestion, SearchTerms
from serving.analysis.plan.plan_race import Race, option_terms
from serving.analysis.plan.plan_setting import Setting
from serving.analysis.plan.timed_run import OutOfTime
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
    assert found.check.chips in found.tried
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
    assert line.endswith("nothing smaller was to be tried")
    assert narrow_kv_data(found) == {
        "kv_cache_dtype": "fp8",
        "chips": None,
        "surely_meets": None,
        "sizes_tried_chips": (),
        "is_whole": True,
    }
    assert [*narrow_kv_line(None, lambda _: "")] == []


def test_engines_are_those_that_were_asked_for_and_no_others() -> None:
    asked = replace(ASKED, sweep=replace(SWEEP, asked=PartitionFilter(chips=(8, 4), ep=(4,))))
    of = option(asked, 4)
    narrow = narrow_question(asked, Setting(option=of, policy="none", replicas=3))

    assert narrow is not None
    assert narrow.sweep.asked.chips == (4,), "3 are three quarters of 4, and were not asked for"
    assert narrow.sweep.asked.ep == (4,)
    free = narrow_question(ASKED, Setting(option=of, policy="none", replicas=3))
    assert free is not None
    assert free.sweep.asked.chips == ()


def test_what_was_tried_is_said_and_no_more() -> None:
    (line,) = narrow_kv_line(NarrowKv(check=None, tried=(8, 9, 10)), lambda _: "")
    assert line.endswith("none of 3 sizes tried, 8 to 10 chips, was found to keep the target")
    (line,) = narrow_kv_line(NarrowKv(check=None, tried=(8,), is_whole=False), lambda _: "")
    assert "8 chips, the one size tried, were not found to keep the target" in line
    assert line.endswith("; the time was over before more were tried (--budget)")


def test_before_anything_is_known_nothing_is_said() -> None:
    setting = Setting(option=option(ASKED, 1), policy="none", replicas=12)
    with pytest.raises(OutOfTime):
        saved(ASKED, setting, ends_s=time.monotonic())


def test_the_time_may_be_over_before_all_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = Setting(option=option(ASKED, 1), policy="none", replicas=24)
    passed_s = [0.0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + passed_s[0])
    monkeypatch.setattr(plan_race, "time", clock)

    def progress(words: str) -> None:
        if "keep the target" in words:
            passed_s[0] = 1e6

    ends_s = time.monotonic() + 1e5
    found = narrow_kv_of(ASKED, setting, THIS_PROCESS, progress, ends_s=ends_s)

    assert found is not None
    assert found.check is not None
    assert not found.is_whole
    assert found.check.chips in found.tried
    (line,) = narrow_kv_line(found, lambda _: "")
    assert "; the time was over before more were tried (--budget)" in line
    data = narrow_kv_data(found)
    assert data is not None
    assert data["is_whole"] is False
