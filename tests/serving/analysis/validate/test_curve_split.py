from collections import Counter
from datetime import date, timedelta

import pytest

from serving.analysis.validate.curve_split import SEEDS, fitted_half
from serving.analysis.validate.measured_row import Configuration, PoolColumns

POOL = PoolColumns(gpus=8, tp=8, ep=1, dp_attention=False, workers=1)


def configurations() -> list[Configuration]:
    return [
        Configuration(
            hardware=hardware,
            framework=framework,
            precision="fp8",
            speculative=speculative,
            disaggregated=False,
            multinode=False,
            prefill=POOL,
            decode=POOL,
            prompt_tokens=prompt,
            output_tokens=1_024,
            day=date(2026, 1, 1) + timedelta(days=45 * place),
        )
        for hardware in ("h200", "b200", "mi300x")
        for framework in ("sglang", "trt")
        for speculative in (False, True)
        for prompt in (1_024, 8_192)
        for place in range(3)
    ]


@pytest.mark.parametrize("seed", SEEDS)
def test_half_of_every_machine_is_fitted(seed: int) -> None:
    known = configurations()

    half = fitted_half(known, seed=seed)

    of_machine = Counter(each.hardware for each in known if each.fingerprint in half)
    assert set(of_machine) == {"h200", "b200", "mi300x"}
    assert all(9 <= count <= 15 for count in of_machine.values())  # of 24


@pytest.mark.parametrize("seed", SEEDS)
def test_rows_with_and_without_speculation_are_divided_apart(seed: int) -> None:
    known = configurations()
    half = fitted_half(known, seed=seed)
    alone = fitted_half([each for each in known if each.speculative], seed=seed)

    assert {e.fingerprint for e in known if e.speculative and e.fingerprint in half} == alone


def test_a_split_does_not_depend_on_order_or_on_how_often_a_curve_is_listed() -> None:
    known = configurations()

    assert fitted_half(known, seed=3) == fitted_half([*reversed(known), *known[:5]], seed=3)


def test_seeds_split_differently() -> None:
    known = configurations()

    assert len({fitted_half(known, seed=seed) for seed in SEEDS}) == len(SEEDS)
