"""Compiles the kernels and keeps them on disk: `python -m serving.analysis.kernels`.

An installation does so, that no command has to. With kernels that are kept already it ends in two
seconds. It prints the files of which they are made: while those stay as they are, all are kept.
"""

from dataclasses import replace
from itertools import product
from typing import Final

import numpy as np

import emulator.actors.layer_exchange
import emulator.compute.layer_kernel  # noqa: F401  which are kept too
from emulator.compiled import kept_sources, load_kept
from emulator.specs.batch import StepBatch
from emulator.specs.models import model_by_name
from emulator.specs.overlap import Overlap
from emulator.specs.partition import Partition
from emulator.specs.systems import system_by_name
from emulator.ultraserver.step_cost import StepCostModel
from loadgen.workloads.traffic import PromptBlocks, Traffic
from serving.analysis.simulate.simulated_record import steps_by_request
from serving.simulator import (
    OwnChoices,
    ReplicaSet,
    SchedulerLimits,
    SimulatedDeployment,
    compile_kernels,
    simulate,
)
from serving.simulator.closed_loop import TimedPool, run_loop
from serving.simulator.closed_loop_kernel import ClientTimes, StackRules, StepTable
from serving.simulator.lockstep_schedulers import LockstepSchedulers

SYSTEM: Final = "trn3-nl72x2"
MODEL: Final = "qwen3-30b-a3b"
PARTITION: Final = Partition(chips=2, ep=2)
REQUESTS: Final = 12
"""More than run at once in three blocks a rank."""


def keep_kernels() -> None:
    """Compile what is not kept already."""
    prompt_tokens = np.full(REQUESTS, 20)
    plain = Traffic(
        arrival_s=np.zeros(REQUESTS),
        prompt_tokens=prompt_tokens,
        output_tokens=np.full(REQUESTS, 40),
    )
    blocks = PromptBlocks.of([[0]] * REQUESTS, tokens=32, prompt_tokens=prompt_tokens)
    cached = replace(plain, blocks=blocks)
    drafts = SchedulerLimits(speculative_tokens=1, draft_method="ngram", acceptance=(0.5,))
    by_hits = ReplicaSet(count=2, router="prefix-aware")
    by_load = ReplicaSet(count=2, router="least-loaded")
    first_open = OwnChoices(rank=lambda *, is_up, **_: int(is_up.argmax()))
    for traffic in (plain, cached):
        for schedulers in (None, drafts):
            deployment = SimulatedDeployment.of(SYSTEM, MODEL, PARTITION, schedulers=schedulers)
            compile_kernels(deployment, traffic, calls=True, timeouts=True, on_wait=lambda: None)
        several = SimulatedDeployment.of(SYSTEM, MODEL, PARTITION, replicas=by_hits)
        simulate(several, traffic)
        simulate(SimulatedDeployment.of(SYSTEM, MODEL, PARTITION, choices=first_open), traffic)
        (one,) = LockstepSchedulers.replicas(traffic, several.limits, PARTITION.ranks, 1)
        one.abort(0)
    one_engine = SimulatedDeployment.of(SYSTEM, MODEL, PARTITION)
    few_blocks = replace(one_engine, limits=replace(one_engine.limits, kv_blocks_per_rank=3))
    for traffic, router in product((plain, cached), (by_hits, by_load)):
        for engine in (one_engine, few_blocks):  # which lets the other pool go ahead, or does not
            simulate(replace(engine, prefill=replace(engine, replicas=router)), traffic, logs=False)
    _cost_steps()
    _run_loop()
    load_kept()
    steps_by_request(np.zeros(1, dtype=np.int32), np.ones(1, dtype=np.int64), np.zeros(1, np.int64))


def _cost_steps() -> None:
    """A step that can be halved, under each overlap, and with drafts that a module makes."""
    batch = StepBatch(
        ranks=PARTITION.ranks,
        rank=np.array([0, 0, 1, 1]),
        new_tokens=np.ones(4, dtype=np.int64),
        context_tokens=np.full(4, 9),
        logit_rows=np.full(2, 2),
    )
    system, model = system_by_name(SYSTEM), model_by_name(MODEL)
    for overlap in Overlap:
        for drafts in (0, 1):
            costs = StepCostModel(system, model, PARTITION, overlap=overlap, draft_tokens=drafts)
            costs.cost(batch)


def _run_loop() -> None:
    """A request on an engine whose steps take given times."""
    table = StepTable(
        batches=np.ones(1),
        decode_ns=np.ones(1),
        prompt_tokens=1.0,
        full_prompts=1.0,
        solo_ns=1.0,
        full_ns=1.0,
        solo_added_ns=1.0,
        full_added_ns=1.0,
    )
    pool = TimedPool(
        engines=1,
        ranks=1,
        seats=1,
        step_tokens=1,
        kv_blocks=9,
        block_tokens=16,
        acceptance=(),
        table=table,
        rules=StackRules(take_steps=0, together_steps=0, prompts_first=False, ahead=False),
    )
    times = ClientTimes(users=1, request_ns=1, token_ns=1, transfer_ns=1)
    ones = np.ones(1, dtype=np.int64)
    run_loop(pool, None, times, prompt_tokens=ones, output_tokens=ones)


if __name__ == "__main__":
    keep_kernels()
    print(*sorted(kept_sources), sep="\n")
