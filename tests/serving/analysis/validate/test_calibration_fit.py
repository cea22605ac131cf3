"""A fit finds the factors that made its data."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from emulator.errors import ConfigError
from emulator.specs.stack_factors import NAMED_CONSTANTS, GenerationFactors, StackFactors
from serving.analysis.validate.calibration_fit import (
    EXCHANGE_SKEWS,
    SHARED,
    FactorVector,
    _with_skew,
    fit_factors,
)
from serving.analysis.validate.counted_rows import RowLoad
from serving.analysis.validate.measured_row import read_rows
from serving.analysis.validate.row_prediction import RowPredictor, RowResults
from serving.analysis.validate.usable_rows import usable_rows
from tests.serving.analysis.validate.made_up_measurements import write_rows

TRUE = StackFactors(
    name="true",
    source="a test",
    memory_share=0.75,
    tensor_share=0.38,
    link_share=0.45,
    layer_ns=90_000.0,
    request_ns=20_000.0,
    collective_ns=5_000.0,
    front_end_request_ns=1e8,
    fp4_overhead=1.0,
    draft_overhead=1.4,
    exchange_skew=1.75,
    generations={"hopper": GenerationFactors()},
)
ROWS = [
    {"conc": str(conc), "isl": isl, "osl": osl, "decode_ep": ep, "prefill_ep": ep}
    for conc in (1, 4, 16, 64)
    for isl, osl, ep in (("1024", "1024", "1"), ("8192", "1024", "1"), ("1024", "4096", "8"))
]


@pytest.fixture(scope="module")
def loads(tmp_path_factory: pytest.TempPathFactory) -> list[RowLoad]:
    path: Path = tmp_path_factory.mktemp("rows") / "rows.csv"
    speculative = [{**row, "spec_method": "mtp"} for row in ROWS[::3]]
    rows, excluded = usable_rows(read_rows(write_rows(path, [*ROWS, *speculative])))
    assert not excluded
    return [row.load for row in rows]


def observed(loads: list[RowLoad]) -> RowResults:
    return RowPredictor(loads).predict(TRUE)


@pytest.mark.slow
def test_a_fit_recovers_the_times_that_made_its_data(loads: list[RowLoad]) -> None:
    found = fit_factors(loads, observed(loads), name="found", source="a test")

    assert found.draft_overhead == pytest.approx(1.4, abs=0.051)
    again = RowPredictor(loads).predict(found)
    assert np.abs(again.tpot_s / observed(loads).tpot_s - 1).max() < 0.02


@pytest.mark.slow
def test_the_front_end_is_what_runs_need(loads: list[RowLoad]) -> None:
    predictor = RowPredictor(loads)
    runs = predictor.simulate(TRUE, np.ones(len(loads), dtype=np.bool_))
    truth = replace(predictor.predict(TRUE), ttft_s=runs.ttft_s)

    found = fit_factors(loads, truth, name="found", source="a test")

    assert found.front_end_request_ns == pytest.approx(TRUE.front_end_request_ns, rel=0.05)


@pytest.mark.slow
def test_rows_with_speculation_change_the_overhead_of_drafts_alone(loads: list[RowLoad]) -> None:
    truth = observed(loads)
    drafts = np.array([load.deployment.draft_tokens > 0 for load in loads])
    slower = replace(truth, tpot_s=np.where(drafts, 1.2 * truth.tpot_s, truth.tpot_s))

    first, second = (fit_factors(loads, each, name="x", source="x") for each in (truth, slower))

    assert second.draft_overhead > first.draft_overhead
    assert replace(second, draft_overhead=first.draft_overhead) == first


@pytest.mark.slow
def test_a_result_that_is_missing_does_not_count(loads: list[RowLoad]) -> None:
    truth = observed(loads)
    holes = replace(truth, ttft_s=np.full(len(loads), np.nan))

    found = fit_factors(loads, holes, name="found", source="a test")

    again = RowPredictor(loads).predict(found)
    assert np.abs(again.tpot_s / truth.tpot_s - 1).max() < 0.02


@pytest.mark.slow
def test_what_a_box_loses_changes_the_skew_of_exchanges_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apart = {"decode_dp_attention": "True", "decode_ep": "8", "prefill_ep": "8"}
    users = [{"conc": conc} for conc in ("4", "64")]
    changes = [*users, *({**each, **apart} for each in users)]
    rows, _ = usable_rows(read_rows(write_rows(tmp_path / "rows.csv", changes)))
    loads = [row.load for row in rows]
    truth = observed(loads)

    def fitted(share: float) -> StackFactors:
        figure = replace(NAMED_CONSTANTS["store_share"], value=share)
        monkeypatch.setitem(NAMED_CONSTANTS, "store_share", figure)
        return fit_factors(loads, truth, name="x", source="x")

    slow, fast = fitted(0.2), fitted(0.9)

    assert slow.exchange_skew < fast.exchange_skew
    front_end_ns = fast.front_end_request_ns
    alike = replace(slow, exchange_skew=fast.exchange_skew, front_end_request_ns=front_end_ns)
    assert alike == fast


@pytest.mark.long
def test_a_row_without_exchanges_leaves_the_skew_where_its_prior_is(loads: list[RowLoad]) -> None:
    alone = next(each for each in loads if each.deployment.decode.partition.ep == 1)
    predictor = RowPredictor([alone])

    found = _with_skew(TRUE, predictor, predictor.predict(TRUE), np.ones(1))

    (prior,) = (each for each in SHARED if each.name == "exchange_skew")
    assert found.exchange_skew == pytest.approx(prior.usual, rel=0.006)
    assert (EXCHANGE_SKEWS[0], EXCHANGE_SKEWS[-1]) == pytest.approx((prior.least, prior.most))


@pytest.mark.long
def test_releases_have_overheads_that_shrink_to_the_generation_s(tmp_path: Path) -> None:
    """Two machines of one generation, each under two releases; another has rows of no release."""
    old = [
        {"hardware": hardware, "conc": conc, "date": day}
        for hardware in ("mi300x", "mi325x")
        for conc in ("4", "16", "64")
        for day in ("2026-02-27", "2026-05-18")
    ]
    none = [{**row, "date": ""} for row in ROWS[:6]]
    rows, _ = usable_rows(read_rows(write_rows(tmp_path / "rows.csv", [*none, *old])))
    loads = [row.load for row in rows]
    true = {"sglang 0.5.9": 1.4, "sglang 0.5.12": 0.8}
    truth = replace(
        TRUE,
        generations={**TRUE.generations, "cdna3": GenerationFactors()},
        releases={"cdna3": true},
    )
    seen = RowPredictor(loads).predict(truth)

    found = fit_factors(loads, seen, name="found", source="a test")

    by_release = found.releases["cdna3"]
    assert set(found.releases) == {"cdna3"}
    assert 1.25 < by_release["sglang 0.5.9"] / by_release["sglang 0.5.12"] < 1.4 / 0.8

    def miss(factors: StackFactors) -> float:
        return float(
            np.abs(np.log(RowPredictor(loads).predict(factors).tpot_s / seen.tpot_s)).max()
        )

    assert miss(found) < 0.5 * miss(replace(found, releases={}))


@pytest.mark.long
def test_rows_that_name_no_release_leave_none(tmp_path: Path) -> None:
    unnamed = [{**row, "date": ""} for row in ROWS]
    rows, _ = usable_rows(read_rows(write_rows(tmp_path / "rows.csv", unnamed)))
    loads = [row.load for row in rows]

    assert fit_factors(loads, observed(loads), name="found", source="a test").releases == {}


def test_the_start_of_a_fit_is_what_priors_hold_usual() -> None:
    order = FactorVector(["hopper"])
    made = order.factors(order.start, name="prior", source="a test")

    for prior in SHARED:
        assert getattr(made, prior.name) == pytest.approx(prior.usual)
    assert made.generations["hopper"] == GenerationFactors()


@pytest.mark.long
def test_speculation_alone_cannot_be_fitted(loads: list[RowLoad]) -> None:
    drafts = [load for load in loads if load.deployment.draft_tokens]

    with pytest.raises(ConfigError, match="some without speculation"):
        fit_factors(drafts, observed(drafts), name="x", source="x")
