"""SIGHUP: a reload for a daemon, and the end for what hangs on a terminal that closes."""

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from serving.access.key_file_edit import revoke_key
from tests.serving.access.key_files import written

pytestmark = pytest.mark.process

PROGRAM = """
import asyncio, signal, sys
from pathlib import Path
if sys.argv[2:] != ["ignoring"]:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # who started the tests may ignore it
from serving.access.key_ring import KeyReload
from serving.access.key_ring import KeyRing
from tests.serving.access.key_files import ALICE

async def main():
    ring = KeyRing(key_file=Path(sys.argv[1]), clock=lambda: 0.0)  # it looks at no file by itself
    reload = KeyReload(ring)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    await reload.start()
    print("ready", flush=True)
    while ring.client_of(ALICE) is not None and not ended.is_set():
        await asyncio.sleep(0.01)
    print("ended" if ended.is_set() else "reloaded", file=sys.stderr, flush=True)
    await reload.stop()
    await reload.stop()
    print(signal.getsignal(signal.SIGHUP).name, file=sys.stderr, flush=True)

asyncio.run(main())
"""


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    return written(tmp_path)


def test_a_daemon_reads_the_keys_again(keys: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(keys)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as daemon:
        assert daemon.stdout is not None
        assert daemon.stdout.readline() == "ready\n"
        revoke_key(keys, "alice")
        daemon.send_signal(signal.SIGHUP)
        _, told = daemon.communicate(timeout=30)

    assert (daemon.returncode, told) == (0, "reloaded\nSIG_DFL\n")


def at_a_terminal(keys: Path, error: Path, *, ignoring: bool) -> tuple[int, int]:
    """Start the program as a terminal's leader; returns its id and the terminal's other end."""
    pid, terminal = pty.fork()
    if pid == 0:  # the child becomes the program
        if ignoring:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
        os.dup2(os.open(error, os.O_WRONLY | os.O_CREAT), 2)
        command = [sys.executable, "-c", PROGRAM, str(keys), *["ignoring"] * ignoring]
        os.execv(sys.executable, command)
    told = b""
    while not told.endswith(b"\n"):  # a line comes to a terminal in pieces
        told += os.read(terminal, 100)
    assert told == b"ready\r\n"
    return pid, terminal


@pytest.mark.parametrize("ignoring", [False, True])
def test_at_a_terminal_the_signal_reloads_too(keys: Path, tmp_path: Path, ignoring: bool) -> None:
    error = tmp_path / "error"
    pid, terminal = at_a_terminal(keys, error, ignoring=ignoring)
    revoke_key(keys, "alice")
    os.kill(pid, signal.SIGHUP)
    assert os.waitpid(pid, 0)[1] == 0
    os.close(terminal)

    assert error.read_text() == f"reloaded\n{'SIG_IGN' if ignoring else 'SIG_DFL'}\n"


def test_a_terminal_that_closes_ends_the_server(keys: Path, tmp_path: Path) -> None:
    error = tmp_path / "error"
    pid, terminal = at_a_terminal(keys, error, ignoring=False)
    os.close(terminal)
    assert os.waitpid(pid, 0)[1] == 0

    assert error.read_text() == "ended\nSIG_DFL\n"


def test_a_server_that_was_told_to_outlive_its_terminal_does(keys: Path, tmp_path: Path) -> None:
    error = tmp_path / "error"
    pid, terminal = at_a_terminal(keys, error, ignoring=True)
    revoke_key(keys, "alice")
    os.close(terminal)
    assert os.waitpid(pid, 0)[1] == 0

    assert error.read_text() == "reloaded\nSIG_IGN\n"
