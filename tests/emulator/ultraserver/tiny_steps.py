"""A tiny model, machines to cost it on, and batches, for the tests of the cost model."""

from dataclasses import replace

import numpy as np

from emulator.specs.batch import StepBatch
from emulator.specs.figure import Figure
from emulator.specs.model import ModelSpec
from emulator.specs.partition import Partition
from emulator.specs.qwen3_30b_a3b import QWEN3_30B_A3B
from emulator.specs.trn3_nl72x2 import TRN3_NL72X2
from emulator.ultraserver.step_cost import StepCostModel
from tests.emulator.specs.tiny_model import TINY

Row = tuple[int, int, int]  # rank, new tokens, context tokens


def batch_of(ranks: int, rows: list[Row]) -> StepBatch:
    columns = np.array(rows, dtype=np.int64).reshape(-1, 3)
    return StepBatch(
        ranks=ranks,
        rank=columns[:, 0],
        new_tokens=columns[:, 1],
        context_tokens=columns[:, 2],
        logit_rows=np.bincount(columns[:, 0], minlength=ranks),
    )


def same_on_each(ranks: int, requests: int, new: int, context: int) -> StepBatch:
    return batch_of(ranks, [(rank, new, context) for rank in range(ranks) for _ in range(requests)])


def cost_model(
    chips: int, model: ModelSpec = QWEN3_30B_A3B, *, tp: int = 1, ep: int = 0, lnc: int = 8
) -> StepCostModel:
    return StepCostModel(TRN3_NL72X2, model, Partition(chips=chips, tp=tp, ep=ep or chips, lnc=lnc))


# One byte of HBM a nanosecond: whatever TINY does is then as long as its bytes are many.
SLOW_MEMORY = replace(
    TRN3_NL72X2,
    chip=replace(
        TRN3_NL72X2.chip, dma_bytes_per_s=Figure(value=1e9, unit="bytes/s", source="a test")
    ),
)


def slow_memory(model: ModelSpec = TINY, **partition: int) -> StepCostModel:
    made = Partition(**{"chips": 1, "ep": partition.get("chips", 1), "lnc": 8, **partition})
    return StepCostModel(SLOW_MEMORY, model, made)
