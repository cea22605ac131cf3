"""Published figures of other models: read, made into loads, predicted, scored."""

from dataclasses import replace

import pytest

from emulator.errors import ConfigError
from emulator.specs.models import model_by_name
from emulator.specs.weight_format import WeightFormat
from serving.analysis.validate.other_models.other_models import other_models
from serving.analysis.validate.other_models.other_models_text import as_data, report_lines
from serving.analysis.validate.other_models.published_load import load_of
from serving.analysis.validate.other_models.published_row import (
    COLUMNS,
    published_rows,
    shipped_rows,
)

HEADER = ",".join(COLUMNS)
ROW = "llama-3.1-8b,h200,trtllm,fp8,tp1,1000,2000,1500,,output_tokens_per_s,16828,a page"
(PUBLISHED,) = published_rows([HEADER, ROW], name="a.csv")


def test_a_row_is_read_as_it_was_published() -> None:
    assert (PUBLISHED.line, PUBLISHED.model, PUBLISHED.value) == (2, "llama-3.1-8b", 16_828.0)
    assert (PUBLISHED.prompt_tokens, PUBLISHED.output_tokens) == (1_000, 2_000)
    assert (PUBLISHED.requests, PUBLISHED.users) == (1_500, None)


def test_a_load_by_hand() -> None:
    load = load_of(PUBLISHED)

    # 1 byte of KV: 2 x 8 heads x 128 x 32 layers = 65,536 bytes a token. FP8 blocks have a scale of
    # 4 bytes each 128 x 128, embedding and LM head stay BF16: 7.5 + 1.05 GB x 2 of 150.8 GB.
    layer = 4_096 * (2 * 4_096 + 2 * 1_024) + 3 * 4_096 * 14_336
    weights = 32 * layer * (1 + 4 / 128**2) + 2 * 2 * 128_256 * 4_096
    whole = 0.95 * (140 * 2**30 - weights) / 65_536 / 3_000
    assert load.deployment.model.kv_bytes_per_element == 1
    assert load.deployment.slots == pytest.approx(whole, rel=0.02)
    assert load.users == int(load.deployment.slots)
    assert load.deployment.rides


def test_users_that_the_source_states_are_kept_and_a_mixture_has_attention_data_parallel() -> None:
    row = replace(PUBLISHED, model="qwen3-235b-a22b", layout="tp8", users=64, requests=None)

    load = load_of(row)

    assert load.users == 64
    partition = load.deployment.decode.partition
    assert (partition.chips, partition.tp, partition.ep) == (8, 1, 8)
    assert not load.deployment.rides


def test_four_bits_are_of_experts_alone_or_of_a_whole_dense_model() -> None:
    dense = load_of(replace(PUBLISHED, hardware="b200", precision="fp4")).deployment
    mixed = load_of(
        replace(PUBLISHED, model="qwen3-30b-a3b", hardware="b200", precision="fp4")
    ).deployment

    assert dense.model.projection_format is WeightFormat.NVFP4
    assert not dense.stack.fp4  # overheads of four bits are those of experts
    assert mixed.model.projection_format is WeightFormat.BF16
    assert mixed.model.expert_format is WeightFormat.NVFP4
    assert mixed.stack.fp4


def test_a_small_batch_takes_about_the_time_to_read_the_weights() -> None:
    row = replace(PUBLISHED, metric="tpot_ms", value=2.5, users=1, requests=None, prompt_tokens=128)
    (found,) = other_models([row]).predictions

    read_ms = 8.5e9 / 4.8e12 * 1e3  # 8.5 GB over an H200's 4.8 TB/s: no step is shorter
    assert found.predicted > read_ms
    assert found.batch == 1


@pytest.mark.long
def test_every_shipped_row_is_predicted_or_excluded_with_a_reason() -> None:
    rows = [*shipped_rows()][::25]

    found = other_models(rows)

    assert len(found.predictions) + len(found.excluded) == len(rows)
    assert all(each.predicted > 0 for each in found.predictions)
    assert all(each.reason for each in found.excluded)
    assert sum(each["rows"] for each in found.scores() if each["model"] != "all") == len(
        found.predictions
    )
    assert len(as_data(found)["rows"]) == len(found.predictions)
    assert any("excluded" in line for line in report_lines(found))


def test_every_source_names_where_it_was_published() -> None:
    assert all("." in row.source for row in shipped_rows())
    known = {row.model for row in shipped_rows()}
    assert {"llama-3.1-8b", "qwen3-235b-a22b", "gpt-oss-120b", "kimi-k2"} <= known
    assert model_by_name("kimi-k2").experts


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hardware": "rtx-6000-pro"}, "hardware=rtx-6000-pro"),
        ({"model": "llama-4-scout"}, "model=llama-4-scout"),
        ({"layout": "tp1pp2"}, "pipeline"),
        ({"layout": ""}, "layout"),
        ({"metric": "tokens_per_s"}, "metric=tokens_per_s"),
        ({"prompt_tokens": None}, "lengths"),
        ({"precision": "int4"}, "precision=int4"),
        ({"model": "llama-3.1-405b"}, "layout=tp1"),
    ],
)
def test_what_cannot_be_predicted_is_excluded_with_its_reason(change, words) -> None:
    found = other_models([replace(PUBLISHED, **change)])

    assert not found.predictions
    (excluded,) = found.excluded
    assert words in excluded.reason


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["model,value"], "a.csv: header=without hardware"),
        ([HEADER, ROW.replace("16828", "fast")], "a.csv, line 2, value=fast: expected a number"),
        ([HEADER, ROW.replace("16828", "")], "line 2, value=nothing"),
        ([HEADER, ROW.replace("1500", "1.5")], "line 2, requests=1.5: expected a whole number"),
        ([HEADER, ROW.replace("a page", "")], "line 2, source=nothing"),
        ([HEADER, ROW.replace("1000,", "-1,")], "line 2, isl=-1"),
    ],
)
def test_a_bad_file_is_refused_in_one_line(lines, words) -> None:
    with pytest.raises(ConfigError) as refused:
        published_rows(lines, name="a.csv")

    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
