"""What chips need of a host, and the line that refuses a start without it."""

import json
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest

from emulator.actors.chip_processes import ChipProcesses
from emulator.actors.exchange_segment import ExchangeSegment
from emulator.chip.commands import JoinExchange
from emulator.compute import host_memory, tensors
from emulator.compute.checkpoint import read_architecture
from emulator.compute.exchange_sizes import ExchangeSizes
from emulator.compute.host_memory import PROCESS_BYTES, HostNeed, host_need
from emulator.compute.model_spec import model_spec
from emulator.compute.stored_weights import maps_weights
from emulator.compute.text_cost import CHIPS, text_figures
from emulator.data import SMALL_MOE_DIR
from emulator.errors import CheckpointError
from emulator.fleet import Fleet
from emulator.formats.model_formats import FP32_MODEL, ModelFormats
from emulator.specs.placement import ExpertPlacement
from emulator.specs.weight_format import WeightFormat
from tests.emulator.chip.draft_layer_checkpoint import make_draft_checkpoint
from tests.emulator.compute.test_model_spec import DEEPSEEK, GPT_OSS, KIMI, LLAMA, MIXTRAL, QWEN

STORED = (SMALL_MOE_DIR / "model.safetensors").stat().st_size
PROCESS = PROCESS_BYTES + 4 * 64 * 1024  # with logits of 64 rows of 1,024 tokens


def need(*, chips: int, tp: int = 1, slots: int = 1) -> HostNeed:
    return host_need(SMALL_MOE_DIR, chips=chips, tp=tp, slots=slots)


def test_a_small_checkpoint_is_copied_by_each_chip() -> None:
    hidden, heads, head_dim, experts, width = 112, 8, 16, 144, 16
    attention = hidden * head_dim * (heads + 2 * 4) + heads * head_dim * hidden + 2 * head_dim
    layer = attention + 2 * hidden + experts * hidden
    ends, expert = 3 * 1024 * hidden, 3 * hidden * width  # the head as it is, and in panels

    found = need(chips=3, slots=5)

    assert found.weights_bytes == 4 * (ends + 4 * (layer + 5 * expert))
    assert found.mapped_bytes == 0
    assert found.total_bytes == 3 * (found.weights_bytes + PROCESS) + found.exchange_bytes
    assert need(chips=4, tp=4).weights_bytes == 4 * (ends + layer + 4 * expert)


def test_pages_of_a_mapped_checkpoint_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensors, "MAPPED_BYTES_MIN", STORED)

    for chips in (1, 144):
        found = need(chips=chips)
        assert (found.mapped_bytes, found.weights_bytes) == (STORED, 0)
        assert found.total_bytes == STORED + chips * PROCESS + found.exchange_bytes


def test_large_matrices_are_mapped_unless_they_are_rounded_to_a_format(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rounded = ModelFormats(experts=WeightFormat.MXFP4)

    for least_bytes, mapped in ((STORED, True), (STORED + 1, False)):
        monkeypatch.setattr(tensors, "MAPPED_BYTES_MIN", least_bytes)
        assert maps_weights(SMALL_MOE_DIR, FP32_MODEL) is mapped
        assert maps_weights(SMALL_MOE_DIR, ModelFormats(kv_bytes_per_element=1)) is mapped
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


def test_rows_that_chips_exchange_are_counted_as_the_segment_takes_them() -> None:
    arch = read_architecture(SMALL_MOE_DIR)
    for chips, tp in ((4, 1), (8, 2)):
        tokens = 64 * chips // tp
        sizes = JoinExchange.of(arch, chips=chips, tp=tp, slots=40, tokens=tokens)
        segment = ExchangeSegment.make(sizes)
        for area in segment.areas:
            area.view(np.uint8)[...] = 1

        found = host_need(SMALL_MOE_DIR, chips=chips, tp=tp, slots=40)

        assert found.exchange_bytes == 512 * os.fstat(segment._file).st_blocks
        # By hand, without what is no row: to experts and back, and sums of four head groups.
        rows = 1 + arch.experts_per_token + 2 * 4 * (tp > 1)
        assert found.exchange_bytes == pytest.approx(tokens * rows * 4 * arch.hidden, rel=0.2)
        assert "GB of rows that they exchange, without KV" in str(found)
        segment.close()
    apart = host_need(SMALL_MOE_DIR, chips=4, tp=1, slots=40, one_host=False)
    assert apart.exchange_bytes == 0
    assert host_need(SMALL_MOE_DIR, chips=4, tp=1, slots=40, drafts=True).exchange_bytes == 0


def test_without_layers_with_experts_only_sums_are_exchanged(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    arch = read_architecture(tmp_path)
    alone, paired = (
        ExchangeSizes.of(arch, chips=8, tp=tp, slots=0, tokens=64).used_bytes() for tp in (1, 2)
    )

    assert alone < 100_000
    assert paired - alone == 2 * 64 * arch.groups * arch.hidden * 4


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


@pytest.mark.parametrize("config", [QWEN, LLAMA, MIXTRAL, GPT_OSS, DEEPSEEK, KIMI])
def test_a_catalog_model_s_need_is_that_of_its_checkpoint(
    config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    model = model_spec("m", tmp_path)
    monkeypatch.setattr(host_memory, "stored_bytes", lambda _: model.weight_bytes)
    monkeypatch.setattr(host_memory, "maps_weights", lambda *_: True)

    for chips in CHIPS:
        slots = -(-model.experts // chips)
        expected = host_need(tmp_path, chips=chips, tp=1, slots=slots)
        found = host_memory.mapped_need(model, chips)
        assert replace(found, weights_dir=tmp_path) == expected
        figures = dict(text_figures(model))
        (figure,) = (each for name, each in figures.items() if f"bytes_{chips}_chip" in name)
        assert figure.value == expected.total_bytes


def test_what_drafts_is_counted_on_each_chip_that_has_it(tmp_path: Path) -> None:
    plain = need(chips=4, tp=2)
    drafting = host_need(SMALL_MOE_DIR, chips=4, tp=2, slots=1, draft_dir=SMALL_MOE_DIR)

    # Whole on each of two leading chips.
    assert drafting.draft_bytes == 2 * need(chips=1, slots=144).weights_bytes
    assert drafting.total_bytes == plain.total_bytes + drafting.draft_bytes
    assert "GB of a drafting model" in str(drafting)
    make_draft_checkpoint(tmp_path)
    layer = host_need(tmp_path, chips=2, tp=1, slots=3, drafts=True).weights_bytes
    deeper = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "config.json").write_text(json.dumps(deeper | {"num_hidden_layers": 4}))
    # A further layer, and at most an embedding and a head of its own.
    ends_bytes = 4 * 2 * 256 * 64
    assert layer == host_need(tmp_path, chips=2, tp=1, slots=3).weights_bytes + ends_bytes
