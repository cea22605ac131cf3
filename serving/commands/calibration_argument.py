"""The flag `--calibration`, the same in every command that times steps."""

import argparse

from emulator.specs.shipped_fits import CALIBRATIONS, calibration_name


def add_calibration_argument(group: "argparse._ActionsContainer", *, default: str | None) -> None:
    """Add it; an old spelling of a name is taken with a warning, an unknown one is refused where
    the calibration is made.
    """
    group.add_argument(
        "--calibration",
        type=calibration_name,
        metavar="{" + ",".join(CALIBRATIONS) + "}",
        default=default,
        help="fitted: with the overheads of real stacks, as `ultraserve validate` holds them "
        "against measurements (default); roofline: what the hardware allows",
    )
