"""One attack on a running server, measured before, during and after."""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

from tests.attacks.answers import Answers
from tests.attacks.attack import Attack
from tests.attacks.attacked_server import AttackedServer
from tests.attacks.honest import ANSWERED, PROTOCOLS, Honest
from tests.attacks.server_memory import ServerMemory
from tests.attacks.verdict import (
    GIVEN_BACK_WALL_S,
    KEPT_BYTES_MAX,
    Measured,
    Served,
    corrected,
    failures,
    is_decided,
    keeps,
)

BASELINE_WALL_S: Final = 1.2
FIRST_BASELINE_WALL_S: Final = 6.0
HARMLESS_BYTES_PER_S_MAX: Final = 25_000_000
END_WAIT_S: Final = 10.0
"""Time for an attack's process to end beyond its budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One attack, its measurements, and answers.

    Attributes:
        honest_refusals: statuses of the honest client's unanswered requests.
    """

    attack: Attack
    measured: Measured
    answers: Answers
    attacked_wall_s: float
    honest_refusals: Sequence[str]


def heard(attack: Attack, server: AttackedServer, *, seed: int) -> Answers:
    """Attack in another process; returns its answers.

    A process that breaks, or must be ended, is a fault.
    """
    arguments = (attack.name, str(seed), str(attack.budget.wall_s))
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.attacks.attack_process", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        out, err = process.communicate(
            json.dumps(asdict(server.target)), timeout=attack.budget.wall_s + END_WAIT_S
        )
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return Answers(faults=["the attack's own process did not end"])
    if process.returncode:
        last = err.strip().rpartition("\n")[2]
        return Answers(faults=[f"the attack's own process broke: {last}"])
    return Answers.from_plain(json.loads(out.splitlines()[-1]))


class Baselines:
    """The honest client beside a harmless load, measured before each attack."""

    def __init__(self, honest: Honest) -> None:
        self._honest = honest
        self._windows_s: dict[str, list[list[float]]] = {protocol: [] for protocol in PROTOCOLS}
        self.usual_s: dict[str, float] = {}

    def measure(self, bytes_per_s: int) -> None:
        """Measure beside a load of as many bytes a second as the attack's, up to a limit."""
        wall_s = BASELINE_WALL_S if self.usual_s else FIRST_BASELINE_WALL_S
        rate = str(min(bytes_per_s, HARMLESS_BYTES_PER_S_MAX))
        harmless = subprocess.Popen([sys.executable, "-m", "tests.attacks.harmless", rate])
        try:
            began_s = time.monotonic()
            time.sleep(wall_s)  # the window
            ended_s = time.monotonic()
            for protocol in PROTOCOLS:
                samples = self._honest.between(protocol, began_s, ended_s)
                usual_s = self._honest.usual_s(samples)
                self.usual_s.setdefault(protocol, usual_s)
                latencies = [each.latency_s for each in samples]
                self._windows_s[protocol].append(corrected(latencies, self.usual_s[protocol]))
        finally:
            harmless.kill()
            harmless.wait()

    def of(self, protocol: str) -> list[list[float]]:
        """All windows on this server, corrected, newest last."""
        return list(self._windows_s[protocol])


def tried(
    attack: Attack,
    server: AttackedServer,
    memory: ServerMemory,
    *,
    seed: int,
    idle_bytes: int,
    honest: Honest | None = None,
    baselines: Baselines | None = None,
) -> Trial:
    """Attack once; growth is above `idle_bytes`. Latency needs an honest client."""
    if baselines is not None:
        baselines.measure(attack.budget.bytes_per_s)
    start_bytes = memory.begin()
    began_s = time.monotonic()
    answers = heard(attack, server, seed=seed)
    ended_s = time.monotonic()
    served, refusals = [], []
    for protocol in PROTOCOLS if honest is not None and baselines is not None else ():
        assert honest is not None
        assert baselines is not None
        samples = honest.between(protocol, began_s, ended_s)
        refusals += [each.status for each in samples if each.status != ANSWERED]
        latencies = corrected([each.latency_s for each in samples], baselines.usual_s[protocol])
        windows = baselines.of(protocol)
        served.append(Served(protocol=protocol, baselines_s=windows, attacked_s=latencies))
    kept_bytes, given_back_s = memory.given_back(
        start_bytes, kept_bytes_max=KEPT_BYTES_MAX, wall_s=GIVEN_BACK_WALL_S
    )
    measured = Measured(
        needs_key=attack.needs_key,
        growth_bytes=max(0, memory.largest_bytes - idle_bytes),
        kept_bytes=kept_bytes,
        given_back_s=given_back_s,
        served=served,
        unreasoned=answers.unreasoned,
        faults=answers.faults,
        server_lives=memory.lives(),
    )
    return Trial(
        attack=attack,
        measured=measured,
        answers=answers,
        attacked_wall_s=ended_s - began_s,
        honest_refusals=refusals,
    )


def attack_until_decided(
    attack: Attack,
    server: AttackedServer,
    memory: ServerMemory,
    *,
    seed: int,
    honest: Honest | None = None,
    baselines: Baselines | None = None,
) -> list[Trial]:
    """Repeat until decided; see `verdict.is_decided`."""
    idle_bytes = memory.now_bytes()
    trials: list[Trial] = []
    while not trials or not is_decided([trial.measured for trial in trials]):
        trials.append(
            tried(
                attack,
                server,
                memory,
                seed=seed + len(trials),
                idle_bytes=idle_bytes,
                honest=honest,
                baselines=baselines,
            )
        )
    return trials


def failures_of(trials: Sequence[Trial]) -> list[str]:
    return failures([trial.measured for trial in trials])


def needs_restart(trials: Sequence[Trial]) -> bool:
    """Whether the server differs from its beginning, the next attack's reference."""
    measured = [trial.measured for trial in trials]
    return not measured[-1].server_lives or keeps(measured)


def worst_ratio(trial: Trial) -> float:
    return max((served.p99_ratio for served in trial.measured.served), default=float("nan"))
