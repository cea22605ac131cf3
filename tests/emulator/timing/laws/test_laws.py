"""What holds for the law of every family of kernels, with the constants that ship."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.errors import ConfigError
from emulator.specs.chips import chip_by_name
from emulator.timing.laws.shipped_laws import LAWS, shipped_constants, shipped_law
from emulator.timing.laws.silicon import Silicon
from emulator.timing.product_rate import ProductRate
from tests.emulator.timing.laws.law_cases import GROWING, SHAPES, chips, shape_of, silicon


@pytest.mark.parametrize(("family", "column"), GROWING)
@given(chip=chips, factor=st.floats(0.05, 200), grown=st.floats(1, 20))
def test_more_bytes_or_flops_never_take_less_time(
    family: str, column: str, chip: str, factor: float, grown: float
) -> None:
    usual = float(SHAPES[family][1][column])
    less = usual * factor if column in ("element_bytes", "token_bytes") else usual * factor // 1 + 1
    more = less * grown if column in ("element_bytes", "token_bytes") else less * grown // 1

    pair = shape_of(family, **{column: np.array([less, max(less, more)])})
    duration_ns = shipped_law(family).duration_ns(pair, silicon(chip))

    assert duration_ns[1] >= duration_ns[0] * (1 - 1e-9)


@pytest.mark.parametrize("family", LAWS)
@given(chip=chips, factor=st.floats(0.05, 2_000), rate=st.sampled_from(list(ProductRate)))
def test_no_law_beats_the_peaks_of_the_silicon(
    family: str, chip: str, factor: float, rate: ProductRate
) -> None:
    column = next(name for name, _ in SHAPES[family][1].items() if name not in ("chips",))
    shape = shape_of(family, **{column: SHAPES[family][1][column] * factor // 1 + 1})
    on = silicon(chip, rate)

    assert shipped_law(family).duration_ns(shape, on) >= shape.least_ns(on) * (1 - 1e-9)


@pytest.mark.parametrize("family", LAWS)
def test_a_loop_over_small_weights_is_never_slower_than_a_models_step(family: str) -> None:
    law, shape = shipped_law(family), shape_of(family)

    in_loop_ns = law.duration_ns(shape, silicon(), in_loop=True)

    assert in_loop_ns <= law.duration_ns(shape, silicon()) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("family", "columns", "share", "peak"),
    [
        ("GEMM", {"rows": 65_536, "outputs": 65_536, "inputs": 65_536}, "tensor_share", "flops"),
        ("GQA decode", {"requests": 4096, "context_tokens": 1e6}, "memory_share", "cache_bytes"),
        ("collectives", {"payload_bytes": 1e12}, "link_share", "moved_bytes"),
    ],
)
def test_large_kernels_reach_their_share_of_the_peak(
    family: str, columns: dict[str, float], share: str, peak: str
) -> None:
    law, shape, on = shipped_law(family), shape_of(family, **columns), silicon()
    rate = {"flops": on.flops, "cache_bytes": on.hbm_bytes, "moved_bytes": on.link_bytes}[peak]

    reached = getattr(shape, peak) / rate / law.duration_ns(shape, on)

    # Edges of tiles, and what does not overlap, take a part of the share.
    assert 0.75 * getattr(law, share) < reached <= getattr(law, share)


@pytest.mark.parametrize("family", LAWS)
def test_what_is_known_of_a_level_is_a_factor_on_the_base(family: str) -> None:
    constants, base = shipped_constants()["families"][family], shipped_law(family)
    start = constants["start_ns"]
    kernel, factor = next(iter(start["levels"]["kernel"].items()))

    known = shipped_law(family, kernel=kernel)
    unknown = shipped_law(family, kernel="a kernel without measurements")

    assert known.start_ns == pytest.approx(
        np.clip(start["base"] * factor, start["least"], start["most"])
    )
    assert all(getattr(unknown, name) == getattr(base, name) for name in constants)


def test_unknown_families_and_levels_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="family=softmax: expected one of GEMM"):
        shipped_law("softmax")
    with pytest.raises(ConfigError, match=r"GEMM\.level=month: expected one of"):
        shipped_law("GEMM", month="July")


def test_a_rate_that_a_chip_lacks_is_the_next_wider_one() -> None:
    h100 = chip_by_name("h100")

    assert Silicon.of(h100, ProductRate.FP4).flops == Silicon.of(h100, ProductRate.FP8).flops
    both = Silicon.columns([silicon("h100"), silicon("h200")])
    assert list(np.asarray(both.hbm_bytes)) == [3350.0, 4800.0]
