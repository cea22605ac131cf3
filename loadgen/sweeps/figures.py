"""From a run's measures to what a sweep keeps of them."""

from collections.abc import Mapping

from loadgen.measures.run_measures import Distribution, RunMeasures
from loadgen.records.estimate import Estimate
from loadgen.records.sweep_record import PointFigures


def point_figures(measures: RunMeasures) -> PointFigures:
    """Take the figures of all classes together."""
    total = measures.total
    of, rates = total.distributions, total.rates
    failed = rates.get("failed_share")
    return PointFigures(
        requests_per_s=rates.get("requests_per_s"),
        sent_per_s=total.arrivals.rate_per_s,
        output_tokens_per_s=rates.get("output_tokens_per_s"),
        goodput_per_s=rates.get("goodput_per_s"),
        ttft_p50_ms=_percentile(of, "ttft_ms", 50.0),
        ttft_p99_ms=_percentile(of, "ttft_ms", 99.0),
        tpot_p50_ms=_percentile(of, "tpot_ms", 50.0),
        tpot_p99_ms=_percentile(of, "tpot_ms", 99.0),
        e2e_mean_ms=of["e2e_ms"].mean if "e2e_ms" in of else None,
        e2e_p50_ms=_percentile(of, "e2e_ms", 50.0),
        e2e_p99_ms=_percentile(of, "e2e_ms", 99.0),
        interactivity_p50=_percentile(of, "interactivity", 50.0),
        tokens_per_s_per_mw=measures.energy.output_tokens_per_s_per_mw,
        tokens_per_s_per_chip=measures.energy.tokens_per_s_per_chip,
        average_watts=measures.energy.average_watts,
        failed_share=0.0 if failed is None else failed.value,
    )


def _percentile(of: Mapping[str, Distribution], name: str, percentile: float) -> Estimate | None:
    return of[name].percentiles[percentile] if name in of else None
