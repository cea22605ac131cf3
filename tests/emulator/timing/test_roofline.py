from dataclasses import replace

import numpy as np
import pytest

from emulator.specs.trainium3 import TRAINIUM3
from emulator.timing.roofline import (
    ENGINES,
    busy_ns,
    engine_rates,
    exposed_start_ns,
    overlapped_ns,
)
from emulator.timing.work import Work


def test_each_engine_is_busy_for_its_work_over_its_peak_rate() -> None:
    work = Work.of(
        tensor_flops=np.array([629_145.6, 0.0]),
        vector_flops=np.array([0.0, 9_600.0 * 3]),
        scalar_ops=np.array([1_228.8 * 2, 0.0]),
        hbm_bytes=np.array([4_224.0 * 5, 4_224.0]),
    )

    busy = busy_ns(work, engine_rates(TRAINIUM3, "bf16"))

    assert dict(zip(ENGINES, busy.tolist(), strict=True)) == {
        "tensor": pytest.approx([1, 0]),
        "vector": pytest.approx([0, 3]),
        "scalar": pytest.approx([2, 0]),
        "dma": pytest.approx([5, 1]),
    }


def test_overlapped_engines_take_as_long_as_the_busiest() -> None:
    busy = np.array([[1.0, 0.0], [0.0, 3.0], [2.0, 0.0], [5.0, 1.0]])

    assert overlapped_ns(busy).tolist() == [5, 3]


def test_fp32_runs_the_tensor_engine_at_a_quarter_of_bf16_and_nothing_else_slower() -> None:
    bf16, fp32 = engine_rates(TRAINIUM3, "bf16"), engine_rates(TRAINIUM3, "fp32")

    assert bf16 == replace(fp32, tensor_flops=4 * fp32.tensor_flops)


def test_low_precision_products_run_four_times_as_fast_as_bf16_and_add_to_the_same_engine() -> None:
    work = Work.of(tensor_flops=629_145.6, mx_flops=4 * 629_145.6)

    busy = busy_ns(work, engine_rates(TRAINIUM3, "bf16"))

    assert busy.tolist() == pytest.approx([2, 0, 0, 0])


def test_one_dma_start_of_a_layer_is_exposed() -> None:
    assert exposed_start_ns(TRAINIUM3) == 1_300
