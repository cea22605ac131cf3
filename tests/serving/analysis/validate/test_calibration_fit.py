"""A fit finds the factors that made its data."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from emulator.errors import ConfigError
from emulator.specs.stack_factors import GenerationFactors, StackFactors
from serving.analysis.validate.calibration_fit import (
    SHARED,
    UNQUEUED_USERS,
    FactorVector,
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


@pytest.mark.long
def test_a_fit_recovers_the_times_that_made_its_data(loads: list[RowLoad]) -> None:
    found = fit_factors(loads, observed(loads), name="found", source="a test")

    assert found.draft_overhead == pytest.approx(1.4, abs=0.051)
    again = RowPredictor(loads).predict(found)
    assert np.abs(again.tpot_s / observed(loads).tpot_s - 1).max() < 0.02


@pytest.mark.long
def test_the_front_end_is_what_runs_need(loads: list[RowLoad]) -> None:
    predictor = RowPredictor(loads)
    runs = predictor.simulate(TRUE, np.ones(len(loads), dtype=np.bool_))
    truth = replace(predictor.predict(TRUE), ttft_s=runs.ttft_s)

    found = fit_factors(loads, truth, name="found", source="a test")

    assert found.front_end_request_ns == pytest.approx(TRUE.front_end_request_ns, rel=0.05)


@pytest.mark.long
def test_rows_that_queue_take_no_weight_from_a_machine_in_the_front_end(tmp_path: Path) -> None:
    """One machine's front end takes 60 ms and the other's 150; of one more rows queue, or not."""
    few = [row for row in ROWS if row["conc"] == "4"]
    crowd = [
        {**row, "hardware": "h100", "conc": str(conc)} for row in ROWS[:3] for conc in (32, 64, 128)
    ]
    found = []
    for more in ([], crowd):
        rows = [*few, *({**row, "hardware": "h100"} for row in few), *more]
        used, _ = usable_rows(read_rows(write_rows(tmp_path / f"{len(more)}.csv", rows)))
        given = [row.load for row in used]
        predictor = RowPredictor(given)
        truth = predictor.predict(TRUE)
        unqueued = np.array([load.users <= UNQUEUED_USERS for load in given])
        inside = predictor.simulate(TRUE, unqueued).ttft_s - TRUE.front_end_request_ns / 1e9
        is_h100 = np.array([load.deployment.stack.machine.startswith("h100") for load in given])
        assert 0 < is_h100.sum() < len(given)
        ttft_s = inside + np.where(is_h100, 0.15, 0.06)
        fitted = fit_factors(given, replace(truth, ttft_s=ttft_s), name="x", source="x")
        found.append(fitted.front_end_request_ns)

    alone, beside = found
    assert beside == pytest.approx(alone, rel=0.03)


@pytest.mark.long
def test_rows_with_speculation_change_the_overhead_of_drafts_alone(loads: list[RowLoad]) -> None:
    truth = observed(loads)
    drafts = np.array([load.deployment.draft_tokens > 0 for load in loads])
    slower = replace(truth, tpot_s=np.where(drafts, 1.2 * truth.tpot_s, truth.tpot_s))

    first, second = (fit_factors(loads, each, name="x", source="x") for each in (truth, slower))

    assert second.draft_overhead > first.draft_overhead
    assert replace(second, draft_overhead=first.draft_overhead) == first


@pytest.mark.long
def test_a_result_that_is_missing_does_not_count(loads: list[RowLoad]) -> None:
    truth = observed(loads)
    holes = replace(truth, ttft_s=np.full(len(loads), np.nan))

    found = fit_factors(loads, holes, name="found", source="a test")

    again = RowPredictor(loads).predict(found)
    assert np.abs(again.tpot_s / truth.tpot_s - 1).max() < 0.02


def test_the_start_of_a_fit_is_what_priors_hold_usual() -> None:
    order = FactorVector(["hopper"])
    made = order.factors(order.start, name="prior", source="a test")

    for prior in SHARED:
        assert getattr(made, prior.name) == pytest.approx(prior.usual)
    assert made.generations["hopper"] == GenerationFactors()


def test_speculation_alone_cannot_be_fitted(loads: list[RowLoad]) -> None:
    drafts = [load for load in loads if load.deployment.draft_tokens]

    with pytest.raises(ConfigError, match="some without speculation"):
        fit_factors(drafts, observed(drafts), name="x", source="x")
