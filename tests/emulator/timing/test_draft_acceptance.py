import pytest

from emulator.errors import ConfigError
from emulator.timing.draft_acceptance import ACCEPTANCES, accepted_tokens, draft_acceptance


def test_further_drafts_are_right_less_often_by_hand() -> None:
    assert draft_acceptance("mtp").rates(3) == pytest.approx((0.82, 0.7298, 0.649522))
    assert accepted_tokens("mtp", 2) == pytest.approx(0.82 + 0.82 * 0.7298)


def test_published_shares_come_back_by_hand() -> None:
    reached = 1.0
    for rate, published in zip(
        draft_acceptance("eagle").rates(5), (0.622, 0.356, 0.203, 0.119, 0.060), strict=True
    ):
        reached *= rate
        assert reached == pytest.approx(published, abs=0.001)
    assert draft_acceptance("eagle").rates(7)[5:] == (0.504, 0.504)


@pytest.mark.parametrize("method", ACCEPTANCES)
def test_no_draft_is_right_without_those_before_it(method: str) -> None:
    assert accepted_tokens(method, 0) == 0
    counts = [accepted_tokens(method, drafts) for drafts in range(1, 12)]
    gains = [after - before for before, after in zip([0, *counts], counts, strict=False)]
    assert gains == sorted(gains, reverse=True)
    assert gains[-1] > 0


def test_an_unknown_method_is_refused() -> None:
    with pytest.raises(
        ConfigError, match="draft_method=guesses: expected one of mtp, eagle, draft_model, ngram"
    ):
        accepted_tokens("guesses", 2)
