"""`ultraserve quality`: perplexity and greedy agreement of a model in the chip's number formats."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from emulator.data import BUNDLED_WEIGHTS, weights_directory
from emulator.errors import ConfigError
from reporting.data_forms import json_text
from reporting.document import Column, table_of
from reporting.plain_text import table_lines
from startup.typed_options import add_options, option, read_options

if TYPE_CHECKING:
    from serving.analysis.quality.format_quality import FormatQuality, Text

_FORMATS: Final = "bf16,fp8,mxfp8,mxfp4,w4a8,mxfp8+fp8-kv"
_WINDOW_TOKENS: Final = 256
"""As training's evaluations of the whole held-out text: windows that overlap by half."""


@dataclass(frozen=True, kw_only=True)
class QualityOptions:
    """The model, the formats, and the text."""

    GROUP = "what is computed"

    checkpoint: str = option(
        "small-moe-trained",
        f"a checkpoint directory, or bundled weights: {', '.join(BUNDLED_WEIGHTS)}",
        metavar="DIR",
    )
    formats: str = option(
        _FORMATS,
        "formats as `ultraserve serve --quantization` takes them, each perhaps with +fp8-kv for "
        "keys and values in FP8; float32 is always the first",
        metavar="NAME,...",
    )
    text: Path | None = option(
        None,
        "a text file (default: Python's standard library, the files that training holds out)",
    )
    tokens: int = option(4_096, "tokens to predict, spread evenly over the text", metavar="N")
    json: bool = option(False, "print JSON for the table")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `quality` command."""
    parser = subparsers.add_parser(
        "quality",
        help="perplexity and greedy agreement of a model in the chip's number formats",
        description="Compute a text with a model in each number format, in this process, with the "
        "bits that the emulated chips compute, and compare what it predicts.",
    )
    add_options(parser, QualityOptions)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the table; returns 0. Raises ConfigError or CheckpointError."""
    from serving.analysis.quality.format_quality import format_qualities

    options = read_options(QualityOptions, args)
    directory = weights_directory(options.checkpoint)
    if options.tokens < 1:
        raise ConfigError("tokens", options.tokens, "at least 1")
    names = list(dict.fromkeys(name.strip() for name in options.formats.split(",")))
    found = []
    for quality in format_qualities(directory, names, lambda: _read_text(options, directory)):
        found.append(quality)
        print(f"{quality.format}: perplexity {quality.perplexity:.3f}", file=sys.stderr)
    if options.json:
        print(json_text([_as_json(each) for each in found]))
    else:
        print("\n".join(table_lines(table_of(_columns(found[0]), found))))
    return 0


def _read_text(options: QualityOptions, directory: Path) -> Text:
    """About as many scored tokens as asked for, in windows spread evenly over the text."""
    import numpy as np

    from serving.analysis.quality.format_quality import Text
    from serving.server.training.batch_order import IGNORED, whole_text
    from serving.server.training.corpus import default_corpus, read_corpus
    from serving.server.training.token_file import encode_files, read_tokenizer

    if options.text is None:
        contents = [file.content for file in read_corpus(default_corpus()).held_out]
    else:
        try:
            contents = [options.text.read_text(encoding="utf-8").encode()]
        except (OSError, ValueError) as error:
            raise ConfigError("text", options.text, f"a file of UTF-8 text ({error})") from error
    tokens = encode_files(read_tokenizer(directory), contents)
    if len(tokens) < 2:
        raise ConfigError("text", options.text, "at least two tokens")
    length = min(_WINDOW_TOKENS, len(tokens) - 1)
    stride = max(1, length // 2)
    whole = whole_text(tokens, length, stride=stride)
    count = min(len(whole.tokens), max(1, options.tokens // stride))
    chosen = np.arange(count) * len(whole.tokens) // count
    return Text(tokens=whole.tokens[chosen], targets=whole.targets[chosen], ignored=IGNORED)


def _columns(reference: FormatQuality) -> Sequence[Column[FormatQuality]]:
    return (
        Column("format", lambda each: each.format, align="left"),
        Column("weights", lambda each: each.weight_bytes, ",.3f", unit="MB", scale=1e6),
        Column("KV", lambda each: each.kv_bytes_per_token, ",d", unit="B/token"),
        Column("perplexity", lambda each: each.perplexity, ".4f"),
        Column("over fp32", lambda each: each.perplexity / reference.perplexity - 1, "+.2%"),
        Column("greedy agreement", lambda each: each.greedy_agreement, ".2%"),
    )


def _as_json(quality: FormatQuality) -> dict[str, object]:
    return {
        "format": quality.format,
        "weight_bytes": quality.weight_bytes,
        "kv_bytes_per_token": quality.kv_bytes_per_token,
        "tokens": quality.tokens,
        "nats_per_token": quality.nats_per_token,
        "perplexity": quality.perplexity,
        "greedy_agreement": quality.greedy_agreement,
    }
