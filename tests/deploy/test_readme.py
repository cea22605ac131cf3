"""deploy/README.md is the map of deploy/, and its commands are those of the files that it names."""

import argparse
import re
import shlex
from pathlib import Path

import pytest

from serving.commands import console, key, state
from tests.deploy.docker.image_file import PREFIX, ROOT, named, stages, variables
from tests.deploy.k8s.manifests import DEPLOY, built

README = (DEPLOY / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)


def block(title: str) -> str:
    """The shell blocks below a heading."""
    section = README.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    found = "\n".join(re.findall(r"```sh\n(.*?)```", section, re.DOTALL))
    assert found, f"no commands in {title}"
    return found


def spaced(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def test_every_folder_of_deploy_is_on_the_map() -> None:
    hidden = {"secrets", "__pycache__"}
    folders = {path.name for path in DEPLOY.iterdir() if path.is_dir()} - hidden

    assert {name for name in folders if f"[{name}/]" not in README} == set()


def test_every_page_that_a_file_of_deploy_names_is_there() -> None:
    """Links of Markdown pages have a test of their own; these are those of comments."""
    kinds = {".yaml", ".yml", ".toml", ".py", ".sh", ".Dockerfile", ".service"}
    files = [path for path in DEPLOY.rglob("*") if path.suffix in kinds]
    named = {
        (str(path.relative_to(ROOT)), page)
        for path in files
        for page in re.findall(r"\bdeploy/[\w./-]+\.md\b", path.read_text(encoding="utf-8"))
    }

    assert ("deploy/compose/prefill-decode.yaml", "deploy/guides/serving.md") in named
    assert {each for each in named if not (ROOT / each[1]).exists()} == set()


def test_every_path_that_a_command_names_is_there() -> None:
    paths = {word for text in BLOCKS for word in re.findall(r"deploy/[\w./-]+", text)}
    made = {"deploy/compose/secrets/"}

    assert len(paths) > 5
    assert [each for each in paths - made if not (ROOT / each).exists()] == []


def test_the_environment_of_a_service_is_made_as_the_image_s() -> None:
    text = block("A systemd service").splitlines()
    python = [spaced(line.replace("python3.11 ", "python ")) for line in text]
    steps = [spaced(each.value) for each in named(stages()[0], "RUN")]
    settings = variables(stages()[0])

    assert python[1:4] == steps
    for name in ("VLLM_TARGET_DEVICE", "VLLM_VERSION_OVERRIDE"):
        assert f"{name}={settings[name]}" in python[0]
    assert f"VIRTUAL_ENV={PREFIX}" in python[0]


@pytest.mark.process
@pytest.mark.parametrize("folder", re.findall(r"--kustomize deploy/(\S+)", README))
def test_secrets_are_made_with_the_names_that_the_manifests_ask_for(folder: str) -> None:
    wanted = set(re.findall(r"'secretName': '([\w-]+)'", str(built(folder))))
    wanted |= set(re.findall(r"'name': '(ultraserve-[\w-]+-(?:token|key))'", str(built(folder))))
    made = set(re.findall(r"create secret generic ([\w-]+)", block("Kubernetes")))

    assert wanted
    assert wanted <= made


def test_ultraserve_s_own_commands_are_ones_that_it_takes() -> None:
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers()
    key.add_parser(commands)
    state.add_parser(commands)
    console.add_parser(commands)
    shown = [
        shlex.split(line.partition("|")[0].rpartition("ultraserve ")[2])
        for text in BLOCKS
        for line in text.splitlines()
        if re.search(r"(?:^|/bin/|-- |engine )ultraserve (?:console|key|state)", line)
    ]

    assert len(shown) == 6
    for words in shown:
        assert parser.parse_args(words)


def test_what_systemd_says_of_the_unit_is_what_the_map_says() -> None:
    """tests/deploy/systemd holds the unit against systemd; this, that both speak of one figure."""
    unit_test = (Path(__file__).parent / "systemd/test_unit.py").read_text(encoding="utf-8")
    (figure,) = re.findall(r"its exposure ([\d.]+) of 10", README)

    assert f"Serving needs a network: {figure}." in unit_test
