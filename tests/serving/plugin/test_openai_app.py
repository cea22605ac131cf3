"""The hand-over to vLLM's own command line: its arguments, its refusals, its end."""

import json
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import vllm.entrypoints.cli.main as cli
from opentelemetry.sdk.resources import Resource
from pydantic import BaseModel, field_validator
from vllm import envs
from vllm.config import StructuredOutputsConfig
from vllm.entrypoints.launchers.api_server import entry
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

from emulator.data import SMALL_MOE_DIR, SMALL_MOE_TRAINED_DIR
from serving.engine.deployment import Deployment, resolve_deployment
from serving.errors import RefusedByVllm, UnsupportedFlag
from serving.plugin import openai_app
from serving.process import start_signals
from serving.process.server_shutdown import server_shutdown
from serving.settings import Settings

STRUCTURED = "--structured-outputs-config"
COMPACT = {"backend": "xgrammar", "disable_any_whitespace": True}
TOOLS = "VLLM_ENFORCE_STRICT_TOOL_CALLING"
SERVICE_NAME, RESOURCE = "OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES"
SETTINGS = Settings(chips=2, model="qwen3-30b-a3b", clock="dilated:3")


@pytest.fixture
def deployment() -> Deployment:
    return resolve_deployment(SETTINGS, SMALL_MOE_DIR)


@pytest.fixture(autouse=True)
def untouched_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Put back what `serve` changes for good: it is the last thing that its process does."""
    monkeypatch.setattr(sys, "argv", ["pytest"])
    monkeypatch.setenv("VLLM_RPC_BASE_PATH", "unset")
    for name in (*openai_app._ENVIRONMENT, TOOLS, SERVICE_NAME, RESOURCE):
        monkeypatch.setenv(name, "unset")
        monkeypatch.delenv(name)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def served(
    deployment: Deployment,
    vllm: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    arguments: Sequence[str] = ("--port", "82"),
) -> int:
    monkeypatch.setattr(cli, "main", vllm)
    return openai_app.serve(
        deployment, host="::1", port=81, vllm_arguments=[*arguments], given_arguments=[]
    )


def test_vllm_reads_our_arguments_and_then_the_user_s(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    assert served(deployment, lambda: seen.extend(sys.argv), monkeypatch) == 0

    assert seen[:3] == ["vllm", "serve", str(SMALL_MOE_DIR)]
    seen.remove("--enable-prompt-tokens-details")
    seen.remove("--enable-auto-tool-choice")
    flags = dict(zip(seen[3:-2:2], seen[4:-2:2], strict=True))
    given = json.loads(flags.pop("--additional-config"))
    assert json.loads(flags.pop(STRUCTURED)) == COMPACT
    assert flags == {
        "--served-model-name": "qwen3-30b-a3b",
        "--host": "::1",
        "--port": "81",
        "--tool-call-parser": "hermes",
    }
    assert Settings.from_additional_config(given) == SETTINGS
    assert seen[-2:] == ["--port", "82"]


def configured(
    deployment: Deployment, arguments: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> tuple[StructuredOutputsConfig, bool]:
    """What vLLM's own parser makes of the command line, and whether tools have tags."""
    seen: list[tuple[StructuredOutputsConfig, bool]] = []

    def vllm() -> None:
        parser = make_arg_parser(FlexibleArgumentParser())
        args = parser.parse_args(sys.argv[2:])
        found = args.structured_outputs_config
        config = StructuredOutputsConfig(**found) if isinstance(found, dict) else found
        seen.append((config, envs.VLLM_ENFORCE_STRICT_TOOL_CALLING))

    assert served(deployment, vllm, monkeypatch, arguments) == 0
    return seen[0]


@pytest.mark.parametrize("directory", [SMALL_MOE_DIR, SMALL_MOE_TRAINED_DIR])
def test_bundled_weights_write_json_without_white_space_that_they_would_not_end(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, has_tags = configured(resolve_deployment(SETTINGS, directory), [], monkeypatch)

    assert (config.backend, config.disable_any_whitespace) == ("xgrammar", True)
    assert not has_tags


@pytest.mark.parametrize(
    "arguments",
    [
        (STRUCTURED, '{"backend": "guidance"}'),
        (f'{STRUCTURED.replace("-", "_").replace("__", "--", 1)}={{"backend": "guidance"}}',),
        (f"{STRUCTURED}.backend", "guidance"),
    ],
)
def test_what_the_user_says_of_grammars_holds(
    arguments: Sequence[str], deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOOLS, "1")

    config, has_tags = configured(deployment, arguments, monkeypatch)

    assert (config.backend, config.disable_any_whitespace) == ("guidance", False)
    assert has_tags


def test_what_the_user_says_of_grammars_in_a_file_holds(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "vllm.yaml"
    file.write_text('structured-outputs-config: \'{"backend": "guidance"}\'\n')

    config, _ = configured(deployment, ("--config", str(file)), monkeypatch)

    assert config.backend == "guidance"


def test_weights_of_the_user_s_write_as_vllm_has_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shutil.copytree(SMALL_MOE_DIR, tmp_path / "own")

    config, has_tags = configured(resolve_deployment(SETTINGS, tmp_path / "own"), [], monkeypatch)

    assert (config.backend, config.disable_any_whitespace, has_tags) == ("auto", False, True)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({}, "ultraserve"),
        ({RESOURCE: "deployment.environment=test"}, "ultraserve"),
        ({SERVICE_NAME: "night-shift"}, "night-shift"),
        ({RESOURCE: "service.name=night-shift"}, "night-shift"),
    ],
)
def test_spans_are_of_a_service_called_ultraserve_unless_the_user_names_it(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, given: dict[str, str], name: str
) -> None:
    for variable, value in given.items():
        monkeypatch.setenv(variable, value)
    seen: list[object] = []

    served(
        deployment,
        lambda: seen.append(Resource.create().attributes["service.name"]),
        monkeypatch,
    )

    assert seen == [name]


@pytest.mark.parametrize(("code", "expected"), [(None, 0), (0, 0), (3, 3), ("words", 1)])
def test_the_exit_code_is_vllm_s(
    code: int | str | None,
    expected: int,
    deployment: Deployment,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def vllm() -> None:
        raise SystemExit(code)

    assert served(deployment, vllm, monkeypatch) == expected


def test_the_exit_code_is_the_app_s_where_vllm_has_none(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    def vllm() -> None:
        server_shutdown.get().code = 3
        server_shutdown.get().within(600.0)

    assert served(deployment, vllm, monkeypatch) == 3
    assert server_shutdown.get(None) is None
    timers = [each for each in threading.enumerate() if isinstance(each, threading.Timer)]
    for timer in timers:
        timer.join(5)  # a cancelled one ends in its own thread
    assert not [timer for timer in timers if timer.is_alive()]


class Config(BaseModel):
    """Refuses as vLLM's configs do."""

    size: int

    @field_validator("size")
    @classmethod
    def check(cls, size: int) -> int:
        raise ValueError(f"size {size} is not supported,\n  use 3")


def test_a_refusal_of_vllm_s_configs_is_one_line_in_vllm_s_words(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RefusedByVllm) as raised:
        served(deployment, lambda: Config(size=2) and None, monkeypatch)

    assert str(raised.value) == "size 2 is not supported, use 3"


@pytest.mark.parametrize(
    "error", [UnsupportedFlag(flag="--x", reason="y"), ValueError("a mistake"), RuntimeError("z")]
)
def test_other_errors_pass_as_they_are(
    error: Exception, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    def vllm() -> None:
        raise error

    with pytest.raises(type(error)) as raised:
        served(deployment, vllm, monkeypatch)
    assert raised.value is error


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_vllm_starts_ends_it_and_leaves_no_directory(
    number: signal.Signals,
    deployment: Deployment,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    found: list[Path] = []

    def vllm() -> None:
        found.extend(tmp_path.iterdir())
        try:
            signal.raise_signal(number)
        except KeyboardInterrupt:
            pytest.fail("vLLM swallows KeyboardInterrupt while it waits for its engine")

    assert served(deployment, vllm, monkeypatch) == 128 + number
    assert [path.name.startswith("ultraserve-vllm-") for path in found] == [True]
    assert list(tmp_path.iterdir()) == []


def vllm_s_handler(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def test_only_the_handler_of_vllm_s_starting_server_is_replaced() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    start_signals.keep_ending_start_on_signals()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL

    signal.signal(signal.SIGTERM, vllm_s_handler)
    start_signals.keep_ending_start_on_signals()
    assert signal.getsignal(signal.SIGTERM) is vllm_s_handler

    vllm_s_handler.__module__ = "vllm.entrypoints.launchers.api_server.entry"
    start_signals.keep_ending_start_on_signals()
    with pytest.raises(SystemExit, match="143"):
        signal.raise_signal(signal.SIGTERM)


def test_the_handler_that_is_replaced_is_where_vllm_has_it() -> None:
    assert entry.__name__ == start_signals._VLLM_START
    assert "signal.signal(signal.SIGTERM" in Path(entry.__file__).read_text()
