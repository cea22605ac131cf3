"""A tiny model, machines to cost it on, and batches, for the tests of the cost model."""

from dataclasses import replace

import numpy as np

from emulator.specs.batch import StepBatch
from emulator.specs.calibration import ROOFLINE
from emulator.specs.catalog.qwen3_moe import QWEN3_30B_A3B
from emulator.specs.catalog.trn3_nl72x2 import TRN3_NL72X2
from emulator.specs.figure import Figure
from emulator.specs.model import ModelSpec
from emulator.specs.partition import Partition
from emulator.specs.training_recipe import TrainingRecipe
from emulator.ultraserver.step_cost import StepCostModel
from tests.emulator.specs.tiny_model import TINY

Row = tuple[int, int, int]  # rank, new tokens, context tokens

SHORT_RECIPE = TrainingRecipe(sequence_tokens=512, sequences_per_chip=2, micro_batches=3)


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
    return StepCostModel(
        TRN3_NL72X2,
        model,
        Partition(chips=chips, tp=tp, ep=ep or chips, lnc=lnc),
        calibration=ROOFLINE,
    )


# One byte of HBM a nanosecond: whatever TINY does is then as long as its bytes are many. Its matrix
# engine fills and starts at once, and small transfers lose nothing; other tests are about those.
LAUNCH_NS = 1_000
# One embedding row, the last norm, the LM head, one row of FP32 logits written and read.
TINY_ENDS_BYTES = 8 + 8 + 80 + 40 + 40


def _figure(value: float) -> Figure:
    return Figure(value=value, unit="of a test", source="a test")


SLOW_MEMORY = replace(
    TRN3_NL72X2,
    chip=replace(
        TRN3_NL72X2.chip,
        dma_bytes_per_s=_figure(1e9),
        dma_saturating_bytes=_figure(1),
        launch_ns=_figure(LAUNCH_NS),
        matrix=replace(TRN3_NL72X2.chip.matrix, fill_drain_ns=_figure(0), ramp_ns=_figure(0)),
    ),
)


def slow_memory(model: ModelSpec = TINY, **partition: int) -> StepCostModel:
    made = Partition(**{"chips": 1, "ep": partition.get("chips", 1), "lnc": 8, **partition})
    return StepCostModel(SLOW_MEMORY, model, made, calibration=ROOFLINE)
