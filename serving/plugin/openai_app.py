"""vLLM's own OpenAI server, started in this process with our platform's settings."""

import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from serving.errors import RefusedByVllm
from serving.plugin.deployment import Deployment
from serving.plugin.parent_watch import cleared_by_engine
from serving.plugin.server_end import ServerEnd, server_end
from serving.plugin.start_signals import end_imports_on_signals, end_start_on_signals

_ENVIRONMENT = {
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


def serve(deployment: Deployment, *, host: str, port: int, vllm_arguments: list[str]) -> int:
    """Run `vllm serve` on `deployment` until it is stopped; returns its exit code.

    `vllm_arguments` go to vLLM's parser as they are, after ours, so that a user's spelling wins.

    Raises:
        UltraServeError: this platform, or vLLM's configuration, refuses an argument.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    # vLLM reads its command line itself, in this process and in those it spawns.
    sys.argv = ["vllm", *vllm_command(deployment, host, port), *vllm_arguments]
    end_imports_on_signals()
    import vllm.entrypoints.cli.serve  # noqa: F401  what `main` imports, and takes seconds
    from vllm.entrypoints.cli.main import main

    end_start_on_signals()
    with (
        tempfile.TemporaryDirectory(prefix="ultraserve-vllm-") as sockets,
        cleared_by_engine(Path(sockets)),
    ):
        os.environ["VLLM_RPC_BASE_PATH"] = sockets
        return _run(main)


def _run(main: Callable[[], object]) -> int:
    """Let vLLM have the process; returns the exit code."""
    end = ServerEnd()
    token = server_end.set(end)
    try:
        main()
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except ValueError as error:
        _tell_refusal(error)
        raise
    finally:
        end.ended()
        server_end.reset(token)
    return end.code


def _tell_refusal(error: ValueError) -> None:
    """Raise RefusedByVllm when `error` is pydantic's, with vLLM's words and without its frame."""
    if not hasattr(error, "errors"):
        return
    words = [str(detail["msg"]).removeprefix("Value error, ") for detail in error.errors()]
    raise RefusedByVllm("; ".join(words)) from error


def vllm_command(deployment: Deployment, host: str, port: int) -> list[str]:
    """The arguments of `vllm` that give this deployment."""
    return [
        "serve",
        str(deployment.weights_dir),
        "--served-model-name",
        deployment.time_model.name,
        "--host",
        host,
        "--port",
        str(port),
        "--additional-config",
        json.dumps(deployment.settings.to_additional_config()),
    ]
