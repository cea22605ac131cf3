from dataclasses import replace

import pytest

from emulator.specs.models import MODELS
from emulator.ultraserver.segments import (
    LayerKind,
    LayerSegment,
    rows_of,
    segment_of_layer,
    segments_of,
    times_of,
)

FULL_ROUTED = LayerKind(window=False, routed=True)
WINDOW_ROUTED = LayerKind(window=True, routed=True)
FULL_DENSE = LayerKind(window=False, routed=False)


def test_dense_layers_come_before_the_first_exchange() -> None:
    segments, tail = segments_of(MODELS["deepseek-v3"])

    assert segments == (
        LayerSegment(times=1, layers=((FULL_DENSE, 3), (FULL_ROUTED, 1))),
        LayerSegment(times=57, layers=((FULL_ROUTED, 1),)),
    )
    assert tail == LayerSegment(times=1, layers=())


def test_windows_alternate_from_the_first_layer_on() -> None:
    segments, _ = segments_of(MODELS["gpt-oss-20b"])

    assert segments == (
        LayerSegment(times=1, layers=((WINDOW_ROUTED, 1),)),
        LayerSegment(times=12, layers=((FULL_ROUTED, 1),)),
        LayerSegment(times=11, layers=((WINDOW_ROUTED, 1),)),
    )


def test_a_dense_model_ends_with_all_its_layers() -> None:
    segments, tail = segments_of(MODELS["llama-3.1-8b"])

    assert segments == ()
    assert tail == LayerSegment(times=1, layers=((FULL_DENSE, 32),))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("layers", [4, 5, 61])
def test_every_layer_is_in_one_segment_and_every_routed_one_ends_one(
    name: str, layers: int
) -> None:
    model = replace(MODELS[name], layers=layers)
    segments, tail = segments_of(model)

    everything = [
        (kind, count * segment.times)
        for segment in (*segments, tail)
        for kind, count in segment.layers
    ]
    assert sum(count for _, count in everything) == layers
    assert sum(count for kind, count in everything if kind.window) == model.window_layers
    assert sum(segment.times for segment in segments) == model.moe_layers
    for segment in segments:
        assert sum(count for kind, count in segment.layers if kind.routed) == 1


def test_every_layer_with_experts_ends_its_segment_in_the_layers_order() -> None:
    assert segment_of_layer(MODELS["deepseek-v3"]).tolist() == [0] + [1] * 57
    assert segment_of_layer(MODELS["gpt-oss-20b"]).tolist() == [0, *[1, 2] * 11, 1]
    assert segment_of_layer(MODELS["llama-3.1-8b"]).tolist() == []


@pytest.mark.parametrize("name", MODELS)
def test_a_steps_rows_add_up_to_its_layers_and_ends(name: str) -> None:
    model = MODELS[name]
    rows = rows_of(model)
    segments, tail = segments_of(model)
    runs = [segment.times for segment in (*segments, tail)]

    counted = dict.fromkeys((row.part for row in rows), 0.0)
    for row, count in zip(rows, runs @ times_of(model, rows), strict=True):
        counted[row.part] += count

    assert counted.pop("attention") == model.layers
    assert counted.pop("dense", 0) == model.dense_layers
    assert counted.pop("router", 0) == model.moe_layers
    assert counted == {"lm_head": 1, "sampling": 1}


def test_a_draft_module_joins_two_rows_first() -> None:
    assert [row.part for row in rows_of(MODELS["llama-3.1-8b"], draft=True)] == [
        "attention",
        "dense",
        "joining",
        "lm_head",
        "sampling",
    ]
