"""Predictions of published rows by the fit of DeepSeek-R1's rows, which has seen no other model."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from emulator.errors import ConfigError
from emulator.specs.model import ModelSpec
from emulator.specs.models import model_by_name
from emulator.specs.overlap import Overlap
from emulator.specs.shipped_fits import ShippedFits, calibration_for, shipped_fits
from emulator.ultraserver.step_cost import StepCostModel
from emulator.units import NS_PER_S
from serving.analysis.steady_state.step_batches import same_on_all
from serving.analysis.validate.counted_rows import RowLoad
from serving.analysis.validate.measured_row import ExcludedRow
from serving.analysis.validate.other_models.published_load import (
    SAME_DIMENSIONS,
    load_of,
    published_model,
    published_partition,
    published_system,
)
from serving.analysis.validate.other_models.published_row import FILE, PublishedRow, shipped_rows
from serving.analysis.validate.prediction_errors import RowError, figures
from serving.analysis.validate.row_deployment import MODEL
from serving.analysis.validate.row_prediction import RowPredictor, RowResults

DENSE, MIXTURE, FITTED_MODEL = "dense", "MoE", "the fit's own"
PASS_TOKENS: Final = 16_384
"""*Assumed*, of a GPU in a prefill pass of a pool, as in SGLang's deployment of DeepSeek-R1."""
_NODE_METRICS: Final = ("prefill_tokens_per_s_per_gpu", "decode_tokens_per_s_per_gpu")
METRICS: Final = {
    "output_tokens_per_s": "tokens_per_s",
    "output_tokens_per_s_per_gpu": "tokens_per_s",
    "tpot_ms": "tpot",
    "ttft_ms": "mean_ttft",
    "e2e_s": "tpot",
    **dict.fromkeys(_NODE_METRICS, "tokens_per_s"),
}
"""Published metrics, with the metric of the fits' intervals that they are judged by."""
_SCORED: Final = {"tokens_per_s": "tokens/s", "tpot": "TPOT or latency", "mean_ttft": "mean TTFT"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedPrediction:
    """A row, the prediction of its value in its own unit, and the sequences that ran at once."""

    row: PublishedRow
    predicted: float
    batch: int

    @property
    def kind(self) -> str:
        """Dense, a mixture of experts, or the model that was fitted."""
        if self.row.model == MODEL:
            return FITTED_MODEL
        name = SAME_DIMENSIONS.get(self.row.model, self.row.model)
        return MIXTURE if model_by_name(name).experts else DENSE

    def error(self, fits: ShippedFits) -> RowError:
        """Against the published value; covered by the interval over rows of left-out machines."""
        interval = fits.intervals[METRICS[self.row.metric]]
        least, most = interval.around(self.predicted)
        return RowError(
            file=FILE,
            line=self.row.line,
            hardware=self.row.hardware,
            speculative=False,
            measured=self.row.value,
            predicted=self.predicted,
            covered=least <= self.row.value <= most,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherModels:
    """Every published row: predicted, or excluded with its reason."""

    fits: ShippedFits
    predictions: tuple[PublishedPrediction, ...]
    excluded: tuple[ExcludedRow, ...]

    def scores(self) -> list[dict[str, Any]]:
        """Of each metric: every kind as a whole, then its models; the fit's own model last."""
        found = []
        for metric, words in _SCORED.items():
            of_metric = [each for each in self.predictions if METRICS[each.row.metric] == metric]
            for kind in (DENSE, MIXTURE, FITTED_MODEL):
                of_kind = [each for each in of_metric if each.kind == kind]
                models = sorted({each.row.model for each in of_kind})
                if len(models) > 1:
                    found.append(self._score(words, kind, "all", of_kind))
                for model in models:
                    own = [each for each in of_kind if each.row.model == model]
                    found.append(self._score(words, kind, model, own))
        return found

    def _score(
        self, metric: str, kind: str, model: str, of: Iterable[PublishedPrediction]
    ) -> dict[str, Any]:
        scored = figures([each.error(self.fits) for each in of])
        return {"metric": metric, "kind": kind, "model": model, **scored}


def other_models(rows: Sequence[PublishedRow]) -> OtherModels:
    """Predict every row that can be."""
    fits = shipped_fits()
    loads: list[tuple[PublishedRow, RowLoad]] = []
    found: list[PublishedPrediction] = []
    excluded = []
    for row in rows:
        try:
            if row.metric not in METRICS:
                raise ConfigError("metric", row.metric, f"one of {', '.join(METRICS)}")
            if row.metric in _NODE_METRICS:
                found.append(_node_prediction(row))
            else:
                loads.append((row, load_of(row)))
        except ConfigError as error:
            excluded.append(
                ExcludedRow(file=FILE, line=row.line, hardware=row.hardware, reason=str(error))
            )
    by_model: dict[ModelSpec, list[tuple[PublishedRow, RowLoad]]] = {}
    for row, load in loads:  # a predictor's steps are of one model
        by_model.setdefault(load.deployment.model, []).append((row, load))
    for own in by_model.values():
        results = RowPredictor([load for _, load in own]).predict(fits.everything)
        for place, (row, load) in enumerate(own):
            batch = min(load.users, int(load.deployment.slots))
            predicted = _value(row, load, results, place)
            found.append(PublishedPrediction(row=row, predicted=predicted, batch=batch))
    return OtherModels(
        fits=fits,
        predictions=tuple(sorted(found, key=lambda each: each.row.line)),
        excluded=tuple(excluded),
    )


@lru_cache(maxsize=1)
def shipped_other_models() -> OtherModels:
    """Of the rows that ship."""
    return other_models(shipped_rows())


def _value(row: PublishedRow, load: RowLoad, results: RowResults, place: int) -> float:
    """The prediction in the row's own unit."""
    deployment = load.deployment
    tokens = deployment.prompt_tokens + deployment.output_tokens
    per_chip = float(results.tokens_per_s_per_chip[place]) * deployment.output_tokens / tokens
    tpot_s, ttft_s = float(results.tpot_s[place]), float(results.mean_ttft_s[place])
    return {
        "output_tokens_per_s_per_gpu": per_chip,
        "output_tokens_per_s": per_chip * deployment.chips,
        "tpot_ms": 1e3 * tpot_s,
        "ttft_ms": 1e3 * ttft_s,
        "e2e_s": ttft_s + (deployment.output_tokens - 1) * tpot_s,
    }[row.metric]


def _node_prediction(row: PublishedRow) -> PublishedPrediction:
    """One step of a pool of prompts or of decoding, all GPUs alike, with two half batches and even
    experts, under the calibration that ships.
    """
    if row.prompt_tokens is None or row.output_tokens is None:
        raise ConfigError("isl, osl", "nothing", "lengths, which the source does not state")
    model, box = published_model(row), published_system(row)
    partition = published_partition(row, model, box)
    costs = StepCostModel(
        box.cluster(-(-partition.chips // box.chips.count)),
        model,
        partition,
        calibration=calibration_for(row.hardware),
        overlap=Overlap.TWO_BATCH,
    )
    if row.metric.startswith("prefill"):
        count = max(1, PASS_TOKENS // row.prompt_tokens)
        new, context = [row.prompt_tokens] * count, [0] * count
    else:
        count = (row.users or 0) // partition.ranks
        if not count:
            raise ConfigError("users", row.users or "nothing", "at least one a rank")
        new, context = [1] * count, [row.prompt_tokens + row.output_tokens // 2] * count
    step_ns = costs.cost(same_on_all(partition.ranks, new, context)).duration_ns
    return PublishedPrediction(
        row=row, predicted=sum(new) / step_ns * NS_PER_S, batch=count * partition.ranks
    )
