"""Perplexity and greedy agreement of a model in each number format, on the same text."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from emulator.arrays import Int32s, Int64s
from emulator.compute.logprobs import log_softmax
from emulator.compute.model_spec import check_stored, model_spec
from emulator.compute.whole_model import WholeModel
from emulator.data import weights_name
from emulator.errors import ConfigError
from emulator.formats.model_formats import FP32_MODEL, ModelFormats
from emulator.specs.model import ModelSpec
from emulator.specs.precisions import KV_BYTES, STORED
from emulator.specs.weight_format import WeightFormat

FP32: Final = "fp32"
FORMATS: Final = ("bf16", "fp8", "mxfp8", "mxfp4", "w4a8", STORED)
KV_SUFFIX: Final = "+fp8-kv"
"""After a format's name: with keys and values in FP8."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """Windows of tokens [windows, length] and the tokens after them, `ignored` where not scored."""

    tokens: Int32s
    targets: Int32s
    ignored: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatQuality:
    """A format's predictions of `tokens` tokens.

    Attributes:
        weight_bytes: of the whole model as stored.
        kv_bytes_per_token: of its cache.
        nats_per_token: mean negative log-likelihood.
        greedy_agreement: share of tokens whose most likely successor is that of float32.
    """

    format: str
    weight_bytes: int
    kv_bytes_per_token: int
    tokens: int
    nats_per_token: float
    greedy_agreement: float

    @property
    def perplexity(self) -> float:
        """The exponential of a token's nats."""
        return math.exp(self.nats_per_token)


def format_qualities(
    directory: Path, names: Sequence[str], read_text: Callable[[], Text]
) -> Iterator[FormatQuality]:
    """The quality of each format; float32's first, which the others are held against.

    The text, which may take seconds to read, is read once the model is there and formats are known
    to be computed. `names` are those of `--quantization`, each perhaps with KV_SUFFIX. Raises
    ConfigError for another, and for a checkpoint that is not computed as stored; CheckpointError
    for a model that is not computed.
    """
    stored = model_spec(weights_name(directory), directory)
    if any(name.partition(KV_SUFFIX)[0] == STORED for name in names):
        check_stored(directory)
    specs = {name: _model_in(name, stored) for name in names if name != FP32}
    formats = {name: ModelFormats.of_model(spec) for name, spec in specs.items()}
    wide = replace(
        stored,
        weight_bytes_per_param=4,
        stored_projection_format=None,
        stored_expert_format=None,
        kv_bytes_per_element=4,
    )
    model = WholeModel(directory, FP32_MODEL)
    text = read_text()
    nats, greedy = _predictions(model, text)
    del model  # which takes the memory of another
    yield _quality(FP32, wide, nats, agreement=1.0)
    for name, spec in specs.items():
        nats, ours = _predictions(WholeModel(directory, formats[name]), text)
        yield _quality(name, spec, nats, agreement=float((ours == greedy).mean()))


def _model_in(name: str, stored: ModelSpec) -> ModelSpec:
    precision, suffix, _ = name.partition(KV_SUFFIX)
    if precision not in (*FORMATS, WeightFormat.NVFP4):  # of which `ModelFormats` says why not
        raise ConfigError(
            "formats", name, f"some of {', '.join(FORMATS)}, perhaps with {KV_SUFFIX}"
        )
    kv = KV_BYTES["fp8"] if suffix else stored.kv_bytes_per_element
    if precision == STORED:
        return replace(stored, kv_bytes_per_element=kv)
    return stored.at_precision(precision, kv_bytes_per_element=kv)


def _predictions(model: WholeModel, text: Text) -> tuple[Sequence[float], Int64s]:
    """The nats and the most likely token of each scored place."""
    nats: list[float] = []
    greedy: list[Int64s] = []
    for scores, targets in zip(
        model.logits(text.tokens.astype(np.int64)), text.targets, strict=True
    ):
        asked = np.flatnonzero(targets != text.ignored)
        greedy.append(scores[asked].argmax(axis=1))
        logprobs = log_softmax(scores[asked])
        nats += (-logprobs[np.arange(len(asked)), targets[asked]]).tolist()
    return nats, np.concatenate(greedy)


def _quality(
    name: str, spec: ModelSpec, nats: Sequence[float], *, agreement: float
) -> FormatQuality:
    return FormatQuality(
        format=name,
        weight_bytes=spec.weight_bytes,
        kv_bytes_per_token=spec.kv_bytes_per_token,
        tokens=len(nats),
        nats_per_token=math.fsum(nats) / len(nats),
        greedy_agreement=agreement,
    )
