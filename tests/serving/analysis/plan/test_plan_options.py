"""Partitions in the order in which they are worth a simulation."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.units import NS_PER_S
from loadgen.measures.slo import Bound, Slo
from serving.analysis.plan.plan_options import (
    NEAR,
    Option,
    OptionTerms,
    best_options,
    near_sizes,
)
from serving.analysis.plan.plan_pools import partitions_of
from serving.analysis.steady_state.partitions import PartitionFilter
from serving.analysis.steady_state.sweep import Sweep
from tests.serving.analysis.plan.planned import DEMAND, SWEEP

SLO = Slo.parse("ttft=300ms,tpot=20ms")


def options(
    slo: Slo = SLO, *, rate_per_s: float = 250.0, seats: int = 64, sweep: Sweep = SWEEP
) -> tuple[Option, ...]:
    demand = replace(DEMAND, rate_per_s=rate_per_s)
    terms = OptionTerms.of(sweep, demand, slo, seats=seats)
    return best_options(each.option for each in partitions_of(terms, sweep.tasks(), pools=False))


@pytest.fixture(scope="module")
def known() -> tuple[Option, ...]:
    return options()


def test_an_option_takes_the_most_that_keeps_the_mean_time(known: tuple[Option, ...]) -> None:
    for option in known:
        replica = SWEEP.replica("stored", option.candidate)
        more = option.point.batch + max(2, option.point.batch // 8)
        assert option.point.tpot_ns <= 0.02 * NS_PER_S
        assert more > 64 or replica.operating_point(more).tpot_ns > 0.02 * NS_PER_S
        assert option.replicas == -(-250.0 // option.requests_per_s)
        assert option.most_requests_per_s >= option.requests_per_s


def test_a_lighter_load_has_less_time_between_tokens(known: tuple[Option, ...]) -> None:
    for option in known:
        rates = [rate for rate, _ in option.steady]
        assert rates == sorted(rates)
        assert option.tpot_ns_at(rates[0]) == min(option.steady[0][1], option.point.tpot_ns)
        assert option.tpot_ns_at(rates[0]) <= option.tpot_ns_at(rates[-1])
        assert option.tpot_ns_at(2 * rates[-1]) == option.point.tpot_ns


def test_the_smallest_plan_comes_first(known: tuple[Option, ...]) -> None:
    assert [each.chips for each in known] == sorted(each.chips for each in known)
    assert {each.replica_chips for each in known} == {1, 2}


def test_what_cannot_be_kept_even_alone_comes_last_the_fastest_first() -> None:
    found = options(Slo.parse("tpot=1us"))

    assert not any(each.meets for each in found)
    assert [each.alone_ns for each in found] == sorted(each.alone_ns for each in found)
    assert {each.point.batch for each in found} == {1}


def test_a_limit_between_alone_and_steady_leaves_room_for_few_prompts() -> None:
    (one,) = [each for each in options() if each.replica_chips == 1]
    limit_ns = 1.25 * one.alone_ns
    assert limit_ns < SWEEP.replica("stored", one.candidate).operating_point(1).tpot_ns
    within = Slo(bounds=(Bound(measure="tpot_ms", limit=limit_ns / 1e6),))
    (option,) = [each for each in options(within, rate_per_s=20.0) if each.replica_chips == 1]

    # A fifth of the time may go to prompts of the mean length.
    prompt_s = SWEEP.replica("stored", one.candidate).prompt_ns / NS_PER_S
    assert option.meets
    assert option.requests_per_s == pytest.approx(0.2 / prompt_s)
    assert option.replicas == -(-20.0 // option.requests_per_s)


def test_a_first_token_that_comes_too_late_alone_rules_a_partition_out(
    known: tuple[Option, ...],
) -> None:
    times_s = sorted(each.prompt_ns / NS_PER_S for each in known)
    between = Slo(bounds=(Bound(measure="ttft_ms", limit=(times_s[0] + times_s[-1]) / 2 * 1e3),))
    found = options(between)

    assert {each.meets for each in found} == {True, False}
    for each in found:
        assert each.meets == (each.prompt_ns / NS_PER_S <= between.ttft_s)


@pytest.mark.long
def test_a_stricter_target_never_needs_fewer_chips() -> None:
    chips = [options(Slo.parse(f"tpot={limit}ms"))[0].chips for limit in (40, 20, 10, 8)]

    assert chips == sorted(chips)


def test_seats_bound_the_batch() -> None:
    assert max(each.point.batch for each in options(seats=4)) <= 4


@given(sizes=st.sets(st.integers(1, 200), min_size=1), machine_chips=st.sampled_from([64, 144]))
def test_every_size_has_one_near_that_stands_for_it(sizes: set[int], machine_chips: int) -> None:
    chosen = near_sizes(sorted(sizes), machine_chips)

    assert chosen <= sizes
    for size in sizes:
        assert size in chosen or machine_chips % size
        nearest = max(each for each in chosen if each <= size)
        assert nearest == size or size < NEAR * nearest


def test_many_partitions_are_looked_at_in_parts_with_the_same_result() -> None:
    sweep = replace(SWEEP, asked=PartitionFilter(chips=(1, 2, 3, 4), tp=(1,), lnc=(2,)))
    found = options(sweep=sweep)

    assert [each.chips for each in found if each.meets] == sorted(
        each.chips for each in found if each.meets
    )
    assert {each.replica_chips for each in found} == {1, 2, 3, 4}


def test_a_pool_that_the_longest_request_does_not_fit_is_no_option() -> None:
    one, two = (
        next(task for _, task in SWEEP.tasks() if task.partition.chips == chips) for chips in (1, 2)
    )
    # Leave the ranks of one chip a thousand tokens: enough for a mean request, not for the longest.
    beside = (one.kv_capacity_tokens - 1_000) * SWEEP.model.kv_bytes_per_token
    terms = replace(SWEEP.terms, activation_bytes=SWEEP.terms.activation_bytes + beside)
    tight = replace(SWEEP, terms=terms)
    room = {task.partition.chips: task.kv_capacity_tokens for _, task in tight.tasks()}
    found = options(sweep=tight)

    assert SWEEP.shape.tokens < room[one.partition.chips] < 1_100
    assert two.kv_capacity_tokens > room[2] > 100_000
    assert {each.replica_chips for each in found} == {2}
