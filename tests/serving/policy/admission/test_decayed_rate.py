import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.policy.admission.expected_wait import DecayedRate


def test_nothing_is_said_before_anything_happened() -> None:
    rate = DecayedRate(10.0)
    rate.spend(3.0)

    assert rate.per_s is None


def test_a_steady_stream_has_its_own_rate() -> None:
    rate = DecayedRate(10.0)
    for _ in range(1_000):
        rate.spend(0.1)
        rate.add(5)

    assert rate.per_s == pytest.approx(50, rel=0.01)


def test_after_many_memories_only_the_new_rate_is_left() -> None:
    rate = DecayedRate(1.0)
    for amount, steps in ((100, 100), (1, 1_000)):
        for _ in range(steps):
            rate.spend(0.01)
            rate.add(amount)

    assert rate.per_s == pytest.approx(100, rel=0.02)


@given(st.lists(st.floats(0.001, 5.0), min_size=1, max_size=20))
def test_how_time_is_cut_up_does_not_matter(pieces_s: list[float]) -> None:
    once, cut = DecayedRate(2.0), DecayedRate(2.0)
    for rate in (once, cut):
        rate.add(7)
    once.spend(sum(pieces_s))
    for piece_s in pieces_s:
        cut.spend(piece_s)

    assert cut.busy_s == pytest.approx(once.busy_s)
    assert cut.amount == pytest.approx(once.amount)
