from collections.abc import Mapping
from pathlib import Path

import pytest

from emulator.errors import ConfigError
from emulator.memory.chip_contents import kv_capacity_tokens
from serving.analysis.validate.measured_row import read_rows
from serving.analysis.validate.row_deployment import RowDeployment, deployment_of
from tests.serving.analysis.validate.made_up_measurements import DISAGGREGATED, write_rows


def deployed(tmp_path: Path, **change: str) -> RowDeployment:
    (row,) = read_rows(write_rows(tmp_path / "rows.csv", [change]))
    return deployment_of(row.configuration, row.users)


def test_experts_of_ep_1_are_divided_by_columns(tmp_path: Path) -> None:
    partition = deployed(tmp_path).decode.partition

    assert (partition.chips, partition.tp, partition.ep, partition.expert_tp) == (8, 8, 1, 8)


def test_attention_dp_makes_a_rank_of_every_gpu(tmp_path: Path) -> None:
    deployment = deployed(tmp_path, decode_dp_attention="True", decode_ep="8")
    partition = deployment.decode.partition

    assert (partition.tp, partition.ranks, partition.ep, partition.expert_tp) == (1, 8, 8, 1)


def test_gpus_of_a_row_that_is_not_disaggregated_come_from_its_partition(tmp_path: Path) -> None:
    deployment = deployed(tmp_path, num_decode_gpu="64", num_prefill_gpu="64", decode_ep="8")

    assert deployment.chips == 8


def test_pools_have_their_workers_and_all_their_gpus(tmp_path: Path) -> None:
    deployment = deployed(tmp_path, **DISAGGREGATED)

    assert deployment.chips == 24
    assert (deployment.prefill.workers, deployment.prefill.partition.tp) == (1, 8)
    assert (deployment.decode.workers, deployment.decode.partition.ranks) == (2, 8)


def test_rows_that_record_no_partition_follow_the_recipes(tmp_path: Path) -> None:
    old: Mapping[str, str] = {
        **DISAGGREGATED,
        "hardware": "gb200",
        "prefill_tp": "1",
        "num_prefill_gpu": "4",
        "decode_tp": "1",
        "decode_ep": "1",
        "num_decode_gpu": "32",
        "decode_num_workers": "1",
    }
    deployment = deployed(tmp_path, **old)

    small, wide = deployment.prefill.partition, deployment.decode.partition
    assert (small.tp, small.expert_tp) == (4, 4)
    assert (wide.tp, wide.ep) == (1, 32)


def test_the_cache_is_in_whole_blocks_of_what_static_memory_leaves(tmp_path: Path) -> None:
    deployment = deployed(tmp_path)
    model, pool = deployment.model, deployment.decode

    tokens = deployment.slots * 0.9 * (1_024 + 0.7 * 1_024)
    assert model.kv_bytes_per_token == 61 * 576 * 2
    free_bytes = 0.85 * pool.system.chip.hbm_bytes - model.weight_bytes / 8
    assert tokens == pytest.approx(free_bytes / model.kv_bytes_per_token, rel=0.15)
    assert kv_capacity_tokens(model, pool.system, pool.partition) < 0  # experts counted whole


def test_narrow_weights_are_of_experts_and_the_cache_is_narrow_but_for_sglang_on_hopper(
    tmp_path: Path,
) -> None:
    wide = deployed(tmp_path).model
    narrow = deployed(tmp_path, hardware="b200", framework="trt", precision="fp4").model

    assert wide.kv_bytes_per_element == 2
    assert narrow.kv_bytes_per_element == 1
    assert narrow.expert_format.value == "nvfp4"
    assert narrow.projection_format.value == "fp8-block128"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hardware": "tpu-v7"}, "hardware=tpu-v7: expected one of"),
        ({"decode_tp": "3", "prefill_tp": "3"}, "tp=3: expected a divisor of the 128 head groups"),
        ({"precision": "fp4"}, "precision=nvfp4: expected one of"),
        ({"precision": "int3"}, "precision=int3: expected one of fp8, bf16, fp4"),
        ({**DISAGGREGATED, "prefill_num_workers": "0"}, "the split between prefill and decode"),
    ],
)
def test_what_cannot_be_deployed_says_why(
    change: dict[str, str], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=words):
        deployed(tmp_path, **change)
