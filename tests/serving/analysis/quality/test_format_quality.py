import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from emulator.compute.whole_model import WholeModel
from emulator.data import SMALL_MOE_TRAINED_DIR
from emulator.errors import CheckpointError, ConfigError
from emulator.formats.model_formats import FP32_MODEL
from serving.analysis.quality.format_quality import FormatQuality, Text, format_qualities
from serving.main import main
from serving.server.training.batch_order import IGNORED
from tests.emulator.chip.family_checkpoints import SHAPES, FamilyCheckpoints
from tests.emulator.chip.stored_checkpoints import with_dtype


def held_out(windows: int, length: int) -> Text:
    """Random tokens, of which the first half of each window is not scored."""
    tokens = np.random.default_rng(3).integers(0, 1024, (windows, length + 1)).astype(np.int32)
    targets = tokens[:, 1:].copy()
    targets[:, : length // 2] = IGNORED
    return Text(tokens=tokens[:, :-1], targets=targets, ignored=IGNORED)


def qualities(*names: str, directory: Path = SMALL_MOE_TRAINED_DIR) -> list[FormatQuality]:
    return list(format_qualities(directory, names, lambda: held_out(2, 40)))


def unread() -> Text:
    """Of what is refused before its text is read."""
    raise AssertionError("the text was read")


@pytest.mark.long
def test_perplexity_is_of_the_scored_tokens_alone() -> None:
    text = held_out(2, 40)
    scores = np.array(list(WholeModel(SMALL_MOE_TRAINED_DIR, FP32_MODEL).logits(text.tokens)))
    exact = scores.astype(np.float64)
    logprobs = exact - np.log(np.exp(exact).sum(axis=-1, keepdims=True))
    chosen = np.take_along_axis(logprobs[:, 20:], text.targets[:, 20:, None], axis=-1)

    (found,) = qualities()

    assert (found.tokens, found.greedy_agreement) == (40, 1.0)
    assert found.nats_per_token == pytest.approx(-chosen.mean(), rel=1e-5)
    assert found.perplexity == pytest.approx(np.exp(-chosen.mean()), rel=1e-4)


@pytest.mark.long
def test_bytes_follow_the_format_and_agreement_falls() -> None:
    fp32, mxfp8, w4a8 = qualities("mxfp8", "w4a8+fp8-kv")

    assert fp32.weight_bytes > mxfp8.weight_bytes > w4a8.weight_bytes
    assert (mxfp8.kv_bytes_per_token, w4a8.kv_bytes_per_token) == (1024, 512)
    assert 1.0 > mxfp8.greedy_agreement > w4a8.greedy_agreement > 0.3
    assert len({each.nats_per_token for each in (fp32, mxfp8, w4a8)}) == 3


@pytest.mark.parametrize(
    ("name", "expected"),
    [("int4", "formats=int4: expected some of"), ("nvfp4", "quantization=nvfp4: .*every 16")],
)
def test_a_format_that_is_not_computed_is_refused_before_anything_is(
    name: str, expected: str
) -> None:
    with pytest.raises(ConfigError, match=expected):
        next(format_qualities(SMALL_MOE_TRAINED_DIR, [name], unread))


@pytest.mark.long
@pytest.mark.parametrize("name", ["stored", "stored+fp8-kv"])
def test_an_fp16_checkpoint_is_not_computed_as_stored(name: str, tmp_path: Path) -> None:
    directory = with_dtype("float16", SMALL_MOE_TRAINED_DIR, tmp_path)

    with pytest.raises(ConfigError, match="quantization=stored: expected bf16, or none: FP16"):
        next(format_qualities(directory, ["bf16", name], unread))

    assert len(qualities("bf16", directory=directory)) == 2


def test_a_checkpoint_that_cannot_be_read_is_refused_before_its_text_is(tmp_path: Path) -> None:
    directory = shutil.copytree(SMALL_MOE_TRAINED_DIR, tmp_path / "cut")
    weights = directory / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])

    with pytest.raises(CheckpointError, match="cannot be read"):
        next(format_qualities(directory, ["bf16"], unread))


@pytest.mark.long
@pytest.mark.parametrize("name", SHAPES)
def test_every_family_is_computed_in_every_format(
    name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    checkpoints: Mapping[str, Path] = FamilyCheckpoints(tmp_path_factory.mktemp("families"))
    tokens = np.random.default_rng(0).integers(0, SHAPES[name][1]["vocab_size"], (1, 33))
    text = Text(
        tokens=tokens[:, :-1].astype(np.int32),
        targets=tokens[:, 1:].astype(np.int32),
        ignored=IGNORED,
    )

    names = ["stored", "mxfp8", "w4a8+fp8-kv"]
    found = list(format_qualities(checkpoints[name], names, lambda: text))

    nats = [each.nats_per_token for each in found]
    assert np.isfinite(nats).all()
    assert nats[1] == nats[0], "the checkpoint is in float32, its cache too"
    assert found[1].kv_bytes_per_token == found[0].kv_bytes_per_token
    assert len(set(nats)) == 3


class TestCommand:
    @pytest.mark.long
    def test_a_users_text_is_scored_but_for_its_first_token(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = tmp_path / "words.txt"
        path.write_text("import os\n\ndef main():\n    return os.getcwd()\n")

        words = ("quality", "--formats", "mxfp4", "--text", str(path), "--json")
        assert main(list(words)) == 0

        fp32, mxfp4 = json.loads(capsys.readouterr().out)
        assert (fp32["format"], mxfp4["format"]) == ("fp32", "mxfp4")
        assert fp32["tokens"] == mxfp4["tokens"] > 10
        assert mxfp4["perplexity"] != fp32["perplexity"]

    @pytest.mark.parametrize(
        ("words", "expected"),
        [
            (("--tokens", "0"), "tokens=0: expected at least 1"),
            (("--text", "/nowhere"), "text=/nowhere: expected a file of UTF-8 text"),
            (("--checkpoint", "/nowhere"), "/nowhere"),
            (
                ("--formats", "fp4"),
                "formats=fp4: expected some of bf16, fp8, mxfp8, mxfp4, w4a8",
            ),
            (("--formats", "nvfp4"), "NVFP4 has an E4M3 scale for every 16 numbers"),
        ],
    )
    def test_bad_input_is_one_line(
        self, words: tuple[str, ...], expected: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["quality", *words]) == 2

        said = capsys.readouterr().err
        assert expected in said
        assert said.count("\n") == 1
