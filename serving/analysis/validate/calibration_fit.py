"""Fits the factors of real stacks to measured rows: few, bounded, with explicit priors.

Least squares on logarithms of factors and errors; soft L1 discounts outliers, and a factor without
much data stays near its prior. Each machine counts as the root of its rows, since they are not
independent. What rows' exchanges are made of, rows cannot tell: the fit of all factors charges them
alike inside boxes and between them, and then finds `exchange_skew` alone with what kernels say of a
box. Then runs of rows where nothing waits fit the front end alone. None of these knows which
release of its stack a row ran: what each does to its generation's overheads is found then, all else
as it is, and at last the overhead of drafts by rows with speculation.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from emulator.errors import ConfigError
from emulator.specs.chips import chip_by_name
from emulator.specs.stack_factors import GenerationFactors, StackFactors
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
    # What the laws of measured experts (0.773) and of attention (0.775) have on all machines.
    Prior(name="memory_share", usual=0.77, least=0.3, most=1.0, spread=0.02),
    # Grouped products of a few hundred rows in FP8 with block scales reach about 40 % of the peak.
    Prior(name="tensor_share", usual=0.40, least=0.1, most=0.9, spread=0.3),
    Prior(name="link_share", usual=0.50, least=0.1, most=1.0, spread=0.4),
    # Small kernels between the products: norms, ropes, quantising, routing; of any order.
    Prior(name="layer_ns", usual=40e3, least=5e3, most=400e3, spread=1.0),
    Prior(name="request_ns", usual=20e3, least=1e3, most=300e3, spread=0.5),
    # Measured all-reduces of a few bytes take 10.5 us over 8 GPUs; in a step they also wait.
    Prior(name="collective_ns", usual=5e3, least=0.1e3, most=60e3, spread=0.5),
    Prior(name="front_end_request_ns", usual=100e6, least=5e6, most=1e9, spread=1.0),
    # Public FP4 checkpoints leave attention in 16 bits, so that two to three products a layer of
    # seven convert no activations: 5.7 us each by the law of products, of about 90 us a layer.
    Prior(name="fp4_overhead", usual=0.85, least=0.5, most=1.5, spread=0.05),
    # Assumed: a busiest chip with under twice the mean, as routing is without replicas.
    Prior(name="exchange_skew", usual=1.75, least=1.0, most=20.0, spread=0.5),
)
GENERATION: Final = (
    Prior(name="compute", usual=1.0, least=0.2, most=5.0, spread=0.3),
    Prior(name="overhead", usual=1.0, least=0.2, most=5.0, spread=0.5),
)
RELEASE: Final = Prior(
    # Shrunk to no difference; 0.05 to 0.3 leave machines that were left out within half a point.
    name="release",
    usual=1.0,
    least=0.2,
    most=5.0,
    spread=0.1,
)
ERROR_SCALES: Final = {"tpot": 0.1, "ttft": 0.3, "tokens_per_s": 0.33}
"""Errors that count as one: TPOT matters most."""
UNQUEUED_USERS: Final = 16
"""With more, or with a pool for prompts, TTFT is the queue's, which no factor explains."""
_SKEW: Final = next(each for each in SHARED if each.name == "exchange_skew")
EXCHANGE_SKEWS: Final = np.geomspace(_SKEW.least, _SKEW.most, 302)
"""Tried, one per cent apart."""
FRONT_END_NS: Final = np.geomspace(5e6, 1e9, 531)
"""Tried, one per cent apart."""
DRAFT_OVERHEADS: Final = np.linspace(1.0, 2.5, 31)
EVALUATIONS_MAX: Final = 40


class FactorVector:
    """The order of factors in a vector, with their priors and bounds."""

    def __init__(self, generations: Sequence[str]) -> None:
        self.generations = tuple(generations)
        self.priors = (*SHARED, *(GENERATION * len(self.generations)))
        self.start: Float64s = np.log([each.usual for each in self.priors])

    def factors(self, vector: Float64s, *, name: str, source: str) -> StackFactors:
        """The factors of `vector`, without releases and an overhead of drafts."""
        values = np.exp(vector).tolist()
        shared = {prior.name: value for prior, value in zip(SHARED, values, strict=False)}
        own = values[len(SHARED) :]
        return StackFactors(
            name=name,
            source=source,
            draft_overhead=1.0,
            generations={
                generation: GenerationFactors(compute=own[2 * place], overhead=own[2 * place + 1])
                for place, generation in enumerate(self.generations)
            },
            **shared,
        )


def fit_factors(
    loads: Sequence[RowLoad], observed: RowResults, *, name: str, source: str
) -> StackFactors:
    """Fit plain rows, then the front end to runs of them, releases of stacks, and the overhead of
    drafts to any rows with speculation.

    Generations without a plain row get no factors. Raises ConfigError without plain rows.
    """
    drafts = np.array([load.deployment.stack.drafts for load in loads])
    if drafts.all():
        raise ConfigError(
            field="data",
            value=f"{len(loads)} rows for {name}",
            expected="some without speculation, which a fit begins with",
        )
    plain = [load for load, speculative in zip(loads, drafts, strict=True) if not speculative]
    machines = [load.deployment.stack.machine for load in plain]
    generations = {chip_by_name(machine).generation for machine in machines} - {""}
    order = FactorVector(sorted(generations))
    unqueued = np.array(
        [load.users <= UNQUEUED_USERS and not load.deployment.disaggregated for load in plain]
    )
    seen = observed.taken(~drafts)
    seen = replace(seen, ttft_s=np.where(unqueued, seen.ttft_s, np.nan))
    predictor = RowPredictor(plain)
    weights = _weights(machines)
    vector = _fitted(order, predictor, seen, weights)
    factors = order.factors(vector, name=name, source=source)
    factors = _with_skew(factors, predictor, seen, weights)
    factors = _with_front_end(factors, predictor, seen.ttft_s, machines)
    factors = _with_releases(factors, predictor, seen, weights, plain)
    if not drafts.any():
        return factors
    rest = [load for load, speculative in zip(loads, drafts, strict=True) if speculative]
    return _with_drafts(factors, RowPredictor(rest), observed.taken(drafts))


def _weights(machines: Sequence[str]) -> Float64s:
    """Of each row, with a mean of one; of none where there are none."""
    if not machines:
        return np.empty(0)
    counts = np.array([machines.count(machine) for machine in machines])
    weights: Float64s = 1 / np.sqrt(counts)
    weights /= weights.mean()
    return weights


def _fitted(
    order: FactorVector, predictor: RowPredictor, observed: RowResults, weights: Float64s
) -> Float64s:
    def errors(vector: Float64s) -> Float64s:
        factors = order.factors(vector, name="fit", source="a fit")
        predicted = predictor.predict(factors, stores=False)
        return weights * _softened(_log_errors(predicted, observed))

    return _least_squares(errors, order.priors)


def _least_squares(errors: Callable[[Float64s], Float64s], priors: Sequence[Prior]) -> Float64s:
    """The logarithms of factors with `priors` under which `errors` of them are least."""
    # Imported here: it takes longer than everything that a prediction needs.
    from scipy.optimize import least_squares  # type: ignore[import-untyped]

    start, least, most = np.log([(each.usual, each.least, each.most) for each in priors]).T
    spread = np.array([each.spread for each in priors])

    def residuals(vector: Float64s) -> Float64s:
        return np.concatenate([errors(vector).ravel(), (vector - start) / spread])

    found = least_squares(
        residuals, start, bounds=(least, most), diff_step=1e-4, max_nfev=EVALUATIONS_MAX
    )
    vector: Float64s = found.x
    return vector


def _with_releases(
    factors: StackFactors,
    predictor: RowPredictor,
    observed: RowResults,
    weights: Float64s,
    loads: Sequence[RowLoad],
) -> StackFactors:
    """With a factor on overheads for each release on each generation that `loads` name."""
    stacks = [load.deployment.stack for load in loads]
    named = [(chip_by_name(each.machine).generation, each.release) for each in stacks]
    places = sorted({each for each in named if all(each)})
    if not places:
        return factors

    def made(vector: Float64s) -> StackFactors:
        releases: dict[str, dict[str, float]] = {}
        for (generation, release), times in zip(places, np.exp(vector).tolist(), strict=True):
            releases.setdefault(generation, {})[release] = times
        return replace(factors, releases=releases)

    def errors(vector: Float64s) -> Float64s:
        return weights * _softened(_log_errors(predictor.predict(made(vector)), observed))

    return made(_least_squares(errors, [RELEASE] * len(places)))


def _softened(errors: Float64s) -> Float64s:
    """Whose squares are twice the soft L1 loss of `errors`."""
    softened: Float64s = np.sign(errors) * np.sqrt(2 * (np.sqrt(1 + errors * errors) - 1))
    return softened


def _log_errors(predicted: RowResults, observed: RowResults) -> Float64s:
    """In units of each metric's scale; 0 where nothing was measured: [3, rows]."""
    errors = [
        np.log(predicted.of(metric) / observed.of(metric)) / scale
        for metric, scale in ERROR_SCALES.items()
    ]
    return np.nan_to_num(np.stack(errors), nan=0.0)


def _with_skew(
    factors: StackFactors, predictor: RowPredictor, observed: RowResults, weights: Float64s
) -> StackFactors:
    """With the one of EXCHANGE_SKEWS under which rows are missed least, all else as it is."""

    def loss(made: StackFactors) -> float:
        errors = weights * _softened(_log_errors(predictor.predict(made), observed))
        far = np.log(made.exchange_skew / _SKEW.usual) / _SKEW.spread
        return float((errors**2).sum() + far * far)

    tried = [replace(factors, exchange_skew=each) for each in EXCHANGE_SKEWS.tolist()]
    return min(tried, key=loss)


def _with_front_end(
    factors: StackFactors, predictor: RowPredictor, ttft_s: Float64s, machines: Sequence[str]
) -> StackFactors:
    """With the front end that runs need for `ttft_s`, NaN where requests queue, of these machines.

    What else a request waits for is its engine's scheduler, which the steady state's formula does
    not have: the formula's own front end would take that in.
    """
    prior = next(each for each in SHARED if each.name == "front_end_request_ns")
    seen = ~np.isnan(ttft_s)
    weights = _weights(machines)[seen]  # a machine weighs as in the fit of its steps
    inside_s = predictor.simulate(factors, seen).ttft_s[seen] - factors.front_end_request_ns / 1e9

    def loss(front_end_ns: float) -> float:
        predicted_s = np.maximum(inside_s + front_end_ns / 1e9, 1e-3)
        errors = np.log(predicted_s / ttft_s[seen]) / ERROR_SCALES["ttft"]
        far = np.log(front_end_ns / prior.usual) / prior.spread
        return float(((weights * _softened(errors)) ** 2).sum() + far * far)

    losses = np.array([loss(each) for each in FRONT_END_NS.tolist()])
    assert np.isfinite(losses).all()
    return replace(factors, front_end_request_ns=float(FRONT_END_NS[losses.argmin()]))


def _with_drafts(
    factors: StackFactors, predictor: RowPredictor, observed: RowResults
) -> StackFactors:
    """With the one of DRAFT_OVERHEADS that has the smallest mean error of TPOT."""

    def miss(made: StackFactors) -> float:
        predicted_s = predictor.predict(made).tpot_s
        return float(np.nanmean(np.abs(np.log(predicted_s / observed.tpot_s))))

    tried = [replace(factors, draft_overhead=each) for each in DRAFT_OVERHEADS.tolist()]
    return min(tried, key=miss)
