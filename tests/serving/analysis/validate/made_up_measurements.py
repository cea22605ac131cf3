"""A synthetic file of measurements with the public one's columns."""

import csv
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

RESULT_COLUMNS: Final = (
    *("tput_per_gpu", "input_tput_per_gpu", "output_tput_per_gpu", "median_intvty"),
    *("mean_ttft", "median_ttft", "p99_ttft", "mean_tpot", "median_tpot", "p99_tpot", "mean_e2el"),
    *("n_gpu_effective", "littles_law_ratio"),
)
CONFIGURATION: Final[Mapping[str, str]] = {
    "hardware": "h200",
    "framework": "sglang",
    "precision": "fp8",
    "spec_method": "none",
    "disagg": "False",
    "is_multinode": "False",
    "num_prefill_gpu": "8",
    "prefill_tp": "8",
    "prefill_ep": "1",
    "prefill_dp_attention": "False",
    "prefill_num_workers": "0",
    "num_decode_gpu": "8",
    "decode_tp": "8",
    "decode_ep": "1",
    "decode_dp_attention": "False",
    "decode_num_workers": "0",
    "isl": "1024",
    "osl": "1024",
    "conc": "16",
    "date": "2026-05-01",
}
RESULTS: Final[Mapping[str, str]] = dict.fromkeys(RESULT_COLUMNS, "1.0") | {
    "mean_tpot": "0.016",
    "mean_ttft": "0.4",
    "median_ttft": "0.3",
    "tput_per_gpu": "240",
    "usable": "1",
}
DISAGGREGATED: Final[Mapping[str, str]] = {
    "disagg": "True",
    "is_multinode": "True",
    "framework": "dynamo-trt",
    "num_prefill_gpu": "8",
    "prefill_num_workers": "1",
    "num_decode_gpu": "16",
    "decode_num_workers": "2",
    "decode_ep": "8",
    "decode_dp_attention": "True",
}
VARIED: Final = (
    *({"conc": str(conc)} for conc in (1, 4, 16, 64)),
    *({"hardware": "b200", "framework": "trt", "conc": str(conc)} for conc in (4, 64)),
    {"hardware": "b200", "framework": "trt", "precision": "fp4", "isl": "8192", "conc": "32"},
    {"spec_method": "mtp", "date": "2026-02-01"},
    {"hardware": "mi300x", "conc": "8"},
    {**DISAGGREGATED, "conc": "256"},
    {**DISAGGREGATED, "spec_method": "mtp", "conc": "64"},
)


def write_rows(path: Path, rows: Iterable[Mapping[str, str]] = VARIED) -> Path:
    """A file of rows, each a change to one usual row; returns its path."""
    usual = {**CONFIGURATION, **RESULTS}
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(usual))
        writer.writeheader()
        for row in rows:
            writer.writerow({**usual, **row})
    return path


def public_measurements() -> Path | None:
    """The folder of the public files; None without one."""
    named = os.environ.get("ULTRASERVE_MEASUREMENTS")
    beside = Path(__file__).resolve().parents[5] / "shared" / "measurements"
    for folder in ([Path(named)] if named else []) + [beside]:
        if (folder / "inferencex_dsr1.csv").is_file():
            return folder
    return None
