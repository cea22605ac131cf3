"""All compiling is done before a run: a new process finds every kernel that it needs."""

import subprocess
import sys
import time
from unittest.mock import Mock

import numpy as np
import pytest
from numba import njit

from emulator.specs.partition import Partition
from loadgen.workloads.traffic import Traffic
from serving.simulator import SimulatedDeployment, compile_kernels

pytestmark = pytest.mark.long

RUN = """
import sys
import numpy as np
from numba.core import event
from emulator.specs.partition import Partition
from loadgen.workloads.traffic import Traffic
from serving.simulator import (
    ReplicaSet, SchedulerLimits, SimulatedDeployment, compile_kernels, simulate
)

kv_blocks, replicas, prepared = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "prepared"
deployment = SimulatedDeployment.of(
    "trn3-nl72x2", "qwen3-30b-a3b", Partition(chips=2, tp=1, ep=2, lnc=2),
    schedulers=SchedulerLimits(max_num_seqs=8, max_num_batched_tokens=256),
    replicas=ReplicaSet(count=replicas, router="prefix-aware"),
)
object.__setattr__(deployment.limits, "kv_blocks_per_rank", kv_blocks)
traffic = Traffic(
    arrival_s=np.linspace(0.0, 0.1, 40),
    prompt_tokens=np.full(40, 20),
    output_tokens=np.full(40, 200),
)
if prepared:
    compile_kernels(deployment, traffic, on_wait=lambda: None)
with event.install_recorder("numba:compiler_lock") as taken:
    run = simulate(deployment, traffic)
print(len(taken.buffer), run.served.preemptions)
"""


def taken(*arguments: str) -> tuple[int, int]:
    """How often a run took the compiler's lock, to compile or to read; its preemptions."""
    done = subprocess.run(
        [sys.executable, "-c", RUN, *arguments], check=True, capture_output=True, text=True
    )
    locks, preemptions = map(int, done.stdout.split())
    return locks, preemptions


@pytest.mark.process
@pytest.mark.parametrize("replicas", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_a_run_that_preempts_and_so_caches_compiles_nothing_more(replicas: str) -> None:
    """The first request alone would need no prefix cache; all together overfill the blocks."""
    locks, preemptions = taken("30", replicas, "prepared")

    assert preemptions > 0
    assert locks == 0
    assert taken("30", replicas, "not")[0] > 0


@pytest.mark.process
def test_a_run_without_a_cache_compiles_nothing_more() -> None:
    assert taken("100000", "1", "prepared") == (0, 0)


@pytest.mark.parametrize("compiles", [True, False])
def test_a_wait_is_said_once_and_only_if_it_is_for_a_compiler(
    compiles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(deployment: SimulatedDeployment, traffic: Traffic, **_: object) -> None:
        if compiles:
            njit(lambda: 1)()
        time.sleep(0.3)

    module = "serving.simulator.compiling"
    monkeypatch.setattr(f"{module}.simulate", slow)
    monkeypatch.setattr(f"{module}.NOTICE_S", 0.02)
    one = np.ones(1, dtype=np.int64)
    traffic = Traffic(arrival_s=np.zeros(1), prompt_tokens=one, output_tokens=one)
    deployment = SimulatedDeployment.of("trn3-nl72x2", "qwen3-30b-a3b", Partition(chips=2, ep=2))
    on_wait = Mock()
    compile_kernels(deployment, traffic, on_wait=on_wait)

    assert on_wait.call_count == compiles
