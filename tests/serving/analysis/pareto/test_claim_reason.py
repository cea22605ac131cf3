import numpy as np

from emulator.specs.shipped_fits import PredictionInterval
from serving.analysis.pareto.claim_reason import ClaimReason
from serving.analysis.steady_state.envelope import Interval

X = np.array([10.0, 20.0, 30.0, 40.0])
BASE = np.array([100.0, 80.0, 10.0, 5.0])
NEW = np.array([100.0, 90.0, 60.0, 15.0])  # ratios 1, 1.125, 6 and 3
EXACT = PredictionInterval(least=1.0, most=1.0)


def reason(claimed: float, error: PredictionInterval | None) -> ClaimReason:
    return ClaimReason.of(
        X, BASE, NEW, claimed=claimed, axis="tokens/s/user", base_ends=True, error=error
    )


def sentence(of: ClaimReason, claimed: float, *reached: Interval) -> str:
    return of.sentence(claimed=claimed, reached=reached, largest=(6.0, 30.0), names=("old", "new"))


def test_a_reason_says_where_and_how_far_both_curves_have_fallen() -> None:
    found = reason(5.0, EXACT)

    assert found.base_share == 0.1
    assert found.new_share == 0.6
    said = sentence(found, 5.0, Interval(low=30, high=30))
    assert said == (
        "5x comes true only at 30 of the 10 to 40 tokens/s/user that both reach: at 30 old has "
        "10 % of its best left (its curve ends at 40), new 60 %, 6.00x (80 %: 6 to 6); at the "
        "good end of the ratio's 80 % range at 30, at the bad end at 30"
    )


def test_errors_of_the_model_widen_and_narrow_where_a_claim_holds() -> None:
    # 2 / sqrt(2) and sqrt(2) / 2 wide, so that a ratio is 0.5 to 2 times as large.
    root = 2**0.5
    found = reason(5.0, PredictionInterval(least=1 / 2 ** (1 / root), most=2 ** (1 / root)))

    assert found.at_best == (Interval(low=30, high=40),)
    assert found.at_worst == ()
    assert sentence(found, 5.0, Interval(low=30, high=30)).endswith(
        "at the good end of the ratio's 80 % range at 30 to 40, at the bad end nowhere"
    )


def test_a_claim_out_of_reach_says_so_of_the_range_too() -> None:
    said = sentence(reason(50.0, EXACT), 50.0)

    assert said.startswith("50x comes true nowhere on the 10 to 40 tokens/s/user")
    assert said.endswith("also nowhere at the good end of the ratio's 80 % range")


def test_a_roofline_has_a_place_and_no_range() -> None:
    said = sentence(reason(5.0, None), 5.0, Interval(low=30, high=30))

    assert "80 %" not in said
    assert said.endswith("new 60 %, 6.00x")
