"""Functions that other processes run: they find them by the module's name."""

import os
import signal
import time
from pathlib import Path

import numpy as np

from emulator.errors import ConfigError
from emulator.specs.partition import Partition
from loadgen.workloads.length_pairs import IndependentLengths
from loadgen.workloads.lengths import parse_lengths
from loadgen.workloads.traffic import Traffic
from serving.simulator import SimulatedDeployment, simulate


def bits_of_seed(seed: int) -> tuple[bytes, ...]:
    """All of a small run."""
    deployment = SimulatedDeployment.of(
        "trn3-nl72x2", "qwen3-30b-a3b", Partition(chips=2, ep=2, lnc=2)
    )
    lengths = IndependentLengths(
        prompt=parse_lengths("uniform:50-900"), output=parse_lengths("uniform:1-40")
    )
    run = simulate(
        deployment, Traffic.drawn(rate_per_s=60, lengths=lengths, seed=seed, requests=60)
    )
    served = run.served
    arrays = (served.first_token_s, served.last_token_s, served.token_request, served.step_end_s)
    return (*(each.tobytes() for each in arrays), np.float64(served.joules).tobytes())


def refuse(number: int) -> int:
    raise ConfigError("number", number, "another")


def end_at_once(number: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return number


def begin_and_wait(path: str) -> None:
    Path(path).touch()
    time.sleep(600)


def nothing(number: int) -> int:
    return number
