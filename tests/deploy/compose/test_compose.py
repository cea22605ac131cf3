"""The compose file is one that Compose reads, and says what the programs in it mean."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from loadgen.commands import run_command
from loadgen.commands.one_line_parser import OneLineParser
from loadgen.commands.run_arguments import run_options
from tests.deploy.docker.image_file import DOCKERFILE, ROOT, named, stages
from tests.deploy.served_command import end_wall_s_max, gateway_options_of, served, settings_of

FOLDER = ROOT / "deploy/compose"
FILE = FOLDER / "compose.yaml"
SUFFIX_S = {"s": 1, "m": 60}


def interpolated(text: str) -> str:
    """As Compose fills it in where nobody sets a variable: `${NAME:-default}`, and `$$` for `$`."""
    filled = re.sub(r"(?<!\$)\$\{(\w+):-([^}]*)\}", r"\2", text)
    assert "${" not in filled.replace("$$", ""), "a variable without a default"
    return filled.replace("$$", "$")


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(interpolated(FILE.read_text(encoding="utf-8")))
    return found


def seconds(text: str) -> int:
    found = re.fullmatch(r"(\d+)([sm])", text)
    assert found, text
    return int(found[1]) * SUFFIX_S[found[2]]


def test_it_is_what_the_compose_specification_allows() -> None:
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]

    subprocess.run([*check, str(FILE)], check=True, capture_output=True)


def test_the_specification_would_refuse_a_wrong_word(tmp_path: Path) -> None:
    wrong = tmp_path / "compose.yaml"
    wrong.write_text(FILE.read_text().replace("depends_on:", "depends:"), encoding="utf-8")
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]

    said = subprocess.run([*check, str(wrong)], check=False, capture_output=True, text=True)

    assert said.returncode == 1
    assert "depends" in said.stdout


def test_it_has_the_five_services(compose: dict[str, Any]) -> None:
    assert set(compose["services"]) == {"engine", "console", "load", "prometheus", "grafana"}


def test_ports_are_published_on_loopback_alone(compose: dict[str, Any]) -> None:
    ports = [port for each in compose["services"].values() for port in each.get("ports", [])]

    assert {each.rpartition(":")[0] for each in ports} == {
        f"127.0.0.1:{port}" for port in (3000, 8000, 9090, 50051, 50052)
    }


def test_nothing_is_writable_or_privileged_that_need_not_be(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert "privileged" not in service
        assert re.search(r":v?\d+\.\d+\.\d+$", service["image"]), "no version"


def test_every_file_that_is_mounted_or_built_is_there(compose: dict[str, Any]) -> None:
    mounts = [
        mount.split(":")
        for each in compose["services"].values()
        for mount in each.get("volumes", [])
        if mount.startswith(".")
    ]
    build = compose["services"]["engine"]["build"]

    assert len(mounts) == 5
    assert [mount[0] for mount in mounts if not (FOLDER / mount[0]).exists()] == []
    assert {mount[2] for mount in mounts} == {"ro"}
    assert (FOLDER / build["context"]).resolve() == ROOT
    assert (FOLDER / build["context"] / build["dockerfile"]).resolve() == DOCKERFILE


def test_the_engine_s_command_is_one_that_the_server_takes(
    compose: dict[str, Any], tmp_path: Path
) -> None:
    engine = compose["services"]["engine"]
    args = served(engine["command"])

    options = gateway_options_of(args, tmp_path / "keys.toml", {"VLLM_API_KEY": "us-" + "k" * 43})

    assert settings_of(args).chips == 4
    assert len(options.settings.key_hashes) == 1
    assert engine["ports"][0] == f"127.0.0.1:8000:{args.port}"
    assert seconds(engine["stop_grace_period"]) > end_wall_s_max(args)
    assert engine["entrypoint"][:2] == named(stages()[1], "ENTRYPOINT")[0].words()[:2]


def test_keys_come_out_of_secrets_and_are_in_no_command_or_setting(compose: dict[str, Any]) -> None:
    services = compose["services"]

    for name, variable, program in (
        ("engine", "VLLM_API_KEY", "ultraserve"),
        ("load", "ULTRASERVE_API_KEY", "ultraserve-loadgen"),
    ):
        script = services[name]["entrypoint"][4]
        assert script == f'{variable}=$(cat /run/secrets/api-key) exec {program} "$@"'
        assert services[name]["secrets"] == ["api-key"]
    assert set(compose["secrets"]) == {"api-key", "grafana-password"}
    for secret in compose["secrets"].values():
        ignored = ["git", "check-ignore", "--quiet", "--no-index", secret["file"]]
        subprocess.run(ignored, cwd=FOLDER, check=True)
    environment = services["grafana"]["environment"]
    assert environment["GF_SECURITY_ADMIN_PASSWORD__FILE"] == "/run/secrets/grafana-password"


def test_the_script_that_hands_over_the_key_does_so(
    compose: dict[str, Any], tmp_path: Path
) -> None:
    """With a shell, a secret, and a program of that name that says what it was given."""
    engine = compose["services"]["engine"]
    (tmp_path / "api-key").write_text("us-secret\n", encoding="utf-8")
    program = tmp_path / "ultraserve"
    program.write_text('#!/bin/sh\necho "$VLLM_API_KEY" "$@"\n', encoding="utf-8")
    program.chmod(0o700)
    words = [each.replace("/run/secrets", str(tmp_path)) for each in engine["entrypoint"][2:]]

    said = subprocess.run(
        [*words, "serve", "--port=1 2"],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        check=True,
        capture_output=True,
        text=True,
    )

    assert said.stdout == "us-secret serve --port=1 2\n"


def test_the_load_is_one_that_the_load_generator_takes(compose: dict[str, Any]) -> None:
    load, engine = compose["services"]["load"], compose["services"]["engine"]
    parser = OneLineParser(prog="ultraserve-loadgen")
    run = run_command.add(parser.add_subparsers())
    args = parser.parse_args(load["command"])

    assert run_options(args, parser=run)
    assert args.url == f"http://engine:{served(engine['command']).port}"
    assert load["image"] == engine["image"]
    assert load["depends_on"] == {"engine": {"condition": "service_healthy"}}


def test_ray_s_workers_may_run_in_the_engine_s_tmp(compose: dict[str, Any]) -> None:
    """Compose mounts a tmpfs noexec unless it is told otherwise; the nursery's script is in it."""
    (mount,) = compose["services"]["engine"]["tmpfs"]

    assert mount.startswith("/tmp:exec,")
    assert int(compose["services"]["engine"]["shm_size"].removesuffix("m")) * 2**20 > 80_000_000


def test_grafana_is_told_where_prometheus_and_the_dashboards_are(compose: dict[str, Any]) -> None:
    grafana, prometheus = compose["services"]["grafana"], compose["services"]["prometheus"]
    (folder,) = yaml.safe_load(
        (ROOT / "deploy/grafana/provisioning/dashboards/ultraserve.yml").read_text()
    )["providers"]

    assert grafana["environment"]["PROMETHEUS_URL"] == "http://prometheus:9090"
    assert "--web.listen-address=0.0.0.0:9090" in prometheus["command"]
    assert f"../grafana/generated:{folder['options']['path']}:ro" in grafana["volumes"]
