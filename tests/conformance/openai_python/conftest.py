"""The client as users make it; the server's address and keys come from the environment.

EXCLUDED, if set, is a JSON object of reasons by test: those tests are skipped.
"""

import json
import os
from collections.abc import Iterator

import pytest
from openai import OpenAI

MODEL = os.environ["SERVED_MODEL"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip excluded tests; an unknown name is an error."""
    reasons = json.loads(os.environ.get("EXCLUDED", "{}"))
    found = set()
    for item in items:
        for name in (item.nodeid, item.nodeid.partition("[")[0]):
            if name in reasons:
                item.add_marker(pytest.mark.skip(reason=reasons[name]))
                found.add(name)
    if unknown := sorted(reasons.keys() - found):
        raise pytest.UsageError(f"EXCLUDED: expected the name of a test, not {unknown[0]}")


@pytest.fixture(scope="session")
def client() -> Iterator[OpenAI]:
    with OpenAI(max_retries=0, timeout=120) as made:
        yield made
