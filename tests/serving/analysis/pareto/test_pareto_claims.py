from dataclasses import replace

import numpy as np
import pytest

from emulator.power.efficiency import PowerBasis
from emulator.specs.systems import SYSTEMS
from serving.analysis.pareto.pareto_claims import (
    BASE_SYSTEM,
    NEW_SYSTEM,
    VENDOR_CLAIMS,
    ClaimMeasure,
    Curves,
    findings,
    ratio_along,
)
from serving.analysis.steady_state.envelope import Envelope, Interval
from serving.analysis.steady_state.sweep import operating_points
from tests.serving.analysis.steady_state.small_machines import small_sweep


def straight(name: str, *, height: float, reach: float) -> Curves:
    """Throughput height x (1 - x / (2 reach)) at x tokens/s/user, from 10 to `reach`; 1 MW."""
    x = np.linspace(10, reach, 30)
    y = height * (1 - x / (2 * reach))
    return Curves(
        system=SYSTEMS[name],
        tokens_per_mw=Envelope.of(x, y),
        tokens_per_s=Envelope.of(x, 2 * y),
        by_users=Envelope.of_users(2 * y / x, x),
    )


def found(base: Curves, new: Curves):
    return {finding.claim.measure: finding for finding in findings(base, new)}


def test_every_claim_of_the_vendor_gets_an_answer() -> None:
    base = straight(BASE_SYSTEM, height=100, reach=100)

    answers = found(base, straight(NEW_SYSTEM, height=600, reach=100))

    assert set(answers) == {claim.measure for claim in VENDOR_CLAIMS} == set(ClaimMeasure)
    assert {measure: finding.claim.ratio for measure, finding in answers.items()} == {
        ClaimMeasure.TOKENS_PER_MW: 5.0,
        ClaimMeasure.USERS: 4.5,
        ClaimMeasure.TOKENS_AT_USERS: 6.0,
        ClaimMeasure.COMPUTE: 4.4,
        ClaimMeasure.BANDWIDTH: 3.9,
    }


def test_six_times_as_much_everywhere_agrees_everywhere() -> None:
    base = straight(BASE_SYSTEM, height=100, reach=100)

    answer = found(base, straight(NEW_SYSTEM, height=600, reach=100))[ClaimMeasure.TOKENS_PER_MW]

    assert answer.agrees
    assert answer.largest == pytest.approx(6)
    assert answer.smallest == pytest.approx(6)
    assert answer.reached == (Interval(low=10, high=100),)
    assert answer.in_words().startswith("agrees at 10 to 100 tokens/s/user; 6.00x at")


def test_a_claim_that_holds_from_some_interactivity_on_names_it() -> None:
    # 4 (1 - x / 400) / (1 - x / 200) reaches 5 where 4 - x / 100 = 5 - x / 40, at x = 200 / 3.
    base = straight(BASE_SYSTEM, height=100, reach=100)

    answer = found(base, straight(NEW_SYSTEM, height=400, reach=200))[ClaimMeasure.TOKENS_PER_MW]

    assert answer.agrees
    (interval,) = answer.reached
    assert interval.low == pytest.approx(200 / 3, rel=0.02)
    assert interval.high == pytest.approx(100)
    assert answer.largest == pytest.approx(400 * 0.75 / 50)
    assert answer.largest_at == pytest.approx(100)


def test_a_claim_that_is_missed_says_by_how_much() -> None:
    base = straight(BASE_SYSTEM, height=100, reach=100)

    answer = found(base, straight(NEW_SYSTEM, height=200, reach=100))[ClaimMeasure.TOKENS_PER_MW]

    assert not answer.agrees
    assert answer.reached == ()
    assert answer.in_words().startswith("does not agree: at most 2.00x, at ")


def test_users_at_equal_interactivity_stand_as_tokens_of_the_machines_do() -> None:
    base, new = (
        straight(BASE_SYSTEM, height=100, reach=100),
        straight(NEW_SYSTEM, height=450, reach=100),
    )

    answer = found(base, new)[ClaimMeasure.USERS]

    assert answer.largest == pytest.approx(4.5)
    at = np.array([20.0, 50.0])
    users = new.tokens_per_s.at(at) / at / (base.tokens_per_s.at(at) / at)
    assert users == pytest.approx(answer.largest)


def test_tokens_at_equal_users_stand_as_the_interactivity_of_each_does() -> None:
    # Each of so many users gets 3 times as much on the new machine.
    users, old = np.array([4.0, 8.0, 16.0]), np.array([90.0, 60.0, 30.0])
    base = replace(
        straight(BASE_SYSTEM, height=100, reach=100), by_users=Envelope.of_users(users, old)
    )
    new = replace(
        straight(NEW_SYSTEM, height=100, reach=100), by_users=Envelope.of_users(users, 3 * old)
    )

    curve = ratio_along(base, new, ClaimMeasure.TOKENS_AT_USERS)

    assert curve.ratio == pytest.approx(3.0)
    assert curve.x.min() == 4
    assert curve.x.max() == 16


def test_beyond_what_one_machine_reaches_nothing_is_compared() -> None:
    base = straight(BASE_SYSTEM, height=100, reach=60)
    new = straight(NEW_SYSTEM, height=100, reach=100)

    curve = ratio_along(base, new, ClaimMeasure.TOKENS_PER_MW)

    assert curve.x.max() == 60
    assert np.isfinite(curve.ratio).all()


def test_catalog_ratios_are_those_of_the_spec_sheets() -> None:
    base = straight(BASE_SYSTEM, height=100, reach=100)

    answers = found(base, straight(NEW_SYSTEM, height=100, reach=100))

    # AWS's tables: 362.4 and 83.2 FP8 PFLOPS, 705.6 and 185.6 TB/s.
    compute, bandwidth = answers[ClaimMeasure.COMPUTE], answers[ClaimMeasure.BANDWIDTH]
    assert dict(compute.assumptions)["tensor=spec"] == pytest.approx(362.4 / 83.2, rel=0.002)
    assert bandwidth.largest == pytest.approx(705.6 / 185.6, rel=0.002)
    assert not bandwidth.agrees
    assert "3.80x" in bandwidth.in_words()


def test_curves_of_points_are_the_envelopes_of_what_the_points_say() -> None:
    points = operating_points(small_sweep())
    curves = Curves.of(small_sweep().system, points, basis=PowerBasis.DRAWN)

    for point in points:
        at = np.array([point.tokens_per_s_per_user])
        assert curves.tokens_per_mw.at(at) >= point.output_tokens_per_s_per_mw(PowerBasis.DRAWN)
        assert curves.tokens_per_s.at(at) >= point.output_tokens_per_s
        assert -1 / curves.by_users.at(np.array([point.users])) >= at * (1 - 1e-12)
