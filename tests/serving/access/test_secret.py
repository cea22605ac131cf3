"""Secrets: how many bits, and that their hash is the one that every system makes."""

import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.access.secret import digest_in, digest_of, draw_secret, hash_of, is_hash


@pytest.mark.process
def test_the_hash_is_what_sha256sum_prints() -> None:
    # The digest of "abc" is FIPS 180-2's own example.
    wanted = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert hash_of("abc") == f"sha256:{wanted}"
    printed = subprocess.run(["sha256sum"], input=b"abc", capture_output=True, check=True)
    assert printed.stdout.split()[0].decode() == wanted


def test_a_drawn_secret_has_256_bits_and_is_never_drawn_again() -> None:
    drawn = {draw_secret() for _ in range(1_000)}

    assert len(drawn) == 1_000
    # 32 bytes are 43 characters of base64.
    assert {len(secret) for secret in drawn} == {len("us-") + 43}
    assert all(secret.isascii() and secret.startswith("us-") for secret in drawn)


@pytest.mark.long
@given(st.text())
def test_every_text_has_a_hash_that_spells_its_digest(text: str) -> None:
    assert is_hash(hash_of(text))
    assert digest_in(hash_of(text)) == digest_of(text)


def test_only_what_the_hash_makes_is_a_hash() -> None:
    right = hash_of("a")
    for wrong in ("", "a", right.upper(), right[:-1], right + "0", f"{right}\n", right[7:]):
        assert not is_hash(wrong)


def test_a_text_that_is_no_unicode_is_hashed_all_the_same() -> None:
    assert hash_of("\udcff") != hash_of("\udcfe")
