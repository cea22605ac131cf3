"""A fit finds the constants that made its data, and shrinks what has little."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from emulator.specs.chips import chip_by_name
from emulator.timing.laws.collective_law import CollectiveLaw, CollectiveShape
from emulator.timing.laws.product_law import ProductLaw, ProductShape
from emulator.timing.laws.shipped_laws import shipped_law
from emulator.timing.laws.silicon import Silicon
from emulator.timing.product_rate import ProductRate
from serving.analysis.validate.kernels.kernel_families import FAMILIES
from serving.analysis.validate.kernels.law_fit import ConstantPrior, FittedLaw, KernelRows

TRUE = CollectiveLaw(
    start_ns=4_000.0,
    doubling_ns=1_500.0,
    flag_share=0.25,
    link_share=0.6,
    synchronise_ns=9_000.0,
)
BOUNDS = {
    "start_ns": (5e3, 500, 1e6),
    "doubling_ns": (1e3, 10, 2e4),
    "flag_share": (0.3, 0.01, 1),
    "link_share": (0.75, 0.05, 1),
    "synchronise_ns": (5e3, 10, 1e5),
}
PRIORS = tuple(
    ConstantPrior(
        name=name,
        unit="-",
        usual=usual,
        least=least,
        most=most,
        levels={"machine": 0.3} if name == "start_ns" else {},
    )
    for name, (usual, least, most) in BOUNDS.items()
)
GENERATOR = np.random.default_rng(1)


def rows_of(
    shape: Any, machines: list[str], law: Any, *, factors: dict[str, float] | None = None
) -> KernelRows:
    """`shape`'s kernels on `machines` in turn, timed by `law` times the machine's factor."""
    count = len(next(iter(vars_of(shape).values())))
    machine = np.array([machines[place % len(machines)] for place in range(count)])
    silicon = Silicon.columns(
        [Silicon.of(chip_by_name("h100"), ProductRate.FP8) for _ in range(count)]
    )
    slower = np.array([(factors or {}).get(name, 1.0) for name in machine.tolist()])
    return KernelRows(
        shape=shape,
        silicon=silicon,
        levels=dict.fromkeys(("machine", "kernel", "compiled", "format"), machine),
        measured_ns=law.duration_ns(shape, silicon, in_loop=True) * slower,
        lines=np.array([f"made.csv:{line}" for line in range(count)]),
    )


def vars_of(shape: Any) -> dict[str, Any]:
    return {name: getattr(shape, name) for name in shape.__dataclass_fields__}


def collectives(count: int) -> CollectiveShape:
    return CollectiveShape(
        chips=GENERATOR.choice([2.0, 4.0, 8.0], count),
        payload_bytes=np.exp(GENERATOR.uniform(np.log(100), np.log(1e9), count)),
        reduces_all=GENERATOR.choice([0.0, 1.0], count),
    )


def test_a_fit_recovers_the_constants_that_made_its_data() -> None:
    rows = rows_of(collectives(600), ["a", "b"], TRUE)

    found = FittedLaw(CollectiveLaw, PRIORS, rows)

    for prior in PRIORS:
        assert found.base(prior.name) == pytest.approx(getattr(TRUE, prior.name), rel=0.03)
    assert np.abs(found.predict_ns(rows) / rows.measured_ns - 1).max() < 0.01


@pytest.mark.long
def test_a_fit_of_products_predicts_shapes_that_it_has_not_seen() -> None:
    def products(count: int) -> ProductShape:
        sizes = np.exp(GENERATOR.uniform(0, np.log(16_384), (3, count)))
        rows, outputs, inputs = np.ceil(sizes)
        ones = np.ones(count)
        return ProductShape(
            rows=rows,
            outputs=np.maximum(outputs, 128),
            inputs=np.maximum(inputs, 128),
            element_bytes=ones,
            quantised=ones,
        )

    family = next(each for each in FAMILIES if each.name == "GEMM")
    true = shipped_law("GEMM", format="fp8")
    fitted = FittedLaw(ProductLaw, family.priors, rows_of(products(600), ["a"], true))
    unseen = rows_of(products(300), ["a"], true)

    assert np.median(np.abs(fitted.predict_ns(unseen) / unseen.measured_ns - 1)) < 0.03


def test_a_machines_own_start_is_found_and_an_unknown_machine_has_the_base() -> None:
    small = CollectiveShape(
        chips=np.full(300, 2.0), payload_bytes=np.full(300, 1.0), reduces_all=np.zeros(300)
    )
    rows = rows_of(small, ["a", "b"], TRUE, factors={"a": 1.2, "b": 1 / 1.2})

    found = FittedLaw(CollectiveLaw, PRIORS, rows)

    own = found.deviations("start_ns", "machine")
    assert own["a"] > 1.1
    assert own["b"] < 1 / 1.1
    unknown = replace(rows, levels={**rows.levels, "machine": np.full(300, "c")})
    middle = TRUE.duration_ns(small, rows.silicon)
    assert found.predict_ns(unknown) == pytest.approx(middle, rel=0.05)


def test_one_odd_kernel_of_a_machine_moves_it_less_than_it_is_odd() -> None:
    rows = rows_of(collectives(300), ["a"], TRUE)
    odd = rows.levels["machine"].copy()
    odd[0] = "z"
    measured = rows.measured_ns.copy()
    measured[0] *= 3
    found = FittedLaw(
        CollectiveLaw,
        PRIORS,
        replace(rows, levels={**rows.levels, "machine": odd}, measured_ns=measured),
    )

    assert 1.0 < found.deviations("start_ns", "machine")["z"] < 2.5
    own_ns = found.base("start_ns") * found.deviations("start_ns", "machine")["a"]
    assert own_ns == pytest.approx(TRUE.start_ns, rel=0.03)


def test_constants_stay_within_their_bounds() -> None:
    fast = CollectiveLaw(
        start_ns=100.0, doubling_ns=1.0, flag_share=3.0, link_share=3.0, synchronise_ns=1.0
    )

    found = FittedLaw(CollectiveLaw, PRIORS, rows_of(collectives(200), ["a"], fast))

    assert found.base("start_ns") >= 500
    assert found.base("link_share") <= 1
