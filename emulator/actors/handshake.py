"""Mutual proof of a key between hub and chip, before any message is decoded.

The hub greets with a challenge; the chip answers with its number, its own challenge and a proof;
the hub answers with its proof. A proof is an HMAC-SHA256 over both challenges, the chip's number
and the proving side, against replay, reuse for another chip, and reflection. Later packets are
neither encrypted nor signed: the network must be trusted, as for Ray's own calls.
"""

import hmac
import secrets
from typing import Final

_MAGIC: Final = b"ultraserve chip\x01"
_CHALLENGE_BYTES: Final = 32
_NUMBER_BYTES: Final = 4
_PROOF_BYTES: Final = 32

GREETING_BYTES: Final = len(_MAGIC) + _CHALLENGE_BYTES
CLAIM_BYTES: Final = _NUMBER_BYTES + _CHALLENGE_BYTES + _PROOF_BYTES
WELCOME_BYTES: Final = _PROOF_BYTES


class HandshakeRefused(ConnectionError):
    """The other end is no hub or chip of ours, or does not know the key."""


class ServerHandshake:
    """The hub's side of one connection: send `greeting`, then the result of `welcome`."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._challenge = secrets.token_bytes(_CHALLENGE_BYTES)
        self.greeting = _MAGIC + self._challenge

    def welcome(self, claim: bytes) -> tuple[int, bytes]:
        """Return the number and answer to a `claim` [CLAIM_BYTES]; raises HandshakeRefused."""
        number = claim[:_NUMBER_BYTES]
        challenge = claim[_NUMBER_BYTES : _NUMBER_BYTES + _CHALLENGE_BYTES]
        both = self._challenge + challenge
        if not hmac.compare_digest(claim[-_PROOF_BYTES:], _proof(self._key, b"chip", both, number)):
            raise HandshakeRefused("a stranger does not know the key")
        return int.from_bytes(number, "little"), _proof(self._key, b"hub", both, number)


class ClientHandshake:
    """A chip's side: answer the greeting with `claim`, then `check` the welcome."""

    def __init__(self, key: bytes, chip: int) -> None:
        self._key = key
        self._number = chip.to_bytes(_NUMBER_BYTES, "little")
        self._challenge = secrets.token_bytes(_CHALLENGE_BYTES)
        self._both = b""

    def claim(self, greeting: bytes) -> bytes:
        """Answer a hub's `greeting` [GREETING_BYTES]; raises HandshakeRefused."""
        if not greeting.startswith(_MAGIC):
            raise HandshakeRefused("this is not a hub")
        self._both = greeting[len(_MAGIC) :] + self._challenge
        proof = _proof(self._key, b"chip", self._both, self._number)
        return self._number + self._challenge + proof

    def check(self, welcome: bytes) -> None:
        """Raise HandshakeRefused unless `welcome` [WELCOME_BYTES] proves the hub's key."""
        wanted = _proof(self._key, b"hub", self._both, self._number)
        if not hmac.compare_digest(welcome, wanted):
            raise HandshakeRefused("the hub does not know the key")


def _proof(key: bytes, side: bytes, challenges: bytes, number: bytes) -> bytes:
    return hmac.digest(key, b":".join((side, challenges, number)), "sha256")
