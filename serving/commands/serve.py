"""`ultraserve serve`: vLLM's own OpenAI server on emulated chips.

Flags that it knows fill the platform's settings; all others go through to vLLM's parser. What can
be wrong is checked here first, so that it is one line and nothing was started.
"""

import argparse
import errno
import socket
from pathlib import Path

from emulator.data import SMALL_MOE_DIR
from emulator.errors import ConfigError
from emulator.model import MODELS
from serving.errors import PortInUse, UnsupportedFlag
from serving.settings import Settings

DEFAULT_PORT = 8000

_EPLB = "experts are not rebalanced yet; they are spread evenly over the chips"


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the `serve` command."""
    parser = subparsers.add_parser(
        "serve",
        help="serve a model on emulated chips through vLLM's OpenAI server",
        description="Serve on emulated chips through vLLM's own OpenAI server. Arguments that are "
        "not listed here go through to `vllm serve`. A model may be given first, without --model.",
        epilog="Example: ultraserve serve --model qwen3-30b-a3b --chips 4 --port 8000",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--model",
        help="a catalog name (sets time, HBM and energy; the stand-in weights make the tokens) or "
        "a checkpoint directory (sets both). Default: the bundled small MoE. "
        f"Catalog: {', '.join(sorted(MODELS))}",
    )
    parser.add_argument(
        "--weights",
        type=Path,
        metavar="DIR",
        help="checkpoint that makes the tokens when --model is a catalog name "
        "(default: the bundled small MoE)",
    )
    defaults = Settings()
    parser.add_argument("--system", default=defaults.system, help="machine (default: %(default)s)")
    parser.add_argument(
        "--chips", type=int, help=f"chips of the partition (default: {defaults.chips})"
    )
    parser.add_argument(
        "--clock",
        default=defaults.clock,
        help="real, auto or dilated:K (K wall seconds per emulated second; auto measures the K at "
        "which this host keeps up; default: %(default)s)",
    )
    parser.add_argument("--pue", type=float, help="facility PUE (default: the system's)")
    parser.add_argument("--host", default="127.0.0.1", help="address (default: %(default)s)")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help="default: %(default)s")
    parser.add_argument(
        "--data-parallel-size", "-dp", type=int, help="vLLM's spelling of --chips: one rank a chip"
    )
    parser.add_argument(
        "--enable-expert-parallel",
        "-ep",
        action="store_true",
        help="accepted: experts are always spread over the chips",
    )
    parser.add_argument("--enable-eplb", action="store_true", help=f"refused: {_EPLB}")
    parser.add_argument("--eplb-config", help=f"refused: {_EPLB}")
    parser.set_defaults(run=run, passes_through=True)


def run(args: argparse.Namespace) -> int:
    """Check, then hand over to vLLM's server in this process.

    Raises:
        UltraServeError: a wrong setting, a checkpoint that cannot be computed, a port in use.
    """
    settings, weights_dir = resolve_arguments(args)
    refuse_second_config(args.unknown)
    # vLLM takes seconds to import; wrong settings are told before.
    from serving.plugin.deployment import resolve_deployment

    deployment = resolve_deployment(settings, weights_dir)
    check_port(args.host, args.port)
    from serving.plugin.openai_app import serve

    return serve(deployment, host=args.host, port=args.port, vllm_arguments=args.unknown)


def resolve_arguments(args: argparse.Namespace) -> tuple[Settings, Path]:
    """Turn the flags into settings and the weights' directory.

    Raises:
        ConfigError: flags that contradict each other; a model that is no name and no directory.
        UnsupportedFlag: a flag of vLLM's that is refused here.
    """
    if args.enable_eplb or args.eplb_config:
        flag = "--enable-eplb" if args.enable_eplb else "--eplb-config"
        raise UnsupportedFlag(flag=flag, reason=_EPLB)
    model = args.model
    if args.unknown and not args.unknown[0].startswith("-"):
        # The model's name first, as `vllm serve MODEL` has it.
        positional = args.unknown.pop(0)
        if model not in (None, positional):
            raise ConfigError(
                field="model", value=model, expected=f"one model, not also {positional}"
            )
        model = positional
    time_model: str | None = None
    weights_dir = args.weights or SMALL_MOE_DIR
    if model in MODELS:
        time_model = model
    elif model is not None:
        if args.weights is not None:
            raise ConfigError(
                field="model", value=model, expected="a catalog name when --weights is given"
            )
        weights_dir = Path(model)
        if not weights_dir.is_dir():
            raise ConfigError(
                field="model",
                value=model,
                expected=f"a checkpoint directory or one of {', '.join(sorted(MODELS))}",
            )
    settings = Settings(
        system=args.system, chips=_chips(args), model=time_model, clock=args.clock, pue=args.pue
    )
    if settings.clock == "virtual":
        raise ConfigError(
            field="clock", value="virtual", expected="real, auto or dilated:K behind a socket"
        )
    return settings, weights_dir


def refuse_second_config(vllm_arguments: list[str]) -> None:
    """Raise UnsupportedFlag for an additional config of the user's, which would replace ours."""
    for argument in vllm_arguments:
        if argument.replace("_", "-").startswith("--additional-config"):
            raise UnsupportedFlag(
                flag=argument,
                reason="this command fills it; use its own flags, or stock `vllm serve`",
            )


def _chips(args: argparse.Namespace) -> int:
    given = {value for value in (args.chips, args.data_parallel_size) if value is not None}
    if len(given) > 1:
        raise ConfigError(
            field="data_parallel_size",
            value=args.data_parallel_size,
            expected=f"the number of chips, {args.chips} (one rank a chip)",
        )
    return given.pop() if given else Settings().chips


def check_port(host: str, port: int) -> None:
    """Raise PortInUse when another program listens on `host`:`port`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OverflowError as error:
            raise ConfigError(field="port", value=port, expected="0 to 65535") from error
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortInUse(host, port) from error
            reason = error.strerror or str(error)
            raise ConfigError(
                field="host",
                value=f"{host}, port {port}",
                expected=f"an address to listen on ({reason})",
            ) from error
