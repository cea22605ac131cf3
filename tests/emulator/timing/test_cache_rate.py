from dataclasses import replace

import numpy as np

from emulator.specs.batch import StepBatch
from emulator.specs.chips import chip_by_name
from emulator.specs.models import model_by_name
from emulator.timing.attention_work import attention_work
from emulator.timing.head_split import head_split
from emulator.timing.issue_shape import IssueShape
from emulator.timing.product_rate import ProductRate
from emulator.timing.rank_totals import rank_totals
from emulator.timing.work import EngineWork

WIDE = model_by_name("deepseek-r1")
NARROW = replace(WIDE, kv_bytes_per_element=1)
CHIP = chip_by_name("h200")


def work_of(model: object, *, new: int, context: int) -> EngineWork:
    assert isinstance(model, type(WIDE))
    batch = StepBatch(
        ranks=1,
        rank=np.zeros(1, dtype=np.int64),
        new_tokens=np.array([new]),
        context_tokens=np.array([context]),
        logit_rows=np.ones(1, dtype=np.int64),
    )
    shape = IssueShape.of(model, CHIP, tp=1, cores=1)
    split = head_split(model, tp=1, cores=1)
    return attention_work(model, rank_totals(batch, model, shape), split, shape, window=False)


def test_a_latent_in_eight_bits_is_multiplied_at_that_rate_by_hand() -> None:
    wide, narrow = (work_of(model, new=1, context=999) for model in (WIDE, NARROW))

    moved = wide.flops[ProductRate.PLAIN] - narrow.flops[ProductRate.PLAIN]
    # 128 heads, 1,000 keys, scores of 576 and sums of 512
    assert moved.tolist() == [2 * 128 * 1_000 * (576 + 512)]
    assert (narrow.flops[ProductRate.FP8] - wide.flops[ProductRate.FP8]).tolist() == moved.tolist()


def test_a_prompt_makes_its_own_keys_and_values_in_the_models_dtype() -> None:
    wide, narrow = (work_of(model, new=512, context=0) for model in (WIDE, NARROW))

    assert narrow.flops.tolist() == wide.flops.tolist()


def test_a_cache_in_sixteen_bits_is_multiplied_in_the_models_dtype() -> None:
    shape = IssueShape.of(WIDE, CHIP, tp=1, cores=1)

    assert shape.cache_rate is ProductRate.PLAIN
