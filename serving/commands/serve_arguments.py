"""The flags of `ultraserve serve`, and their settings.

Our own, vLLM's and the vendor's spellings; two that mean the same must agree.
"""

import argparse
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emulator.data import BUNDLED_WEIGHTS, SMALL_MOE_DIR, weights_directory
from emulator.errors import ConfigError
from emulator.memory.core_request import CoreRequest, compiled_lnc, resolve_cores
from emulator.memory.neuron_environment import NeuronEnvironment
from emulator.specs.assumptions import with_assumptions
from emulator.specs.models import MODELS, unknown_model
from emulator.specs.systems import system_by_name
from serving.commands.day_night_arguments import add_day_night_arguments
from serving.commands.gateway_arguments import add_gateway_arguments
from serving.commands.serve_replicas import ServiceOptions
from serving.errors import UnsupportedFlag
from serving.server.batch.batch_settings import BatchSettings
from serving.settings import Settings
from startup.typed_options import add_options, given_options, option

NO_WEIGHTS = "none"


def _json_object(text: str) -> dict[str, Any]:
    try:
        parsed = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON ({error})") from error
    if not isinstance(parsed, dict):
        raise argparse.ArgumentTypeError("not a JSON object")
    return parsed


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """The timed model, and the weights that make the tokens."""

    GROUP = "model"

    model: str | None = option(
        None,
        "a catalog name (sets time, HBM and energy; the stand-in weights make the tokens) or a "
        "checkpoint directory (sets both). Default: the bundled small MoE. "
        f"Catalog: {', '.join(sorted(MODELS))}",
        metavar="MODEL",
    )
    weights: str | None = option(
        None,
        "checkpoint that makes the tokens when --model is a catalog name, or bundled weights: "
        f"{', '.join(BUNDLED_WEIGHTS)} (default: the first, which is random), or {NO_WEIGHTS}: "
        "tokens are made up, nothing is computed",
        metavar="DIR",
    )


@dataclass(frozen=True, kw_only=True)
class ParallelOptions:
    """Ranks and experts in vLLM's words."""

    GROUP = "ranks and experts"

    dp: int | None = option(
        None,
        "data-parallel ranks (default: chips / tp)",
        *("--dp", "--data-parallel-size", "-dp", "--attention-dp-size"),
    )
    enable_expert_parallel: bool = option(
        False,
        "accepted: experts are always spread over chips",
        *("--enable-expert-parallel", "-ep"),
    )
    eplb: int | None = option(
        None,
        "rebalance experts every S steps (vLLM's --enable-eplb with step_interval S)",
        metavar="S",
    )
    enable_eplb: bool = option(False, "rebalance experts as --eplb-config says")
    eplb_config: Mapping[str, Any] | None = option(
        None,
        "vLLM's own: window_size, step_interval, num_redundant_experts, ...",
        type=_json_object,
        metavar="JSON",
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add every flag but vLLM's."""
    add_options(parser, ModelOptions)
    add_options(parser, Settings, defaults=None)
    add_options(parser, ParallelOptions)
    add_options(parser, ServiceOptions)
    add_gateway_arguments(parser)
    add_options(parser, BatchSettings)
    add_day_night_arguments(parser)


def resolve_arguments(
    args: argparse.Namespace, environment: Mapping[str, str] | None = None
) -> tuple[Settings, Path]:
    """Settings and weights directory, by the flags and the Neuron runtime's variables.

    Raises:
        ConfigError: contradictory flags or environment; a model that is no name and no directory.
        UnsupportedFlag: an unknown spelling of ours.
    """
    _take_underscored(args)
    model = _model_argument(args)
    time_model, weights_dir = _model_and_weights(args, model)
    given = given_options(Settings, args)
    cores = _cores(args, os.environ if environment is None else environment, given, weights_dir)
    resolved = {
        "chips": cores.chips,
        "lnc": cores.lnc,
        "first_chip": cores.first_chip,
        "model": time_model,
        "computes": args.weights != NO_WEIGHTS,
        "eplb": _eplb(args),
        "exclusive_cores": cores.exclusive,
    }
    settings = Settings(**given | resolved)
    if settings.clock == "virtual":
        raise ConfigError("clock", "virtual", "real, auto or dilated:K behind a socket")
    return settings, weights_dir


def _take_underscored(args: argparse.Namespace) -> None:
    """Take flags of ours with underscores, as vLLM's parser does.

    Raises UnsupportedFlag for the dotted spelling of --eplb-config, which vLLM would ignore.
    """
    for argument in args.unknown:
        if _with_dashes(argument).startswith("--eplb-config."):
            raise UnsupportedFlag(
                flag=argument.partition("=")[0], reason="give --eplb-config one JSON object"
            )
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    add_arguments(parser)
    given = [_with_dashes(argument) for argument in args.unknown]
    _, args.unknown = parser.parse_known_args(given, namespace=args)


def _with_dashes(argument: str) -> str:
    if not argument.startswith("--"):
        return argument
    name, equals, value = argument.partition("=")
    return name.replace("_", "-") + equals + value


def _model_argument(args: argparse.Namespace) -> str | None:
    """The model, by flag or first, as in `vllm serve MODEL`."""
    model: str | None = args.model
    if args.unknown and not args.unknown[0].startswith("-"):
        positional: str = args.unknown.pop(0)
        if model not in (None, positional):
            raise ConfigError("model", model, f"one model, not also {positional}")
        model = positional
    return model


def _model_and_weights(args: argparse.Namespace, model: str | None) -> tuple[str | None, Path]:
    given = None if args.weights in (None, NO_WEIGHTS) else weights_directory(args.weights)
    if model is None or model in MODELS:
        return model, given or SMALL_MOE_DIR
    if given is not None:
        raise ConfigError("model", model, "a catalog name when --weights is given")
    if not weights_directory(model).is_dir():
        raise unknown_model(model, f"a checkpoint directory or one of {', '.join(sorted(MODELS))}")
    return None, weights_directory(model)


def _cores(
    args: argparse.Namespace,
    environment: Mapping[str, str],
    given: Mapping[str, Any],
    weights_dir: Path,
) -> CoreRequest:
    """LNC and chips by flags, environment and compiled model, which agree."""
    path = weights_dir / "neuron_config.json"
    compiled = None
    if path.is_file():
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(str(path), error, "JSON") from error
        compiled = compiled_lnc(config) if isinstance(config, dict) else None
    defaults = Settings()
    tp = given.get("tp", defaults.tp)
    system = system_by_name(given.get("system", defaults.system))
    return resolve_cores(
        NeuronEnvironment.read(environment),
        lnc_flag=given.get("lnc"),
        chips_flag=_chips(given.get("chips"), tp=tp, dp=args.dp),
        compiled_lnc=compiled,
        default_chips=max(tp, defaults.chips),
        system=with_assumptions(system, given.get("assumptions", ())),
    )


def _chips(chips: int | None, *, tp: int, dp: int | None) -> int | None:
    """Chips by --chips, or by --dp with --tp; None without."""
    for name, size in (("tp", tp), ("dp", dp)):
        if size is not None and size < 1:
            raise ConfigError(name, size, "a whole number of at least 1")
    if dp is None:
        return chips
    if chips is not None and tp * dp != chips:
        raise ConfigError(
            "dp", dp, f"chips = tp x dp, so {chips / tp:g} on {chips} chips with tp {tp}"
        )
    return tp * dp


def _eplb(args: argparse.Namespace) -> dict[str, Any] | None:
    """Balancing settings in vLLM's spelling; None when experts stay."""
    if args.eplb is None and not args.enable_eplb:
        if args.eplb_config is not None:
            raise ConfigError(
                "eplb_config", json.dumps(args.eplb_config), "--eplb S or --enable-eplb with it"
            )
        return None
    config = dict(args.eplb_config or {})
    if args.eplb is not None:
        if config.get("step_interval", args.eplb) != args.eplb:
            raise ConfigError(
                "eplb", args.eplb, f"the step_interval of --eplb-config, {config['step_interval']}"
            )
        config["step_interval"] = args.eplb
    return config
