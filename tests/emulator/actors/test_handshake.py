import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.actors.handshake import (
    CLAIM_BYTES,
    GREETING_BYTES,
    WELCOME_BYTES,
    ClientHandshake,
    HandshakeRefused,
    ServerHandshake,
)

KEY = bytes(range(32))


def test_the_proofs_are_hmacs_of_both_challenges_the_number_and_the_side() -> None:
    hub, client = ServerHandshake(KEY), ClientHandshake(KEY, 7)

    claim = client.claim(hub.greeting)
    chip, welcome = hub.welcome(claim)

    asked, number, answered = hub.greeting[16:], claim[:4], claim[4:36]
    assert number == b"\x07\x00\x00\x00"
    assert claim[36:] == hmac.digest(KEY, b"chip:" + asked + answered + b":" + number, "sha256")
    assert welcome == hmac.digest(KEY, b"hub:" + asked + answered + b":" + number, "sha256")
    assert chip == 7
    client.check(welcome)


@given(key=st.binary(min_size=1, max_size=64), chip=st.integers(0, 2**32 - 1))
def test_who_shares_the_key_is_let_in(key: bytes, chip: int) -> None:
    hub, client = ServerHandshake(key), ClientHandshake(key, chip)

    claim = client.claim(hub.greeting)
    known, welcome = hub.welcome(claim)
    client.check(welcome)

    assert known == chip
    assert (len(hub.greeting), len(claim), len(welcome)) == (
        GREETING_BYTES,
        CLAIM_BYTES,
        WELCOME_BYTES,
    )


@given(bit=st.integers(0, 8 * CLAIM_BYTES - 1))
def test_a_claim_with_any_bit_changed_is_refused(bit: int) -> None:
    hub, client = ServerHandshake(KEY), ClientHandshake(KEY, 7)
    claim = bytearray(client.claim(hub.greeting))
    claim[bit // 8] ^= 1 << bit % 8

    with pytest.raises(HandshakeRefused, match="does not know the key"):
        hub.welcome(bytes(claim))


@given(bit=st.integers(0, 8 * WELCOME_BYTES - 1))
def test_a_welcome_with_any_bit_changed_is_refused(bit: int) -> None:
    hub, client = ServerHandshake(KEY), ClientHandshake(KEY, 7)
    _, welcome = hub.welcome(client.claim(hub.greeting))
    changed = bytearray(welcome)
    changed[bit // 8] ^= 1 << bit % 8

    with pytest.raises(HandshakeRefused, match="the hub does not know the key"):
        client.check(bytes(changed))


def test_a_wrong_key_is_refused_on_either_side() -> None:
    hub, client = ServerHandshake(b"one"), ClientHandshake(b"other", 0)
    with pytest.raises(HandshakeRefused):
        hub.welcome(client.claim(hub.greeting))

    false_hub, client = ServerHandshake(b"other"), ClientHandshake(b"one", 0)
    client.claim(false_hub.greeting)
    with pytest.raises(HandshakeRefused):
        client.check(bytes(WELCOME_BYTES))


def test_a_claim_that_was_heard_before_is_worth_nothing_to_the_next_connection() -> None:
    first, second = ServerHandshake(KEY), ServerHandshake(KEY)
    claim = ClientHandshake(KEY, 0).claim(first.greeting)
    first.welcome(claim)

    with pytest.raises(HandshakeRefused):
        second.welcome(claim)


def test_a_chips_own_proof_sent_back_to_it_is_no_welcome() -> None:
    hub, client = ServerHandshake(KEY), ClientHandshake(KEY, 0)
    claim = client.claim(hub.greeting)

    with pytest.raises(HandshakeRefused):
        client.check(claim[-WELCOME_BYTES:])


def test_a_server_of_another_kind_is_no_hub() -> None:
    with pytest.raises(HandshakeRefused, match="not a hub"):
        ClientHandshake(KEY, 0).claim(b"HTTP/1.1 400 Bad Request".ljust(GREETING_BYTES))
