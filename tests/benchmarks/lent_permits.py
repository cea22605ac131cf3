"""What a permit of another process's admission costs, at a rate of requests, and how long it takes.

    python -m tests.benchmarks lent_permits [--per-s N] [--seconds S]

Two processes and the socket between them, as of `serve --api-server-count 2`, without vLLM. Each
request enters, declares its work, begins, has a first token and 20 more, ends and leaves. Printed:
processor time of each side for a request, that of the same at home, and the wait for a permit.
"""

import argparse
import asyncio
import multiprocessing
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

import uvloop

from serving.policy.admission.admission_limits import AdmissionLimits
from serving.policy.admission.capacity import NO_TIME, Capacity
from serving.policy.admission.entry import Counted, Outcome
from serving.policy.admission.work import Client, KeyLimits, Work, WorkClass
from serving.server.gateway.admission_controller import AdmissionController, RequestAdmission
from serving.server.gateway.permits.lent_permits import LentPermits
from serving.server.gateway.permits.permit_port import PermitPort

_TOKENS: Final = 20
_STAYS_S: Final = 0.2
_CAPACITY: Final = Capacity(
    seats=8_192,
    kv_tokens=10**9,
    prefill_tokens_per_step=8_192,
    backlog_times=NO_TIME,
)
_WORK: Final = Work(
    client=Client(name="a", limits=KeyLimits(tokens_per_minute=10**12, concurrent=10**6)),
    work_class=WorkClass.INTERACTIVE,
    sequences=1,
    prompt_tokens=1_000,
    new_tokens_max=_TOKENS,
)
_COUNTED: Final = Counted(sequences=1, prompt_tokens=1_000, new_tokens_max=_TOKENS)


async def _request(admission: RequestAdmission, waits_s: list[float]) -> None:
    began_s = time.perf_counter()
    permit = await admission.admit(_WORK)
    permit.declare(_COUNTED)
    await permit.turn()
    waits_s.append(time.perf_counter() - began_s)
    permit.begin(_COUNTED)
    permit.first_token()
    for _ in range(_TOKENS):
        permit.made(1)
        await asyncio.sleep(_STAYS_S / _TOKENS)
    permit.end(made_tokens=_TOKENS, by_itself=True)
    permit.leave(Outcome.FINISHED)


async def _requests(admission: RequestAdmission, per_s: float, seconds: float) -> list[float]:
    """Waits for permits, in wall seconds."""
    waits_s: list[float] = []
    going: list[asyncio.Task[None]] = []
    began_s = time.monotonic()
    for index in range(int(per_s * seconds)):
        late_s = began_s + index / per_s - time.monotonic()
        if late_s > 0:
            await asyncio.sleep(late_s)
        going.append(asyncio.create_task(_request(admission, waits_s)))
    await asyncio.gather(*going)
    return waits_s


def _owner(path: Path, told: Connection) -> None:
    async def serve() -> None:
        admission = AdmissionController(AdmissionLimits(), lambda: _CAPACITY)

        async def page() -> tuple[int, str, bytes]:
            return 200, "text/plain", b""

        port = PermitPort(path, admission, on_times=lambda _: None, page=page)
        await port.start()
        told.send(0.0)
        await asyncio.to_thread(told.recv)
        told.send(time.process_time())
        await asyncio.to_thread(told.recv)
        told.send(time.process_time())
        await port.stop()

    uvloop.run(serve())


async def _measured(path: Path, owner: Connection, per_s: float, seconds: float) -> None:
    requests = int(per_s * seconds)
    for where in ("at home", "lent"):
        desk: AdmissionController | LentPermits
        if where == "lent":
            desk = LentPermits(path)
            await desk.start()
            owner.send(None)
            before_s = owner.recv()
        else:
            desk = AdmissionController(AdmissionLimits(), lambda: _CAPACITY)
        began_s = time.process_time()
        waits_s = sorted(await _requests(desk, per_s, seconds))
        own_us = 1e6 * (time.process_time() - began_s) / requests
        p50_ms, p99_ms = (1e3 * waits_s[int(q * (requests - 1))] for q in (0.5, 0.99))
        line = f"{where}: {own_us:.0f} us a request where it is handled, with its timers"
        if where == "lent":
            owner.send(None)
            line += f", {1e6 * (owner.recv() - before_s) / requests:.0f} us where admission is"
        print(f"{line}; wait for a permit p50 {p50_ms:.2f}, p99 {p99_ms:.2f} ms", flush=True)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="lent_permits", description=__doc__)
    parser.add_argument("--per-s", type=float, default=1_000.0)
    parser.add_argument("--seconds", type=float, default=5.0)
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "permits"
        here, there = multiprocessing.Pipe()
        owner = multiprocessing.get_context("spawn").Process(target=_owner, args=(path, there))
        owner.start()
        here.recv()
        uvloop.run(_measured(path, here, args.per_s, args.seconds))
        owner.join()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
