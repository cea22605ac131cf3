"""Roles of ranks: what the decider does with a load, and what no roles may be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.errors import ConfigError
from serving.policy.rank_roles import (
    LASTS_S,
    LOOK_EVERY_S,
    RankRole,
    RoleDecider,
    RoleLoad,
    Roles,
    check_prefill_ranks,
    first_roles,
    parse_prefill_ranks,
    with_role,
)

P, D, BOTH = RankRole.PREFILL, RankRole.DECODE, RankRole.BOTH
STEP_TOKENS, SEATS = 100, 10
LOOK_S = 1.25 * LOOK_EVERY_S  # after a step that ends later than a look is due


def decided(roles: Roles, loads: list[RoleLoad]) -> list[Roles]:
    """The roles after each look."""
    decider, seen = RoleDecider(step_tokens=STEP_TOKENS, seats=SEATS), []
    for look, load in enumerate(loads):
        assert decider.is_due(look * LOOK_S)
        roles = decider.decide(roles, load, look * LOOK_S)
        assert not decider.is_due((look + 0.5) * LOOK_S)
        seen.append(roles)
    return seen


def lasting(load: RoleLoad, seconds: float = LASTS_S) -> list[RoleLoad]:
    return [load] * (round(seconds / LOOK_S) + 2)


def test_prompts_that_wait_for_more_than_two_steps_get_a_rank_more() -> None:
    seen = decided((P, D, D), lasting(RoleLoad(prompt_tokens=2 * STEP_TOKENS + 1, decodes=7)))
    assert seen[-1] == (P, P, D)
    assert seen[round(LASTS_S / LOOK_S) - 1] == (P, D, D), "not before it has lasted"
    two_steps = decided((P, D, D), lasting(RoleLoad(prompt_tokens=2 * STEP_TOKENS, decodes=7)))
    assert two_steps[-1] == (P, D, D)


def test_no_rank_leaves_decodes_that_would_lack_seats() -> None:
    load = RoleLoad(prompt_tokens=100 * STEP_TOKENS, decodes=8)
    assert decided((P, D, D), lasting(load))[-1] == (P, D, D), "8 of 10 seats of one rank"
    assert decided((P, D), lasting(load, 10.0))[-1] == (P, D), "the last one stays"


def test_a_rank_that_prompts_do_not_need_decodes_again_and_the_last_one_stays() -> None:
    few = RoleLoad(prompt_tokens=STEP_TOKENS // 2, decodes=0)
    assert decided((P, P, D), lasting(few))[-1] == (P, D, D)
    assert decided((P, P, D), lasting(few, 10.0))[-1] == (P, D, D)


def test_a_load_that_comes_and_goes_changes_nothing() -> None:
    much, none = RoleLoad(prompt_tokens=900, decodes=0), RoleLoad(prompt_tokens=120, decodes=0)
    assert set(decided((P, D, D), [much, much, none] * 50)) == {(P, D, D)}


def test_a_load_does_not_last_over_idle_time() -> None:
    much, idle = RoleLoad(prompt_tokens=900, decodes=0), RoleLoad(prompt_tokens=0, decodes=0)
    bursts = [*[much] * 4, *[idle] * 50, *[much] * 4]
    assert set(decided((P, D, D), bursts)) == {(P, D, D)}
    assert set(decided((P, P, D), [idle] * 50)) == {(P, P, D)}, "idle ranks change no role"


def after_a_pause(roles: Roles, load: RoleLoad, pause: str) -> list[Roles]:
    """The roles in two looks at a load that was there four seconds before, too."""
    decider = RoleDecider(step_tokens=STEP_TOKENS, seats=SEATS)
    assert decider.decide(roles, load, 0.0) == roles
    if pause == "between two looks":
        decider.note_idle()
    elif pause == "at a look":
        assert decider.decide(roles, RoleLoad(prompt_tokens=0, decodes=0), 1.5) == roles
    return [decider.decide(roles, load, now_s) for now_s in (4.0, 4.5)]


@pytest.mark.parametrize("pause", ["between two looks", "at a look"])
def test_idle_time_ends_the_need_for_a_rank_more_and_not_that_for_one_less(pause: str) -> None:
    much, few = RoleLoad(prompt_tokens=900, decodes=0), RoleLoad(prompt_tokens=0, decodes=1)
    assert after_a_pause((P, D, D), much, pause) == [(P, D, D)] * 2
    assert after_a_pause((P, D, D), much, "none")[0] == (P, P, D)
    assert after_a_pause((P, P, D), few, pause)[0] == (P, D, D)


@given(
    st.integers(2, 8).flatmap(
        lambda ranks: st.tuples(
            st.integers(1, ranks - 1).map(lambda count: first_roles(count, ranks)),
            st.lists(
                st.builds(
                    RoleLoad, prompt_tokens=st.integers(0, 5000), decodes=st.integers(0, 100)
                ),
                min_size=1,
                max_size=60,
            ),
        )
    )
)
def test_a_rank_of_each_role_stays_and_one_changes_at_a_time(
    case: tuple[Roles, list[RoleLoad]],
) -> None:
    roles, loads = case
    for after in decided(roles, [each for each in loads for _ in range(12)]):
        assert {P, D} <= set(after)
        assert sum(one is not other for one, other in zip(roles, after, strict=True)) <= 1
        assert list(after) == sorted(after, key=[P, D].index), "the first ranks prefill"
        roles = after


def test_roles_at_the_start() -> None:
    assert first_roles(0, 3) == (BOTH,) * 3
    assert first_roles(2, 3) == (P, P, D)
    assert first_roles("auto", 5) == (P, P, D, D, D)
    assert parse_prefill_ranks("auto") == "auto"
    assert parse_prefill_ranks("3") == 3


@pytest.mark.parametrize("given", [-1, 2, "auto", "many", True, 1.0])
def test_numbers_that_do_not_fit_are_refused(given: int | str) -> None:
    ranks = 1 if given == "auto" else 2
    with pytest.raises(ConfigError, match="prefill_ranks"):
        check_prefill_ranks(given, ranks)


def test_a_role_that_leaves_nobody_to_prefill_or_decode_is_refused() -> None:
    assert with_role((P, D), 1, BOTH) == (P, BOTH)
    with pytest.raises(ConfigError, match="role=prefill: expected another one: no other rank dec"):
        with_role((P, D), 1, P)
    with pytest.raises(ConfigError, match="role=decode: expected another one: no other rank pref"):
        with_role((P, D), 0, D)
    with pytest.raises(ConfigError, match="rank=2: expected 0 to 1"):
        with_role((P, D), 2, P)
    with pytest.raises(ConfigError, match="no other replica prefills"):
        with_role((P, D), 0, D, of="replica")
