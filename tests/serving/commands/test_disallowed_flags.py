"""What is kept from vLLM's parser: flags that are ours, on its command line and in its file."""

from pathlib import Path

import pytest

from emulator.errors import ConfigError
from serving.commands.disallowed_flags import refuse_disallowed_flags
from serving.errors import UnsupportedFlag


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--grpc", "--grpc: --grpc-port PORT serves gRPC beside HTTP"),
        ("--ho", "--ho: spell out --host"),
        ("--po=1", "--po: spell out --port"),
        ("--api-ke", "--api-ke: spell out --api-key"),
        ("--ssl_ca=f", "--ssl-ca: spell out --ssl-ca-certs"),
        ("--ssl-ce", "--ssl-ce: spell out --ssl-certfile or --ssl-cert-reqs"),
    ],
)
def test_nothing_goes_disallowed_reaches_vllm(argument: str, message: str) -> None:
    with pytest.raises(UnsupportedFlag) as raised:
        refuse_disallowed_flags(["--max-num-seqs", "8", argument])

    assert str(raised.value) == message


@pytest.mark.parametrize(
    "argument", ["--gpu-memory-utilization=0.5", "-O3", "--", "--hf-token", "--uds=f"]
)
def test_what_is_vllm_s_alone_goes_on(argument: str) -> None:
    refuse_disallowed_flags(["--seed", "1", argument])


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
        ("api-k: k", "api-k"),
        ("'host=0.0.0.0': true", "host"),
        ("port: 1", "port"),
        ("max-num-seqs: [8, --api-key, k]", "api-key"),
        ("seed: --grpc", "grpc"),
    ],
)
@pytest.mark.parametrize("spelled", ["--config {}", "--config={}"])
def test_what_is_ours_is_refused_in_vllm_s_file_however_it_is_written(
    text: str, flag: str, spelled: str, tmp_path: Path
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(text)
    with pytest.raises(UnsupportedFlag) as raised:
        refuse_disallowed_flags(spelled.format(config).split())

    assert str(raised.value).startswith(f"--config {config}: {flag}: give keys, addresses and TLS")


def test_the_rest_of_vllm_s_file_goes_on(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        "max-num-seqs: 8\n# api-key: none\nsome-api-key: 1\ncompilation-config: {port: 1}\n"
    )
    refuse_disallowed_flags(["--config", str(config)])
    refuse_disallowed_flags(["--config", str(tmp_path / "missing.yaml")])
    refuse_disallowed_flags(["--config"])


@pytest.mark.parametrize("text", ["", "- api-key", "k", "a: b: c", "!!python/name:os.system x"])
def test_a_file_that_holds_no_flags_is_refused_in_one_line(text: str, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(text)
    with pytest.raises(ConfigError) as raised:
        refuse_disallowed_flags(["--config", str(config)])

    assert str(raised.value).startswith(f"config={config}: expected ")
    assert "\n" not in str(raised.value)
