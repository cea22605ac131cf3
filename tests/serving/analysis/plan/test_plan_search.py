"""Which settings race, and that none with fewer chips than the answer passes."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.measures.slo import Slo
from serving.analysis.plan.plan_check import SizeTask, check_size
from serving.analysis.plan.plan_choice import _near, _quick, _search_all, choose
from serving.analysis.plan.plan_options import OptionTerms, best_options, size_ends
from serving.analysis.plan.plan_pools import PoolKinds, partitions_of
from serving.analysis.plan.plan_race import LAST_TIMES, Race
from serving.analysis.plan.plan_search import (
    first_answer,
    search,
    search_deeper,
)
from serving.analysis.plan.plan_setting import Setting
from serving.analysis.plan.plan_task import (
    ANEW_TIMES,
    FIRST_SHARE,
    FRESH_RUNS,
    FRESH_TIMES,
    size_task,
)
from serving.analysis.plan.size_check import quality
from serving.analysis.plan.timed_run import OutOfTime
from serving.analysis.steady_state.partitions import PartitionFilter
from serving.analysis.steady_state.sweep import Task
from serving.simulator import THIS_PROCESS
from tests.serving.analysis.plan.planned import CHECK, DEMAND, QUESTION, question

ASKED = question(
    demand=replace(DEMAND, rate_per_s=400.0),
    slo=Slo.parse("ttft=300ms,tpot=20ms@p90"),
    check=replace(CHECK, judged=150),
)
TERMS = OptionTerms.of(ASKED.sweep, ASKED.demand, ASKED.slo, seats=64)
OPTIONS = best_options(
    each.option for each in partitions_of(TERMS, ASKED.sweep.tasks(), pools=False)
)


@pytest.fixture(scope="module")
def race() -> Race:
    found = Race(ASKED, THIS_PROCESS, lambda _: None)
    found.options = OPTIONS
    first_answer(found)
    search(found)
    return found


@given(least=st.integers(0, 300), more=st.integers(0, 900), ratio=st.floats(1.01, 2.0))
def test_sizes_go_from_the_least_to_the_most_in_steps_of_a_ratio(
    least: int, more: int, ratio: float
) -> None:
    ends = size_ends(least, least + more, ratio=ratio)

    assert ends[0] == least
    assert ends[-1] == least + more
    assert all(low < high <= max(low + 1, low * ratio) for low, high in pairwise(ends))


@pytest.mark.slow
def test_nothing_with_fewer_chips_passes(race: Race) -> None:
    best = race.best
    assert best is not None
    assert race.checks[best].surely_meets

    every = [
        Setting(option=option, policy=policy, replicas=replicas)
        for option in OPTIONS
        for policy in ASKED.search.policies
        for replicas in range(1, -(-best.chips // option.replica_chips))
    ]
    assert every
    for setting in every:
        task = race.task(setting, judged=FRESH_TIMES * ASKED.check.judged, is_fresh=True)
        assert not check_size(task).surely_meets, setting.words


@pytest.mark.long
def test_the_answer_passes_again_by_other_seeds(race: Race) -> None:
    assert race.best is not None
    task = race.task(race.best, judged=FRESH_TIMES * ASKED.check.judged, is_fresh=True)
    others = [replace(task, terms=replace(task.terms, seed=seed)) for seed in (100, 200, 300)]

    assert all(check_size(each).meets for each in others)


@pytest.mark.long
def test_all_settings_of_a_race_get_the_same_arrivals(race: Race) -> None:
    one, other = [*race.checks][:2]
    tasks = [race.task(each, judged=150) for each in (one, other)]

    assert one.policy != other.policy
    assert [each.terms.seed for each in tasks] == [ASKED.check.seed] * 2
    assert len({each.terms.schedulers.prefill_policy for each in tasks}) == 2


def test_a_race_ends_with_its_time() -> None:
    race = Race(QUESTION, THIS_PROCESS, lambda _: None, ends_s=0.0)
    race.options = OPTIONS

    with pytest.raises(OutOfTime):
        first_answer(race)
    assert race.best is None
    assert not race.checks


@pytest.mark.long
def test_the_worst_limit_decides_and_then_how_far_it_is(race: Race) -> None:
    known = [
        check
        for check in race.checks.values()
        if all(term.reached_s is not None for term in check.terms)
    ]
    for check in known:
        share, ratio = quality(check)
        assert (share == 1) == all(term.kept for term in check.terms)
        assert ratio == -max((term.reached_s or 0) / term.limit_s for term in check.terms)


@pytest.mark.long
def test_what_new_seeds_refute_does_not_come_back() -> None:
    race = Race(ASKED, THIS_PROCESS, lambda _: None)
    race.options = OPTIONS
    first_answer(race)
    assert race.best is not None
    too_few = replace(race.best, replicas=1)
    assert race.stands(race.best)
    race.passed.append(too_few)  # as if it had been lucky
    assert race.best == too_few
    assert not race.stands(too_few)
    assert race.best != too_few
    assert not race.heats([too_few])
    assert not race.confirm([too_few])


@pytest.mark.long
def test_what_stood_before_the_time_was_over_is_kept() -> None:
    said: list[str] = []

    def over(words: str) -> None:
        said.append(words)
        ending.ends_s = 0.0

    option = max(OPTIONS, key=lambda each: each.most_requests_per_s / each.replica_chips)
    two = [
        Setting(option=option, policy="capped:64", replicas=48 // option.replica_chips + more)
        for more in (1, 0)
    ]
    ending = Race(ASKED, THIS_PROCESS, over)
    with pytest.raises(OutOfTime):
        ending.confirm(two)

    assert ending.passed == two[:1]
    assert ending.best == two[0]
    (words,) = said
    assert two[0].words in words

    whole = Race(ASKED, THIS_PROCESS, said.append)
    assert whole.confirm(two)
    assert {*whole.passed} == {*two}


@pytest.mark.long
def test_what_seemed_to_pass_when_time_was_over_is_confirmed_the_cheapest_first() -> None:
    option = max(OPTIONS, key=lambda each: each.most_requests_per_s / each.replica_chips)
    two = [
        Setting(option=option, policy="capped:64", replicas=48 // option.replica_chips + more)
        for more in (1, 0)
    ]
    race = Race(ASKED, THIS_PROCESS, lambda _: None)
    seeming = race.heats(two, every=True)
    assert not race.passed

    race.confirm_what_seems()

    assert race.passed == [min(seeming, key=race.cost)]
    race.confirm_what_seems()
    assert len(race.passed) == 1, "nothing that is left costs less"


@pytest.mark.slow
def test_a_deeper_search_races_more_settings_of_sizes_that_are_not_far_below() -> None:
    race = Race(replace(ASKED, search=replace(ASKED.search, tries=1)), THIS_PROCESS, lambda _: None)
    race.options = OPTIONS
    every = [
        Setting(option=option, policy="none", replicas=40 // option.replica_chips)
        for option in OPTIONS
    ]
    race.passed.append(max(every, key=lambda each: each.chips))  # as if none of fewer chips had

    search_deeper(race)

    fewest = race.passed[0].chips
    raced = [each for each in race.checks if each.chips < fewest]
    assert len({each.option for each in raced}) > 1
    assert all(each.chips >= 0.8 * fewest for each in raced)
    assert race.tries == 1


@pytest.mark.slow
def test_a_search_that_new_seeds_begin_again_and_time_ends_is_not_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of_one = replace(
        ASKED, pools=False, sweep=replace(ASKED.sweep, asked=PartitionFilter(chips=(1,), lnc=(2,)))
    )
    assert choose(of_one, THIS_PROCESS, lambda _: None).is_whole

    def over(_: Race) -> None:
        raise OutOfTime

    monkeypatch.setattr("serving.analysis.plan.plan_choice._until_it_stands", over)
    assert not choose(of_one, THIS_PROCESS, lambda _: None).is_whole


@pytest.mark.long
def test_a_search_without_time_has_an_answer_that_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    def over(_: Race) -> None:
        raise OutOfTime

    monkeypatch.setattr("serving.analysis.plan.plan_choice.search", over)
    said: list[str] = []
    found = choose(replace(ASKED, pools=False), THIS_PROCESS, said.append)

    assert not found.is_whole
    assert found.check.surely_meets
    runs, judged = ANEW_TIMES * FRESH_RUNS, ANEW_TIMES * FRESH_TIMES * ASKED.check.judged
    assert found.check.requests == runs * judged
    assert found.check.verdict == "meets the target"
    for term in found.check.terms:
        assert term.again is not None
        assert term.again.requests == FRESH_TIMES * ASKED.check.judged
        assert term.again.confidence == 0.995


def test_sizes_up_to_the_one_that_new_seeds_refuted_come_after_all_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    option = max(OPTIONS, key=lambda each: each.most_requests_per_s / each.replica_chips)

    def places(refuted_chips: int) -> tuple[list[int], list[int]]:
        race, halves, left = Race(ASKED, THIS_PROCESS, lambda _: None), list[int](), list[int]()
        race.options = OPTIONS
        race.passed.append(Setting(option=option, policy="none", replicas=64))
        monkeypatch.setattr(race, "settings", lambda _, most: [most])
        monkeypatch.setattr(race, "heats", lambda sizes, **_: halves.extend(sizes) or [])
        monkeypatch.setattr(race, "run", left.extend)
        monkeypatch.setattr(race, "run_under_other_limits", lambda: False)
        monkeypatch.setattr("serving.analysis.plan.plan_search.fewer_replicas", lambda _: None)
        search(race, refuted_chips=refuted_chips)
        return halves, left

    every, _ = places(0)
    refuted = sorted(every)[len(every) // 2]
    halves, left = places(refuted)

    assert halves
    assert min(halves) > refuted
    assert min(left) < refuted
    assert left == sorted(left, reverse=True)


def test_a_search_goes_on_where_all_that_passed_is_refuted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    race, raced = Race(ASKED, THIS_PROCESS, lambda _: None), list[int]()
    race.options = OPTIONS
    race.passed.append(Setting(option=OPTIONS[0], policy="none", replicas=64))

    def heats(sizes: list[int], **_: bool) -> list[Setting]:
        race.passed.clear()
        raced.extend(sizes)
        return []

    monkeypatch.setattr(race, "settings", lambda _, most: [most])
    monkeypatch.setattr(race, "heats", heats)
    monkeypatch.setattr(race, "run_under_other_limits", lambda: False)

    search(race, refuted_chips=1)

    assert len(raced) > 2
    assert min(raced) < max(raced)


@pytest.mark.parametrize(("lead_by_judged", "heats"), [(0.08, 2), (3, 3)])
def test_a_first_heat_of_as_many_requests_stands_for_the_second(
    lead_by_judged: float, heats: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serving.analysis.plan.plan_task.LEAD_BY_JUDGED", lead_by_judged)
    judged = 8
    option = max(OPTIONS, key=lambda each: each.most_requests_per_s / each.replica_chips)
    setting = Setting(option=option, policy="capped:64", replicas=48 // option.replica_chips)
    asked = replace(ASKED, check=replace(CHECK, judged=judged))
    first = size_task(asked, setting, judged=judged // FIRST_SHARE)
    assert (first.terms.judged >= judged) == (heats == 2)
    race, asked_for = Race(asked, THIS_PROCESS, lambda _: None), list[int]()
    task_of = race.task

    def task(of: Setting, *, judged: int, is_fresh: bool = False) -> SizeTask:
        asked_for.append(judged)
        return task_of(of, judged=judged, is_fresh=is_fresh)

    monkeypatch.setattr(race, "task", task)

    assert race.heats([setting], first=True) == [setting]

    assert len(asked_for) == heats
    assert asked_for[-1] == LAST_TIMES * judged


@pytest.mark.long
def test_where_one_heat_stands_for_two_the_last_one_is_filled_up_from_all_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("serving.analysis.plan.plan_task.LEAD_BY_JUDGED", 0.08)
    option = max(OPTIONS, key=lambda each: each.most_requests_per_s / each.replica_chips)
    settings = [
        Setting(option=option, policy=policy, replicas=64 // option.replica_chips + more)
        for policy in ASKED.search.policies
        for more in range(5)
    ]
    race = Race(replace(ASKED, check=replace(CHECK, judged=8)), THIS_PROCESS, lambda _: None)
    asked_for = list[tuple[int, int]]()

    def through(field: list[Setting], most: int) -> list[Setting]:
        asked_for.append((len(field), most))
        return field[-most:]

    monkeypatch.setattr(race, "_through_hardest", through)

    race.heats(settings)

    assert asked_for == [(len(settings), 2)]


def task_of(chips: int, tp: int) -> Task:
    precision, candidate = ASKED.sweep.tasks()[0]
    partition = replace(candidate.partition, chips=chips, tp=tp, ep=chips)
    return precision, replace(candidate, partition=partition)


def test_the_first_partitions_have_ranks_that_do_not_divide_a_machine() -> None:
    even, odd = [(16, 16), (48, 16), (72, 1)], [(64, 16), (71, 1)]
    no_part = [(32, 32), (96, 32), (128, 64)]

    found = _quick([task_of(*each) for each in (*even, *odd, *no_part)], 144)

    assert {(each.partition.chips, each.partition.tp) for _, each in found} == {*even, *no_part}


def test_another_size_does_not_stand_for_ranks_that_do_not_divide_a_machine() -> None:
    assert ASKED.sweep.system.chips.count == 144
    every = replace(ASKED, sweep=replace(ASKED.sweep, asked=PartitionFilter()))
    tasks = [task_of(*each) for each in ((94, 2), (95, 1), (96, 32), (97, 1))]

    assert _near(every, tasks) == [tasks[0], tasks[2]]


@pytest.mark.slow
def test_a_first_answer_s_units_go_on_with_as_few_chips_to_decode_as_keep_the_target(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    race = Race(ASKED, THIS_PROCESS, lambda _: None)
    race.pools = PoolKinds(TERMS, partitions_of(TERMS, ASKED.sweep.tasks(), pools=True))
    most = max(
        (each for _, each in race.pools.promising(0, 40, 40)),
        key=lambda each: each.candidate.replicas * each.candidate.partition.chips,
    )
    first = Setting(option=most, policy="none", replicas=most.replicas)
    choice = "serving.analysis.plan.plan_choice"
    monkeypatch.setattr(f"{choice}.first_answer", lambda race: race.run([first], first=True))
    monkeypatch.setattr(f"{choice}.search", lambda _: None)

    _search_all(race, ASKED, TERMS, THIS_PROCESS)

    best = race.best
    assert best is not None
    assert best.chips < first.chips
    assert best.option.point.prefill == first.option.point.prefill
    assert race.checks[best].surely_meets
