"""How an engine drafts: what vLLM's `--speculative-config` says, resolved and checked.

| method | who guesses | what it costs the machine |
|---|---|---|
| `ngram` | vLLM's search, in the scheduler | nothing |
| `mtp` | the checkpoint's layer of multi-token prediction | HBM, KV and passes, on all chips |
| `draft_model` | a small checkpoint, computed by leading chips | the same, on a rank's chips |
"""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from emulator.compute.architecture import Architecture
from emulator.compute.checkpoint import check_drafts, check_weights
from emulator.compute.model_spec import model_spec
from emulator.data import weights_name
from emulator.errors import CheckpointError, ConfigError
from emulator.specs.model import ModelSpec


class DraftBy(StrEnum):
    """vLLM's methods that are computed here."""

    NGRAM = "ngram"
    MTP = "mtp"
    DRAFT_MODEL = "draft_model"


FLAG = "speculative_config"
_DEPRECATED = {"deepseek_mtp": DraftBy.MTP}  # as vLLM renames it


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafting:
    """`tokens` guesses of each text at a time; `model`, in `model_dir`, of a draft model alone."""

    method: DraftBy
    tokens: int
    model_dir: Path | None = None
    model: ModelSpec | None = None

    @property
    def by_layer(self) -> bool:
        """Whether a layer of the served checkpoint drafts."""
        return self.method is DraftBy.MTP

    @property
    def by_chips(self) -> bool:
        """Whether chips compute the guesses."""
        return self.method is not DraftBy.NGRAM


def draft_method(name: str) -> DraftBy:
    """A method by vLLM's name; raises ConfigError for one that is not computed."""
    if name in _DEPRECATED:
        return _DEPRECATED[name]
    if name not in list(DraftBy):
        raise ConfigError(FLAG, f"method {name}", f"method {', '.join(DraftBy)}")
    return DraftBy(name)


def resolve_drafting(
    method: DraftBy, tokens: int, model: str | None, *, weights_dir: Path, time_model: ModelSpec
) -> Drafting:
    """Check a method for the checkpoint in `weights_dir`, timed as `time_model`.

    Raises ConfigError for a checkpoint that cannot draft for it, in one line that says why.
    """
    if method is DraftBy.NGRAM:
        return Drafting(method=method, tokens=tokens)
    if method is DraftBy.MTP:
        if model is not None and Path(model).resolve() != weights_dir.resolve():
            expected = f"no model: {method} is a layer of {weights_dir}, the served checkpoint"
            raise ConfigError(FLAG, f"model {model}", expected)
        try:
            check_drafts(weights_dir)
        except CheckpointError as error:
            raise ConfigError(FLAG, f"method {method}", f"another one: {error}") from error
        return Drafting(method=method, tokens=tokens)
    directory = Path(model or "")
    if not model or not directory.is_dir():
        expected = "the directory of a checkpoint with the same vocabulary"
        raise ConfigError(FLAG, f"model {model}", expected)
    try:
        served, drafter = check_weights(weights_dir), check_weights(directory)
        spec = model_spec(weights_name(directory), directory)
    except CheckpointError as error:
        raise ConfigError(FLAG, f"model {model}", f"one that is computed: {error}") from error
    _check_pair(served, drafter, spec, time_model, directory)
    return Drafting(method=method, tokens=tokens, model_dir=directory, model=spec)


def _check_pair(
    served: Architecture,
    drafter: Architecture,
    spec: ModelSpec,
    time_model: ModelSpec,
    directory: Path,
) -> None:
    value = f"model {directory}"
    if served.vocab != drafter.vocab:
        expected = f"a vocabulary of {served.vocab} tokens as the served one's, not {drafter.vocab}"
        raise ConfigError(FLAG, value, expected)
    if spec.dtype != time_model.dtype:
        expected = f"products in {time_model.dtype}, as {time_model.name}'s are, not {spec.dtype}"
        raise ConfigError(FLAG, value, expected)
