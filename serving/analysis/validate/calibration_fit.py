"""Fits the factors of real stacks to measured rows: few, bounded, with explicit priors.

Least squares on logarithms of factors and errors; soft L1 discounts outliers, and a factor without
much data stays near its prior. Rows with speculation then fit the acceptance alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from emulator.errors import ConfigError
from emulator.specs.stack_factors import FrameworkFactors, MachineFactors, StackFactors
from serving.analysis.validate.counted_rows import RowLoad
from serving.analysis.validate.row_prediction import RowPredictor, RowResults

Float64s = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """A factor's usual value, its bounds, and the standard deviation of its logarithm."""

    name: str
    usual: float
    least: float
    most: float
    spread: float


SHARED: Final = (
    # About three quarters of HBM's rate is what streaming kernels reach, 0.3 to all of it.
    Prior(name="memory_share", usual=0.75, least=0.3, most=1.0, spread=0.3),
    # Grouped products of a few hundred rows in FP8 with block scales reach about 40 % of the peak.
    Prior(name="tensor_share", usual=0.40, least=0.2, most=0.9, spread=0.12),
    Prior(name="link_share", usual=0.50, least=0.2, most=1.0, spread=0.4),
    # Small kernels between the products: norms, ropes, quantising, routing; of any order.
    Prior(name="layer_ns", usual=50e3, least=5e3, most=400e3, spread=1.0),
    Prior(name="collective_ns", usual=5e3, least=0.1e3, most=60e3, spread=1.0),
    Prior(name="fp4_overhead", usual=1.0, least=0.5, most=1.5, spread=0.3),
)
MACHINE: Final = (
    Prior(name="memory", usual=1.0, least=0.3, most=3.3, spread=0.1),
    Prior(name="compute", usual=1.0, least=0.3, most=3.3, spread=1.0),
)
OVERHEAD: Final = Prior(name="overhead", usual=1.0, least=0.3, most=3.3, spread=0.25)
AGEING_USUAL, AGEING_MOST, AGEING_SPREAD = 0.04, 0.3, 0.10  # a month, not a logarithm
ERROR_SCALES: Final = {"tpot": 0.1, "ttft": 1.6, "tokens_per_s": 0.33}
"""Errors that count as one: TPOT matters most; TTFT holds queueing that no fit explains."""
ACCEPTANCES: Final = np.linspace(0.3, 0.95, 66)
ACCEPTANCE_USUAL: Final = 0.75
EVALUATIONS_MAX: Final = 40


class FactorVector:
    """The order of factors in a vector, with their priors and bounds."""

    def __init__(self, machines: Sequence[str], frameworks: Sequence[str]) -> None:
        self.machines, self.frameworks = tuple(machines), tuple(frameworks)
        logs = [*SHARED, *(prior for _ in self.machines for prior in MACHINE)]
        logs += [OVERHEAD for _ in self.frameworks]
        usual = [np.log([each.usual, each.least, each.most]) for each in logs]
        usual += [np.array([AGEING_USUAL, 0.0, AGEING_MOST]) for _ in self.frameworks]
        self.start, self.least, self.most = np.array(usual).T
        spreads = [each.spread for each in logs] + [AGEING_SPREAD for _ in self.frameworks]
        self.spread = np.array(spreads)

    def factors(
        self, vector: Float64s, *, acceptance: float, name: str, source: str
    ) -> StackFactors:
        """The factors of `vector`."""
        shared, machines = len(SHARED), len(self.machines)
        values = np.exp(vector[: shared + 2 * machines + len(self.frameworks)]).tolist()
        by_machine = values[shared : shared + 2 * machines]
        overheads = values[shared + 2 * machines :]
        ageings = vector[-len(self.frameworks) :].tolist() if self.frameworks else []
        named = {prior.name: value for prior, value in zip(SHARED, values, strict=False)}
        return StackFactors(
            name=name,
            source=source,
            acceptance=acceptance,
            machines={
                machine: MachineFactors(
                    memory=by_machine[2 * place], compute=by_machine[2 * place + 1]
                )
                for place, machine in enumerate(self.machines)
            },
            frameworks={
                framework: FrameworkFactors(overhead=overhead, ageing=ageing)
                for framework, overhead, ageing in zip(
                    self.frameworks, overheads, ageings, strict=True
                )
            },
            **named,
        )


def fit_factors(
    loads: Sequence[RowLoad], observed: RowResults, *, name: str, source: str
) -> StackFactors:
    """Fit plain rows, then the acceptance to any rows with speculation.

    Machines and frameworks without a plain row get no factors. Raises ConfigError without plain
    rows.
    """
    drafts = np.array([load.deployment.draft_tokens > 0 for load in loads])
    if drafts.all():
        raise ConfigError(
            field="data",
            value=f"{len(loads)} rows for {name}",
            expected="some without speculation, which a fit begins with",
        )
    plain = [load for load, speculative in zip(loads, drafts, strict=True) if not speculative]
    stacks = [load.deployment.stack for load in plain]
    order = FactorVector(
        sorted({stack.machine for stack in stacks}), sorted({stack.framework for stack in stacks})
    )
    vector = _fitted(order, RowPredictor(plain), observed.taken(~drafts))
    acceptance = ACCEPTANCE_USUAL
    if drafts.any():
        rest = [load for load, speculative in zip(loads, drafts, strict=True) if speculative]
        acceptance = _fitted_acceptance(order, vector, RowPredictor(rest), observed.taken(drafts))
    return order.factors(vector, acceptance=acceptance, name=name, source=source)


def _fitted(order: FactorVector, predictor: RowPredictor, observed: RowResults) -> Float64s:
    # Imported here: it takes longer than everything that a prediction needs.
    from scipy.optimize import least_squares  # type: ignore[import-untyped]

    def residuals(vector: Float64s) -> Float64s:
        factors = order.factors(vector, acceptance=ACCEPTANCE_USUAL, name="fit", source="a fit")
        data = _log_errors(predictor.predict(factors), observed)
        softened = np.sign(data) * np.sqrt(2 * (np.sqrt(1 + data * data) - 1))
        return np.concatenate([softened, (vector - order.start) / order.spread])

    found = least_squares(
        residuals,
        order.start,
        bounds=(order.least, order.most),
        diff_step=1e-4,
        max_nfev=EVALUATIONS_MAX,
    )
    vector: Float64s = found.x
    return vector


def _log_errors(predicted: RowResults, observed: RowResults) -> Float64s:
    """In units of each metric's scale; 0 where nothing was measured: [3 x rows]."""
    errors = [
        np.log(predicted.of(metric) / observed.of(metric)) / scale
        for metric, scale in ERROR_SCALES.items()
    ]
    return np.nan_to_num(np.concatenate(errors), nan=0.0)


def _fitted_acceptance(
    order: FactorVector, vector: Float64s, predictor: RowPredictor, observed: RowResults
) -> float:
    """The one of ACCEPTANCES with the smallest mean error of TPOT."""

    def miss(acceptance: float) -> float:
        factors = order.factors(vector, acceptance=acceptance, name="fit", source="a fit")
        return float(
            np.nanmean(np.abs(np.log(predictor.predict(factors).tpot_s / observed.tpot_s)))
        )

    return float(min(ACCEPTANCES.tolist(), key=miss))
