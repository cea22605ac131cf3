"""schemathesis against the server's own API description."""

import json
import re
import subprocess
from typing import Any

from tests.conformance.conformance_server import ConformanceServer, conformance_server
from tests.conformance.outcome import Outcome
from tests.conformance.pinned_environment import HERE, pinned_version, python_of
from tests.conformance.suites import Ran, run_client

CLIENT = "schemathesis_openapi"
CASES_MIN = 2_000
_WALL_S = 300  # cases are drawn until then
_CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
)

# CPython 3.11 raises this at times when Hypothesis looks at the source of a lambda; the operation's
# remaining cases of that phase are then not drawn. It is no answer of the server's.
_INTERPRETER_FAULT = "AST constructor recursion depth mismatch"

_TOLD_ERRORS = 1  # its exit code when it tells a failure, or such a fault

# As short as a request may be: what is checked is what the server says, not how long it speaks.
_ARGUMENTS = ("--override-generation-config", json.dumps({"max_new_tokens": 8}))


def schemathesis_openapi() -> Outcome:
    """Run schemathesis against its own server, with short, quick answers."""
    with conformance_server("small-moe", *_ARGUMENTS, dilation=1) as server:
        report = server.folder / "schemathesis.json"
        command = (
            *(str(python_of(CLIENT).with_name("schemathesis")), "--no-color", "run"),
            *(f"{server.url}/openapi.json", "--checks", ",".join(_CHECKS)),
            *("--phases", "coverage,fuzzing", "--max-time", str(_WALL_S), "--workers", "2"),
            *("--header", f"Authorization: Bearer {server.key}", "--continue-on-failure"),
            *(
                "--request-timeout",
                "60",
                "--no-shrink",
                "--seed",
                "1",
                "--output-sanitize",
                "false",
            ),
            *("--generation-database", "none", "--warnings", "off"),
            *("--report", "json", "--report-json-path", str(report)),
        )
        environment = server.environment() | {"SCHEMATHESIS_HOOKS": "hooks", "PYTHONPATH": "."}
        log = server.folder / "schemathesis.log"
        ran = run_client(command, environment, HERE / CLIENT, log)
        print(log.read_text())
        faults = _interpreter_faults(log.read_text())
        found = json.loads(report.read_text())
        return _outcome(found, ran, faults=faults, still_answers=_still_answers(server))


def _still_answers(server: ConformanceServer) -> bool:
    headers = f"Authorization: Bearer {server.key}"
    command = ("curl", "-sf", "-H", headers, f"{server.url}/v1/models")
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _interpreter_faults(log: str) -> int:
    """Number of the tool's own errors, each under its operation's name between lines."""
    errors = log.partition("= ERRORS =")[2].partition("= SUMMARY =")[0]
    return sum(_INTERPRETER_FAULT in each for each in re.split(r"^_+ .+ _+$", errors, flags=re.M))


def _outcome(found: dict[str, Any], ran: Ran, *, faults: int, still_answers: bool) -> Outcome:
    failures = [
        f"{failure['title']}: {operation}"
        for failure in found["failures"]
        for operation in failure["operations"]
    ]
    errors = sum(error["count"] for error in found["errors"])
    if errors > faults:
        failures.append(f"{errors - faults} errors of the tool")
    excluded = {f"{_INTERPRETER_FAULT} (CPython 3.11)": faults} if faults else {}
    rates = [rate for phases in found["valid_rates"].values() for rate in phases.values()]
    cases = found["test_cases"]["generated"]
    if cases < CASES_MIN:
        failures.append(f"{cases} cases of at least {CASES_MIN}")
    if not still_answers:
        failures.append("the server did not answer afterwards")
    return Outcome(
        client="schemathesis",
        version=pinned_version(CLIENT, "schemathesis"),
        cases=cases + faults,
        failures=tuple(failures),
        excluded=excluded,
        seconds=ran.seconds,
        figures={
            f"well-formed cases {what}": sum(rate[what] for rate in rates)
            for what in ("accepted", "rejected")
        },
    ).ended(0 if excluded and ran.exit_code == _TOLD_ERRORS else ran.exit_code)
