from math import exp

import pytest

from emulator.specs.stack_factors import FrameworkFactors, MachineFactors, StackFactors

FACTORS = StackFactors(
    name="fit",
    source="a test",
    memory_share=0.8,
    tensor_share=0.5,
    link_share=0.4,
    layer_ns=10_000.0,
    collective_ns=2_000.0,
    fp4_overhead=0.5,
    acceptance=0.6,
    machines={"h200": MachineFactors(memory=1.5, compute=0.5)},
    frameworks={"trt": FrameworkFactors(overhead=2.0, ageing=0.1)},
)


def test_a_machine_multiplies_shares_and_no_share_exceeds_the_peak_by_hand() -> None:
    made = FACTORS.calibration("h200")

    assert made.memory_share.value == 1.0  # 0.8 x 1.5, capped
    assert made.tensor_share.value == 0.25
    assert made.link_share.value == 0.2


def test_overheads_grow_with_the_softwares_age_by_hand() -> None:
    new, old = (FACTORS.calibration("h200", "trt", months=months) for months in (0.0, 3.0))

    assert new.layer_ns.value == 20_000
    assert old.layer_ns.value == pytest.approx(20_000 * exp(0.3))
    assert old.step_ns.value == pytest.approx(0.5e6 * 2 * exp(0.3))


def test_ages_outside_what_was_fitted_count_as_its_ends() -> None:
    future, ancient = (FACTORS.calibration("h200", "trt", months=at) for at in (-9.0, 99.0))

    assert future.layer_ns.value == 20_000
    assert ancient.layer_ns.value == pytest.approx(20_000 * exp(0.7))


def test_narrow_experts_change_overheads_alone() -> None:
    wide, narrow = (FACTORS.calibration("h200", "trt", fp4=fp4) for fp4 in (False, True))

    assert narrow.collective_ns.value == wide.collective_ns.value / 2
    assert narrow.tensor_share == wide.tensor_share


def test_what_was_never_fitted_has_the_shared_factors_alone() -> None:
    made = FACTORS.calibration("trainium3", "unheard-of", months=5.0)

    assert made.memory_share.value == 0.8
    assert made.layer_ns.value == 10_000


def test_every_factor_is_listed_once_with_its_source() -> None:
    names = [name for name, _ in FACTORS.figures()]

    assert len(names) == len(set(names))
    assert {"memory_share", "acceptance", "h200 compute", "trt ageing", "turn_taking"} <= set(names)
    assert all(figure.source for _, figure in FACTORS.figures())
