"""No result enters a prediction; every score says what its fit had seen."""

import csv
import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from emulator.errors import ConfigError
from emulator.specs.shipped_fits import shipped_fits
from serving.analysis.chart_file import write_chart
from serving.analysis.validate.measured_row import METRICS, measurement_files, read_rows
from serving.analysis.validate.prediction_errors import RowError, figures, summary
from serving.analysis.validate.refit import files_digest, fit_rows
from serving.analysis.validate.row_prediction import RowPredictor
from serving.analysis.validate.usable_rows import usable_rows
from serving.analysis.validate.validation import Validation, scores, validation_of
from serving.analysis.validate.validation_chart import validation_chart
from serving.analysis.validate.validation_text import (
    as_data,
    row_table,
    score_table,
)
from tests.serving.analysis.validate.made_up_measurements import (
    CONFIGURATION,
    DISAGGREGATED,
    RESULT_COLUMNS,
    public_measurements,
    write_rows,
)

PUBLIC = public_measurements()
with_public = pytest.mark.skipif(
    PUBLIC is None, reason="the public measurements are not on this host"
)


@pytest.fixture(scope="module")
def made_up(tmp_path_factory: pytest.TempPathFactory) -> Validation:
    return validation_of([write_rows(tmp_path_factory.mktemp("rows") / "rows.csv")])


def scrambled(path: Path, to: Path) -> Path:
    """The file with the values of every result column shuffled, and multiplied at random."""
    rng = np.random.default_rng(11)
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    kept = {*CONFIGURATION, "usable"}
    for column in rows[0]:
        if column in kept:
            continue
        values = [row[column] for row in rows]
        for row, place in zip(rows, rng.permutation(len(rows)).tolist(), strict=True):
            text = values[place]
            row[column] = f"{float(text) * rng.uniform(0.1, 10):.6g}" if text else text
    with to.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return to


def predictions(validation: Validation) -> list[list[float]]:
    made = [validation.everything, validation.unseen]
    return [each.of(metric).tolist() for each in made for metric in METRICS]


@pytest.mark.slow
def test_scrambled_results_change_no_prediction(made_up: Validation, tmp_path: Path) -> None:
    other = validation_of([scrambled(made_up.paths[0], tmp_path / "scrambled.csv")])

    assert predictions(other) == predictions(made_up)
    assert scores(other) != scores(made_up)


@pytest.mark.slow
@with_public
def test_scrambled_public_results_change_no_prediction(tmp_path: Path) -> None:
    assert PUBLIC is not None
    path = PUBLIC / "inferencex_dsr1.csv"

    other = validation_of([scrambled(path, tmp_path / "scrambled.csv")])

    assert predictions(other) == predictions(validation_of([path]))


def test_what_a_scramble_leaves_is_a_configuration() -> None:
    assert not set(RESULT_COLUMNS) & set(CONFIGURATION)


@pytest.mark.long
def test_rows_that_no_fit_has_seen_are_left_out_of_the_fit_on_everything(
    made_up: Validation,
) -> None:
    for metric in METRICS:
        found = scores(made_up)[metric]

        assert found["fitted"]["rows"] == 0
        assert found["rows"] == len(made_up.rows)
        assert np.array_equal(made_up.unseen.of(metric), made_up.everything.of(metric))
        for each in made_up.left_out(metric):
            interval = made_up.fits.intervals[metric]
            inside = interval.least <= each.measured / each.predicted <= interval.most
            assert each.covered == inside


@pytest.mark.slow
def test_a_fitted_row_is_predicted_and_bounded_without_its_machine(made_up: Validation) -> None:
    row = made_up.rows[0]
    curve = row.measured.configuration.fingerprint
    fits = replace(made_up.fits, fitted=frozenset({curve}))
    seen = validation_of(made_up.paths, fits)
    lines = {
        each.measured.line
        for each in made_up.rows
        if each.measured.configuration.fingerprint == curve
    }

    assert len(lines) == 4  # the whole curve
    assert {each.line for each in seen.fitted("tpot")} == lines
    alone = RowPredictor([row.load]).simulate(fits.without["h200"], np.ones(1, dtype=np.bool_))
    assert seen.blind(0, "ttft") == pytest.approx(float(alone.ttft_s[0]))
    assert seen.blind(0, "ttft") != pytest.approx(made_up.blind(0, "ttft"), rel=1e-6)
    assert seen.interval(row, "tpot") == seen.fits.intervals_without["h200"]["tpot"]
    assert len(list(seen.left_out("tpot"))) == len(made_up.rows)


PUBLIC_FILES = ("inferencex_dsr1.csv", "inferencex_dsr1_more.csv")


@pytest.mark.slow
@with_public
def test_decode_of_machines_that_were_left_out_is_as_close_as_the_guide_says() -> None:
    assert PUBLIC is not None
    found = scores(validation_of([PUBLIC / name for name in PUBLIC_FILES]))

    tpot = found["tpot"]
    assert tpot["rows"] == 285
    assert tpot["fitted"]["rows"] == 279  # without six that drafted nothing
    assert tpot["median_ape"] < 0.095
    assert tpot["p90_ape"] < 0.28
    assert tpot["plain"]["median_ape"] < 0.08
    assert max(each["median_ape"] for each in tpot["by_hardware"].values()) < 0.12
    assert found["tokens_per_s"]["median_ape"] < 0.11
    assert found["ttft"]["median_ape"] < 0.28
    for metric in ("tpot", "tokens_per_s", "ttft"):
        assert 0.7 <= found[metric]["covered"] <= 0.9


@pytest.mark.slow
@with_public
def test_what_ships_is_what_a_fit_to_the_public_file_finds() -> None:
    assert PUBLIC is not None
    paths = [PUBLIC / name for name in PUBLIC_FILES]
    shipped = shipped_fits()
    rows = [row for path in paths for row in usable_rows(read_rows(path))[0]]

    found = fit_rows([row for row in rows if row.drafts_as_named], name="again", source="again")

    assert files_digest(paths) == shipped.data["sha256"]
    predictor = RowPredictor([row.load for row in rows])
    old, new = predictor.predict(shipped.everything), predictor.predict(found)
    assert np.abs(new.tpot_s / old.tpot_s - 1).max() < 0.01
    assert found.draft_overhead == pytest.approx(shipped.everything.draft_overhead)
    assert set(found.releases) == set(shipped.everything.releases)
    for generation, releases in shipped.everything.releases.items():
        assert found.releases[generation] == pytest.approx(releases, rel=0.02)
    front_end_ns = shipped.everything.front_end_request_ns
    assert found.front_end_request_ns == pytest.approx(front_end_ns, rel=0.02)


def test_every_excluded_row_has_a_reason(tmp_path: Path) -> None:
    rows = [
        {},
        {"usable": "0"},
        {"hardware": "tpu-v7"},
        {**DISAGGREGATED, "prefill_num_workers": "0", "decode_num_workers": "0"},
    ]
    found = validation_of([write_rows(tmp_path / "rows.csv", rows)])

    assert len(found.rows) == 1
    reasons = [each.reason for each in found.excluded]
    assert "the file marks this row" in reasons[0]
    assert "hardware=tpu-v7" in reasons[1]
    assert "prefill_num_workers=0" in reasons[2]


def test_a_file_of_excluded_rows_alone_has_no_scores(tmp_path: Path) -> None:
    found = validation_of([write_rows(tmp_path / "rows.csv", [{"usable": "0"}])])

    assert not found.rows
    assert scores(found)["tpot"]["median_ape"] is None
    assert row_table(found).rows == ()


def test_an_unknown_framework_is_predicted_as_a_known_one(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.csv", [{"framework": "unheard-of"}, {"framework": "vllm"}])

    unknown, known = validation_of([path]).everything.tpot_s
    assert unknown == known


@pytest.mark.long
def test_a_row_without_a_result_is_predicted_and_not_scored(tmp_path: Path) -> None:
    found = validation_of([write_rows(tmp_path / "rows.csv", [{}, {"median_ttft": ""}])])

    of = scores(found)
    assert (of["tpot"]["rows"], of["ttft"]["rows"]) == (2, 1)
    assert as_data(found, [])["rows"][1]["error"]["ttft"] is None


@pytest.mark.long
def test_json_has_what_it_promises(made_up: Validation) -> None:
    data = json.loads(json.dumps(as_data(made_up, [])))

    assert len(data["rows"]) == len(made_up.rows)
    assert data["excluded"] == []
    for metric in METRICS:
        for where in (data[metric], data[metric]["fitted"]):
            assert {"mape", "median_ape", "p90_ape", "covered", "by_hardware"} <= set(where)
        least, most = data["intervals"][metric]["least"], data["intervals"][metric]["most"]
        blind = data["rows"][0]["blind"][metric]
        assert blind["least"] == pytest.approx(least * blind["predicted"])
        assert blind["most"] == pytest.approx(most * blind["predicted"])
    assert all({"name", "value", "unit", "source"} == set(each) for each in data["calibration"])
    row = data["rows"][0]
    assert row["error"]["tpot"] == pytest.approx(
        row["predicted"]["tpot"] / row["measured"]["tpot"] - 1
    )


def test_scores_are_of_absolute_errors_by_hand() -> None:
    predicted = (1.1, 0.8, 1.5)
    errors = [
        RowError(
            file="rows.csv",
            line=line,
            hardware="h200",
            speculative=False,
            measured=1.0,
            predicted=each,
            covered=each < 1.2,
        )
        for line, each in enumerate(predicted)
    ]

    found = figures(errors)

    assert found["mape"] == pytest.approx((0.1 + 0.2 + 0.5) / 3)
    assert found["median_ape"] == pytest.approx(0.2)
    assert found["p90_ape"] == pytest.approx(0.2 + 0.8 * 0.3)
    assert found["bias"] == pytest.approx(0.1)
    assert found["covered"] == pytest.approx(2 / 3)
    assert summary(errors)["by_hardware"]["h200"]["rows"] == 3


@pytest.mark.long
def test_tables_have_every_row_and_metric(made_up: Validation) -> None:
    assert len(row_table(made_up).rows) == len(made_up.rows)
    assert {row[0].words for row in score_table(made_up).rows} == {
        "TPOT",
        "median TTFT",
        "mean TTFT",
        "tokens/s per chip",
        "median TPOT",
        "p99 TPOT",
        "p99 TTFT",
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("suffix", "begins"),
    [(".png", b"\x89PNG\r\n"), (".svg", b"<svg"), (".html", b"<!DOCTYPE html")],
)
def test_a_picture_is_what_its_suffix_says(
    suffix: str, begins: bytes, made_up: Validation, tmp_path: Path
) -> None:
    path = tmp_path / f"plot{suffix}"

    write_chart(validation_chart(made_up), path, field="plot")

    assert path.read_bytes().lstrip()[: len(begins)] == begins
    assert path.stat().st_size > 10_000


def test_data_is_looked_for_where_the_environment_says_and_else_beside(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "inferencex_dsr1.csv")
    given = tmp_path / "other.csv"

    more = write_rows(tmp_path / "inferencex_more.csv")
    environment = {"ULTRASERVE_MEASUREMENTS": str(tmp_path)}

    assert measurement_files([given], {}) == (given,)
    assert measurement_files(None, environment) == (path, more)
    with pytest.raises(ConfigError, match=r"--data FILE, or a folder .* looked for measurements"):
        measurement_files(None, {})


@pytest.mark.slow
def test_whatever_was_set_up_is_predicted_or_excluded_with_a_reason(tmp_path: Path) -> None:
    rng = random.Random(3)
    rows = [_any_row(rng) for _ in range(25)]

    found = validation_of([write_rows(tmp_path / "rows.csv", rows)])

    assert len(found.rows) + len(found.excluded) == len(rows)
    assert all(each.reason for each in found.excluded)
    for metric in METRICS:
        predicted = found.everything.of(metric)
        assert np.isfinite(predicted).all()
        assert (predicted > 0).all()


def _any_row(rng: random.Random) -> dict[str, str]:
    """A configuration with nothing sensible about it."""
    names = ["h100", "h200", "b300", "gb300", "mi355x", "trainium3", "inferentia2", "h20"]
    row = {
        "hardware": rng.choice(names),
        "framework": rng.choice(["trt", "sglang", "vllm", "dynamo-trt", "unheard-of"]),
        "precision": rng.choice(["fp8", "fp4", "bf16"]),
        "spec_method": rng.choice(["none", "mtp"]),
        "isl": rng.choice(["1", "1024", "100000"]),
        "osl": rng.choice(["1", "1024", "8192"]),
        "conc": rng.choice(["1", "64", "20000"]),
        "date": rng.choice(["2025-01-01", "2026-05-01", "2027-01-01"]),
    }
    chips = rng.choice([1, 3, 8, 16])
    row |= {"decode_tp": str(chips), "decode_ep": str(rng.choice([1, chips, 8]))}
    row |= {"decode_dp_attention": rng.choice(["True", "False"])}
    if rng.random() < 0.5:
        return row
    for pool in ("prefill", "decode"):
        gpus, workers = rng.choice([4, 8, 24, 72]), rng.choice([0, 1, 2])
        row[f"num_{pool}_gpu"] = str(gpus * max(1, workers))
        row[f"{pool}_num_workers"] = str(workers)
    return row | {"disagg": "True"}
