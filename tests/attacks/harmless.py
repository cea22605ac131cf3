"""A harmless load: bytes through a socket pair at a given rate.

The honest client's baseline is measured beside it, so that an idle machine is not compared with a
busy one. `python -m tests.attacks.harmless BYTES_PER_S` runs until it is ended.
"""

import os
import socket
import sys
import threading
import time

PIECE_BYTES = 64 * 1024
NICENESS = 19


def move(bytes_per_s: float) -> None:
    sender, receiver = socket.socketpair()

    def read_all() -> None:
        while receiver.recv(PIECE_BYTES):
            pass

    threading.Thread(target=read_all, daemon=True).start()
    began_s, moved_bytes = time.monotonic(), 0
    while True:
        sender.sendall(bytes(PIECE_BYTES))
        moved_bytes += PIECE_BYTES
        time.sleep(max(0.0, began_s + moved_bytes / bytes_per_s - time.monotonic()))


if __name__ == "__main__":
    os.nice(NICENESS)
    move(float(sys.argv[1]))
