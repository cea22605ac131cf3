"""Clients with tests: ours on the OpenAI clients, LangChain's own on its client."""

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tests.conformance.conformance_server import ConformanceServer
from tests.conformance.outcome import Outcome, from_junit
from tests.conformance.pinned_environment import HERE, node_folder_of, pinned_version, python_of

_SUITE_WALL_S_MAX = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    exit_code: int
    seconds: float


def openai_python(server: ConformanceServer) -> Outcome:
    client = "openai_python"
    return _pytest(server, client, version=pinned_version(client, "openai"))


def openai_python_at(
    server: ConformanceServer,
    environment: Mapping[str, str],
    *,
    client: str,
    version: str,
    excluded: Mapping[str, str],
) -> Outcome:
    """The same tests at another address; `excluded`: reasons by test, all of which exist."""
    given = {**environment, "EXCLUDED": json.dumps(dict(excluded))}
    found = _pytest(server, "openai_python", version=version, environment=given)
    return replace(found, client=client)


def langchain_openai(server: ConformanceServer) -> Outcome:
    """LangChain's standard tests of a chat model, on langchain-openai."""
    client = "langchain_openai"
    version = pinned_version(client, "langchain-openai")
    # One loop for all: the client keeps its connections from one model to the next.
    scopes = (f"asyncio_default_{what}_loop_scope=session" for what in ("fixture", "test"))
    settings = ("asyncio_mode=auto", *scopes)
    options = [word for setting in settings for word in ("-o", setting)]
    return _pytest(server, client, *options, version=version)


def openai_node(server: ConformanceServer) -> Outcome:
    client = "openai_node"
    folder = node_folder_of(client)
    report = server.folder / f"{client}.xml"
    script = folder / "openai.test.mjs"  # beside node_modules, where its imports are looked for
    script.write_text((HERE / client / script.name).read_text())
    reporters = ("--test-reporter=junit", f"--test-reporter-destination={report}")
    command = ("node", "--test", "--test-timeout=120000", *reporters, str(script))
    ran = run_client(command, server.environment(), folder)
    version = json.loads((folder / "package.json").read_text())["dependencies"]["openai"]
    return from_junit(
        report, client=client, version=version, seconds=ran.seconds, exit_code=ran.exit_code
    )


def _pytest(
    server: ConformanceServer,
    client: str,
    *options: str,
    version: str,
    environment: Mapping[str, str] | None = None,
) -> Outcome:
    """Run the tests in `client`'s folder with its own interpreter, without our settings."""
    report = server.folder / f"{client}.xml"
    command = (
        *(str(python_of(client)), "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short"),
        *("-c", os.devnull, "--rootdir", ".", "--confcutdir", ".", "--timeout", "240"),
        *("--junitxml", str(report), *options),
    )
    ran = run_client(command, environment or server.environment(), HERE / client)
    return from_junit(
        report, client=client, version=version, seconds=ran.seconds, exit_code=ran.exit_code
    )


def run_client(
    command: Sequence[str], environment: Mapping[str, str], folder: Path, log: Path | None = None
) -> Ran:
    """Run a client in `folder`, its output in `log` or shown.

    A client with failures exits with another code than 0; its report names them. Raises
    TimeoutExpired.
    """
    started_s = time.monotonic()
    with contextlib.ExitStack() as opened:
        done = subprocess.run(
            list(command),
            cwd=folder,
            env=_clean_environment() | dict(environment),
            stdout=opened.enter_context(log.open("w")) if log else None,
            check=False,
            timeout=_SUITE_WALL_S_MAX,
        )
    return Ran(exit_code=done.returncode, seconds=time.monotonic() - started_s)


def _clean_environment() -> dict[str, str]:
    """Our environment without variables that lead to another server or our packages."""
    dropped = ("PYTHON", "PYTEST", "OPENAI_", "VLLM_", "ULTRASERVE_")
    return {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
