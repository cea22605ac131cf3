"""A signal that another thread of the process gets, while the main thread waits for a lock."""

import subprocess
import sys

import pytest

WAITING = """
import signal, sys, threading, time

heard = threading.Lock()
heard.acquire()
signal.signal(signal.SIGTERM, lambda *_: heard.release())
if sys.argv[1] == "relayed":
    from serving.process.engine_signals import relay_signals
    relay_signals()

def send():
    time.sleep(0.5)  # the main thread waits by then
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

threading.Thread(target=send, daemon=True).start()
heard.acquire()
print("heard", flush=True)
"""


def outcome(how: str, wall_s: float) -> str:
    """What a process says that waits for such a signal."""
    command = [sys.executable, "-c", WAITING, how]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=wall_s, check=True)
    return ended.stdout.strip()


@pytest.mark.process
def test_a_waiting_main_thread_hears_it() -> None:
    assert outcome("relayed", 60.0) == "heard"


@pytest.mark.process
def test_it_would_not_by_itself() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        outcome("bare", 3.0)
