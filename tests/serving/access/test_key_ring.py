"""The ring: whose a secret is, what it opens, and that a file's changes come through."""

import hmac
import logging.handlers
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from emulator.errors import ConfigError
from serving.access.key_file_edit import add_key, revoke_key
from serving.access.key_ring import LOOK_EVERY_S, SETTLED_S, KeyRing
from serving.access.secret import hash_of
from serving.access.stored_key import Scope, StoredKey
from serving.policy.admission.work import Client, KeyLimits, WorkClass
from tests.serving.access.key_files import ALICE, BATCH, OPS, PAST, TEXT, written

LIMITS = KeyLimits(requests_per_minute=60, tokens_per_minute=10_000, concurrent=2)


class Clock:
    """A clock that is set by hand; its wall is in 2026."""

    def __init__(self) -> None:
        self.seconds = 100.0
        self.wall = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> float:
        return self.seconds

    def now(self) -> datetime:
        return self.wall

    def pass_interval(self) -> None:
        self.seconds += LOOK_EVERY_S


def ring_of(path: Path, clock: Clock | None = None) -> KeyRing:
    clock = clock or Clock()
    return KeyRing(key_file=path, clock=clock, now=clock.now)


def test_each_secret_opens_what_its_key_says(tmp_path: Path) -> None:
    ring = ring_of(written(tmp_path))

    alice = ring.client_of(ALICE)
    assert alice is not None
    assert (alice.name, alice.limits.requests_per_minute) == ("alice", 60)
    batch = ring.client_of(BATCH)
    assert batch is not None
    assert batch.work_class is WorkClass.BATCH
    assert ring.client_of(OPS) is None
    ops = ring.key_of(OPS)
    assert ops is not None
    assert (ops.client, ops.scopes) == (Client(name="ops"), {"control"})
    assert [ring.admits_control(secret) for secret in (ALICE, BATCH, OPS)] == [False, True, True]


@pytest.mark.parametrize("secret", [None, "", "another", ALICE + " ", ALICE.upper(), "\udcff"])
def test_what_is_no_key_opens_nothing(secret: str | None, tmp_path: Path) -> None:
    ring = ring_of(written(tmp_path))

    assert ring.client_of(secret) is None
    assert ring.key_of(secret) is None
    assert not ring.admits_control(secret)


def test_a_hash_does_not_open_what_its_secret_does(tmp_path: Path) -> None:
    assert ring_of(written(tmp_path)).client_of(hash_of(ALICE)) is None


def test_an_empty_secret_is_no_key_even_when_somebody_has_hashed_it() -> None:
    ring = KeyRing(key_hashes=[hash_of("")])

    assert ring.client_of(None) is None


def test_a_key_opens_nothing_from_the_moment_it_expires(tmp_path: Path) -> None:
    clock = Clock()
    ring = ring_of(written(tmp_path), clock)
    assert ring.client_of(PAST) is None
    clock.wall = datetime(2000, 12, 31, tzinfo=UTC)
    assert ring.client_of(PAST) is not None
    clock.wall = datetime(2999, 1, 1, tzinfo=UTC)
    assert not ring.admits_control(OPS)


def test_without_any_key_everybody_is_anonymous_but_the_control_service_stays_shut() -> None:
    ring = KeyRing(control_secret="this run's")

    assert ring.is_open
    assert ring.client_of(None) == ring.client_of("anything") == Client(name="anonymous")
    assert not ring.admits_control(None)
    assert not ring.admits_control("anything")
    assert ring.admits_control("this run's")
    assert not KeyRing().admits_control(None)


def test_the_run_s_own_key_opens_the_control_service_alone() -> None:
    ring = KeyRing(key_hashes=[hash_of("a client's")], control_secret="this run's")

    assert ring.admits_control("this run's")
    assert ring.client_of("this run's") is None
    assert not ring.admits_control("a client's")


def test_keys_of_flags_are_clients_of_their_own_beside_those_of_the_file(tmp_path: Path) -> None:
    ring = KeyRing(key_file=written(tmp_path), key_hashes=(hash_of("one"), hash_of("two")))

    assert not ring.is_open
    assert [ring.client_of(secret) for secret in ("one", "two")] == [
        Client(name="(key 1)"),
        Client(name="(key 2)"),
    ]
    assert ring.client_of(ALICE) is not None


def test_a_file_without_a_key_refuses_everybody(tmp_path: Path) -> None:
    ring = ring_of(written(tmp_path, ""))

    assert not ring.is_open
    assert ring.client_of(None) is None
    assert ring.client_of(ALICE) is None


def test_a_change_of_the_file_is_seen_at_the_next_look_and_no_sooner(tmp_path: Path) -> None:
    clock, path = Clock(), written(tmp_path)
    ring = ring_of(path, clock)
    revoke_key(path, "alice")
    add_key(path, StoredKey(client=Client(name="new"), hash=hash_of("new")))

    clock.seconds += LOOK_EVERY_S / 2
    assert ring.client_of(ALICE) is not None
    clock.seconds += LOOK_EVERY_S / 2
    assert ring.client_of(ALICE) is None
    assert ring.client_of("new") == Client(name="new")


def test_a_file_that_is_being_written_is_read_when_it_was_left_alone(tmp_path: Path) -> None:
    clock, path = Clock(), written(tmp_path)
    ring = ring_of(path, clock)
    clock.pass_interval()
    path.write_text(TEXT.split("# works at night")[0])  # TOML, and half of what it will be
    clock.wall = datetime.fromtimestamp(path.stat().st_mtime + 0.01, UTC)
    assert ring.client_of(BATCH) is not None
    clock.wall += timedelta(seconds=SETTLED_S)
    path.write_text(TEXT.replace("alice", "alicia"))
    os.utime(path, (clock.wall.timestamp(), clock.wall.timestamp()))

    clock.seconds += SETTLED_S
    assert ring.client_of(ALICE) == Client(name="alice", limits=LIMITS)
    clock.wall += timedelta(seconds=SETTLED_S + 0.001)
    clock.seconds += SETTLED_S
    assert ring.client_of(ALICE) == Client(name="alicia", limits=LIMITS)
    assert ring.client_of(BATCH) is not None


def test_a_reload_that_was_asked_for_reads_what_is_there(tmp_path: Path) -> None:
    clock, path = Clock(), written(tmp_path)
    ring = ring_of(path, clock)
    path.write_text("")
    clock.wall = datetime.fromtimestamp(path.stat().st_mtime + 0.01, UTC)
    ring.reload()
    assert ring.client_of(ALICE) is None


def test_a_reload_is_told_where_vllm_s_server_shows_lines(tmp_path: Path) -> None:
    shown = logging.handlers.BufferingHandler(capacity=10)
    vllm = logging.getLogger("vllm")  # the one name that it gives a handler
    vllm.addHandler(shown)
    try:
        ring = ring_of(written(tmp_path))
        written(tmp_path, "key")
        ring.reload()
    finally:
        vllm.removeHandler(shown)

    (told,) = [record.getMessage() for record in shown.buffer]
    assert told.startswith("keys stay as they were: ")


def test_a_reload_does_not_wait_for_the_next_look_and_is_not_done_again_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    clock, path = Clock(), written(tmp_path)
    ring = ring_of(path, clock)
    revoke_key(path, "alice")
    ring.reload()
    assert ring.client_of(ALICE) is None
    clock.pass_interval()
    assert ring.client_of(ALICE) is None
    assert [record.getMessage() for record in caplog.records] == [f"3 keys of {path}"]
    KeyRing().reload()


def test_a_file_that_becomes_wrong_keeps_the_old_keys_and_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock, path = Clock(), written(tmp_path)
    ring = ring_of(path, clock)
    path.write_text(TEXT.replace('class = "batch"', 'class = "fast"'))
    for _ in range(3):
        clock.pass_interval()
        assert ring.client_of(ALICE) is not None

    (told,) = [record.getMessage() for record in caplog.records]
    assert told == (
        f"keys stay as they were: {path}: key 2, class='fast': expected interactive or batch"
    )
    path.write_text(TEXT.replace("alice's", "alice's"))
    clock.pass_interval()
    assert ring.client_of(BATCH) is not None


def test_a_file_that_is_gone_keeps_the_keys_until_there_is_another(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock, path = Clock(), written(tmp_path)
    ring = ring_of(path, clock)
    path.unlink()
    for _ in range(2):
        clock.pass_interval()
        assert ring.client_of(ALICE) is not None
    assert len(caplog.records) == 1

    written(tmp_path, "")
    clock.pass_interval()
    assert ring.client_of(ALICE) is None


def test_a_file_that_is_wrong_at_the_start_makes_no_ring(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"key 1, name=None"):
        ring_of(written(tmp_path, "[[key]]\n"))


def test_no_secret_and_no_hash_is_ever_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    path = written(tmp_path)
    ring = KeyRing(key_file=path, key_hashes=[hash_of("flag")], control_secret="this run's")
    for secret in (ALICE, "flag", "this run's", "a guess"):
        ring.client_of(secret)
        ring.admits_control(secret)
    ring.reload()
    path.write_text(f"{TEXT}\n[[key]]\nhash = '{ALICE}'\n")
    ring.reload()

    assert len(caplog.records) == 2
    for word in (ALICE, "flag", "this run's", "a guess", "sha256:"):
        assert word not in caplog.text.replace("and 64 small hex digits", "").replace(
            "expected sha256:", ""
        )


@pytest.mark.parametrize("secret", [ALICE, PAST, "another", None])
def test_every_secret_is_compared_with_every_key(
    secret: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[bytes] = []
    equal = hmac.compare_digest

    def compare(key: bytes, given: bytes) -> bool:
        compared.append(key)
        return equal(key, given)

    ring = KeyRing(key_file=written(tmp_path), key_hashes=[hash_of("flag")], control_secret="run")
    monkeypatch.setattr(hmac, "compare_digest", compare)
    ring.client_of(secret)
    assert len(set(compared)) == len(compared) == 5
    compared.clear()
    ring.admits_control(secret)
    assert len(set(compared)) == len(compared) == 6


def test_only_a_control_scope_opens_the_control_service(tmp_path: Path) -> None:
    for scopes, opens in (({Scope.INFERENCE}, False), ({Scope.CONTROL}, True), (Scope, True)):
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.toml"
        add_key(
            path,
            StoredKey(client=Client(name="a"), hash=hash_of("a"), scopes=frozenset(scopes)),
        )
        assert KeyRing(key_file=path).admits_control("a") is opens
