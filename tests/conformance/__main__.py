"""Other people's clients against our server: `python -m tests.conformance [CLIENT ...]`.

Each client has an environment of its own, pinned, and built before a server is started. One server
is there for most of them. Ends with a table, `.conformance/report.json`, and 1 when a client found
something.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
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
    """Run the clients named, or all; returns 0 when all are content, 2 for an unknown name."""
    unknown = sorted(set(names) - set(CLIENTS))
    if unknown:
        print(f"conformance: {unknown[0]}: expected of {', '.join(CLIENTS)}", file=sys.stderr)
        return 2
    chosen = [name for name in CLIENTS if not names or name in names]
    build_environments(chosen)
    outcomes: list[Outcome] = []
    for weights in (RANDOM, TRAINED):
        mine = [name for name in chosen if CLIENTS[name][0] == weights]
        with ExitStack() as running:
            server = running.enter_context(conformance_server(weights)) if mine else None
            for name in mine:
                outcomes += attempted(name, server)
    for name in chosen:
        if CLIENTS[name][0] is None:
            outcomes += attempted(name)
    print_outcomes(outcomes)
    report = [outcome.plain() for outcome in outcomes]
    make_cache()
    (CACHE / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    return int(any(outcome.failures for outcome in outcomes))


def build_environments(names: Sequence[str]) -> None:
    """Build what is not there; a server that waited meanwhile would keep a core."""
    for name in names:
        for folder in PYTHON_CLIENTS.get(name, ()):
            python_of(folder)
        if name == "openai_node":
            node_folder_of(name)


def attempted(name: str, *server: ConformanceServer | None) -> list[Outcome]:
    """What `name` finds; a client that ends before it can tell is a failure, and no end of ours."""
    print(f"== {name}", flush=True)
    try:
        found = CLIENTS[name][1](*server)
    except (AssertionError, KeyError, OSError, ValueError, subprocess.SubprocessError) as error:
        text = f"it did not tell: {type(error).__name__}: {error}"
        return [Outcome(client=name, version="?", cases=1, failures=(text,))]
    return [found] if isinstance(found, Outcome) else list(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
