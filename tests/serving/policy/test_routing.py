"""Which of several engines a rule chooses."""

from dataclasses import dataclass
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from serving.policy.routing import least_loaded, prefix_aware, round_robin, routed


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldTokens:
    """An engine with so many tokens, some of which are of the request's prompt."""

    load_tokens: int
    cached_tokens: int = 0

    def tokens_left(self, _request: object) -> int:
        return self.load_tokens - self.cached_tokens


def test_three_engines_take_turns() -> None:
    engines = [object()] * 3

    assert [round_robin(arrived, engines) for arrived in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_the_least_loaded_engine_may_not_be_the_one_with_the_least_left_to_do() -> None:
    engines = [HeldTokens(load_tokens=70, cached_tokens=60), HeldTokens(load_tokens=20)]

    assert least_loaded("request", engines) == 1
    assert prefix_aware("request", engines) == 0


def test_of_equals_it_is_the_first() -> None:
    engines = [HeldTokens(load_tokens=each) for each in (9, 5, 5)]

    assert least_loaded("request", engines) == prefix_aware("request", engines) == 1


@given(st.integers(0, 10**6), st.integers(1, 9))
def test_turns_follow_each_other_and_other_rules_see_the_request(arrived: int, count: int) -> None:
    engines = [HeldTokens(load_tokens=each) for each in range(count)]
    turns = [routed(round_robin, "request", engines, arrived=arrived + n) for n in range(count + 1)]
    seen: list[object] = []

    def last(request: object, among: object) -> int:
        seen.append(request)
        assert among is engines
        return count - 1

    assert sorted(turns[:-1]) == list(range(count))
    assert all((second - first) % count == 1 % count for first, second in pairwise(turns))
    assert routed(last, "request", engines, arrived=arrived) == count - 1
    assert seen == ["request"]
