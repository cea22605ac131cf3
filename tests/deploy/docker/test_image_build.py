"""The Dockerfile's build steps, run: a new environment that serves, with no compiler in reach."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.docker.image_file import named, run_build_stage, stages
from tests.e2e.server_process import ServerProcess, free_port

pytestmark = [pytest.mark.slow, pytest.mark.engine, pytest.mark.timeout(1_800)]

KEY = "us-" + "k" * 43
NEEDED = ("sh", "env", "uname", "ls", "rm", "cp", "mkdir", "cat", "sed", "ldconfig", "grep")
"""What the base image has of the programs that pip and vLLM's build look for."""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("image")
    programs = directory / "programs"
    programs.mkdir()
    for name in NEEDED:
        if found := shutil.which(name):
            (programs / name).symlink_to(found)
    assert shutil.which("gcc", path=str(programs)) is None
    try:
        yield run_build_stage(directory / "stage", path=str(programs))
    finally:  # also where the build fails: 3 GB
        shutil.rmtree(directory)


def test_the_environment_has_the_commands_and_no_pip(environment: Path) -> None:
    for words in (["ultraserve", "describe", "trn3-nl72x2"], ["ultraserve-loadgen", "--help"]):
        ran = [environment / "bin" / words[0], *words[1:]]
        assert subprocess.run(ran, check=True, capture_output=True).stdout
    assert not (environment / "bin" / "pip").exists()
    assert not (environment / "bin" / "pytest").exists()


def test_it_serves_as_the_image_starts_it_and_its_health_check_holds(environment: Path) -> None:
    final = stages()[1]
    command, check = named(final, "CMD")[0].words(), named(final, "HEALTHCHECK")[0].words()
    port = free_port()
    moved = [str(port) if word == "8000" else word for word in command]
    programs = {"PATH": f"{environment}/bin:{os.environ['PATH']}", "VLLM_API_KEY": KEY}
    started = [str(environment / "bin/ultraserve"), *moved, "--control-port", "0"]
    probe = [word.replace(":8000", f":{port}") for word in check]
    probe[0] = str(environment / "bin" / probe[0])

    assert subprocess.run(probe, check=False, capture_output=True).returncode != 0
    with ServerProcess(*started, port=port, environment=programs) as server:
        server.wait_ready()
        subprocess.run(probe, check=True, timeout=10)
        server.signal(signal.SIGTERM)
        assert server.wait_end() == 0
