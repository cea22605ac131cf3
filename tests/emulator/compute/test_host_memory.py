"""What chips need of a host, and the line that refuses a start without it."""

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from emulator.actors.chip_processes import ChipProcesses
from emulator.compute import tensors
from emulator.compute.host_memory import PROCESS_BYTES, HostNeed, host_need
from emulator.compute.stored_weights import maps_weights
from emulator.data import SMALL_MOE_DIR
from emulator.errors import CheckpointError
from emulator.fleet import Fleet
from emulator.formats.model_formats import FP32_MODEL, ModelFormats
from emulator.specs.placement import ExpertPlacement
from emulator.specs.weight_format import WeightFormat

STORED = (SMALL_MOE_DIR / "model.safetensors").stat().st_size
PROCESS = PROCESS_BYTES + 4 * 64 * 1024  # with logits of 64 rows of 1,024 tokens


def need(*, chips: int, tp: int = 1, slots: int = 1) -> HostNeed:
    return host_need(SMALL_MOE_DIR, chips=chips, tp=tp, slots=slots)


def test_a_small_checkpoint_is_copied_by_each_chip() -> None:
    hidden, heads, head_dim, experts, width = 112, 8, 16, 144, 16
    attention = hidden * head_dim * (heads + 2 * 4) + heads * head_dim * hidden + 2 * head_dim
    layer = attention + 2 * hidden + experts * hidden
    ends, expert = 2 * 1024 * hidden, 3 * hidden * width

    found = need(chips=3, slots=5)

    assert found.weights_bytes == 4 * (ends + 4 * (layer + 5 * expert))
    assert found.mapped_bytes == 0
    assert found.total_bytes == 3 * (found.weights_bytes + PROCESS)
    assert need(chips=4, tp=4).weights_bytes == 4 * (ends + layer + 4 * expert)


def test_pages_of_a_mapped_checkpoint_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensors, "MAPPED_BYTES_MIN", STORED)

    for chips in (1, 144):
        found = need(chips=chips)
        assert (found.mapped_bytes, found.weights_bytes) == (STORED, 0)
        assert found.total_bytes == STORED + chips * PROCESS


def test_large_matrices_are_mapped_unless_they_are_rounded_to_a_format(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rounded = ModelFormats(experts=WeightFormat.MXFP4)

    for least_bytes, mapped in ((STORED, True), (STORED + 1, False)):
        monkeypatch.setattr(tensors, "MAPPED_BYTES_MIN", least_bytes)
        assert maps_weights(SMALL_MOE_DIR, FP32_MODEL) is mapped
        assert maps_weights(SMALL_MOE_DIR, rounded) is False


def test_what_fits_exactly_is_let_through_and_a_byte_more_is_not() -> None:
    wanted = HostNeed(
        weights_dir=Path("big"),
        chips=2,
        mapped_bytes=6_000_000_000,
        weights_bytes=1_000_000_000,
        process_bytes=45_000_000,
    )
    wanted.check(wanted.total_bytes)

    with pytest.raises(CheckpointError) as refused:
        wanted.check(wanted.total_bytes - 1)

    assert str(refused.value) == (
        "big: 8.09 GB of this host's memory are available, and 2 chips need 8.09 GB: 6.00 GB of"
        " weights in pages that they share, and each 1.000 GB of weights and 0.045 GB of process,"
        " without KV"
    )


def test_a_fleet_that_does_not_fit_starts_no_chip(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = []
    monkeypatch.setattr(ChipProcesses, "open", lambda _self: None)
    monkeypatch.setattr(ChipProcesses, "chips_here", lambda _self, chips: chips)
    monkeypatch.setattr(ChipProcesses, "stop", lambda _self: stopped.append(True))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=10_000_000))
    fleet = Fleet(
        weights_dir=SMALL_MOE_DIR,
        placement=ExpertPlacement.even(layers=4, experts=144, chips=4, ep=4),
        kv_blocks=16,
        block_tokens=16,
    )

    with pytest.raises(CheckpointError, match=r"0\.01 GB .* are available, and 4 chips need 0\.2"):
        fleet.start()

    assert stopped == [True]
