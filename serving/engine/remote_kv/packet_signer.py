"""Signatures of what two engines say to each other.

Each draws a nonce for a connection. Of the operator's key and both nonces comes a key for each
direction, and each packet has an HMAC-SHA256 with its direction's key over its number and its
bytes. So who signs knows the operator's key, and a packet of another connection, the other
direction or another place is refused, as is one that was changed. Nothing is encrypted.
"""

import hmac
from enum import Enum
from typing import Final

NONCE_BYTES: Final = 32
SIGNATURE_BYTES: Final = 32

_PURPOSE: Final = b"ultraserve kv 2:"


class KvSide(Enum):
    """Who signs."""

    READER = b"reader:"
    HOLDER = b"holder:"


class PacketSigner:
    """Signs the packets of one direction in order, or says what their signatures must be."""

    def __init__(
        self, key: bytes, side: KvSide, *, holder_nonce: bytes, reader_nonce: bytes
    ) -> None:
        context = _PURPOSE + side.value + holder_nonce + reader_nonce
        self._key = hmac.digest(key, context, "sha256")
        self._packets = 0

    def sign(self, packet: bytes) -> bytes:
        """The signature [SIGNATURE_BYTES] of the next packet."""
        signature = hmac.new(self._key, self._packets.to_bytes(8, "little"), "sha256")
        signature.update(packet)
        self._packets += 1
        return signature.digest()

    def signs(self, packet: bytes, signature: bytes) -> bool:
        """Whether `signature` is that of the next packet."""
        return hmac.compare_digest(self.sign(packet), signature)
