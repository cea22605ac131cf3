"""The flags of the gateway: their meaning and contradictions; none opens it silently."""

import argparse
import ssl
from pathlib import Path

import pytest
import trustme

from emulator.errors import ConfigError
from serving.access.secret import draw_secret, hash_of
from serving.access.tls_files import TlsFiles
from serving.commands.gateway_arguments import GatewayOptions, gateway_options
from serving.commands.serve_arguments import resolve_arguments
from serving.policy.admission.admission_limits import AdmissionLimits
from serving.server.gateway.gateway_settings import GatewaySettings
from tests.serving.access.key_files import written
from tests.serving.commands.serve_flags import parse

SECRET = draw_secret()


def options_of(*flags: str, environment: dict[str, str] | None = None) -> GatewayOptions:
    return gateway_options(read(*flags), {} if environment is None else environment)


def read(*flags: str) -> argparse.Namespace:
    args = parse(*flags)
    resolve_arguments(args, {})
    return args


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    directory = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    paths = [directory / name for name in ("server.pem", "server.key", "ca.pem")]
    issued.cert_chain_pems[0].write_to_path(paths[0])
    issued.private_key_pem.write_to_path(paths[1])
    authority.cert_pem.write_to_path(paths[2])
    paths[1].chmod(0o600)
    return TlsFiles(certificate=paths[0], key=paths[1], client_ca=paths[2])


def test_without_flags_this_machine_alone_is_served_and_needs_no_key() -> None:
    assert options_of() == GatewayOptions(settings=GatewaySettings(), warnings=())


def test_each_flag_sets_what_it_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path)
    (tmp_path / "control").touch(mode=0o600)
    (tmp_path / "control").write_text(SECRET)
    words = (
        "--host ::1 --grpc-port 7 --api-keys keys.toml --control-key-file control "
        "--queue-requests 1 --queue-tokens 2 --batch-queue-requests 3 --batch-queue-tokens 4 "
        "--batch-wait 5 --ttft-target 0.5 --interactive-headroom 0.125 --max-body-bytes 6 "
        "--request-timeout 8 --drain-timeout 0"
    )

    assert options_of(*words.split()).settings == GatewaySettings(
        limits=AdmissionLimits(
            queue_requests=1,
            queue_tokens=2,
            batch_queue_requests=3,
            batch_queue_tokens=4,
            batch_wait_s=5.0,
            ttft_target_s=0.5,
            interactive_headroom=0.125,
        ),
        grpc_host="::1",
        grpc_port=7,
        key_file=tmp_path / "keys.toml",
        control_key_file=tmp_path / "control",
        body_bytes_max=6,
        request_wall_s_max=8.0,
        drain_wall_s_max=0.0,
    )


def test_the_settings_reach_another_process_as_they_are(pem: TlsFiles, tmp_path: Path) -> None:
    settings = GatewaySettings(
        key_file=written(tmp_path), key_hashes=(hash_of("a"),), tls=pem, grpc_port=1
    )

    assert GatewaySettings.from_environment(settings.to_environment()) == settings


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--queue-requests 0", "queue_requests=0: expected "),
        ("--queue-tokens 0", "queue_tokens=0: expected "),
        ("--batch-queue-requests 0", "batch_queue_requests=0: expected "),
        ("--batch-queue-tokens 0", "batch_queue_tokens=0: expected "),
        ("--batch-wait 0", "batch_wait"),
        ("--ttft-target -1", "ttft_target"),
        ("--interactive-headroom 1", "interactive_headroom=1.0: expected "),
        ("--interactive-headroom nan", "interactive_headroom=nan: expected "),
        ("--max-body-bytes 0", "max_body_bytes=0: expected at least 1"),
        ("--request-timeout 0", "request_timeout=0.0: expected seconds above 0"),
        ("--request-timeout inf", "request_timeout=inf: expected seconds above 0"),
        ("--api-server-count 0", "api_server_count=0: expected 1 to 64"),
        ("--api-server-count 65", "api_server_count=65: expected 1 to 64"),
        ("--drain-timeout -1", "drain_timeout=-1.0: expected seconds above 0"),
        ("--drain-timeout nan", "drain_timeout=nan: expected seconds above 0"),
        ("--grpc-port 0", "grpc_port=0: expected 1 to 65535"),
        ("--grpc-port 65536", "grpc_port=65536: expected 1 to 65535"),
        ("--grpc-port 8000", "grpc_port=8000: expected another port than --port"),
        ("--grpc-port 50051", "control_port=50051: expected another port than --grpc-port"),
        ("--grpc-port 50052", "console_port=50052: expected another port than --grpc-port"),
        ("--console-port 50051", "console_port=50051: expected another port than --control-port"),
        ("--console-port 65536", "console_port=65536: expected 1 to 65535"),
        ("--control-port 65535", "console_port=65536: expected 1 to 65535"),
        ("--control-port 8000", "control_port=8000: expected another port than --port"),
        ("--api-keys /none.toml", "api_keys=/none.toml: expected a file to read (No such"),
        ("--control-key-file none", "control_key_file=none: expected a file to read (No such"),
        ("--control-host 10.0.0.1", "control_host=10.0.0.1: expected a loopback address, or --tls"),
        ("--tls-cert a", "tls_key=(none): expected both --tls-cert and --tls-key"),
        ("--tls-key a", "tls_cert=(none): expected both --tls-cert and --tls-key"),
        ("--tls-client-ca a", "tls_cert=(none): expected both --tls-cert and --tls-key"),
        ("--ssl-certfile none --ssl-keyfile none", "tls_cert="),
    ],
)
def test_what_contradicts_itself_is_one_line(flags: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        options_of(*flags.split())

    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)


def test_no_control_service_takes_no_port() -> None:
    assert options_of("--control-port", "0", "--grpc-port", "50051").settings.grpc_port == 50_051
    options_of("--port", "0", "--control-port", "0")  # any port, and none
    options_of("--console-port", "0", "--grpc-port", "50052")  # no console


@pytest.mark.parametrize("name", ["VLLM_SERVER_DEV_MODE", "VLLM_ALLOW_INSECURE_SERIALIZATION"])
def test_vllm_s_development_endpoints_stay_off(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{name}=1: expected unset"):
        options_of(environment={name: "1"})


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "10.0.0.1", "a-name"])
def test_an_address_beyond_this_machine_without_keys_is_refused_unless_it_is_said(
    host: str,
) -> None:
    with pytest.raises(ConfigError, match=r"^host=.*: expected --api-keys, .*--insecure-no-key"):
        options_of("--host", host)
    (told,) = options_of("--host", host, "--insecure-no-key").warnings
    assert told == f"host={host}: whoever reaches it may use it: nobody needs a key"


def test_with_keys_it_is_told_that_they_travel_in_plain_text(pem: TlsFiles, tmp_path: Path) -> None:
    keys = ("--host", "0.0.0.0", "--api-keys", str(written(tmp_path, "")))
    tls = ("--tls-cert", str(pem.certificate), "--tls-key", str(pem.key))

    assert options_of(*keys).warnings == (
        "host=0.0.0.0: keys and prompts travel in plain text: --tls-cert, --tls-key",
    )
    assert options_of(*keys, *tls).warnings == ()
    with pytest.raises(ConfigError, match=r"^host=0.0.0.0: expected --api-keys"):
        options_of("--host", "0.0.0.0", *tls)
    # Who shows a certificate of the authority is known.
    assert (
        options_of("--host", "0.0.0.0", *tls, "--tls-client-ca", str(pem.client_ca)).warnings == ()
    )


def test_vllm_gets_tls_and_the_order_of_classes_and_no_key(pem: TlsFiles, tmp_path: Path) -> None:
    assert pem.client_ca is not None
    spelled = {
        "--tls-cert": "--ssl-certfile",
        "--tls-key": "--ssl-keyfile",
        "--tls-client-ca": "--ssl-ca-certs",
    }
    paths = dict(zip(spelled, (pem.certificate, pem.key, pem.client_ca), strict=True))
    for rename in (False, True):
        flags = [
            word
            for flag, path in paths.items()
            for word in (spelled[flag] if rename else flag, str(path))
        ]
        made = options_of(*flags, "--api-key", SECRET, "--api-keys", str(written(tmp_path)))
        assert made.settings.tls == pem
        assert made.vllm_arguments() == [
            *("--scheduling-policy", "priority"),
            *("--ssl-certfile", str(pem.certificate), "--ssl-keyfile", str(pem.key)),
            *("--ssl-ca-certs", str(pem.client_ca), "--ssl-cert-reqs", str(int(ssl.CERT_REQUIRED))),
        ]
    with pytest.raises(ConfigError, match=r"^ssl_cert_reqs=0: expected 2 with --tls-client-ca"):
        options_of(*flags, "--ssl-cert-reqs", "0")


def test_keys_are_taken_out_of_flags_and_environment() -> None:
    environment = {"VLLM_API_KEY": SECRET, "HOME": "here"}
    args = read("--api-key", "one " * 9, "two " * 9, "--api_key", "three " * 9)
    made = gateway_options(args, environment)

    assert made.settings.key_hashes == tuple(
        hash_of(secret) for secret in ("one " * 9, "two " * 9, "three " * 9, SECRET)
    )
    assert environment == {"HOME": "here"}
    for secret in ("one ", "two ", "three ", SECRET):
        assert secret not in f"{args}{made}"


def test_a_key_that_was_given_twice_is_one() -> None:
    made = options_of("--api-key", SECRET, SECRET, environment={"VLLM_API_KEY": SECRET})

    assert made.settings.key_hashes == (hash_of(SECRET),)


def test_a_short_key_is_told_and_not_shown() -> None:
    made = options_of("--api-key", SECRET, "token-abc123", environment={"VLLM_API_KEY": "sesame"})

    assert [told.partition(";")[0] for told in made.warnings] == [
        "--api-key, number 2: a key of 12 characters can be guessed",
        "VLLM_API_KEY: a key of 6 characters can be guessed",
    ]


def test_an_empty_variable_is_no_key_and_an_empty_flag_is_a_mistake() -> None:
    assert options_of(environment={"VLLM_API_KEY": ""}).settings.key_hashes == ()
    with pytest.raises(ConfigError, match=r"^api_key=\(empty\): expected a key"):
        options_of("--api-key", "")


def test_a_model_behind_the_keys_is_not_taken_for_one() -> None:
    with pytest.raises(ConfigError, match=r"^api_key=\(a model's name\): expected keys; give"):
        options_of("--api-key", SECRET, "qwen3-30b-a3b")


def test_a_file_that_others_can_read_is_told(pem: TlsFiles, tmp_path: Path) -> None:
    path = written(tmp_path)
    flags = ["--api-keys", str(path), "--tls-cert", str(pem.certificate), "--tls-key", str(pem.key)]
    pem.key.chmod(0o640)
    assert options_of(*flags).warnings == ()
    path.chmod(0o640)
    pem.key.chmod(0o604)
    told = [f"other users can read {each}: chmod 600 {each}" for each in (path, pem.key)]
    assert options_of(*flags).warnings == tuple(told)
    pem.key.chmod(0o600)


def test_a_file_s_error_comes_with_no_key_in_it(tmp_path: Path) -> None:
    path = written(tmp_path, f"[[key]]\nname = 'a'\nhash = '{SECRET}'\n")
    with pytest.raises(ConfigError) as raised:
        options_of("--api-keys", str(path))
    assert SECRET not in str(raised.value)


def test_a_variable_s_white_space_is_no_part_of_its_key() -> None:
    made = options_of(environment={"VLLM_API_KEY": f" {SECRET}\n"})

    assert made.settings.key_hashes == (hash_of(SECRET),)
    assert options_of(environment={"VLLM_API_KEY": "\n"}).settings.key_hashes == ()


def test_the_control_key_of_commands_is_handed_on_to_nobody() -> None:
    environment = {"ULTRASERVE_CONTROL_KEY": SECRET, "HOME": "here"}
    options_of(environment=environment)

    assert environment == {"HOME": "here"}
