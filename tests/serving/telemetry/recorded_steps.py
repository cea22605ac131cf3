"""Inputs of a recording: two batches of two ranks, and their cost model."""

from functools import cache

import numpy as np

from emulator.specs.batch import StepBatch
from emulator.specs.calibration import ROOFLINE
from emulator.specs.models import model_by_name
from emulator.specs.partition import Partition
from emulator.specs.systems import system_by_name
from emulator.ultraserver.machine import StepCosting
from emulator.ultraserver.step_cost import StepCostModel
from serving.engine.scheduler_state import RankQueues


def a_batch(new_tokens: int, context_tokens: int) -> StepBatch:
    """One such request on each rank."""
    ones = np.ones(2, dtype=np.int64)
    return StepBatch(
        ranks=2,
        rank=np.arange(2),
        new_tokens=new_tokens * ones,
        context_tokens=context_tokens * ones,
        logit_rows=ones,
    )


DECODE, PREFILL = a_batch(1, 500), a_batch(64, 0)


@cache
def a_cost_model() -> StepCostModel:
    system, model = system_by_name("trn3-nl72x2"), model_by_name("qwen3-30b-a3b")
    return StepCostModel(system, model, Partition(chips=2, tp=1, ep=2, lnc=2), calibration=ROOFLINE)


def costing() -> StepCosting:
    return StepCosting(model=a_cost_model(), slow_factor=np.ones(2))


def queues() -> list[RankQueues]:
    return [RankQueues(running=1, waiting=0, kv_blocks_used=1)] * 2
