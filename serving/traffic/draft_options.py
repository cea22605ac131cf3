"""What drafts in a prediction: the options, and what they are to a cost model."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

from emulator.errors import CheckpointError, ConfigError
from emulator.specs.model import ModelSpec
from emulator.specs.models import MODELS
from emulator.timing.draft_acceptance import DraftMethod, draft_acceptance, right_drafts
from startup.typed_options import option

_BY_MODEL: Final = "draft_model"


@dataclass(frozen=True, kw_only=True)
class DraftOptions:
    """What a server's `--speculative-config` says, and the share of drafts that are right.

    `draft_model` is the model of its method `draft_model`: of the catalog, or a checkpoint's
    directory. Raises ConfigError for the one without the other or without drafts, and for shares
    that are none, or not as many as drafts.
    """

    GROUP = "drafts"

    speculative_tokens: int = option(0, "drafts of a decoding request in a step (default: none)")
    draft_method: DraftMethod = option(
        "mtp",
        "what makes drafts: a layer of the model's, after each step (mtp, eagle), another model "
        "(draft_model), or a search in the text, which costs nothing (ngram)",
    )
    draft_model: str | None = option(
        None,
        "the model that drafts, of the catalog or a checkpoint's directory",
        metavar="NAME",
    )
    acceptance: tuple[float, ...] = option(
        (),
        "assumed share of right drafts: one for all, or repeated for each draft in turn (default: "
        "what was published for the method)",
    )

    def __post_init__(self) -> None:
        if self.draft_method == _BY_MODEL and self.speculative_tokens and not self.draft_model:
            raise ConfigError(_BY_MODEL, self.draft_model, "the model that drafts, by this method")
        if self.draft_model is not None and self.draft_method != _BY_MODEL:
            expected = f"draft_method {_BY_MODEL} with it, not {self.draft_method}"
            raise ConfigError(_BY_MODEL, self.draft_model, expected)
        if self.draft_model is not None and not self.speculative_tokens:
            raise ConfigError(_BY_MODEL, self.draft_model, "nothing without speculative_tokens")
        check_acceptance(self.acceptance, self.speculative_tokens)

    @property
    def drafts_by_layer(self) -> bool:
        """Whether a layer of the model's makes the drafts."""
        return self.speculative_tokens > 0 and draft_acceptance(self.draft_method).module

    @property
    def shares(self) -> tuple[float, ...]:
        """Assumed shares of right drafts: one for all, or one for each, in order.

        Raises ConfigError for an unknown method.
        """
        published = draft_acceptance(self.draft_method).rates(self.speculative_tokens)
        return self.acceptance or published

    @property
    def tokens_per_step(self) -> float:
        """Expected tokens of a decoding request in a step; raises ConfigError as `shares`."""
        shares = self.shares or (0.0,)
        drafts = range(self.speculative_tokens)
        return 1 + right_drafts([shares[place % len(shares)] for place in drafts])

    def drafter(self, timed: ModelSpec) -> ModelSpec | None:
        """The model that drafts for `timed`; None where none does.

        Raises ConfigError for an unknown one, and for one that is not computed beside `timed`.
        """
        if not self.speculative_tokens or self.draft_model is None:
            return None
        found = _named(self.draft_model)
        if found.dtype != timed.dtype:
            expected = f"products in {timed.dtype}, as {timed.name}'s are, not {found.dtype}"
            raise ConfigError(_BY_MODEL, self.draft_model, expected)
        return found

    def published_acceptance(self) -> str | None:
        """What stands for `acceptance`, in words with its source; None where that is given, or
        nothing drafts. Raises ConfigError for an unknown method.
        """
        if self.acceptance or not self.speculative_tokens:
            return None
        shares = ", ".join(f"{each:.3g}" for each in self.shares)
        source = draft_acceptance(self.draft_method).source
        return f"assumed: acceptance {shares} by place, of other models or texts: {source}"


DRAFT_LIMITS: Final = tuple(each.name for each in fields(DraftOptions))
"""Options of commands whose cost models know drafts."""


def check_acceptance(acceptance: Sequence[float], drafts: int) -> None:
    """Raise ConfigError for other than one share of right drafts, one for each, or none of none."""
    is_right = all(0 <= each <= 1 for each in acceptance)
    if not is_right or len(acceptance) not in ((0, 1, drafts) if drafts else (0,)):
        shares = f"shares from 0 to 1, one or {drafts}"
        expected = shares if drafts else "nothing without speculative_tokens"
        raise ConfigError("acceptance", acceptance, expected)


def _named(name: str) -> ModelSpec:
    if name.lower() in MODELS:
        return MODELS[name.lower()]
    directory = Path(name)
    if not directory.is_dir():
        expected = f"one of {', '.join(MODELS)}, or a checkpoint's directory"
        raise ConfigError(_BY_MODEL, name, expected)
    from emulator.compute.model_spec import model_spec
    from emulator.data import weights_name

    try:
        return model_spec(weights_name(directory), directory)
    except CheckpointError as error:
        raise ConfigError(_BY_MODEL, name, f"one that is computed: {error}") from error
