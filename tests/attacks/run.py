"""Runs attacks, against one server per kind, and prints the results."""

import contextlib
import time
from collections.abc import Sequence
from typing import Final

import psutil

from tests.attacks.attack import Attack, Server
from tests.attacks.attack_table import TITLES, line, row
from tests.attacks.attacked_server import AttackedServer, attacked_server
from tests.attacks.honest import Honest
from tests.attacks.other_load import CpuUse, others_share
from tests.attacks.server_memory import ServerMemory
from tests.attacks.trial import (
    Baselines,
    Trial,
    attack_until_decided,
    failures_of,
    needs_restart,
)

OTHERS_SHARE_SHOWN: Final = 0.2


class Session:
    """A server, the honest client, and their undisturbed baselines."""

    def __init__(self, stack: contextlib.ExitStack, kind: Server) -> None:
        self.server: AttackedServer = stack.enter_context(attacked_server(kind))
        self.honest = stack.enter_context(Honest(self.server.honest))
        self.memory = stack.enter_context(ServerMemory(self.server.process.pid))
        self.baselines = Baselines(self.honest)

    def cpu_use(self) -> CpuUse:
        return CpuUse.now((*self.memory.processes, psutil.Process(self.honest.pid)))

    def attacked(self, attack: Attack, seed: int) -> list[Trial]:
        return attack_until_decided(
            attack,
            self.server,
            self.memory,
            seed=seed,
            honest=self.honest,
            baselines=self.baselines,
        )


def run(attacks: Sequence[Attack], *, seed: int) -> int:
    """Run all; returns 0 when the server stood each, else 1."""
    began_s = time.monotonic()
    print(line(TITLES), flush=True)
    failed: dict[str, list[str]] = {}
    for kind in Server:
        mine = [attack for attack in attacks if attack.on is kind]
        while mine:
            done, found = _on_one_server(kind, mine, seed=seed)
            failed |= found
            mine = mine[done:]
    for name, lines in failed.items():
        for text in lines:
            print(f"{name}: FAILED {text}")
    minutes = (time.monotonic() - began_s) / 60
    stood = len(attacks) - len(failed)
    print(f"{stood} of {len(attacks)} attacks were stood, in {minutes:.1f} min")
    return int(bool(failed))


def _on_one_server(
    kind: Server, attacks: Sequence[Attack], *, seed: int
) -> tuple[int, dict[str, list[str]]]:
    """Attack one server until it needs a restart; returns the number of attacks done."""
    failed: dict[str, list[str]] = {}
    with contextlib.ExitStack() as stack:
        session = Session(stack, kind)
        for done, attack in enumerate(attacks, start=1):
            before = session.cpu_use()
            trials = session.attacked(attack, seed)
            share = others_share(before, session.cpu_use())
            print(row(trials), flush=True)
            if lines := failures_of(trials):
                failed[attack.name] = lines
                for text in lines:
                    print(f"    {text}", flush=True)
                if share > OTHERS_SHARE_SHOWN:
                    print(
                        f"    (other programs had {share:.0%} of the cores meanwhile)", flush=True
                    )
            if needs_restart(trials):
                return done, failed
    return len(attacks), failed
