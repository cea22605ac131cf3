"""Third-party clients against our server: `python -m tests.conformance [CLIENT ...]`.

Each client has a pinned environment, built before a server starts; most share one server. Prints a
table, writes `.conformance/report.json`, and ends with 1 when a client found something.
"""

import json
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial

from tests.conformance.conformance_server import ConformanceServer, conformance_server
from tests.conformance.described_api import schemathesis_openapi
from tests.conformance.gateway import through_gateway
from tests.conformance.load_generators import aiperf, guidellm, vllm_bench
from tests.conformance.outcome import Outcome, print_outcomes
from tests.conformance.pinned_environment import CACHE, make_cache, node_folder_of, python_of
from tests.conformance.retokenised import retokenised
from tests.conformance.suites import langchain_openai, openai_node, openai_python

RANDOM, TRAINED = "small-moe", "small-moe-trained"

# By the weights that their server has; those of None start their own.
CLIENTS: dict[str, tuple[str | None, Callable[..., Sequence[Outcome] | Outcome]]] = {
    "openai_python": (RANDOM, openai_python),
    "openai_node": (RANDOM, openai_node),
    "vllm_bench": (RANDOM, vllm_bench),
    "aiperf": (RANDOM, aiperf),
    "guidellm": (RANDOM, guidellm),
    "retokenised": (RANDOM, partial(retokenised, weights=RANDOM)),
    "retokenised_trained": (TRAINED, partial(retokenised, weights=TRAINED)),
    "langchain_openai": (TRAINED, langchain_openai),
    "schemathesis_openapi": (None, schemathesis_openapi),
    "smg": (None, through_gateway),
}
PYTHON_CLIENTS = {
    "openai_python": ("openai_python",),
    "aiperf": ("aiperf",),
    "guidellm": ("guidellm",),
    "langchain_openai": ("langchain_openai",),
    "schemathesis_openapi": ("schemathesis_openapi",),
    "smg": ("smg", "openai_python"),
}


def main(names: Sequence[str]) -> int:
    """Run the named clients, or all; returns 0 if all pass, 2 for an unknown name."""
    unknown = sorted(set(names) - set(CLIENTS))
    if unknown:
        print(f"conformance: {unknown[0]}: expected of {', '.join(CLIENTS)}", file=sys.stderr)
        return 2
    chosen = [name for name in CLIENTS if not names or name in names]
    outcomes = build_environments(chosen)
    unbuilt = {outcome.client for outcome in outcomes}
    for weights in (RANDOM, TRAINED, None):
        mine = [name for name in chosen if CLIENTS[name][0] == weights and name not in unbuilt]
        if weights is None:
            outcomes += [each for name in mine for each in attempted(name)]
        elif mine:
            outcomes += with_server(weights, mine)
    print_outcomes(outcomes)
    report = [outcome.plain() for outcome in outcomes]
    make_cache()
    (CACHE / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    return int(any(outcome.failures for outcome in outcomes))


def build_environments(names: Sequence[str]) -> list[Outcome]:
    """Build missing environments; a server waiting meanwhile would keep a core.

    Returns a failure for each client without an environment.
    """
    unbuilt = []
    for name in names:
        try:
            for folder in PYTHON_CLIENTS.get(name, ()):
                python_of(folder)
            if name == "openai_node":
                node_folder_of(name)
        except (OSError, subprocess.SubprocessError) as error:
            unbuilt.append(unreported(name, error))
    return unbuilt


def with_server(weights: str, names: Sequence[str]) -> list[Outcome]:
    """Run the named clients at one server; each fails when it does not come up."""
    outcomes: list[Outcome] = []
    left = list(names)
    try:
        with conformance_server(weights) as server:
            while left:
                outcomes += attempted(left.pop(0), server)
    except (AssertionError, OSError, subprocess.SubprocessError) as error:
        outcomes += [unreported(name, error) for name in left or [f"server of {weights}"]]
    return outcomes


def attempted(name: str, *server: ConformanceServer) -> list[Outcome]:
    """Run `name`; an exception is a failure of the client, and does not end the run."""
    print(f"== {name}", flush=True)
    try:
        found = CLIENTS[name][1](*server)
    # Whatever another's program or its report can raise: it is told, and the next one's turn.
    except Exception as error:  # noqa: BLE001
        return [unreported(name, error)]
    return [found] if isinstance(found, Outcome) else list(found)


def unreported(name: str, error: Exception) -> Outcome:
    """A client that failed before its report; shows `error` whole."""
    traceback.print_exception(error)
    first_line = str(error).partition("\n")[0]
    text = f"it did not tell: {type(error).__name__}: {first_line}"
    return Outcome(client=name, version="?", cases=1, failures=(text,))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
