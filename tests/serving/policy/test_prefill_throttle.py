import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.errors import ConfigError
from serving.policy.prefill_throttle import (
    DEFAULT_PREFILL_POLICY,
    UNLIMITED,
    Balanced,
    Capped,
    NoThrottle,
    PrefillDemand,
    PrefillPolicy,
    Staggered,
    parse_prefill_policy,
)


def demand(
    pending: list[int], decodes: list[int], waited: list[int] | None = None
) -> PrefillDemand:
    return PrefillDemand(
        pending_tokens=np.array(pending, dtype=np.int64),
        decodes=np.array(decodes, dtype=np.int64),
        waited_steps=np.array(waited or [0] * len(pending), dtype=np.int64),
    )


def test_no_throttle_sets_no_limit() -> None:
    assert NoThrottle().budgets(demand([9_000, 0], [0, 3])).tolist() == [UNLIMITED, UNLIMITED]
    assert NoThrottle().pending_tokens_max == 0


def test_staggered_ranks_take_turns_the_longest_waiting_first() -> None:
    policy = Staggered(prefilling_ranks=2)
    many = demand([5, 5, 0, 5, 5], [1, 1, 1, 1, 1], [0, 2, 7, 1, 2])

    # Rank 2 waits for nothing.
    assert policy.budgets(many).tolist() == [0, UNLIMITED, 0, 0, UNLIMITED]
    assert policy.budgets(demand([5, 0, 0], [0, 1, 0])).tolist() == [UNLIMITED, 0, 0]


def test_a_cap_holds_while_any_rank_decodes() -> None:
    policy = Capped(tokens=256)

    assert policy.budgets(demand([9_000, 3], [0, 1])).tolist() == [256, 256]
    assert policy.budgets(demand([9_000, 3], [0, 0])).tolist() == [UNLIMITED, UNLIMITED]
    assert policy.budgets(demand([0, 0], [4, 1])).tolist() == [UNLIMITED, UNLIMITED]


@pytest.mark.parametrize(
    ("longest", "level"),
    [
        (1, 100),  # the least
        (800, 100),
        (801, 101),  # done in 8 steps, rounded up
        (3_200, 400),  # the ceiling
        (90_000, 400),
    ],
)
def test_balanced_levels_all_ranks_by_the_longest_backlog(longest: int, level: int) -> None:
    policy = Balanced(steps=8, floor_tokens=100, ceiling_tokens=400)

    assert policy.budgets(demand([1, longest, 0], [1, 0, 0])).tolist() == [level] * 3
    assert policy.budgets(demand([1, longest, 0], [0, 0, 0])).tolist() == [UNLIMITED] * 3
    assert policy.pending_tokens_max == 3_200


POLICIES = st.one_of(
    st.just(NoThrottle()),
    st.builds(Staggered, prefilling_ranks=st.integers(1, 9)),
    st.builds(Capped, tokens=st.integers(1, 9_000)),
    st.tuples(st.integers(1, 99), st.integers(1, 999), st.integers(0, 999)).map(
        lambda n: Balanced(steps=n[0], floor_tokens=n[1], ceiling_tokens=n[1] + n[2])
    ),
)


@given(
    policy=POLICIES,
    pending=st.lists(st.integers(1, 20_000), min_size=1, max_size=12),
    decodes=st.data(),
)
def test_every_rank_with_prefill_gets_a_budget_within_the_stated_bound(
    policy: PrefillPolicy, pending: list[int], decodes: st.DataObject
) -> None:
    """New prefill comes everywhere in every step, and some rank always decodes."""
    ranks = len(pending)
    bound = -(-ranks // policy.prefilling_ranks) if isinstance(policy, Staggered) else 1
    waited = np.zeros(ranks, dtype=np.int64)
    for _ in range(3 * ranks):
        running = decodes.draw(st.lists(st.integers(0, 2), min_size=ranks, max_size=ranks))
        budgets = policy.budgets(demand(pending, running, waited.tolist()))
        held_up = np.array([budget == 0 for budget in budgets])
        waited = np.where(held_up, waited + 1, 0)
        assert len(budgets) == ranks
        assert waited.max() < bound
        if isinstance(policy, Staggered) and any(running):
            assert np.count_nonzero(~held_up) == min(ranks, policy.prefilling_ranks)


def test_a_rank_waits_while_it_wants_a_budget_and_has_none() -> None:
    demand = PrefillDemand(
        pending_tokens=np.array([5, 5, 0, 1, 5]),
        decodes=np.zeros(5, dtype=np.int64),
        waited_steps=np.array([2, 7, 4, 0, 3]),
    )
    assert demand.waited_after(np.array([0, 3, 0, 0, 1])).tolist() == [3, 0, 0, 1, 0]


@given(policy=POLICIES)
def test_a_policy_s_name_makes_it_again(policy: PrefillPolicy) -> None:
    assert parse_prefill_policy(policy.name) == policy


def test_the_default_is_a_policy_by_name() -> None:
    assert parse_prefill_policy(None).name == DEFAULT_PREFILL_POLICY


@pytest.mark.parametrize(
    "text",
    [
        "",
        "None",
        "none:1",
        "staggered",
        "staggered:0",
        "staggered:-1",
        "staggered:2.5",
        "capped:",
        "capped:1:2",
        "capped:\u0663",
        "balanced:8",
        "balanced:8:200:100",
        "balanced:8:0:100",
        "fastest",
        7,
    ],
)
def test_nonsense_is_refused_with_one_line_that_lists_the_policies(text: str) -> None:
    with pytest.raises(ConfigError, match=r"prefill_policy=.*: expected none, staggered:RANKS"):
        parse_prefill_policy(text)
