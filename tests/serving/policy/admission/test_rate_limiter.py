import pytest

from serving.policy.admission.rate_limiter import RateLimiter
from serving.policy.admission.refusal import RateState, RefusalReason
from tests.serving.policy.admission.works import client


def test_a_key_without_limits_has_no_book() -> None:
    books = RateLimiter()

    books.charge(client("a"), 1_000, 0.0)

    assert books.over_limit(client("a"), 10**9, 0.0) is None
    assert books.rate(client("a"), 0.0, 1.0) == RateState()
    assert len(books) == 0


def test_each_limit_refuses_by_its_own_reason() -> None:
    for limits, reason in (
        ({"concurrent": 1}, RefusalReason.CONCURRENT),
        ({"requests_per_minute": 1}, RefusalReason.REQUESTS_PER_MINUTE),
        ({"tokens_per_minute": 150}, RefusalReason.TOKENS_PER_MINUTE),
    ):
        books, who = RateLimiter(), client("a", **limits)
        assert books.over_limit(who, 100, 0.0) is None
        books.charge(who, 100, 0.0)

        over = books.over_limit(who, 100, 0.0)

        assert over is not None
        assert over.reason is reason


def test_one_keys_limit_is_not_anothers() -> None:
    books = RateLimiter()
    first, second = client("a", concurrent=1), client("b", concurrent=1)

    books.charge(first, 1, 0.0)

    assert books.over_limit(first, 1, 0.0) is not None
    assert books.over_limit(second, 1, 0.0) is None


def test_the_truth_takes_the_estimates_place() -> None:
    books, who = RateLimiter(), client("a", tokens_per_minute=1_000)
    books.charge(who, 900, 0.0)
    assert books.rate(who, 0.0, 1.0).remaining_tokens == 100

    books.correct(who, 300 - 900, 0.0)

    assert books.rate(who, 0.0, 1.0).remaining_tokens == 700


def test_resets_are_told_in_wall_seconds() -> None:
    books, who = RateLimiter(), client("a", requests_per_minute=60)
    books.charge(who, 1, 0.0)

    rate = books.rate(who, 0.0, dilation=10.0)

    assert rate.remaining_requests == 59
    assert rate.reset_requests_s == pytest.approx(10.0)


def test_a_request_that_may_take_more_than_a_whole_minute_is_told_so() -> None:
    over = RateLimiter().over_limit(client("a", tokens_per_minute=100), 101, 0.0)

    assert over is not None
    assert "101 tokens" in over.message
    assert "100 a minute" in over.message
    assert over.wait_s == 60


def test_limits_that_were_changed_hold_from_then_on() -> None:
    books = RateLimiter()
    books.charge(client("a", requests_per_minute=1), 1, 0.0)

    assert books.over_limit(client("a", requests_per_minute=1), 1, 0.0) is not None
    assert books.over_limit(client("a", requests_per_minute=5), 1, 0.0) is None


def test_a_request_of_before_its_key_had_limits_is_neither_counted_nor_paid_back() -> None:
    books, before = RateLimiter(), client("a")
    after = client("a", concurrent=2, tokens_per_minute=1_000)
    for who in (before, before, after):
        books.charge(who, 400, 0.0)

    for _ in range(2):
        books.correct(before, -400, 0.0)
        books.leave(before)

    assert books.inside("a") == 1
    assert books.rate(after, 0.0, 1.0).remaining_tokens == 600


def test_what_was_charged_to_limits_of_the_past_is_not_given_back_to_the_new_ones() -> None:
    books, old = RateLimiter(), client("a", tokens_per_minute=1_000)
    new = client("a", tokens_per_minute=500)
    books.charge(old, 900, 0.0)
    books.charge(new, 400, 0.0)

    books.correct(old, -900, 0.0)
    books.leave(old)

    assert books.rate(new, 0.0, 1.0).remaining_tokens == 100
    assert books.inside("a") == 1


def test_idle_keys_are_forgotten_and_busy_ones_are_not() -> None:
    books = RateLimiter(names_max=2)
    busy = client("busy", concurrent=1)
    books.charge(busy, 1, 0.0)
    for number in range(5):
        who = client(f"k{number}", concurrent=1)
        books.charge(who, 1, 0.0)
        books.leave(who)

    assert len(books) == 2
    assert books.over_limit(busy, 1, 0.0) is not None


def test_concurrent_counts_sequences() -> None:
    books, who = RateLimiter(), client("a", concurrent=4)
    assert books.over_limit(who, 1, 0.0, sequences=4) is None
    over = books.over_limit(who, 1, 0.0, sequences=5)
    assert over is not None
    assert over.reason is RefusalReason.CONCURRENT
    assert "5 sequences" in over.message

    books.charge(who, 1, 0.0, sequences=3)
    assert books.over_limit(who, 1, 0.0, sequences=1) is None
    assert books.over_limit(who, 1, 0.0, sequences=2) is not None
    books.leave(who, sequences=3)
    assert books.inside("a") == 0


def test_more_of_a_request_that_is_inside_is_no_other_request() -> None:
    books, who = RateLimiter(), client("a", requests_per_minute=1, tokens_per_minute=100)
    books.charge(who, 50, 0.0)

    assert books.over_limit(who, 50, 0.0, sequences=1, requests=0) is None
    over = books.over_limit(who, 51, 0.0, sequences=1, requests=0)
    assert over is not None
    assert over.reason is RefusalReason.TOKENS_PER_MINUTE
    books.charge(who, 50, 0.0, sequences=1, requests=0)
    rate = books.rate(who, 0.0, 1.0)
    assert (rate.remaining_requests, rate.remaining_tokens) == (0, 0)


def test_more_of_a_request_of_before_its_key_s_limits_changed_makes_no_minute_anew() -> None:
    books = RateLimiter()
    old = client("a", concurrent=4, tokens_per_minute=1_000)
    new = client("a", concurrent=4, tokens_per_minute=500)
    books.charge(old, 100, 0.0)
    books.charge(new, 400, 0.0)

    over = books.over_limit(old, 101, 0.0, requests=0)
    assert over is not None
    assert "100 are left of this key's 500 a minute" in over.message
    books.charge(old, 100, 0.0, requests=0)

    assert books.rate(new, 0.0, 1.0).remaining_tokens == 0
    assert books.inside("a") == 3
