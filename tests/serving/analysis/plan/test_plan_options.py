"""Partitions in the order in which they are worth a simulation."""

from dataclasses import replace

import pytest

from emulator.units import NS_PER_S
from loadgen.measures.slo import Bound, Slo
from serving.analysis.plan.plan_options import Option, Options, replicas_below, strongest
from tests.serving.analysis.plan.planned import DEMAND, SWEEP

SLO = Slo.parse("ttft=300ms,tpot=20ms")


def options(slo: Slo = SLO, *, rate_per_s: float = 250.0, seats: int = 64) -> Options:
    return Options(SWEEP, replace(DEMAND, rate_per_s=rate_per_s), slo, seats=seats)


@pytest.fixture(scope="module")
def known() -> tuple[Option, ...]:
    found = options()
    found.below(1_000)
    return found.known()


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


def test_a_larger_partition_than_a_plan_that_was_found_is_looked_at_only_when_asked() -> None:
    little = options(rate_per_s=1.0)

    assert {each.replica_chips for each in little.smallest_first()} == {1}
    assert {each.replica_chips for each in little.below(2)} == {1}
    assert {each.replica_chips for each in little.below(3)} == {1, 2}


def test_what_cannot_be_kept_even_alone_comes_last_the_fastest_first() -> None:
    found = options(Slo.parse("tpot=1us")).smallest_first()

    assert not any(each.meets for each in found)
    assert [each.alone_ns for each in found] == sorted(each.alone_ns for each in found)
    assert {each.point.batch for each in found} == {1}


def test_a_limit_between_alone_and_steady_leaves_room_for_few_prompts() -> None:
    (one,) = [each for each in options().smallest_first() if each.replica_chips == 1]
    limit_ns = 1.25 * one.alone_ns
    assert limit_ns < SWEEP.replica("stored", one.candidate).operating_point(1).tpot_ns
    found = options(
        Slo(bounds=(Bound(measure="tpot_ms", limit=limit_ns / 1e6),)), rate_per_s=20.0
    ).below(2)
    (option,) = found

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
    found.below(1_000)

    assert {each.meets for each in found.known()} == {True, False}
    for each in found.known():
        assert each.meets == (each.prompt_ns / NS_PER_S <= between.ttft_s)


@pytest.mark.long
def test_a_stricter_target_never_needs_fewer_chips() -> None:
    chips = [
        options(Slo.parse(f"tpot={limit}ms")).smallest_first()[0].chips for limit in (40, 20, 10, 8)
    ]

    assert chips == sorted(chips)


def test_seats_bound_the_batch() -> None:
    assert max(each.point.batch for each in options(seats=4).smallest_first()) <= 4


def test_the_strongest_takes_the_most_below_the_chips(known: tuple[Option, ...]) -> None:
    best = strongest(known, below_chips=4)
    assert best is not None
    takes = {each: replicas_below(each, 4) * each.requests_per_s for each in known}

    assert takes[best] == max(takes.values())
    assert strongest(known, below_chips=1) is None
    for each in known:
        assert replicas_below(each, 4) == (3 if each.replica_chips == 1 else 1)


def test_a_pool_that_the_longest_request_does_not_fit_is_no_option() -> None:
    one, two = (
        next(task for _, task in SWEEP.tasks() if task.partition.chips == chips) for chips in (1, 2)
    )
    # Leave the ranks of one chip a thousand tokens: enough for a mean request, not for the longest.
    beside = (one.kv_capacity_tokens - 1_000) * SWEEP.model.kv_bytes_per_token
    terms = replace(SWEEP.terms, activation_bytes=SWEEP.terms.activation_bytes + beside)
    tight = replace(SWEEP, terms=terms)
    room = {task.partition.chips: task.kv_capacity_tokens for _, task in tight.tasks()}
    found = Options(tight, DEMAND, SLO, seats=64).below(1_000)

    assert SWEEP.shape.tokens < room[one.partition.chips] < 1_100
    assert two.kv_capacity_tokens > room[2] > 100_000
    assert {each.replica_chips for each in found} == {2}
