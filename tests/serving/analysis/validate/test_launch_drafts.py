from pathlib import Path

import pytest

from serving.analysis.validate.measured_row import read_rows
from serving.analysis.validate.row_deployment import deployment_of
from serving.analysis.validate.usable_rows import usable_rows
from tests.serving.analysis.validate.made_up_measurements import DISAGGREGATED, write_rows

DP = {"decode_dp_attention": "True", "decode_ep": "8"}
ONE_RANK = {"decode_dp_attention": "False", "decode_ep": "1"}
TRT = {**DISAGGREGATED, "framework": "dynamo-trt", "hardware": "b200"}
MORI = {**DISAGGREGATED, "framework": "mori-sglang", "hardware": "mi355x"}
SGLANG = {"framework": "sglang", "hardware": "h200"}
RACK = {
    **DISAGGREGATED,
    "framework": "dynamo-sglang",
    "hardware": "gb200",
    "num_decode_gpu": "32",
    "decode_num_workers": "1",
    "decode_tp": "1",
    "decode_ep": "32",
}


def drafts(tmp_path: Path, **change: str) -> int:
    made = write_rows(tmp_path / "rows.csv", [{"spec_method": "mtp", **change}])
    (row,) = read_rows(made)
    return deployment_of(row.configuration, row.users).draft_tokens


def test_a_row_without_speculation_drafts_nothing(tmp_path: Path) -> None:
    assert drafts(tmp_path, **SGLANG, spec_method="none") == 0


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (SGLANG, 2),
        ({**SGLANG, "hardware": "b200", **DP}, 2),
        ({**SGLANG, "hardware": "mi325x", "date": "2026-06-14"}, 3),
        ({**SGLANG, "hardware": "mi325x", "date": ""}, 3),
        ({"framework": "atom", "hardware": "mi355x"}, 3),
        ({"framework": "trt", "hardware": "b200"}, 3),
        ({"framework": "trt", "hardware": "b200", **DP}, 1),
    ],
)
def test_one_pool_follows_its_script(change: dict[str, str], expected: int, tmp_path: Path) -> None:
    assert drafts(tmp_path, **change) == expected


@pytest.mark.parametrize("hardware", ["mi300x", "mi325x"])
def test_a_launcher_without_the_script_that_drafts_drafts_nothing(
    hardware: str, tmp_path: Path
) -> None:
    rows = [
        {**SGLANG, "hardware": hardware, "spec_method": "mtp", "date": date}
        for date in ("2026-06-13", "2026-06-14")
    ]
    used, _ = usable_rows(read_rows(write_rows(tmp_path / "rows.csv", rows)))

    assert [row.load.deployment.stack.drafts for row in used] == [False, True]
    assert [row.drafts_as_named for row in used] == [False, True]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({**MORI, **ONE_RANK}, 2),
        ({**MORI, **ONE_RANK, "precision": "fp4"}, 3),
        ({**MORI, **DP}, 1),
        ({**TRT, "framework": "dynamo-sglang", **DP}, 2),
        (RACK, 1),
    ],
)
def test_two_pools_follow_their_recipes(
    change: dict[str, str], expected: int, tmp_path: Path
) -> None:
    assert drafts(tmp_path, **change) == expected


@pytest.mark.parametrize(("users", "expected"), [(16 * 50, 3), (16 * 50 + 1, 1)])
def test_tensorrt_llm_drafts_less_for_many_sequences_a_rank(
    users: int, expected: int, tmp_path: Path
) -> None:
    assert drafts(tmp_path, **{**TRT, **DP, "conc": str(users)}) == expected
