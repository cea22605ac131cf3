"""Chips whose matrices stay in the checkpoint's pages: bits in any partition, and moves."""

import mmap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emulator.chip.commands import LoadExperts, SendExperts, TakeExperts
from emulator.compute import tensors
from emulator.compute.checkpoint import load_shard, read_architecture
from emulator.compute.mapped_matrix import MappedMatrix
from emulator.compute.model_spec import model_spec
from emulator.compute.scaled_rows import Fp8Rows, Mxfp4Rows
from emulator.compute.stored_weights import maps_weights
from emulator.compute.tensors import Tensors
from emulator.compute.weights import ModelShard
from emulator.data import SMALL_MOE_DIR
from emulator.errors import CheckpointError
from emulator.formats.model_formats import ModelFormats
from emulator.specs.placement import EMPTY, ExpertTransfer
from emulator.specs.weight_format import WeightFormat
from tests.emulator.chip.family_checkpoints import FamilyCheckpoints
from tests.emulator.chip.in_process import InProcessChips, serve
from tests.emulator.chip.in_process_fleet import InProcessFleet
from tests.emulator.chip.placements import shuffled_placement
from tests.emulator.chip.stored_checkpoints import in_bf16, in_fp8, in_mxfp4
from tests.emulator.test_fleet_renewal import CHIPS, EP, Texts, fleet_on
from tests.serving.plugin.other_weights import other_weights

pytestmark = pytest.mark.long

FAMILIES = ("llama-uneven", "qwen3-moe-both", "mixtral-plain", "gpt-oss-plain", "deepseek-plain")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    return FamilyCheckpoints(tmp_path_factory.mktemp("mapped"))


@pytest.fixture
def all_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensors, "MAPPED_BYTES_MIN", 0)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_request_has_the_same_bits_in_every_partition(
    name: str, checkpoints: Mapping[str, Path]
) -> None:
    prompts = {"r": np.random.default_rng(1).integers(0, 200, 70).tolist()}

    rows = []
    for chips, tp in ((1, 1), (4, 1), (4, 2)):
        machine = InProcessChips(checkpoints[name], chips=chips, tp=tp, mapped=True)
        text = serve(machine, prompts, new_tokens=8)["r"]
        rows.append((text, machine.rows("r")))

    (text, alone), *others = rows
    for other_text, found in others:
        assert other_text == text
        assert (found == alone).all()


@pytest.mark.parametrize("name", ["llama-uneven", "deepseek-plain"])
def test_a_cache_in_fp8_alone_leaves_the_matrices_in_their_pages(
    name: str, checkpoints: Mapping[str, Path]
) -> None:
    prompts = {"r": np.random.default_rng(1).integers(0, 200, 70).tolist()}

    def computed(mapped: bool, formats: ModelFormats) -> tuple[list[int], np.ndarray]:
        machine = InProcessChips(checkpoints[name], chips=1, mapped=mapped, formats=formats)
        return serve(machine, prompts, new_tokens=8)["r"], machine.rows("r")

    text, in_pages = computed(True, ModelFormats(kv_bytes_per_element=1))
    expected_text, copied = computed(False, ModelFormats(kv_bytes_per_element=1))
    _, plain = computed(True, ModelFormats())

    largest = np.abs(copied).max()
    assert text == expected_text
    assert np.abs(in_pages - copied).max() < 1e-2 * np.abs(plain - copied).max()
    assert np.abs(plain - copied).max() > 1e-4 * largest


def test_fp8_matrices_stay_in_their_pages_and_have_the_bits_of_widened_ones(
    checkpoints: Mapping[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, _ = in_fp8(checkpoints["deepseek-plain"], tmp_path, 16)
    prompts = {"r": np.random.default_rng(1).integers(0, 200, 70).tolist()}
    partitions = ((1, 1), (4, 2))

    def computed() -> list[tuple[list[int], np.ndarray]]:
        found = []
        for chips, tp in partitions:
            machine = InProcessChips(directory, chips=chips, tp=tp, mapped=True)
            found.append((serve(machine, prompts, new_tokens=8)["r"], machine.rows("r")))
        return found

    stored = computed()
    arch = read_architecture(directory)
    experts = [range(arch.experts)] * len(arch.expert_layers)
    shard = load_shard(directory, arch, experts, tp=2, tp_index=1, mapped=True)
    copied = [name for name, part in _parts(shard) if not _is_in_pages(part)]
    assert copied == []
    assert sum(isinstance(part, Fp8Rows) for _, part in _parts(shard)) > 20 * arch.layers

    monkeypatch.setattr(Tensors, "_fp8", _widened(Tensors._fp8))
    for (text, rows), (expected_text, expected) in zip(stored, computed(), strict=True):
        assert text == expected_text
        assert rows.tobytes() == expected.tobytes()
    widened = load_shard(directory, arch, experts, tp=2, tp_index=1, mapped=True)
    assert any(not _is_in_pages(part) for _, part in _parts(widened)), "what the claim is about"


@pytest.mark.parametrize("name", ["gpt-oss-plain", "mixtral-plain", "deepseek-plain"])
def test_what_is_served_as_it_is_stored_stays_in_its_pages_with_the_bits_of_copies(
    name: str, checkpoints: Mapping[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = in_mxfp4(checkpoints[name], tmp_path)[0] if name == "gpt-oss-plain" else None
    directory = in_bf16(packed or checkpoints[name], tmp_path / "bf16")
    formats = ModelFormats.of_model(model_spec(name, directory))
    assert (formats.experts is WeightFormat.MXFP4) == (packed is not None)
    monkeypatch.setattr(tensors, "MAPPED_BYTES_MIN", 0)
    assert maps_weights(directory, formats)
    assert not maps_weights(checkpoints[name], formats), "float32 would have to be rounded"
    prompts = {"r": np.random.default_rng(1).integers(0, 200, 70).tolist()}

    def computed(mapped: bool, chips: int, tp: int) -> tuple[list[int], bytes]:
        machine = InProcessChips(directory, chips=chips, tp=tp, mapped=mapped, formats=formats)
        copied = [part for chip in machine.chips for part in _copies(chip._shard)]
        assert bool(copied) is not mapped
        return serve(machine, prompts, new_tokens=8)["r"], machine.rows("r").tobytes()

    expected = computed(False, 1, 1)
    assert computed(True, 1, 1) == expected
    assert computed(True, 4, 2) == expected


def _copies(shard: ModelShard) -> list[str]:
    """Matrices that are not in the checkpoint's pages."""
    kept = [name for name, part in _parts(shard) if not _is_in_pages(part)]
    return kept if isinstance(shard.lm_head, MappedMatrix) else [*kept, "lm_head"]


def _widened(read: Callable[..., Fp8Rows]) -> Callable[..., np.ndarray]:
    return lambda *arguments: read(*arguments).astype(np.float32, copy=False)


def _parts(weights: object, name: str = "shard") -> Iterator[tuple[str, Any]]:
    """The stored parts of all matrices."""
    if isinstance(weights, MappedMatrix):
        yield from ((name, part) for part in weights._parts)
    elif isinstance(weights, np.ndarray) and weights.dtype == object:
        for each in weights:
            yield from _parts(each, name)
    elif isinstance(weights, tuple):
        for place, each in enumerate(weights):
            yield from _parts(each, f"{name}[{place}]")
    elif is_dataclass(weights):
        for field in fields(weights):
            yield from _parts(getattr(weights, field.name), f"{name}.{field.name}")


def _is_in_pages(part: Any) -> bool:
    array = part
    if isinstance(part, Fp8Rows | Mxfp4Rows):
        array = part._codes if isinstance(part, Fp8Rows) else part._blocks
    while isinstance(array, np.ndarray):
        array = array.base
    return isinstance(array, mmap.mmap)


@pytest.mark.usefixtures("all_mapped")
def test_experts_that_move_are_loaded_from_the_pages_and_no_text_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Path] = []

    def counted(directory: Path, formats: ModelFormats) -> bool:
        asked.append(directory)
        return maps_weights(directory, formats)

    monkeypatch.setattr("emulator.fleet.maps_weights", counted)

    fleet = fleet_on(InProcessFleet)
    assert isinstance(fleet, InProcessFleet)
    before = Texts(fleet).of(0)
    old = fleet.placement
    new = shuffled_placement(
        layers=old.layers, experts=old.experts, chips=CHIPS, ep=EP, slots=80, seed=3
    )
    held = old.padded(80)
    transfers = [
        ExpertTransfer(
            layer=layer,
            expert=int(new.expert_of_slot[layer, chip, slot]),
            source_chip=int(source_chip),
            source_slot=int(source_slot),
            chip=int(chip),
            slot=int(slot),
        )
        for layer, chip, slot in np.argwhere(new.expert_of_slot != EMPTY)
        for source_chip, source_slot in np.argwhere(
            held[layer] == new.expert_of_slot[layer, chip, slot]
        )[:1]
    ]

    fleet.place(new, transfers)

    assert asked == [SMALL_MOE_DIR], "files are looked into once, not at each move"
    kinds = {type(command) for _, command in fleet.host.sent}
    assert LoadExperts in kinds
    assert not kinds & {SendExperts, TakeExperts}
    assert Texts(fleet).of(1) == before
    fleet.stop()


@pytest.mark.usefixtures("all_mapped")
def test_other_weights_are_mapped_in_place_of_the_old_ones(tmp_path: Path) -> None:
    other = other_weights(tmp_path / "other", seed=5)
    expected = {
        weights: Texts(fleet_on(InProcessFleet, weights)).of(0)
        for weights in (SMALL_MOE_DIR, other)
    }
    fleet = fleet_on(InProcessFleet)

    for weights in (other, SMALL_MOE_DIR):
        fleet.renew(range(CHIPS), weights)
        assert Texts(fleet).of(0) == expected[weights]

    assert expected[other] != expected[SMALL_MOE_DIR]
    with pytest.raises(CheckpointError, match="gone"):
        fleet.renew(range(CHIPS), tmp_path / "gone")
