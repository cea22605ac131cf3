"""The plan of a chaos run over HTTP: seeded, whole, and large enough."""

from collections import Counter

from emulator.specs.fault import FaultKind
from tests.simulation.over_http.strike import FULL, SMALL, Means, Strike, picked, plan_strikes


def test_the_same_seed_gives_the_same_plan_and_another_one_another() -> None:
    assert plan_strikes(7, FULL) == plan_strikes(7, FULL)
    assert plan_strikes(7, FULL) != plan_strikes(8, FULL)


def test_a_full_run_has_at_least_200_faults_of_every_kind_and_means() -> None:
    strikes = plan_strikes(1, FULL)

    assert sum(strike.faults for strike in strikes) >= 200
    assert Counter(each.kind for each in strikes if each.kind) == FULL.calls
    assert set(FULL.calls) == set(FaultKind)
    assert {strike.means for strike in strikes} == set(Means)
    tiers = Counter(strike.tier for strike in strikes if strike.kind is FaultKind.CUT_LINK)
    assert len(tiers) == 3
    assert max(tiers.values()) - min(tiers.values()) <= 1


def test_a_small_run_has_everything_too() -> None:
    strikes = plan_strikes(1, SMALL)

    assert {strike.means for strike in strikes} == set(Means)
    assert {strike.kind for strike in strikes} == {*FaultKind, None}


def test_a_plan_fits_every_machine() -> None:
    for strike in plan_strikes(3, FULL):
        if strike.means is Means.CALL:
            for serving in ([4], list(range(140))):
                fault = strike.fault(serving, racks=2, stacks=4)
                assert fault.chip in (-1, *serving)
                assert fault.rack in (-1, 0, 1)
                assert fault.stack < 4


def test_a_share_picks_the_first_and_the_last() -> None:
    assert picked([3, 5, 9], 0.0) == 3
    assert picked([3, 5, 9], 0.999) == 9
    assert Strike(means=Means.KILL_IN_HEAL).faults == 2
