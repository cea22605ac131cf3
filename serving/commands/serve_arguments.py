"""The flags of `ultraserve serve`, and the settings that they mean.

Our own spellings and vLLM's and the vendor's lie side by side; where two say the same thing they
must agree.
"""

import argparse
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from emulator.data import BUNDLED_WEIGHTS, SMALL_MOE_DIR, weights_directory
from emulator.errors import ConfigError
from emulator.memory.core_request import CoreRequest, compiled_lnc, resolve_cores
from emulator.memory.neuron_environment import NeuronEnvironment
from emulator.specs.assumptions import with_assumptions
from emulator.specs.models import MODELS, unknown_model
from emulator.specs.overlap import Overlap
from emulator.specs.systems import system_by_name
from serving.commands.calibration_argument import add_calibration_argument
from serving.commands.day_night_arguments import add_day_night_arguments
from serving.commands.gateway_arguments import add_gateway_arguments
from serving.commands.reading_argument import add_reading_argument
from serving.errors import UnsupportedFlag
from serving.settings import Settings

NO_WEIGHTS = "none"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add every flag that is not vLLM's to read."""
    _add_model(parser)
    _add_partition(parser)
    _add_experts(parser)
    add_gateway_arguments(parser)
    add_day_night_arguments(parser)
    _add_running(parser)


def _add_running(parser: argparse.ArgumentParser) -> None:
    defaults = Settings()
    running = parser.add_argument_group("running")
    running.add_argument(
        "--clock",
        default=defaults.clock,
        help="real, auto or dilated:K (K wall seconds per emulated second; auto follows the load, "
        "so that this host just keeps up; default: %(default)s)",
    )
    running.add_argument(
        "--expect-concurrency",
        metavar="N",
        type=int,
        help="requests under way at a time that --clock auto begins for (default: one a rank); "
        "from then on it follows what is measured",
    )
    running.add_argument("--pue", type=float, help="facility PUE (default: the system's)")
    add_calibration_argument(running, default=defaults.calibration)
    running.add_argument(
        "--overlap",
        choices=tuple(Overlap),
        default=defaults.overlap,
        help="how far the exchange of tokens hides behind computing (default: %(default)s)",
    )
    running.add_argument(
        "--prefill-policy",
        metavar="POLICY",
        help="how prefills are held back for decodes: none, staggered:RANKS, capped:TOKENS or "
        "balanced:STEPS:FLOOR:CEILING (default: balanced:64:256:1024)",
    )
    running.add_argument(
        "--ray-address",
        metavar="HOST:PORT",
        help="a running Ray cluster whose nodes hold the chips (default: a Ray of our own)",
    )
    running.add_argument(
        "--hang-timeout",
        type=float,
        metavar="S",
        default=defaults.hang_timeout_s,
        help="emulated seconds until a silent chip is given up (default: %(default)g, the Neuron "
        "runtime's)",
    )
    running.add_argument(
        "--silence-timeout",
        type=float,
        metavar="S",
        default=defaults.silence_timeout_s,
        help="wall seconds until a chip is given up whose process does nothing at all, though no "
        "fault was injected (default: %(default)g)",
    )


def _add_model(parser: argparse.ArgumentParser) -> None:
    model = parser.add_argument_group("model")
    model.add_argument(
        "--model",
        help="a catalog name (sets time, HBM and energy; the stand-in weights make the tokens) or "
        "a checkpoint directory (sets both). Default: the bundled small MoE. "
        f"Catalog: {', '.join(sorted(MODELS))}",
    )
    model.add_argument(
        "--weights",
        metavar="DIR",
        help="checkpoint that makes the tokens when --model is a catalog name, or bundled "
        f"weights: {', '.join(BUNDLED_WEIGHTS)} (default: the first, which is random), or "
        f"{NO_WEIGHTS}: tokens are made up, nothing is computed",
    )
    model.add_argument(
        "--routing",
        metavar="HOW",
        help="where the tokens of a catalog model go: uniform, zipf:S, or a file of recorded "
        "expert loads (default: uniform)",
    )


def _add_partition(parser: argparse.ArgumentParser) -> None:
    defaults = Settings()
    part = parser.add_argument_group(
        "partition", "chips = tp x dp; experts lie on whole groups of ep chips"
    )
    part.add_argument("--system", default=defaults.system, help="machine (default: %(default)s)")
    part.add_argument(
        "--ultraserver",
        metavar="NAME",
        default=defaults.ultraserver,
        help="which machine of that kind: servers that name their cores share one by its name, and "
        "no two get the same cores of it (default: %(default)s)",
    )
    add_reading_argument(part, default=[])
    part.add_argument("--chips", type=int, help=f"chips (default: tp x dp, or {defaults.chips})")
    part.add_argument(
        "--tp",
        "--tensor-parallel-size",
        "-tp",
        type=int,
        dest="tp",
        help="chips of a rank, which divide its attention heads and KV cache (default: 1)",
    )
    part.add_argument(
        "--dp",
        "--data-parallel-size",
        "-dp",
        "--attention-dp-size",
        type=int,
        dest="dp",
        help="data-parallel ranks (default: chips / tp)",
    )
    part.add_argument(
        "--ep",
        "--ep-degree",
        type=int,
        dest="ep",
        help="chips over which the experts are spread (default: all)",
    )
    part.add_argument(
        "--enable-expert-parallel",
        "-ep",
        action="store_true",
        help="accepted: experts are always spread over chips",
    )
    part.add_argument(
        "--lnc",
        type=int,
        help="physical NeuronCores of a logical one: 1, 2 or 8 (default: the chip's; 8 is "
        "announced by the vendor, not released)",
    )
    part.add_argument(
        "--spares", type=int, default=defaults.spares, help="chips that stand by for lost ones"
    )


def _add_experts(parser: argparse.ArgumentParser) -> None:
    experts = parser.add_argument_group("expert balancing")
    experts.add_argument(
        "--eplb",
        type=int,
        metavar="S",
        help="rebalance experts every S steps (vLLM's --enable-eplb with step_interval S)",
    )
    experts.add_argument(
        "--enable-eplb", action="store_true", help="rebalance experts as --eplb-config says"
    )
    experts.add_argument(
        "--eplb-config",
        type=_json_object,
        metavar="JSON",
        help="vLLM's own: window_size, step_interval, num_redundant_experts, ...",
    )


def _json_object(text: str) -> dict[str, Any]:
    try:
        parsed = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON ({error})") from error
    if not isinstance(parsed, dict):
        raise argparse.ArgumentTypeError("not a JSON object")
    return parsed


def resolve_arguments(
    args: argparse.Namespace, environment: Mapping[str, str] | None = None
) -> tuple[Settings, Path]:
    """Turn the flags, and the Neuron runtime's variables, into settings and the weights' directory.

    `environment` is the process's own when it is not given.

    Raises:
        ConfigError: flags that contradict each other or the environment; a model that is no name
            and no directory.
        UnsupportedFlag: a spelling of ours that is not read.
    """
    _take_underscored(args)
    model = _model_argument(args)
    time_model, weights_dir = _model_and_weights(args, model)
    tp = 1 if args.tp is None else args.tp
    cores = _cores(args, os.environ if environment is None else environment, tp, weights_dir)
    settings = Settings(
        system=args.system,
        ultraserver=args.ultraserver,
        chips=cores.chips,
        tp=tp,
        ep=args.ep,
        lnc=cores.lnc,
        first_chip=cores.first_chip,
        spares=args.spares,
        model=time_model,
        computes=args.weights != NO_WEIGHTS,
        routing=args.routing,
        clock=args.clock,
        expect_concurrency=args.expect_concurrency,
        pue=args.pue,
        overlap=args.overlap,
        calibration=args.calibration,
        readings=tuple(args.reading),
        prefill_policy=args.prefill_policy,
        eplb=_eplb(args),
        ray_address=args.ray_address,
        hang_timeout_s=args.hang_timeout,
        silence_timeout_s=args.silence_timeout,
        exclusive_cores=cores.exclusive,
    )
    if settings.clock == "virtual":
        raise ConfigError(
            field="clock", value="virtual", expected="real, auto or dilated:K behind a socket"
        )
    return settings, weights_dir


def _take_underscored(args: argparse.Namespace) -> None:
    """Take flags of ours that are spelled with underscores, as vLLM's parser allows.

    Raises UnsupportedFlag for vLLM's dotted spelling of --eplb-config, of which vLLM would take no
    notice.
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
    """The model, by flag or given first as `vllm serve MODEL` has it."""
    model: str | None = args.model
    if args.unknown and not args.unknown[0].startswith("-"):
        positional: str = args.unknown.pop(0)
        if model not in (None, positional):
            raise ConfigError(
                field="model", value=model, expected=f"one model, not also {positional}"
            )
        model = positional
    return model


def _model_and_weights(args: argparse.Namespace, model: str | None) -> tuple[str | None, Path]:
    given = None if args.weights in (None, NO_WEIGHTS) else weights_directory(args.weights)
    if model is None or model in MODELS:
        return model, given or SMALL_MOE_DIR
    if given is not None:
        raise ConfigError(
            field="model", value=model, expected="a catalog name when --weights is given"
        )
    if not weights_directory(model).is_dir():
        raise unknown_model(model, f"a checkpoint directory or one of {', '.join(sorted(MODELS))}")
    return None, weights_directory(model)


def _cores(
    args: argparse.Namespace, environment: Mapping[str, str], tp: int, weights_dir: Path
) -> CoreRequest:
    """The LNC and the chips that flags, environment and the compiled model agree on."""
    path = weights_dir / "neuron_config.json"
    compiled = None
    if path.is_file():
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(field=str(path), value=error, expected="JSON") from error
        compiled = compiled_lnc(config) if isinstance(config, dict) else None
    return resolve_cores(
        NeuronEnvironment.read(environment),
        lnc_flag=args.lnc,
        chips_flag=_chips(args, tp),
        compiled_lnc=compiled,
        default_chips=tp if tp > Settings().chips else Settings().chips,
        system=with_assumptions(system_by_name(args.system), args.reading),
    )


def _chips(args: argparse.Namespace, tp: int) -> int | None:
    """The chips that --chips, or --dp with --tp, ask for; None when neither does."""
    chips: int | None = args.chips
    for name in ("tp", "dp"):
        size = getattr(args, name)
        if size is not None and size < 1:
            raise ConfigError(field=name, value=size, expected="a whole number of at least 1")
    if args.dp is None:
        return chips
    if chips is not None and tp * args.dp != chips:
        raise ConfigError(
            field="dp",
            value=args.dp,
            expected=f"chips = tp x dp, so {chips / tp:g} on {chips} chips with tp {tp}",
        )
    return int(tp * args.dp)


def _eplb(args: argparse.Namespace) -> dict[str, Any] | None:
    """The settings as vLLM spells them, or None when experts stay where they are."""
    if args.eplb is None and not args.enable_eplb:
        if args.eplb_config is not None:
            raise ConfigError(
                field="eplb_config",
                value=json.dumps(args.eplb_config),
                expected="--eplb S or --enable-eplb with it",
            )
        return None
    config = dict(args.eplb_config or {})
    if args.eplb is not None:
        if config.get("step_interval", args.eplb) != args.eplb:
            raise ConfigError(
                field="eplb",
                value=args.eplb,
                expected=f"the step_interval of --eplb-config, {config['step_interval']}",
            )
        config["step_interval"] = args.eplb
    return config
