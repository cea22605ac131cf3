from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.errors import ConfigError
from emulator.specs.models import MODELS, model_by_name
from emulator.specs.pipeline_stages import ENDS, PipelineStages, tensor_share
from tests.emulator.specs.tiny_model import TINY


def test_126_layers_on_128_virtual_stages_leave_the_ends_to_the_ends() -> None:
    stages = PipelineStages.of(model_by_name("llama-3.1-405b"), pp=16, virtual_stages=8)

    assert stages.layers.tolist() == [7, *[8] * 14, 7]
    assert stages.first.tolist() == [1, *[0] * 15]
    assert stages.last.tolist() == [*[0] * 15, 1]


def test_dense_layers_are_on_the_first_stage_and_windows_alternate() -> None:
    deepseek = PipelineStages.of(model_by_name("deepseek-v3"), pp=4)
    alternating = PipelineStages.of(model_by_name("gpt-oss-20b"), pp=4)

    assert deepseek.dense_layers.tolist() == [3, 0, 0, 0]
    assert deepseek.moe_layers.tolist() == [12, 16, 15, 15]
    assert alternating.window_layers.tolist() == alternating.full_layers.tolist() == [3] * 4


@given(
    name=st.sampled_from(sorted(MODELS)), pp=st.integers(1, 16), virtual_stages=st.integers(1, 4)
)
def test_every_layer_is_on_one_stage_and_stages_differ_by_little(
    name: str, pp: int, virtual_stages: int
) -> None:
    model = MODELS[name]
    if pp * virtual_stages > model.layers + ENDS:
        with pytest.raises(ConfigError, match=f"pp={pp}"):
            PipelineStages.of(model, pp=pp, virtual_stages=virtual_stages)
        return
    stages = PipelineStages.of(model, pp=pp, virtual_stages=virtual_stages)

    assert stages.layers.sum() == model.layers
    assert stages.dense_layers.sum() == model.dense_layers
    assert (stages.full_layers + stages.window_layers).tolist() == stages.layers.tolist()
    assert stages.layers.max() - stages.layers.min() <= virtual_stages


def test_a_chip_of_a_rank_has_its_part_of_heads_and_columns_and_repeats_few_keys() -> None:
    model = model_by_name("llama-3.1-70b")  # 64 heads, 8 of keys and values

    share = tensor_share(model, 16)

    assert (share.heads, share.kv_heads) == (4, 1)
    assert share.dense_intermediate == model.dense_intermediate // 16
    assert share.hidden == model.hidden
    assert tensor_share(TINY, 1) == TINY
    with pytest.raises(ConfigError, match="tp=3"):
        tensor_share(model, 3)
    with pytest.raises(ConfigError, match="tp=8"):
        tensor_share(replace(model, dense_intermediate=28_676), 8)
