"""One server for a while under mixed protocols, goings, faults and drains: do its books close?

    python -m tests.benchmarks soak --minutes 30 --seed 1

Clients of both protocols and both classes, with keys of different limits, ask in a closed loop with
pauses, and in bursts. Some leave, abort, or have no time; some ask nonsense. Meanwhile chips are
lost, hang, slow down and are repaired, ranks are lent out and come back, and the engine's gateway
is closed and opened. At the end everything is repaired, and

    requests that entered  =  finished + aborted + failed + refused after they had waited,
    the clients' counts are the gateway's, by reason, and the gateway's are vLLM's own,
    every KV block is free,
    of each kind there are as many processes as after a sixth of the run, and all of them, and the
    largest, have the memory that they had then, within 5 % (in a run of less than six minutes
    KV pools are still written for the first time, and they have not).

Prints figures and what does not hold; the exit code is 1 when something does not. What is random
follows from the seed; when it meets the server does not, for both run in wall time.
"""

import argparse
import asyncio
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

from serving.server.control.control_address import ControlAddress
from serving.server.control.control_client import ControlClient
from serving.wire import control_call
from tests.benchmarks.soak.asks import CONTEXT_TOKENS, Ask, Ending, Protocol, asks
from tests.benchmarks.soak.books import ClientBooks, EngineBooks, ServerBooks, differences
from tests.benchmarks.soak.grpc_client import GrpcClient
from tests.benchmarks.soak.http_client import HttpClient
from tests.benchmarks.soak.memory import MemoryWatch, changes
from tests.benchmarks.soak.troubles import Troubles
from tests.e2e.server_answers import metrics
from tests.e2e.server_process import HOST, ULTRASERVE, ServerProcess, free_port, started

CHIPS, SPARES, SEATS = 4, 1, 8
BLOCKS = 320
"""Of a rank's KV pool: few enough to be all written long before a sixth of the run is over; memory
touched for the first time would look like a leak.
"""
DILATION = 200  # steps of the bundled model then take about as long as two cores compute them
USERS, THINKS_S = 12, 0.5
BURST_ASKS, BURST_EVERY_S = 60, 30.0
BODY_BYTES_MAX = 4 * 2**20
CONTROL_TIMEOUT_S = 60.0
MEMORY_EVERY_S = 5.0
MEMORY_SHARE = 0.05
SETTLED_READINGS, SETTLED_EVERY_S = 3, 2.0
EMPTY_S_MAX = 60.0

KEYS = (
    ("plain",),
    ("batch", "--class", "batch"),
    ("narrow", "--concurrent", "4"),
    ("slow", "--requests-per-minute", "120", "--tokens-per-minute", "40000"),
)


def made_keys(file: Path) -> list[str]:
    command = [*ULTRASERVE, "key", "create", "--file", str(file)]
    return [
        subprocess.run([*command, *key], check=True, capture_output=True, text=True).stdout.strip()
        for key in KEYS
    ]


class Soak:
    def __init__(self, server: ServerProcess, grpc_port: int, *, seed: int, seconds: float) -> None:
        self._server, self._grpc_port = server, grpc_port
        self._seed, self._seconds = seed, seconds
        self._began_s = time.monotonic()
        self.books = ClientBooks()
        self.memory = MemoryWatch(server)

    @property
    def now_s(self) -> float:
        return time.monotonic() - self._began_s

    async def run(self, keys: list[str]) -> None:
        """Run all clients until the time is over and every request has ended."""
        http = HttpClient(self._server.url, keys=keys, body_bytes_max=BODY_BYTES_MAX)
        address = f"{HOST}:{self._grpc_port}"
        grpc = GrpcClient(address, keys=keys, body_bytes_max=BODY_BYTES_MAX)
        self._clients = {Protocol.HTTP: http, Protocol.GRPC: grpc}
        watching = asyncio.create_task(self._watch())
        try:
            async with asyncio.TaskGroup() as group:
                for user in range(USERS):
                    group.create_task(self._user(user))
                group.create_task(self._bursts())
        finally:
            watching.cancel()
            await http.close()
            await grpc.close()

    async def _user(self, user: int) -> None:
        for ask in asks(self._seed, user, keys=len(KEYS)):
            if self.now_s >= self._seconds:
                return
            await self._ask(ask)
            await asyncio.sleep(ask.leaves_after_s * THINKS_S)

    async def _bursts(self) -> None:
        drawn = asks(self._seed, USERS, keys=len(KEYS))
        while self.now_s + BURST_EVERY_S < self._seconds:
            await asyncio.sleep(BURST_EVERY_S)
            async with asyncio.TaskGroup() as group:
                for _ in range(BURST_ASKS):
                    group.create_task(self._ask(next(drawn)))

    async def _ask(self, ask: Ask) -> None:
        ending: Ending = await self._clients[ask.protocol].ask(ask)
        self.books.note(ask, ending)

    async def _watch(self) -> None:
        """Read the server's memory periodically; print the state each minute."""
        said = 0
        while True:
            await asyncio.to_thread(self.memory.read, self.now_s)
            if int(self.now_s / 60) > said:
                said = int(self.now_s / 60)
                held = ", ".join(
                    f"{role} {each.processes} with {each.total_bytes / 1e6:,.0f} MB"
                    for role, each in sorted(self.memory.readings[-1][1].items())
                )
                print(f"minute {said}: {self.books.sent} requests; {held}", file=sys.stderr)
            await asyncio.sleep(MEMORY_EVERY_S)


def until_empty(control: ControlClient) -> ServerBooks:
    """The server's books once it is empty, or after EMPTY_S_MAX."""
    end_s = time.monotonic() + EMPTY_S_MAX
    while True:
        books = ServerBooks.of(control.call(control_call.GET_ADMISSION))
        ranks = control.call(control_call.GET_STATE).ranks
        empty = not any(each.requests_running or each.requests_waiting for each in ranks)
        if (empty and not books.in_flight) or time.monotonic() > end_s:
            return books
        time.sleep(0.5)  # polls another process


def grown(memory: MemoryWatch, seconds: float) -> list[str]:
    """Print each role's memory; returns changes by more than the share, in words.

    Late readings are of a whole machine; of the early ones, those that show one count.
    """
    early_s, to_s = seconds / 6, seconds / 4
    early = [reading for reading in memory.readings if early_s <= reading[0] <= to_s]
    late = [reading for reading in memory.readings if reading[0] >= seconds]
    return changes(early, late[-SETTLED_READINGS:], MEMORY_SHARE)


def report(soak: Soak, troubles: Troubles, server: ServerBooks, engine: EngineBooks) -> None:
    books = soak.books
    print(f"requests sent: {books.sent}")
    for name, counts in (
        ("ended", books.ends),
        ("refused", books.refusals),
        ("invalid", books.invalids),
        ("by", books.by_kind),
    ):
        print(f"  {name}: " + ", ".join(f"{key} {count}" for key, count in counts.most_common()))
    print(f"  of those whose client went, {books.begun} had begun, {len(books.silent)} were silent")
    print(f"  longest refusal of interactive work: {books.longest_refusal_s:.3f} s")
    print(f"server: entered {server.entered}, left {dict(server.left)}")
    print(f"  refused: {dict(server.refused)}")
    print(f"engine: finished {engine.finished}, {engine.sequences} sequences")
    print(f"troubles: {dict(troubles.counts)}; refused: {dict(troubles.refused)}")
    for line in books.broken:
        print(f"  broken: {line}")


def run(minutes: float, seed: int) -> int:
    """Soak a server of its own; returns 1 for any failure."""
    seconds, grpc_port = minutes * 60, free_port()
    with tempfile.TemporaryDirectory(prefix="soak") as folder:
        keys, control_key = made_keys(Path(folder, "keys.toml")), secrets.token_urlsafe(32)
        key_file = Path(folder, "control.key")
        key_file.touch(mode=0o600)
        key_file.write_text(control_key)
        arguments = [
            *("--chips", str(CHIPS), "--spares", str(SPARES), "--max-num-seqs", str(SEATS)),
            *("--clock", f"dilated:{DILATION}", "--hang-timeout", str(4 / DILATION)),
            *("--max-model-len", str(CONTEXT_TOKENS), "--num-gpu-blocks-override", str(BLOCKS)),
            *("--queue-requests", "24", "--batch-queue-requests", "24"),
            *("--batch-wait", str(20 / DILATION), "--disable-uvicorn-access-log"),
            *("--api-keys", str(Path(folder, "keys.toml")), "--grpc-port", str(grpc_port)),
            *("--max-body-bytes", str(BODY_BYTES_MAX), "--control-key-file", str(key_file)),
        ]
        with started(ULTRASERVE, *arguments) as server:
            server.wait_ready()
            address = ControlAddress(port=server.control_port)
            with ControlClient(address, CONTROL_TIMEOUT_S, key=control_key) as control:
                return soak_server(server, control, grpc_port, keys, seconds, seed)


def soak_server(
    server: ServerProcess,
    control: ControlClient,
    grpc_port: int,
    keys: list[str],
    seconds: float,
    seed: int,
) -> int:
    soak = Soak(server, grpc_port, seed=seed, seconds=seconds)
    troubles = Troubles(control, seed=seed, chips=CHIPS)
    thread = threading.Thread(target=troubles.run)
    thread.start()
    try:
        asyncio.run(soak.run(keys))
    finally:
        troubles.stopped = True
        thread.join()
    books = until_empty(control)
    for _ in range(SETTLED_READINGS):
        time.sleep(SETTLED_EVERY_S)  # what has ended is buried, what was healed has started
        soak.memory.read(soak.now_s)
    engine = EngineBooks.of(metrics(server, keys[0]))
    report(soak, troubles, books, engine)
    wrong = [*differences(soak.books, books, engine), *soak.books.broken]
    held = {
        rank.rank: rank.kv_blocks_used
        for rank in control.call(control_call.GET_STATE).ranks
        if rank.kv_blocks_used
    }
    wrong += [f"KV blocks are held on ranks {held}"] if held else []
    wrong += grown(soak.memory, seconds)
    wrong += troubles.errors
    own = psutil.Process().cpu_times()
    print(f"the clients took {(own.user + own.system) / seconds:.0%} of a core")
    for line in wrong:
        print(f"DOES NOT HOLD: {line}")
    return int(bool(wrong))


def main() -> int:
    parser = argparse.ArgumentParser(prog="soak", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=30.0, metavar="M", help="default: 30")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="default: 1")
    arguments = parser.parse_args()
    return run(arguments.minutes, arguments.seed)


if __name__ == "__main__":
    sys.exit(main())
