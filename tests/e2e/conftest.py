"""Clients of the live server."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from openai import OpenAI
from tokenizers import Tokenizer

from emulator.data import SMALL_MOE_DIR
from tests.e2e.server_process import ServerProcess
from tests.live_server import MODEL


@pytest.fixture(scope="package")
def client(live_server: ServerProcess) -> Iterator[OpenAI]:
    with OpenAI(
        base_url=f"{live_server.url}/v1", api_key="none", max_retries=0, timeout=120
    ) as made:
        yield made


@pytest.fixture(scope="package")
def complete(client: OpenAI) -> Callable[..., Any]:
    """A completion: greedy and without an early end by default."""

    def ask(prompt: Any, **given: Any) -> Any:
        extra = {"ignore_eos": True} | given.pop("extra_body", {})
        settings = {"model": MODEL, "temperature": 0.0, "max_tokens": 16} | given
        return client.completions.create(prompt=prompt, extra_body=extra, **settings)

    return ask


@pytest.fixture(scope="package")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(SMALL_MOE_DIR / "tokenizer.json"))
