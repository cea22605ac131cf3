"""The image's recipe holds together: what it copies, installs, starts and asks is what there is."""

import fnmatch
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from serving.server.gateway.http import probes
from tests.deploy.docker.image_file import (
    DOCKERFILE,
    PREFIX,
    ROOT,
    copies,
    is_sent,
    named,
    stages,
    variables,
)
from tests.deploy.served_command import served, settings_of

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

OF_A_CHECKOUT = {"buf.yaml", "package.json", "package-lock.json"}
"""What `make protos-check` reads; nothing that runs does."""


def build_steps() -> str:
    return "\n".join(each.value for each in named(stages()[0], "RUN"))


def install_script() -> str:
    return (ROOT / ".ci/install.py").read_text(encoding="utf-8")


def tracked() -> list[str]:
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [name for name in names.split("\0") if name and (ROOT / name).is_file()]


def test_hadolint_has_nothing_to_say() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")

    said = subprocess.run([hadolint, str(DOCKERFILE)], capture_output=True, text=True, check=False)

    assert (said.returncode, said.stdout) == (0, "")


def test_every_file_that_is_copied_is_there_and_is_sent_to_the_build() -> None:
    sources = [source for each, _ in copies(stages()[0]) for source in each]

    assert {"constraints.txt", "pyproject.toml", "serving", "emulator"} <= set(sources)
    assert [source for source in sources if not (ROOT / source).exists()] == []
    assert [source for source in sources if not is_sent(source)] == []


def test_nothing_else_is_sent_to_the_build() -> None:
    sources = {source for each, _ in copies(stages()[0]) for source in each}
    sent = {name for name in tracked() if is_sent(name)}

    assert {name.partition("/")[0] for name in sent} == sources
    for name in (".git/config", ".venv/pyvenv.cfg", "deploy/compose/secrets/api-key", "keys.toml"):
        assert not is_sent(name)
    assert not is_sent("serving/__pycache__/main.cpython-311.pyc")


def test_vllm_is_built_as_the_checkout_builds_it() -> None:
    settings = variables(stages()[0])
    script = install_script()

    for name in ("VLLM_TARGET_DEVICE", "VLLM_VERSION_OVERRIDE"):
        assert f'"{name}": "{settings[name]}"' in script
    assert f"vllm=={settings['VLLM_VERSION_OVERRIDE']}" in PROJECT["project"]["dependencies"]
    assert settings["PIP_CONSTRAINT"] == "/build/constraints.txt"  # where COPY puts it


def test_the_steps_are_those_of_the_checkout_in_their_order() -> None:
    flags = re.compile(r"--(?:no-build-isolation|no-binary|group|no-deps)\b")
    asked = re.findall(r"pip_install\((.*?)\)\n", install_script(), re.DOTALL)
    ours = re.findall(r'bin/pip" install (.*?)(?: \\|\n|&&|$)', build_steps())

    assert [flags.findall(each.replace('"--group", "dev"', "")) for each in asked] == [
        flags.findall(each) for each in ours
    ]
    assert [each.strip() for each in ours if not each.startswith("--")] == ["pip", "torch"]
    assert "--group dev" not in build_steps()
    assert '"-m", "serving.analysis.kernels"' in install_script()
    assert "-m serving.analysis.kernels" in build_steps()


def test_the_final_stage_has_no_compiler_no_pip_and_is_nobody() -> None:
    final = stages()[1]
    (copied,) = named(final, "COPY")
    (user,) = named(final, "USER")

    assert copied.value == f"--from=build {PREFIX} {PREFIX}"
    assert re.fullmatch(r"[1-9]\d{4}:[1-9]\d{4}", user.value)
    assert f"useradd --uid {user.value.partition(':')[0]} " in named(final, "RUN")[0].value
    assert build_steps().endswith("uninstall --yes pip")
    assert re.findall(
        r"install --yes --no-install-recommends (\w+)", named(final, "RUN")[0].value
    ) == ["tini"]


def test_no_step_and_no_setting_holds_a_secret() -> None:
    for stage in stages():
        names = [*variables(stage), *(each.value.partition("=")[0] for each in named(stage, "ARG"))]
        assert [name for name in names if re.search("KEY|SECRET|TOKEN|PASSWORD", name)] == []


def test_the_health_check_asks_whether_it_is_ready_at_the_port_that_it_serves() -> None:
    final = stages()[1]
    (check,), (command,), (port,) = (
        named(final, name) for name in ("HEALTHCHECK", "CMD", "EXPOSE")
    )
    program, flag, code = check.words()
    (url,) = re.findall(r"http://[^']*", code)

    args = served(command.words())

    assert (program, flag) == ("python", "-c")
    compile(code, "HEALTHCHECK", "exec")
    assert urlsplit(url).path == probes.READY
    assert urlsplit(url).port == args.port == int(port.value)
    assert args.host == "0.0.0.0"
    assert settings_of(args).chips == 4


def test_the_entrypoint_is_a_command_of_the_project() -> None:
    (entry,) = named(stages()[1], "ENTRYPOINT")

    assert entry.words() == ["tini", "--", "ultraserve"]
    assert entry.words()[2] in PROJECT["project"]["scripts"]


@pytest.mark.parametrize(
    "room", ["emulator", "serving", "loadgen", "protos", "reporting", "startup"]
)
def test_every_data_file_of_a_room_is_installed_with_it(room: str) -> None:
    """A checkout finds its files in any case; an image has what package-data names."""
    patterns = PROJECT["tool"]["setuptools"]["package-data"].get(room, [])
    files = [Path(name).relative_to(room) for name in tracked() if name.startswith(f"{room}/")]
    data = [
        str(each)
        for each in files
        if each.suffix not in {".py", ".pyi", ".md"} and str(each) not in OF_A_CHECKOUT
    ]

    missing = [name for name in data if not any(_fits(name, each) for each in patterns)]

    assert missing == []


def _fits(name: str, pattern: str) -> bool:
    """As setuptools globs: `*` stays in its folder, `**` does not."""
    if "**" in pattern:
        return fnmatch.fnmatch(name, pattern.replace("**/", "*"))
    return name.count("/") == pattern.count("/") and fnmatch.fnmatch(name, pattern)


def test_the_base_image_is_the_python_that_the_project_wants() -> None:
    text = DOCKERFILE.read_text(encoding="utf-8")
    (base,) = re.findall(r"^ARG BASE=(.*)$", text, re.MULTILINE)

    assert base.startswith("python:3.11-slim")
    assert PROJECT["project"]["requires-python"] == ">=3.11,<3.12"
    assert [stage[0].value.split()[0] for stage in stages()] == ["${BASE}", "${BASE}"]
    assert json.dumps(named(stages()[1], "ENTRYPOINT")[0].words()) in text
