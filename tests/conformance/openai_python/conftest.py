"""The client as its users make one; the server's address and keys come from the environment."""

import os
from collections.abc import Iterator

import pytest
from openai import OpenAI

MODEL = os.environ["SERVED_MODEL"]


@pytest.fixture(scope="session")
def client() -> Iterator[OpenAI]:
    with OpenAI(max_retries=0, timeout=120) as made:
        yield made
