"""`ultraserve serve` before vLLM: what it refuses, and what it hands over."""

import argparse
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from emulator.data import SMALL_MOE_DIR
from emulator.errors import CheckpointError, ConfigError, HbmExhausted, NeuronError
from serving.access.secret import hash_of
from serving.commands import serve
from serving.engine.deployment import Deployment, resolve_deployment
from serving.errors import PortInUse
from serving.plugin import openai_app
from serving.server.batch import batch_settings
from serving.server.batch.batch_settings import BatchSettings
from serving.server.control import control_address
from serving.server.control.control_address import MIDDLEWARE, NO_SERVICE, ControlAddress
from serving.server.gateway import gateway_settings
from serving.server.gateway.gateway_settings import GatewaySettings
from serving.server.training.atomic_file import locked_directory
from serving.settings import Settings
from tests.e2e.server_process import free_port
from tests.serving.commands.serve_flags import parse

OURS = ["--scheduling-policy", "priority"]


class HandedOver:
    """Stands where vLLM's server would start, and notes what it was given."""

    def __init__(self) -> None:
        self.calls: list[tuple[Deployment, str, int, list[str]]] = []
        self.api_processes: list[int] = []

    def __call__(
        self,
        deployment: Deployment,
        *,
        host: str,
        port: int,
        vllm_arguments: list[str],
        given_arguments: list[str],
        api_processes: int,
        front: object,
    ) -> int:
        assert front is None
        assert " ".join(given_arguments) in " ".join(vllm_arguments)
        self.calls.append((deployment, host, port, vllm_arguments))
        self.api_processes.append(api_processes)
        return 7


@pytest.fixture
def handed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> HandedOver:
    handed_over = HandedOver()
    monkeypatch.setattr(openai_app, "serve", handed_over)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv(control_address.ENVIRONMENT, "unset")
    monkeypatch.setenv(gateway_settings.ENVIRONMENT, "unset")
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    for name in [name for name in os.environ if name.startswith("NEURON_")]:
        monkeypatch.delenv(name)
    return handed_over


def run(*arguments: str) -> int:
    return serve.run(parse("--port", str(free_port()), *arguments))


def test_what_is_right_is_handed_over_with_vllm_s_own_flags(handed_over: HandedOver) -> None:
    control = free_port()
    flags = ["--chips", "2", "--max-num-seqs", "8", "--control-port", str(control)]
    assert run("qwen3-30b-a3b", *flags) == 7

    ((deployment, host, _, vllm),) = handed_over.calls
    assert deployment.info()["time_model"] == "qwen3-30b-a3b"
    assert host == "127.0.0.1"
    # What is given twice, vLLM takes from the right: the user's word counts.
    assert vllm == [*OURS, "--max-num-seqs", "8", "--middleware", MIDDLEWARE]
    assert os.environ[control_address.ENVIRONMENT] == str(ControlAddress(port=control))
    assert GatewaySettings.from_environment(os.environ) == GatewaySettings()


def test_batches_have_a_directory_that_no_other_server_uses(
    handed_over: HandedOver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(batch_settings.ENVIRONMENT, "unset")
    flags = ("--control-port", "0", "--batch-directory", str(tmp_path / "batches"))
    run(*flags, "--batch-requests", "10")
    assert len(handed_over.calls) == 1
    assert BatchSettings.from_environment(os.environ) == BatchSettings(
        batch_directory=tmp_path / "batches", batch_requests=10
    )
    held = locked_directory(tmp_path / "batches", batch_settings.LOCK, field="", use="")
    with held, pytest.raises(ConfigError, match="in which no other server runs batches"):
        run(*flags)
    run(*flags)  # once it is free
    with pytest.raises(ConfigError, match=r"^batch_requests=0: expected at least 1"):
        run(*flags, "--batch-requests", "0")
    with pytest.raises(ConfigError, match=r"^batch_directory=\(none\): expected a directory"):
        run("--control-port", "0", "--batch-requests", "10")
    with pytest.raises(ConfigError, match=r"^night_work=batch: expected --batch-directory"):
        run("--day-night", "never", "--night-work", "batch")


def test_several_api_processes_are_handed_over_and_have_no_batches(
    handed_over: HandedOver, tmp_path: Path
) -> None:
    flags = ("--control-port", "0", "--api-server-count", "3")
    run(*flags)
    assert GatewaySettings.from_environment(os.environ) == GatewaySettings(api_server_count=3)
    assert handed_over.api_processes == [3]
    with pytest.raises(ConfigError, match=r"^api_server_count=3: expected 1 with --batch-dir"):
        run(*flags, "--batch-directory", str(tmp_path / "batches"))


def test_the_fast_engine_computes_no_tokens_and_keeps_its_weights(handed_over: HandedOver) -> None:
    run("--engine", "fast", "--weights", "none", "--control-port", "0")
    ((deployment, *_),) = handed_over.calls
    assert deployment.settings.engine == "fast"
    with pytest.raises(ConfigError, match=r"^engine=fast: expected --weights none with it"):
        run("--engine", "fast")
    with pytest.raises(ConfigError, match=r"^engine=quick: expected default or fast"):
        run("--engine", "quick")
    night = ("--day-night", "never", "--publish", "if-better")
    with pytest.raises(ConfigError, match=r"^publish=if-better: expected never with --engine fast"):
        run("--engine", "fast", "--weights", "none", *night)


def test_control_port_zero_starts_no_control_service(handed_over: HandedOver) -> None:
    run("--control-port", "0")

    assert handed_over.calls[0][3] == [*OURS, "--middleware", MIDDLEWARE]
    assert os.environ[control_address.ENVIRONMENT] == NO_SERVICE


def test_the_doors_reach_the_server_s_process_and_no_key_does(
    handed_over: HandedOver, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "of the environment")
    grpc = free_port()
    run(
        *("--control-port", "0", "--grpc-port", str(grpc), "--api-key", "one's", "two's"),
        *("--queue-requests", "7", "--ttft-target", "1.5"),
    )

    settings = GatewaySettings.from_environment(os.environ)
    assert (settings.grpc_port, settings.limits.queue_requests) == (grpc, 7)
    assert settings.limits.ttft_target_s == 1.5
    secrets = ("one's", "two's", "of the environment")
    assert settings.key_hashes == tuple(map(hash_of, secrets))
    told = f"{os.environ}{handed_over.calls}{capsys.readouterr()}"
    assert [secret for secret in secrets if secret in told] == []
    assert told.count("can be guessed") == 3


@pytest.mark.parametrize("flag", ["--port", "--grpc-port", "--control-port"])
def test_a_port_in_use_is_named_before_anything_starts(
    flag: str, listening: int, handed_over: HandedOver
) -> None:
    field = flag[2:].replace("-", "_")
    with pytest.raises(PortInUse, match=rf"^{field}={listening}: expected a free port on 127"):
        run("--control-port", str(free_port()), flag, str(listening))
    assert not handed_over.calls


def test_the_control_port_is_another_than_the_server_s(handed_over: HandedOver) -> None:
    port = str(free_port())
    with pytest.raises(ConfigError, match=rf"^control_port={port}: expected another port than"):
        serve.run(parse("--port", port, "--control-port", port))
    assert not handed_over.calls


def test_a_model_that_does_not_fit_is_refused_with_the_usage_table_before_vllm(
    handed_over: HandedOver,
) -> None:
    with pytest.raises(HbmExhausted) as raised:
        run("deepseek-v3", "--chips", "4")

    assert not handed_over.calls
    assert "Neuron Cores using this HBM" in raised.value.table
    assert raised.value.hint.startswith("smallest that fits: ")
    # What it says would fit, does.
    flags = raised.value.hint.removeprefix("smallest that fits: ").split()
    assert run("deepseek-v3", *flags, "--control-port", "0") == 7


def test_chips_that_the_host_has_no_memory_for_are_refused_before_vllm(
    handed_over: HandedOver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=100_000_000))

    with pytest.raises(CheckpointError, match=r"0\.10 GB .* are available, and 4 chips need 0\.2"):
        run("qwen3-30b-a3b", "--chips", "4")

    assert not handed_over.calls
    assert run("qwen3-30b-a3b", "--chips", "4", "--weights", "none", "--control-port", "0") == 7


def test_a_smaller_share_of_hbm_holds_a_smaller_model(handed_over: HandedOver) -> None:
    model = ["qwen3-30b-a3b", "--chips", "1", "--control-port", "0"]
    assert run(*model) == 7
    for spelling in ("--gpu-memory-utilization", "--gpu_memory_utilization"):
        with pytest.raises(HbmExhausted):
            run(*model, spelling, "0.3")
        with pytest.raises(ConfigError, match=r"^gpu_memory_utilization=1.5: expected above 0"):
            run(*model, spelling, "1.5")


def test_a_share_of_hbm_that_is_no_number_is_vllm_s_to_refuse(handed_over: HandedOver) -> None:
    run("--control-port", "0", "--gpu-memory-utilization", "most")

    assert handed_over.calls[0][3][2:4] == ["--gpu-memory-utilization", "most"]


@pytest.mark.process
def test_wrong_flags_are_told_before_vllm_is_imported() -> None:
    program = (
        "import sys; from serving.main import main\n"
        "code = main(['serve', '--chips', '8', '--tp', '2', '--dp', '3'])\n"
        "print(code, sorted({'vllm', 'ray', 'torch'} & sys.modules.keys()))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert ran.stdout == "2 []\n"
    assert ran.stderr.count("\n") == 1


WAITING = """
import sys
from serving.commands import serve
from serving.main import main
def wait(args):
    print("read", flush=True)
    sys.stdin.readline()
    sys.exit()
serve.resolve_arguments = wait
main(sys.argv[1:])
"""


@pytest.mark.process
def test_other_users_do_not_see_the_keys_of_a_server_that_has_begun() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WAITING, "serve", "--api-key", "first", "--port", "1"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"VLLM_API_KEY": "second", "ULTRASERVE_CONTROL_KEY": "third"},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "read\n"
        status = Path(f"/proc/{process.pid}")
        shown = (status / "cmdline").read_text()
        of_environment = (status / "environ").stat().st_mode
        process.communicate("\n")

    assert "--api-key '*****' --port" in shown
    assert "first" not in shown
    assert of_environment & 0o777 == 0o400  # its user's alone


CLAIM = """
import sys
from pathlib import Path
from emulator.memory.core_claims import CoreClaim
directory = Path(sys.argv[1])
CoreClaim(system="trn3-nl72x2", ultraserver="0", first_chip=1, chips=2, cores_per_chip=4,
          directory=directory)
print("held", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def other_server(handed_over: HandedOver, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that has chips 1 and 2."""
    process = subprocess.Popen(
        [sys.executable, "-c", CLAIM, str(tmp_path / "ultraserve")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.communicate("\n")


@pytest.mark.process
def test_cores_that_were_asked_for_by_number_belong_to_one_server(
    handed_over: HandedOver,
    other_server: subprocess.Popen[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NEURON_RT_VISIBLE_CORES", "8-15")  # chips 2 and 3
    with pytest.raises(NeuronError) as raised:
        run("--control-port", "0")
    assert str(raised.value) == (
        "NRT_NC_BUSY (1005): NEURON_RT_VISIBLE_CORES=8-15: expected cores that no other process "
        f"has; 8-11: held by process {other_server.pid}"
    )

    monkeypatch.setenv("NEURON_RT_VISIBLE_CORES", "12-15")  # chip 3
    assert run("--control-port", "0") == 7
    monkeypatch.setenv("NEURON_RT_VISIBLE_CORES", "8-15")
    assert run("--control-port", "0", "--ultraserver", "b") == 7  # those of another machine
    monkeypatch.delenv("NEURON_RT_VISIBLE_CORES")
    assert run("--control-port", "0") == 7  # nobody asked for cores by number


@pytest.mark.process
def test_a_claim_ends_with_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    claiming = resolve_deployment(Settings(exclusive_cores=True), SMALL_MOE_DIR)

    def claim_elsewhere() -> int:
        program = CLAIM.replace("first_chip=1", "first_chip=0")
        command = [sys.executable, "-c", program, str(tmp_path / "ultraserve")]
        ended = subprocess.run(command, input="\n", text=True, capture_output=True, check=False)
        return ended.returncode

    with serve.claimed_cores(claiming):
        assert claim_elsewhere() == 1
    assert claim_elsewhere() == 0


@pytest.fixture
def listening() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


TWIN = """
import os, sys
from serving.access.control_key import held_control_key
with held_control_key(int(sys.argv[1]), os.environ):
    print("held", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.process
def test_two_servers_that_start_with_one_control_port_are_told_before_vllm(
    handed_over: HandedOver,
) -> None:
    port = free_port()  # the other one does not listen there yet
    with subprocess.Popen(
        [sys.executable, "-c", TWIN, str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as twin:
        assert twin.stdout is not None
        assert twin.stdout.readline() == "held\n"
        with pytest.raises(ConfigError, match=rf"^control_port={port}: .* process {twin.pid} has"):
            run("--control-port", str(port))
        assert not handed_over.calls
        twin.communicate("\n")
    assert run("--control-port", str(port)) == 7


@pytest.mark.parametrize("flag", ["--host", "--control-host"])
def test_an_address_that_is_not_this_machine_s_is_named_by_its_flag(
    flag: str, handed_over: HandedOver
) -> None:
    arguments = argparse.Namespace(
        host="127.0.0.1",
        port=free_port(),
        grpc_port=None,
        front=None,
        control_host="::1",
        control_port=1,
    )
    field = flag[2:].replace("-", "_")
    setattr(arguments, field, "203.0.113.1")
    with pytest.raises(ConfigError, match=rf"^{field}=203.0.113.1, port "):
        serve.check_ports(arguments)
    assert not handed_over.calls
