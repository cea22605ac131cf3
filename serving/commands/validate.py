"""`ultraserve validate`: the cost model's predictions held against public serving measurements.

Predicts every row of a file from its configuration alone, with shipped fits unless asked to fit.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Final

from reporting.data_forms import json_text
from serving.commands.analysis_options import check_absent, check_folder, say

_IN_MEASUREMENTS: Final = ""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `validate` command."""
    parser = subparsers.add_parser(
        "validate",
        help="predictions against public serving measurements",
        description="Run measured serving benchmarks again in virtual time, from their "
        "configurations, and print the signed errors; fits that ship are used, nothing is fitted "
        "to the file. One to three minutes for some 300 rows.",
    )
    parser.add_argument(
        "--data",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="CSV with InferenceX's columns (default: every inferencex_*.csv in the folder that "
        "ULTRASERVE_MEASUREMENTS names, or in ./measurements)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="measured against predicted: .png, .svg or .html"
    )
    parser.add_argument(
        "--refit", type=Path, metavar="FILE", help="also fit to the data anew, and write that here"
    )
    parser.add_argument(
        "--kernels",
        nargs="?",
        const=_IN_MEASUREMENTS,
        metavar="FOLDER",
        help="instead of serving runs: fit laws of kernels to a folder of measured ones, and print "
        "their errors with each machine and stack left out (default: kernels beside the "
        "measurements); one to three minutes. --refit then writes the laws' constants",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Predict, print, write the requested picture and fits; returns 0. Raises ConfigError."""
    if args.kernels is not None:
        return _run_kernels(args)
    from serving.analysis.validate.measured_row import measurement_files
    from serving.analysis.validate.other_models import other_models_text
    from serving.analysis.validate.other_models.other_models import shipped_other_models
    from serving.analysis.validate.reference_points import excluded_points, reference_data
    from serving.analysis.validate.validation import validation_of
    from serving.analysis.validate.validation_text import as_data, report_lines

    _check_outputs(args)
    paths = measurement_files(args.data, os.environ)
    validation = validation_of(paths)
    references = reference_data(paths[0].parent)
    unknown = excluded_points(paths[0].parent)
    others = shipped_other_models()
    if args.json:
        data = as_data(validation, references, unknown)
        print(json_text(data | {"other_models": other_models_text.as_data(others)}))
    else:
        print("\n".join(report_lines(validation, references, unknown)))
        print("", *other_models_text.report_lines(others), "", sep="\n")
        print("\n".join(f"- {each}" for each in other_models_text.ASSUMED))
    if args.plot is not None:
        from serving.analysis.chart_file import write_chart
        from serving.analysis.validate.validation_chart import validation_chart

        write_chart(validation_chart(validation), args.plot, field="plot")
        say(f"wrote {args.plot}")
    if args.refit is not None:
        from serving.analysis.validate.refit import main as refit

        refit(["--data", *(str(path) for path in paths), "--output", str(args.refit)])
        say(f"wrote {args.refit}")
    return 0


def _run_kernels(args: argparse.Namespace) -> int:
    """Fit and print the laws of kernels; returns 0. Raises ConfigError."""
    from serving.analysis.validate.kernels.kernel_report import as_data, report_lines
    from serving.analysis.validate.kernels.kernel_validation import (
        kernel_validation,
        kernels_folder,
        write_constants,
    )

    check_absent(args, ("data", "plot"), expected="no such option with --kernels")
    if args.refit is not None:
        check_folder("refit", args.refit)
    folder = kernels_folder(None if args.kernels == _IN_MEASUREMENTS else Path(args.kernels))
    found = kernel_validation(folder)
    if args.json:
        print(json_text(as_data(found)))
    else:
        print("\n".join(report_lines(found)))
    if args.refit is not None:
        write_constants(found, folder, args.refit)
        say(f"wrote {args.refit}")
    return 0


def _check_outputs(args: argparse.Namespace) -> None:
    """Refuse unwritable paths before the work."""
    if args.plot is not None:
        from serving.analysis.chart_file import check_chart_path

        check_chart_path(args.plot, field="plot")
    if args.refit is not None:
        check_folder("refit", args.refit)
