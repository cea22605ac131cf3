"""What vLLM's own parser makes of flags that are ours: on its command line and in its file."""

from pathlib import Path

import pytest

from emulator.errors import ConfigError
from serving.errors import UnsupportedFlag
from serving.plugin.openai_app import refuse_disallowed_flags

pytestmark = pytest.mark.process  # what vLLM's parser imports asks `file` about the machine


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--grpc"], "--grpc: --grpc-port PORT serves gRPC beside HTTP"),
        (["--hos", "0.0.0.0"], "--host: give it to `ultraserve serve`, spelled out"),
        (["--por=1"], "--port: give it"),
        (["--api-k", "k"], "--api-key: give it"),
        (["--ssl_ca=f"], "--ssl-ca-certs: give it"),
        (["--ssl-certf", "f"], "--ssl-certfile: give it"),
        (["--additional-config", "{}"], "--additional-config: this command fills it"),
        (["--additional_config={}"], "--additional-config: this command fills it"),
        (["--additional-config.ultraserve.chips", "2"], "--additional-config: this command"),
        (
            ["--otlp-traces-endpoint", "http://127.0.0.1:4317", "--disable_log_stats"],
            "--disable-log-stats: --otlp-traces-endpoint makes the requests' spans",
        ),
    ],
)
def test_what_is_ours_does_not_reach_vllm(arguments: list[str], message: str) -> None:
    with pytest.raises(UnsupportedFlag) as raised:
        refuse_disallowed_flags(["--max-num-seqs", "8", *arguments])

    assert str(raised.value).startswith(message)


@pytest.mark.parametrize(
    "arguments",
    ["--gpu-memory-utilization=0.5", "-O3", "--hf-token t", "--uds=f", "--disable-log-stats"],
)
def test_what_is_vllm_s_alone_goes_on(arguments: str) -> None:
    refuse_disallowed_flags(["--seed", "1", *arguments.split()])


@pytest.mark.parametrize("argument", ["--po=1", "--no-such-flag"])
def test_what_vllm_refuses_ends_with_its_own_words(
    argument: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        refuse_disallowed_flags([argument])

    assert argument.partition("=")[0] in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "flag"),
    [
        ("max-num-seqs: 8\napi-key: k", "api-key"),
        ("api_key: [k]", "api-key"),
        ("'api-key' : k", "api-key"),
        ("ssl-ca-certs: f", "ssl-ca-certs"),
        ("ssl_keyfile: f", "ssl-keyfile"),
        ("grpc: true", "grpc"),
        ("{grpc: true}", "grpc"),
        ('{"max-num-seqs": 8, "api-key": "k"}', "api-key"),
        ("? api-key\n: k", "api-key"),
        ("api-k: k", "api-key"),
        ("'host=0.0.0.0': true", "host"),
        ("port: 1", "port"),
        ("served-model-name: [a, --api-key, k]", "api-key"),
        ("additional-config: {ultraserve: {chips: 2}}", "additional-config"),
    ],
)
def test_what_is_ours_is_refused_in_vllm_s_file_however_it_is_written(
    text: str, flag: str, tmp_path: Path
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(text)
    with pytest.raises(UnsupportedFlag) as raised:
        refuse_disallowed_flags(["--config", str(config)])

    assert str(raised.value).startswith(f"--{flag}: ")


def test_the_rest_of_vllm_s_file_goes_on(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("max-num-seqs: 8\n# api-key: none\ncompilation-config: {mode: 0}\n")
    refuse_disallowed_flags(["--config", str(config)])


@pytest.mark.parametrize("text", ["", "- api-key", "k", "a: b: c", "!!python/name:os.system x"])
def test_a_file_that_holds_no_flags_is_refused_in_one_line(text: str, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(text)
    with pytest.raises(ConfigError) as raised:
        refuse_disallowed_flags(["--config", str(config)])

    assert str(raised.value).startswith(f"config={config}: expected ")
    assert "\n" not in str(raised.value)
