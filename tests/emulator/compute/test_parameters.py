from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from emulator.compute.checkpoint import read_architecture
from emulator.compute.mixed_precision import Precision
from emulator.compute.parameters import (
    Layout,
    Parameters,
    Slot,
    dense_layout,
    dense_tensors,
    expert_layout,
    expert_tensors,
    read_dense,
    read_experts,
)
from emulator.errors import CheckpointError
from tests.emulator.compute.whole_training_step import small_architecture

ARCH = small_architecture()


class TestLayout:
    def test_the_dense_part_by_hand(self) -> None:
        # vocab 37, hidden 20, 4 + 2 x 2 heads of 8, 6 experts.
        layer = 20 + 20 * 64 + 8 + 8 + 32 * 20 + 20 + 20 * 6

        layout = dense_layout(ARCH)

        assert layout.size == 37 * 20 + 2 * layer + 20 + 20 * 37
        assert layout.slots["layers.1.qkv"].shape == (20, 64)
        assert layout.slots["layers.1.qkv"].offset == 37 * 20 + layer + 20

    def test_the_experts_of_a_chip_may_differ_by_layer(self) -> None:
        layout = expert_layout(ARCH, [2, 0])

        assert layout.slots["layers.0.gate_up"].shape == (2, 20, 14)
        assert layout.slots["layers.1.down"].shape == (0, 7, 20)
        assert layout.size == 2 * (20 * 14 + 7 * 20)

    def test_tied_embeddings_have_no_head_of_their_own(self) -> None:
        layout = dense_layout(replace(ARCH, tied_embeddings=True))

        assert "lm_head" not in layout.slots
        assert layout.size == dense_layout(ARCH).size - 37 * 20

    def test_matrices_decay_and_norms_and_embeddings_do_not(self) -> None:
        layout = dense_layout(ARCH)

        decaying = {name.split(".")[-1] for name, slot in layout.slots.items() if slot.decays}
        staying = {name.split(".")[-1] for name, slot in layout.slots.items() if not slot.decays}

        assert decaying == {"qkv", "output", "router", "lm_head"}
        assert staying == {
            "embedding",
            "input_norm",
            "query_norm",
            "key_norm",
            "post_norm",
            "final_norm",
        }
        assert all(slot.decays for slot in expert_layout(ARCH, [1, 1]).slots.values())

    def test_runs_cover_the_vector_and_agree_with_the_slots(self) -> None:
        layout = dense_layout(ARCH)
        decays = np.zeros(layout.size, dtype=bool)
        for slot in layout.slots.values():
            decays[slot.offset : slot.offset + slot.size] = slot.decays

        runs = layout.decaying_runs

        assert [start for start, _, _ in runs] == [0, *(end for _, end, _ in runs[:-1])]
        assert runs[-1][1] == layout.size
        assert all((decays[start:end] == kept).all() for start, end, kept in runs)

    def test_a_gap_is_refused(self) -> None:
        with pytest.raises(AssertionError):
            Layout(architecture=ARCH, slots={"a": Slot(offset=1, shape=(2,), decays=True)})


class TestParameters:
    def test_a_view_writes_to_the_flat_vector(self) -> None:
        dense = Parameters.zeros(dense_layout(ARCH))

        dense["embedding"][1, 2] = 5.0

        assert dense.flat[22] == 5.0

    def test_a_vector_of_another_size_is_refused(self) -> None:
        with pytest.raises(AssertionError):
            Parameters(dense_layout(ARCH), np.zeros(3, dtype=np.float32))

    def test_operands_are_rounded_once_until_something_changed(self) -> None:
        dense = Parameters.zeros(dense_layout(ARCH))
        dense.flat[:] = 1 / 3

        first = dense.operands(Precision.BF16)

        assert dense.operands(Precision.FP32) is dense
        assert dense.operands(Precision.BF16) is first
        assert set(first.flat.tolist()) == {0.333984375}
        assert set(dense.flat.tolist()) == {float(np.float32(1 / 3))}
        dense.flat[:] = 1.0
        dense.changed()
        assert set(dense.operands(Precision.BF16).flat.tolist()) == {1.0}


class TestFiles:
    @pytest.mark.parametrize("name", ["wide_heads", "tied", "one_kv_head"])
    def test_what_was_read_goes_back_to_the_tensors_of_the_file(
        self, name: str, small_checkpoints: Mapping[str, Path]
    ) -> None:
        directory = small_checkpoints[name]
        arch = read_architecture(directory)
        halves = [range(0, arch.experts, 2), range(1, arch.experts, 2)]
        by_layer = [[half] * arch.layers for half in halves]

        tensors = dense_tensors(read_dense(directory, arch), arch)
        for named in by_layer:
            tensors |= expert_tensors(read_experts(directory, arch, named), arch, named)

        file = load_file(directory / "model.safetensors")
        file.pop("lm_head.weight") if arch.tied_embeddings and "lm_head.weight" in file else None
        assert tensors.keys() == file.keys()
        assert all(np.array_equal(tensors[key], file[key]) for key in file)
        assert all(tensor.flags.c_contiguous for tensor in tensors.values())

    def test_a_missing_tensor_is_named(self, small_checkpoints: Mapping[str, Path]) -> None:
        directory = small_checkpoints["tied"]
        arch = replace(read_architecture(directory), experts=17)

        with pytest.raises(CheckpointError, match=r"experts\.16\.gate_proj"):
            read_experts(directory, arch, [[16]] * arch.layers)
