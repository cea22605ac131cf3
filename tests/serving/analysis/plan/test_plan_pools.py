"""Units of pools that promise to keep a target, and what they are made of."""

from dataclasses import replace
from itertools import product
from math import ceil

import pytest

from emulator.specs.systems import system_by_name
from emulator.units import NS_PER_S
from loadgen.measures.slo import Slo
from serving.analysis.plan.plan_check import check_size
from serving.analysis.plan.plan_choice import _deeper
from serving.analysis.plan.plan_demand import TraceDemand
from serving.analysis.plan.plan_options import Option, OptionTerms
from serving.analysis.plan.plan_pools import (
    ABOUT,
    DECODES_MORE,
    KINDS,
    PlanPartition,
    PoolKinds,
    partitions_of,
)
from serving.analysis.plan.plan_question import PlanQuestion
from serving.analysis.plan.plan_race import Race
from serving.analysis.plan.plan_setting import Setting
from serving.analysis.plan.plan_task import FRESH_TIMES, size_task, task_anew
from serving.analysis.plan.prompt_sides import LateSides, PromptSide, PromptSides, prompt_side
from serving.analysis.plan.size_check import Again
from serving.analysis.plan.timed_run import OutOfTime
from serving.simulator import THIS_PROCESS
from tests.serving.analysis.plan.planned import DEMAND, SWEEP, question

SLO = Slo.parse("ttft=300ms,tpot=20ms")
ASKED = question(demand=replace(DEMAND, rate_per_s=400.0), slo=SLO)
TERMS = OptionTerms.of(ASKED.sweep, ASKED.demand, SLO, seats=64)


@pytest.fixture(scope="module")
def partitions() -> list[PlanPartition]:
    return partitions_of(TERMS, SWEEP.tasks(), pools=True)


@pytest.fixture(scope="module")
def kinds(partitions: list[PlanPartition]) -> PoolKinds:
    return PoolKinds(TERMS, partitions)


@pytest.mark.long
def test_units_have_the_chips_asked_for_on_one_machine(kinds: PoolKinds) -> None:
    machine = system_by_name(SWEEP.system.name).chips.count
    for above, most in ((0, 8), (8, 10), (10, 40), (machine, 2 * machine)):
        found = kinds.promising(above, most, 50)
        assert found
        about = [round(near / ABOUT) for near, _ in found]
        assert about == sorted(about)
        for _, option in found:
            assert option.is_pooled
            assert above < option.chips <= most
            assert option.replica_chips <= machine
            assert option.replicas * option.most_requests_per_s >= TERMS.rate_per_s


def test_fewer_chips_than_the_least_have_no_units(kinds: PoolKinds) -> None:
    assert kinds.promising(0, kinds.least_chips - 1, 50) == []


def test_least_chips_by_hand(partitions: list[PlanPartition], kinds: PoolKinds) -> None:
    def fewest(engines: list[tuple[float, int]]) -> int:
        return min(ceil(TERMS.rate_per_s / rate) * chips for rate, chips in engines)

    prefills = [each.prefill for each in partitions if each.prefill is not None]
    decodes = [each.decode for each in partitions if each.decode is not None]
    assert kinds.least_chips == sum(
        fewest([(of.requests_per_s, of.candidate.partition.chips) for of in each])
        for each in (prefills, decodes)
    )


def test_the_most_promising_comes_first_and_is_the_nearest_of_all_pairs(
    partitions: list[PlanPartition], kinds: PoolKinds
) -> None:
    """By the rule itself, for every pair of engines, one after another."""
    most, ratios = 12, []
    prefills = [each.prefill for each in partitions if each.prefill is not None]
    for prefill, each, units in product(prefills, partitions, (1, 2)):
        if each.decode is None:
            continue
        rate_per_s = TERMS.rate_per_s / units
        per_decode = each.decode.candidate.partition.chips
        fewest = ceil(rate_per_s / each.decode.requests_per_s)
        for decodes in (fewest + more for more in DECODES_MORE):
            engines = (most // units - decodes * per_decode) // prefill.candidate.partition.chips
            busy = rate_per_s / max(engines, 1e-9) / prefill.requests_per_s
            if engines < 1 or busy >= 1:
                continue
            step_ns = prefill.step.duration_ns / prefill.prompts * TERMS.fuller / (1 - busy)
            ttft_ns = 0.99 * step_ns + max(step_ns, prefill.prompt_ns)
            full = each.decode.step.duration_ns - each.alone_ns
            rate = rate_per_s / decodes * each.decode.output_tokens / NS_PER_S
            tpot_ns = each.alone_ns / (1 - full / each.decode.users * rate)
            ratios.append(max(ttft_ns / 0.3e9, tpot_ns / 0.02e9))

    (nearness, _), *_ = kinds.promising(0, most, 5)
    assert nearness == pytest.approx(min(ratios), abs=ABOUT)


@pytest.mark.long
def test_what_promises_to_keep_the_target_by_far_does(kinds: PoolKinds) -> None:
    race = Race(ASKED, THIS_PROCESS, lambda _: None)
    (nearness, option), *_ = kinds.promising(20, 24, 3)
    setting = Setting(option=option, policy="none", replicas=option.replicas)

    assert nearness < 0.8
    assert check_size(race.task(setting, judged=600)).meets


@pytest.mark.long
def test_engines_for_prompts_alone_are_no_later_than_a_unit_that_has_them(kinds: PoolKinds) -> None:
    race = Race(ASKED, THIS_PROCESS, lambda _: None)
    for _, option in kinds.promising(8, 12, 4):
        setting = Setting(option=option, policy="none", replicas=option.replicas)
        unit = race.task(setting, judged=300, early_end=False)
        whole, alone = check_size(unit), check_size(replace(unit, prompts_alone=True))

        assert alone.requests == whole.requests
        for late, early in zip(
            whole.percentiles_s["ttft"], alone.percentiles_s["ttft"], strict=True
        ):
            assert late is not None
            assert early is not None
            assert 0 < early.value <= late.value


@pytest.mark.long
def test_units_whose_prompts_are_late_do_not_race(kinds: PoolKinds) -> None:
    settings = [
        Setting(option=option, policy="none", replicas=option.replicas)
        for _, option in kinds.promising(0, 12, 20)
    ]
    in_time, late = (
        PromptSides(ASKED, THIS_PROCESS),
        PromptSides(replace(ASKED, slo=Slo.parse("ttft=1ms,tpot=20ms@p99")), THIS_PROCESS),
    )

    assert in_time.judge(settings)
    assert not in_time.judge(settings)  # known
    assert late.judge(settings)
    assert not late.in_time(settings)
    of_all = (prompt_side(each.option, each.replicas) for each in settings)
    sides = {side for side in of_all if side is not None}
    assert all(side in late.late for side in sides)
    one = min(sides, key=str)
    found = kinds.promising(0, 12, 20, {one})
    assert found
    assert one not in {prompt_side(option, option.replicas) for _, option in found}


def test_fewer_chips_decode_beside_the_same_engines_for_prompts(kinds: PoolKinds) -> None:
    option = max((each for _, each in kinds.promising(0, 20, 20)), key=decoding_chips)
    units, rate_per_s = option.replicas, TERMS.rate_per_s

    fewer = kinds.with_fewer_to_decode(option, units)

    chips = [decoding_chips(each) for each in fewer]
    assert chips
    assert chips == sorted({*chips})
    assert chips[-1] < decoding_chips(option)
    for each in fewer:
        assert prompt_side(each, each.replicas) == prompt_side(option, units)
        assert units * each.requests_per_s >= rate_per_s * (1 - 1e-9)
    none_has = replace(option, point=replace(option.point, prefill=None))
    assert not kinds.with_fewer_to_decode(none_has, 1)


def decoding_chips(option: Option) -> int:
    return option.candidate.replicas * option.candidate.partition.chips


def some_side(kinds: PoolKinds) -> PromptSide:
    (_, option), *_ = kinds.promising(0, 12, 1)
    side = prompt_side(option, 4)
    assert side is not None
    return side


def test_fewer_engines_in_fewer_units_than_late_ones_are_late_too(kinds: PoolKinds) -> None:
    side = some_side(kinds)
    late, other = LateSides(), replace(side[1], chips=2 * side[1].chips, ep=2 * side[1].chips)
    late.add((*side[:2], 3, 4))

    grid = [
        (engines, units)
        for engines in range(1, 6)
        for units in range(1, 7)
        if (*side[:2], engines, units) in late
    ]
    assert grid == [(engines, units) for engines in (1, 2, 3) for units in (1, 2, 3, 4)]
    assert (side[0], other, 1, 1) not in late
    assert None not in late  # engines that compute their own prompts


def test_what_was_judged_in_time_is_so_whatever_others_say(kinds: PoolKinds) -> None:
    kind, late, alone = some_side(kinds)[:2], LateSides(), LateSides(by_others=False)
    for sides in (late, alone):
        sides.add((*kind, 2, 2), is_late=False)
        sides.add((*kind, 4, 4))

    def found(sides: LateSides) -> list[bool | None]:
        return [sides.is_late((*kind, each, each)) for each in range(1, 6)]

    assert found(late) == [True, False, False, True, False]
    assert found(alone) == [None, False, None, True, None]
    one = (*kind, 1, 1)
    late.leave_open(one)
    assert late.is_late(one) is True, "more of them in more units surely are"
    alone.leave_open(one)
    assert alone.is_late(one) is False
    alone.add(one)
    assert alone.is_late(one) is True


def test_more_engines_than_new_seeds_leave_open_are_judged_themselves(kinds: PoolKinds) -> None:
    kind, late = some_side(kinds)[:2], LateSides()
    two, four = (*kind, 2, 1), (*kind, 4, 1)
    late.add(two, is_late=False)  # by the first runs
    assert late.is_late(four) is False

    late.leave_open(two)

    assert (late.is_late(two), late.is_late(four)) == (False, None)
    late.add(four)
    assert late.is_late(two) is True


@pytest.mark.long
def test_a_unit_that_seemed_to_keep_the_target_goes_on_to_other_sizes(kinds: PoolKinds) -> None:
    race = Race(replace(ASKED, search=replace(ASKED.search, tries=1)), THIS_PROCESS, lambda _: None)
    race.pools = kinds
    # One that the steady state does not rank first where it goes on.
    *_, option = (option for _, option in kinds.promising(8, 20, 8) if option.replicas == 2)
    setting = Setting(option=option, policy="none", replicas=2)
    most = 3 * option.replica_chips
    before = race.settings(most - 1, most)
    assert setting.kind not in {each.kind for each in before}
    assert race.heats([setting], first=True) == [setting]

    after = race.settings(most - 1, most)

    assert {*before} < {*after}
    assert (setting.kind, 3) in {(each.kind, each.replicas) for each in after}
    assert all(most - 1 < each.chips <= most for each in after if each.option.is_pooled)


def one_engine_that_decodes_and_six(kinds: PoolKinds) -> tuple[Setting, Setting]:
    """Units with the same engines for prompts."""
    option = next(
        option
        for _, option in kinds.promising(8, 20, 8)
        if option.replicas == 1 and option.candidate.replicas == 6
    )
    one = replace(
        option, point=replace(option.point, candidate=replace(option.candidate, replicas=1))
    )
    assert prompt_side(one, 1) == prompt_side(option, 1)
    crowded, roomy = (Setting(option=each, policy="none", replicas=1) for each in (one, option))
    return crowded, roomy


@pytest.mark.long
def test_units_whose_prompts_new_seeds_find_late_are_refuted_with_the_first_of_them(
    kinds: PoolKinds,
) -> None:
    first, other = one_engine_that_decodes_and_six(kinds)
    prefill = first.option.point.prefill
    assert prefill is not None
    reached_s = p99_of_prompts_s(first.option, engines=prefill.replicas, units=1)
    slo = Slo.parse(f"ttft={900 * reached_s:.3f}ms@p99,tpot=20ms")
    race = Race(replace(ASKED, slo=slo), THIS_PROCESS, lambda _: None)
    assert not race.stands(first)

    assert not race.heats([other], first=True)

    assert other not in race.checks, "it is not even simulated"


@pytest.mark.long
def test_a_unit_that_waits_for_seats_to_decode_does_not_make_its_prompts_late(
    kinds: PoolKinds,
) -> None:
    seats = replace(ASKED.check, schedulers=replace(ASKED.check.schedulers, max_num_seqs=4))
    race = Race(replace(ASKED, check=seats), THIS_PROCESS, lambda _: None)
    crowded, roomy = one_engine_that_decodes_and_six(kinds)
    assert not race.stands(crowded)
    ttft, *_ = race.checks[crowded].terms
    assert ttft.name == "ttft"
    assert not ttft.kept

    assert race.heats([roomy], first=True) == [roomy]


@pytest.mark.long
def test_what_stands_stays_though_its_prompts_are_doubted(
    kinds: PoolKinds, monkeypatch: pytest.MonkeyPatch
) -> None:
    race = Race(ASKED, THIS_PROCESS, lambda _: None)
    _, unit = one_engine_that_decodes_and_six(kinds)
    too_few, doubted = replace(unit, policy="capped:64"), replace(unit, policy="fixed")
    race.passed = [unit, too_few, doubted]
    assert race.stands(unit)
    side = prompt_side(unit.option, 1)
    assert side is not None
    race._sides.late.add(side)

    race._refute(too_few)

    assert race.passed == [unit, doubted]
    monkeypatch.setattr("serving.analysis.plan.plan_choice.search_deeper", lambda _: None)
    _deeper(race)
    assert race.standing == unit
    race.ends_s = 0.0
    with pytest.raises(OutOfTime):
        race.stands(doubted)


@pytest.mark.long
def test_only_what_misses_ttft_has_its_prompts_doubted(
    kinds: PoolKinds, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, unit = one_engine_that_decodes_and_six(kinds)
    for words, count in (("ttft=3s,tpot=1ms", 0), ("ttft=1ms,tpot=1s", 1)):
        doubted: list[Setting] = []
        race = Race(replace(ASKED, slo=Slo.parse(words)), THIS_PROCESS, lambda _: None)
        monkeypatch.setattr(race._sides, "doubt", lambda of, to=doubted, **_: to.append(of))
        assert not race.stands(unit)
        assert len(doubted) == count, words


@pytest.mark.slow
def test_prompts_that_few_runs_find_hardly_in_time_are_judged_by_new_seeds(
    kinds: PoolKinds,
) -> None:
    (_, option), *_ = kinds.promising(0, 12, 1)
    setting = Setting(option=option, policy="none", replicas=option.replicas)
    side = prompt_side(option, option.replicas)
    assert side is not None

    def one_more(asked: PlanQuestion, *, anew: bool) -> Again:
        judged = FRESH_TIMES * asked.check.judged
        task = size_task(asked, setting, judged=judged, is_fresh=True, prompts_alone=True)
        if anew:
            task = task_anew(asked, setting, prompts_alone=True)
        (again,) = (term.again for term in check_size(task).terms if term.name == "ttft")
        assert again is not None
        return again

    for seed in range(20):  # up to where new seeds say more, and few are not in time by far
        asked = replace(ASKED, check=replace(ASKED.check, seed=seed))
        few, new = (one_more(asked, anew=anew) for anew in (False, True))
        few_s, new_s = few.most_s, new.most_s
        if 0.85 * new_s < few_s < 0.95 * new_s:
            break
    else:
        pytest.fail("no case")
    # By the limit's own runs both are a hundredth less.
    for limit_s, is_late, is_unsure in (
        (0.999 * few_s, True, False),
        (0.98 * new_s, False, True),
        (1.01 * new_s, False, False),
    ):
        slo = Slo.parse(f"ttft={1e3 * limit_s:.3f}ms,tpot=20ms")
        sides = PromptSides(replace(asked, slo=slo), THIS_PROCESS)
        sides.judge([setting])
        assert sides.late.is_late(side) is is_late
        assert (side in sides.late.unsure) == is_unsure
        assert not sides.judge([setting])
        sides.doubt(setting)  # new seeds refuted a unit that has them
        assert sides.late.is_late(side) is (is_late or is_unsure)
    for limit_s, is_late in ((new.least_s, True), (0.995 * new.likely_s, False)):
        slo = Slo.parse(f"ttft={1e3 * limit_s:.3f}ms,tpot=20ms")
        sides = PromptSides(replace(asked, slo=slo), THIS_PROCESS)
        sides._judge_anew({side: setting}, float("inf"))
        assert sides.late.is_late(side) is is_late, "late only where too many requests surely are"
        assert (side in sides.late.unsure) is not is_late


def test_a_trace_has_each_number_of_units_judged() -> None:
    recorded = TraceDemand(traffic=DEMAND.peak.first(400), window_s=1.0, source="a rate's first")
    by_rate, by_trace = (
        PromptSides(replace(ASKED, demand=demand), THIS_PROCESS).late
        for demand in (DEMAND, recorded)
    )
    side = ("stored", SWEEP.tasks()[0][1].partition, 2, 2)
    for late in (by_rate, by_trace):
        late.add(side)
    fewer = (*side[:3], 1)

    assert fewer in by_rate
    assert fewer not in by_trace
    assert side in by_trace


def p99_of_prompts_s(option: Option, *, engines: int, units: int) -> float:
    prefill = option.point.prefill
    assert prefill is not None
    point = replace(option.point, prefill=replace(prefill, replicas=engines))
    setting = Setting(option=replace(option, point=point), policy="none", replicas=units)
    task = size_task(ASKED, setting, judged=600, is_fresh=True, prompts_alone=True)
    found = check_size(replace(task, terms=replace(task.terms, runs=1, early_end=False)))
    p99 = found.percentiles_s["ttft"][-1]
    assert p99 is not None
    return p99.value


@pytest.mark.long
def test_prompts_wait_no_longer_where_more_units_or_engines_share_them(kinds: PoolKinds) -> None:
    (_, option), *_ = kinds.promising(0, 12, 1)
    least = option.replicas
    by_units = [p99_of_prompts_s(option, engines=1, units=least + more) for more in range(4)]
    by_engines = [p99_of_prompts_s(option, engines=1 + more, units=least) for more in range(4)]

    for waits_s in (by_units, by_engines):
        assert waits_s == sorted(waits_s, reverse=True)
        assert waits_s[-1] < waits_s[0]


def test_of_equal_engines_a_few_of_the_strongest_are_paired(
    partitions: list[PlanPartition], kinds: PoolKinds
) -> None:
    twice = PoolKinds(TERMS, [*partitions, *partitions])

    assert twice.promising(0, 12, 20) == kinds.promising(0, 12, 20)
    assert KINDS >= 1


def test_without_a_time_between_tokens_there_are_no_pools(partitions: list[PlanPartition]) -> None:
    terms = replace(TERMS, slo=Slo.parse("ttft=300ms"))

    assert not PoolKinds(terms, partitions).can_meet
    assert PoolKinds(terms, partitions).promising(0, 100, 5) == []
