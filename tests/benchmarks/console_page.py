"""Cost of the console to its reader's machine: two racks of chips, a snapshot per second.

Printed: bytes of a snapshot and on the wire (gzip), CPU time of all Chromium processes with the
window shown, and memory of the page's script before and after. The machine is the emulator's,
without an engine, and steps before each snapshot.
"""

import sys
import threading
import time
from dataclasses import dataclass, field

import httpx
import psutil
from playwright.sync_api import CDPSession, sync_playwright

from serving.server.console.event_stream import HardwareEvent
from tests.deploy.console.opened_page import launched, opened
from tests.deploy.console.replayed_machine import (
    KEY,
    ReplayedServer,
    ReplayedSnapshots,
    troubled_machine,
)
from tests.system_programs import program

SECONDS = 20.0
WARM_S = 5.0
MIB = 2**20


@dataclass(kw_only=True)
class ChangingSnapshots(ReplayedSnapshots):
    """A step of every rank that is up before each snapshot; counts the snapshots' bytes."""

    looks_bytes: list[int] = field(default_factory=list)
    _turn: int = 0

    async def hardware(self, *, max_age_s: float, within_s: float) -> HardwareEvent | None:
        up = [rank.rank for rank in self.running.state().ranks if rank.up]
        self._turn += 1
        self.running.step(*(rank for rank in up if (rank + self._turn) % 3))
        told = await super().hardware(max_age_s=max_age_s, within_s=within_s)
        self.looks_bytes.append(0 if told is None else len(told.json))
        return told


def wire_bytes_per_snapshot(server: ReplayedServer, looks: int = 10) -> float:
    """Compressed bytes of the stream per snapshot, the first ones and the experts' included."""
    sent, seen = 0, 0
    headers = {"authorization": f"Bearer {KEY}", "accept-encoding": "gzip"}
    with httpx.stream("GET", f"{server.url}/stream", headers=headers, timeout=60.0) as response:
        assert response.headers["content-encoding"] == "gzip"
        for line in response.iter_lines():
            if line == "event: hardware":
                seen += 1
                if seen == 1:
                    sent = -response.num_bytes_downloaded
                if seen > looks:
                    break
        sent += response.num_bytes_downloaded
    return sent / looks


def script_mib(devtools: CDPSession) -> float:
    """The heap of the page's script after garbage collection."""
    devtools.send("HeapProfiler.collectGarbage")
    return float(devtools.send("Runtime.getHeapUsage")["usedSize"]) / MIB


def main(seconds: float = SECONDS) -> None:
    looks = ChangingSnapshots(running=troubled_machine())
    server = ReplayedServer(looks=looks)
    thread = threading.Thread(target=server.run)
    thread.start()
    server.start()
    try:
        print(f"wire: {wire_bytes_per_snapshot(server) / 1e3:.1f} kB per second, gzip")
        print(f"look: {looks.looks_bytes[-1] / 1e3:.0f} kB of JSON")
        with sync_playwright() as playwright:
            before = {child.pid for child in psutil.Process().children(recursive=True)}
            browser = launched(playwright, program("chromium"))
            with opened(browser, server.url) as tab:
                tab.open(KEY)
                devtools = tab.context.new_cdp_session(tab.page)
                tab.page.wait_for_timeout(1e3 * WARM_S)
                watch(seconds, before, devtools, looks)
            browser.close()
    finally:
        server.stop()
        server.end()
        thread.join()


def watch(seconds: float, before: set[int], devtools: CDPSession, looks: ChangingSnapshots) -> None:
    """Print the browser's CPU and memory, by kinds of process."""
    ours = psutil.Process().children(recursive=True)
    chromium = [each for each in ours if each.pid not in before and "chrom" in each.name()]
    heap_mib = script_mib(devtools)
    began_s, seen = time.monotonic(), len(looks.looks_bytes)
    cpu_s = {each.pid: _cpu_s(each) for each in chromium}
    time.sleep(seconds)
    took_s = time.monotonic() - began_s
    spent = {each.pid: (_cpu_s(each) - cpu_s[each.pid]) / took_s for each in chromium}
    shown = len(looks.looks_bytes) - seen
    print(f"CPU: {100 * sum(spent.values()):.1f} % of a core, {shown} looks in {took_s:.0f} s")
    for each in chromium:
        if spent[each.pid] > 0.002:
            print(f"  {_kind(each)}: {100 * spent[each.pid]:.1f} %")
    print(f"script's heap: {heap_mib:.1f} MiB, then {script_mib(devtools):.1f} MiB")
    print(f"resident: {sum(each.memory_info().rss for each in chromium) / MIB:.0f} MiB in all")


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _kind(process: psutil.Process) -> str:
    kinds = [part.partition("=")[2] for part in process.cmdline() if part.startswith("--type=")]
    return kinds[0] if kinds else "browser"


if __name__ == "__main__":
    main(*(float(each) for each in sys.argv[1:2]))
