import numpy as np
import pytest

from emulator.specs.shipped_fits import calibration_for
from emulator.timing.laws.shipped_laws import shipped_constants
from serving.analysis.validate.law_readings import (
    ALL,
    LawReading,
    as_data,
    law_readings,
    reading_lines,
    trainium_scores,
)
from serving.analysis.validate.trainium_points import TRAINIUM_POINTS, trainium_ns


@pytest.mark.long
def test_every_public_point_is_scored_once_batched_ones_too() -> None:
    scores = trainium_scores()

    assert scores[ALL].points == len(TRAINIUM_POINTS)
    assert sum(score.points for kind, score in scores.items() if kind != ALL) == scores[ALL].points
    assert scores["decode, batched"].points == 2


@pytest.mark.long
def test_scores_are_the_points_errors() -> None:
    errors = [abs(trainium_ns(each) / 1e6 / each.measured_ms - 1) for each in TRAINIUM_POINTS]

    assert trainium_scores()[ALL].median == pytest.approx(np.median(errors))


def test_a_reading_changes_one_assumption_and_nothing_that_ships() -> None:
    shipped = calibration_for("trainium3")
    for each in law_readings():
        assert each.law != each.model
        if not each.of_chip:
            assert getattr(shipped, each.constant).value == each.model
    assert calibration_for("trainium3") == shipped


@pytest.mark.long
def test_the_models_own_values_are_its_own_predictions() -> None:
    shipped = [trainium_ns(each) for each in TRAINIUM_POINTS]
    for each in law_readings():
        same = LawReading(
            words=each.words,
            constant=each.constant,
            model=each.model,
            law=each.model,
            unit=each.unit,
            source=each.source,
            of_chip=each.of_chip,
        )

        assert same.predict_ns() == pytest.approx(shipped)


@pytest.mark.long
def test_laws_that_say_faster_make_no_point_slower() -> None:
    shipped = np.array([trainium_ns(each) for each in TRAINIUM_POINTS])
    for each in law_readings():
        is_share = each.unit == "of peak"
        if (each.law > each.model) == is_share:
            assert (each.predict_ns() <= shipped * (1 + 1e-9)).all(), each.words


def test_the_reading_of_a_full_tile_by_hand() -> None:
    products = shipped_constants()["families"]["GEMM"]
    share = products["tensor_share"]
    by_hand = share["base"] * share["levels"]["format"]["bfloat16"] / (1 + products["edge"]["base"])
    (found,) = [each for each in law_readings() if each.constant == "tensor_share"]

    assert found.law == pytest.approx(by_hand)


@pytest.mark.long
def test_the_report_has_a_line_for_each_assumption_and_its_source() -> None:
    text = "\n".join(reading_lines())

    for each in law_readings():
        assert text.count(each.words) == 2
        assert each.source in text
    for kind, score in trainium_scores().items():
        assert f"{kind} ({score.points})" in text
    assert next(each["assumption"] for each in as_data()) == "as it ships"
