from pathlib import Path

import pytest

from serving.analysis.validate.measured_row import MeasuredRow, read_rows
from serving.analysis.validate.row_deployment import RowDeployment, deployment_of, handover_s
from tests.serving.analysis.validate.made_up_measurements import DISAGGREGATED, write_rows


def deployed(tmp_path: Path, **cells: str) -> RowDeployment:
    (row,) = read_rows(write_rows(tmp_path / "rows.csv", [cells]))
    assert isinstance(row, MeasuredRow)
    return deployment_of(row.configuration, row.users)


def test_pools_that_are_one_hand_nothing_over(tmp_path: Path) -> None:
    assert handover_s(deployed(tmp_path)) == 0.0


def test_pools_in_two_boxes_send_a_prompt_s_cache_over_the_network_cards(tmp_path: Path) -> None:
    deployment = deployed(tmp_path, **DISAGGREGATED)
    senders = deployment.prefill.partition.tp
    receivers = deployment.decode.partition.tp
    card_bytes_per_s = deployment.decode.system.chip.scale_out_bytes_per_s
    assert card_bytes_per_s is not None

    model = deployment.model
    kv_bytes = round(deployment.prompt_tokens) * model.layers * model.kv_bytes_per_token_layer
    moving_s = kv_bytes / min(senders, receivers) / card_bytes_per_s.value
    assert handover_s(deployment) == pytest.approx(moving_s, rel=0.02, abs=20e-6)
