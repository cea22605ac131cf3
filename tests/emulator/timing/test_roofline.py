from dataclasses import replace

import numpy as np
import pytest

from emulator.specs.catalog.trainium3 import TRAINIUM3
from emulator.timing.product_rate import ProductRate
from emulator.timing.roofline import ENGINES, busy_ns, engine_rates
from emulator.timing.work import EngineWork


def test_each_engine_is_busy_for_its_work_over_its_peak_rate() -> None:
    work = EngineWork.of(
        flops={ProductRate.PLAIN: np.array([629_145.6, 0.0])},
        vector_flops=np.array([0.0, 9_600.0 * 3]),
        scalar_ops=np.array([1_228.8 * 2, 0.0]),
        gpsimd_ops=np.array([0.0, 1_228.8 * 4]),
        hbm_bytes=np.array([4_224.0 * 4, 4_224.0]),
        lost_bytes=np.array([4_224.0, 0.0]),
    )

    busy = busy_ns(work, engine_rates(TRAINIUM3, "bf16"))

    assert dict(zip(ENGINES, busy.tolist(), strict=True)) == {
        "tensor": pytest.approx([1, 0]),
        "vector": pytest.approx([0, 3]),
        "scalar": pytest.approx([2, 0]),
        "gpsimd": pytest.approx([0, 4]),
        "dma": pytest.approx([5, 1]),
    }


def test_the_matrix_engine_is_occupied_for_what_is_issued_and_not_for_what_is_done() -> None:
    work = EngineWork.of(
        flops={ProductRate.PLAIN: 629_145.6}, issued_flops={ProductRate.PLAIN: 3 * 629_145.6}
    )

    assert busy_ns(work, engine_rates(TRAINIUM3, "bf16"))[0].tolist() == pytest.approx([3])


def test_a_chip_without_gpsimd_engines_gathers_on_its_vector_engines() -> None:
    chip = replace(TRAINIUM3, gpsimd_ops_per_s=None)
    work = EngineWork.of(vector_flops=9_600.0, gpsimd_ops=19_200.0)

    busy = busy_ns(work, engine_rates(chip, "bf16"))

    assert busy[:, 0].tolist() == pytest.approx([0, 3, 0, 0, 0])


def test_fp32_runs_the_tensor_engine_at_a_quarter_of_bf16_and_nothing_else_slower() -> None:
    bf16, fp32 = engine_rates(TRAINIUM3, "bf16"), engine_rates(TRAINIUM3, "fp32")

    plain = ProductRate.PLAIN
    assert bf16.flops[plain] == 4 * fp32.flops[plain]
    assert bf16.flops[ProductRate.FP8 :].tolist() == fp32.flops[ProductRate.FP8 :].tolist()
    assert bf16.hbm_bytes == fp32.hbm_bytes


def test_low_precision_products_run_four_times_as_fast_as_bf16_and_add_to_the_same_engine() -> None:
    work = EngineWork.of(
        flops={
            ProductRate.PLAIN: 629_145.6,
            ProductRate.FP8: 4 * 629_145.6,
            ProductRate.FP4: 4 * 629_145.6,
        }
    )

    busy = busy_ns(work, engine_rates(TRAINIUM3, "bf16"))

    assert busy[:, 0].tolist() == pytest.approx([3, 0, 0, 0, 0])


def test_work_takes_as_long_alone_as_among_other_work() -> None:
    rates = engine_rates(TRAINIUM3, "bf16")
    flops = np.random.default_rng(1).uniform(1e6, 1e12, (len(ProductRate), 199))

    def busy(columns: slice) -> list[float]:
        given = dict(zip(ProductRate, flops[:, columns], strict=True))
        tensor_ns: list[float] = busy_ns(EngineWork.of(flops=given), rates)[0].tolist()
        return tensor_ns

    together = busy(slice(None))
    assert [busy(slice(each, each + 1))[0] for each in range(199)] == together
