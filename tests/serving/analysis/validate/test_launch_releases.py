"""Which release of its stack a row ran, by the days of public images."""

import csv
from datetime import date
from importlib.resources import files
from pathlib import Path

import pytest

from emulator.specs.shipped_fits import shipped_fits
from serving.analysis.validate.measured_row import read_rows
from serving.analysis.validate.row_deployment import deployment_of, hardware_names
from serving.analysis.validate.row_prediction import measured_calibration
from tests.serving.analysis.validate.made_up_measurements import DISAGGREGATED, write_rows

SGLANG = {"framework": "sglang", "precision": "fp8"}
MORI = {**DISAGGREGATED, "framework": "mori-sglang", "hardware": "mi355x"}
OVERHEADS = {"layer_ns", "request_ns", "collective_ns", "step_ns"}


def release(tmp_path: Path, **change: str) -> str:
    (row,) = read_rows(write_rows(tmp_path / "rows.csv", [change]))
    return deployment_of(row.configuration, row.users).stack.release


@pytest.mark.parametrize(
    ("change", "day", "expected"),
    [
        ({**SGLANG, "hardware": "mi300x"}, "2026-02-27", "sglang 0.5.9"),
        ({**SGLANG, "hardware": "mi300x"}, "2026-05-17", "sglang 0.5.9"),
        ({**SGLANG, "hardware": "mi300x"}, "2026-05-18", "sglang 0.5.12"),
        ({**SGLANG, "hardware": "h200"}, "2025-11-11", "sglang 0.5.5"),
        ({"framework": "trt", "hardware": "b200"}, "2025-11-02", "tensorrt-llm 1.1"),
        (
            {**DISAGGREGATED, "framework": "dynamo-trt", "hardware": "h200"},
            "2026-03-23",
            "tensorrt-llm 1.2",
        ),
        ({"framework": "atom", "hardware": "mi355x"}, "2026-05-20", "atom 20260511"),
        (MORI, "2026-02-23", "sglang 0.5.8"),
    ],
)
def test_a_release_is_that_of_the_image_launched_last(
    change: dict[str, str], day: str, expected: str, tmp_path: Path
) -> None:
    assert release(tmp_path, **change, date=day) == expected


def test_speculation_has_the_plain_image_until_it_has_one_of_its_own(tmp_path: Path) -> None:
    drafting = {**MORI, "spec_method": "mtp"}

    assert release(tmp_path, **drafting, date="2026-02-23") == "sglang 0.5.8"
    assert release(tmp_path, **drafting, date="2026-03-03") == "sglang 0.5.9"


@pytest.mark.parametrize(
    "change",
    [
        {**SGLANG, "hardware": "mi300x", "date": ""},
        {**SGLANG, "hardware": "mi300x", "date": "2025-10-04"},
        {"framework": "unheard-of"},
    ],
)
def test_no_release_is_named_where_none_is_known(change: dict[str, str], tmp_path: Path) -> None:
    assert release(tmp_path, **change) == ""


def test_every_image_names_its_release_as_rows_name_their_machines() -> None:
    text = files("emulator.data").joinpath("stack_releases.csv").read_text(encoding="utf-8")
    lines = list(csv.DictReader(text.splitlines()))

    known = hardware_names()
    for line in lines:
        assert line["hardware"] in known
        assert line["spec_method"] in ("none", "mtp")
        assert date(2025, 10, 5) <= date.fromisoformat(line["from"])
        stack, _, number = line["release"].partition(" ")
        assert stack in ("", "sglang", "tensorrt-llm", "atom")
        if line["image"].startswith(("lmsysorg", "rocm")):
            assert number
            assert number in line["image"]
    keys = [tuple(line[name] for name in tuple(line)[:5]) for line in lines]
    assert keys == sorted(set(keys))


def test_a_release_multiplies_overheads_of_its_generation_and_nothing_else() -> None:
    factors = shipped_fits().everything
    usual, named = (measured_calibration(factors, "mi300x", each) for each in ("", "sglang 0.5.9"))

    times = factors.release_overhead("mi325x", "sglang 0.5.9")
    assert times == factors.releases["cdna3"]["sglang 0.5.9"] > 1.2
    before, after = dict(usual.figures()), dict(named.figures())
    assert {name for name in after if after[name] != before[name]} == OVERHEADS
    for name in OVERHEADS:
        assert after[name].value == pytest.approx(times * before[name].value)


@pytest.mark.parametrize(
    ("chip", "name"),
    [("mi300x", "sglang 0.5.10"), ("trainium3", "sglang 0.5.9"), ("mi300x", "tensorrt-llm 1.3")],
)
def test_a_release_that_was_not_measured_on_a_generation_changes_nothing(
    chip: str, name: str
) -> None:
    factors = shipped_fits().everything

    assert factors.release_overhead(chip, name) == 1
    assert factors.calibration(chip, release=name) == factors.calibration(chip)
