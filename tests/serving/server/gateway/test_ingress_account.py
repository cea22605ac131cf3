"""The account of what is held: its sums, who makes room for whom, and whose limit it is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule
from prometheus_client import CollectorRegistry

from emulator.errors import ConfigError
from serving.server.gateway.ingress_account import Holding, IngressAccount
from serving.server.gateway.ingress_limits import IngressLimits, Limit
from serving.telemetry.gateway_metrics import IngressMetrics

LIMITS = IngressLimits(
    strangers_max=3,
    stranger_bytes_max=100,
    key_connections_max=5,
    key_bytes_max=60,
    total_bytes_max=90,
)


class Owner:
    """Remembers how it was cut off."""

    def __init__(self) -> None:
        self.cut_by: Limit | None = None

    def cut_off(self, limit: Limit) -> None:
        assert self.cut_by is None, "cut off twice"
        self.cut_by = limit


def test_one_stranger_too_many_closes_the_one_that_came_first() -> None:
    account, owners = IngressAccount(LIMITS), [Owner() for _ in range(5)]
    holdings = [account.arrive(owner) for owner in owners]
    assert [owner.cut_by for owner in owners] == [Limit.STRANGERS] * 2 + [None] * 3
    assert [holding.is_open for holding in holdings] == [False] * 2 + [True] * 3


def test_who_is_authenticated_makes_room_for_nobody() -> None:
    account, owners = IngressAccount(LIMITS), [Owner() for _ in range(5)]
    for owner in owners:
        account.authenticate(account.arrive(owner), "alice")
    assert [owner.cut_by for owner in owners] == [None] * 5
    assert account.strangers == 0


def test_bytes_are_made_room_for_by_strangers_that_hold_some_and_never_by_a_key() -> None:
    account, owners = IngressAccount(LIMITS), [Owner() for _ in range(3)]
    idle, first, second = (account.arrive(owner) for owner in owners)
    keyed = account.open("alice")
    assert account.hold(keyed, 60) is None
    assert account.hold(first, 70) is None
    assert account.hold(second, 40) is None
    assert [owner.cut_by for owner in owners] == [None, Limit.STRANGER_BYTES, None]
    assert (account.stranger_bytes, account.bytes_of("alice")) == (40, 60)
    assert idle.is_open
    assert account.hold(first, 1) is Limit.STRANGER_BYTES  # it was cut off


def test_a_key_s_limit_is_its_own_and_all_keys_share_one_more() -> None:
    account = IngressAccount(LIMITS)
    alice, bob = account.open("alice"), account.open("bob")
    assert account.hold(alice, 60) is None
    assert account.hold(alice, 1) is Limit.KEY_BYTES
    assert account.hold(bob, 30) is None
    assert account.hold(bob, 1) is Limit.TOTAL_BYTES
    account.leave(alice)
    account.leave(alice)
    assert account.hold(bob, 30) is None
    assert account.refusals == {Limit.KEY_BYTES: 1, Limit.TOTAL_BYTES: 1}


def test_what_a_stranger_holds_goes_with_it_to_its_key() -> None:
    account = IngressAccount(LIMITS)
    holding = account.arrive(Owner())
    account.hold(holding, 50)
    account.authenticate(holding, "alice")
    assert (account.stranger_bytes, account.bytes_of("alice")) == (0, 50)
    account.authenticate(holding, "bob")
    assert (account.bytes_of("alice"), account.bytes_of("bob")) == (0, 50)


def test_a_key_s_connections_are_bounded_and_one_too_many_stays_a_stranger_s() -> None:
    account = IngressAccount(LIMITS)
    holdings = [account.arrive(Owner()) for _ in range(3)]
    first, *_ = holdings
    for holding in holdings:
        assert account.authenticate(holding, "alice") is None
    for _ in range(2):
        assert account.authenticate(account.arrive(Owner()), "alice") is None
    late = account.arrive(Owner())
    assert account.authenticate(late, "alice") is Limit.KEY_CONNECTIONS
    assert (account.strangers, account.connections_of("alice")) == (1, 5)
    assert account.authenticate(first, "alice") is None  # its next request
    assert account.authenticate(late, "bob") is None
    account.leave(first)
    assert account.authenticate(account.arrive(Owner()), "alice") is None
    assert account.refusals == {Limit.KEY_CONNECTIONS: 1}
    account.check()


def test_what_is_held_and_refused_is_in_the_metrics() -> None:
    registry = CollectorRegistry()
    metrics = IngressMetrics(Limit, registry)
    account = IngressAccount(LIMITS, on_refusal=metrics.refused)
    metrics.follow(
        keyed_bytes=lambda: account.keyed_bytes,
        stranger_bytes=lambda: account.stranger_bytes,
        strangers=lambda: account.strangers,
    )
    account.hold(account.arrive(Owner()), 7)
    alice = account.open("alice")
    account.hold(alice, 60)
    account.hold(alice, 1)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"ultraserve_ingress_{name}", labels)

    assert value("held_bytes", credential="none") == 7
    assert value("held_bytes", credential="key") == 60
    assert value("unauthenticated_connections") == 1
    assert value("refused_total", limit="key_bytes") == 1
    assert value("refused_total", limit="head_bytes") == 0


@given(st.integers(min_value=0, max_value=2**30))
def test_time_grows_with_what_has_come(received_bytes: int) -> None:
    limits = IngressLimits(body_wait_s=20.0, bytes_per_s_min=100.0)
    assert limits.time_s(received_bytes) == 20.0 + received_bytes / 100.0


@pytest.mark.parametrize("name", ["strangers_max", "head_wait_s", "key_bytes_max"])
def test_a_limit_that_nothing_passes_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        IngressLimits(**{name: 0})


@given(st.integers(min_value=1, max_value=2**32))
def test_a_key_may_send_two_of_the_largest_bodies(body_bytes_max: int) -> None:
    limits = IngressLimits.of(body_bytes_max)
    assert limits.total_bytes_max >= limits.key_bytes_max >= 2 * body_bytes_max


class Life(RuleBasedStateMachine):
    """Holdings that come, grow, shrink, are authenticated and go, in any order."""

    holdings: Bundle[Holding] = Bundle("holdings")
    sizes = st.integers(min_value=0, max_value=120)
    keys = st.sampled_from(["alice", "bob"])

    def __init__(self) -> None:
        super().__init__()
        self.account = IngressAccount(LIMITS)
        self.all: list[Holding] = []

    @rule(target=holdings)
    def arrive(self) -> Holding:
        self.all.append(self.account.arrive(Owner()))
        return self.all[-1]

    @rule(target=holdings, key=keys)
    def open(self, key: str) -> Holding:
        self.all.append(self.account.open(key))
        return self.all[-1]

    @rule(holding=holdings, size=sizes)
    def hold(self, holding: Holding, size: int) -> None:
        before = holding.held_bytes
        limit = self.account.hold(holding, size)
        if holding.is_open:
            assert holding.held_bytes == before + (0 if limit else size)

    @rule(holding=holdings, size=sizes)
    def release(self, holding: Holding, size: int) -> None:
        self.account.release(holding, size)

    @rule(holding=holdings, key=keys)
    def authenticate(self, holding: Holding, key: str) -> None:
        self.account.authenticate(holding, key)

    @rule(holding=consumes(holdings))
    def leave(self, holding: Holding) -> None:
        self.account.leave(holding)

    @invariant()
    def sums_are_right_and_limits_hold(self) -> None:
        self.account.check()
        opened = [each for each in self.all if each.is_open]
        assert self.account.held_bytes == sum(each.held_bytes for each in opened)
        assert self.account.strangers == sum(each.key is None for each in opened)
        for key in ("alice", "bob"):
            connections = sum(each.key == key and each.owner is not None for each in opened)
            assert self.account.connections_of(key) == connections <= LIMITS.key_connections_max
        assert self.account.strangers <= LIMITS.strangers_max
        assert self.account.stranger_bytes <= LIMITS.stranger_bytes_max
        assert all(not each.held_bytes for each in self.all if not each.is_open)


TestLife = Life.TestCase
