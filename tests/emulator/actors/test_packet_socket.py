import os
import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from emulator.actors.packet_socket import PACKET_BYTES_MAX, PacketSocket

Pair = tuple[PacketSocket, socket.socket]


def packet(body: bytes) -> bytes:
    return struct.pack("<QQ", 16 + len(body), 0) + body


@pytest.fixture
def pair() -> Iterator[Pair]:
    one, other = socket.socketpair()
    yield PacketSocket(one, 0.2), other
    one.close()
    other.close()


def test_packets_sent_as_one_come_as_they_were_cut(pair: Pair) -> None:
    end, other = pair

    other.sendall(packet(b"first") + packet(b"") + packet(b"third"))

    assert [end.receive() for _ in range(3)] == [packet(b"first"), packet(b""), packet(b"third")]


def test_a_packet_larger_than_the_buffers_passes_whole_while_the_other_end_reads(
    pair: Pair,
) -> None:
    end, other = pair
    body = os.urandom(5_000_000)
    got = bytearray()
    reader = threading.Thread(
        target=lambda: [
            got.extend(other.recv(100_000)) for _ in iter(lambda: len(got) < 5e6, False)
        ]
    )
    reader.start()

    end.send(packet(body))
    reader.join()

    assert bytes(got) == packet(body)


def test_a_packet_in_pieces_is_put_together(pair: Pair) -> None:
    end, other = pair
    whole = packet(b"in pieces")

    def dribble() -> None:
        for byte in whole:
            other.sendall(bytes([byte]))

    thread = threading.Thread(target=dribble)
    thread.start()
    assert end.receive() == whole
    thread.join()


def test_an_end_between_packets_is_the_end_and_one_within_is_an_error(pair: Pair) -> None:
    end, other = pair
    other.sendall(packet(b"last"))
    other.shutdown(socket.SHUT_WR)
    assert end.receive() == packet(b"last")
    with pytest.raises(EOFError):
        end.receive()


@pytest.mark.parametrize("cut", [1, 15, 16, 19])
def test_a_broken_packet_is_an_error(pair: Pair, cut: int) -> None:
    end, other = pair
    other.sendall(packet(b"body")[:cut])
    other.shutdown(socket.SHUT_WR)

    with pytest.raises(ConnectionError, match="within a packet"):
        end.receive()


@pytest.mark.parametrize("size", [0, 15, PACKET_BYTES_MAX + 1, 2**64 - 1])
def test_a_size_that_cannot_be_is_refused_before_memory_is_taken(pair: Pair, size: int) -> None:
    end, other = pair
    other.sendall(struct.pack("<QQ", size, 0))

    with pytest.raises(ConnectionError, match=f"a packet of {size} bytes"):
        end.receive()


@pytest.mark.long
def test_who_stalls_within_a_packet_or_takes_nothing_is_given_up_on(pair: Pair) -> None:
    end, other = pair
    other.sendall(packet(b"body")[:18])
    with pytest.raises(TimeoutError):
        end.receive()

    with pytest.raises(TimeoutError):
        end.send(packet(bytes(50_000_000)))
