from emulator.specs.calibration import ROOFLINE
from emulator.specs.shipped_fits import calibration_for, shipped_fits
from serving.analysis.steady_state.step_assumptions import StepAssumptions


def test_predictions_under_the_fit_say_how_far_left_out_machines_were_from_theirs() -> None:
    fitted = StepAssumptions(calibration=calibration_for("trainium3"))
    tpot = shipped_fits().intervals["tpot"]

    assert fitted.model_error.items() >= shipped_fits().intervals.items()
    assert f"{tpot.least:.2f} to {tpot.most:.2f} times the predicted TPOT" in (
        fitted.model_error_in_words()
    )


def test_a_roofline_is_no_prediction() -> None:
    assert not StepAssumptions(calibration=ROOFLINE).model_error
    assert "none is a prediction" in StepAssumptions(calibration=ROOFLINE).model_error_in_words()
