"""One engine for the files that use a tray, from test_profile_run to test_serve_http.

Files that start their own engines come earlier in the alphabet.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from openai import OpenAI
from tokenizers import Tokenizer

from emulator.data import SMALL_MOE_DIR
from tests.e2e.server_process import ULTRASERVE, ServerProcess, started
from tests.e2e.span_collector import SOON, SpanCollector
from tests.e2e.tray import CONTEXT_TOKENS, DILATION, MODEL


@pytest.fixture(scope="package")
def tray_spans() -> Iterator[SpanCollector]:
    """The tray's collector of spans, over gRPC."""
    with SpanCollector() as collector:
        yield collector


@pytest.fixture(scope="package")
def tray(tray_spans: SpanCollector) -> Iterator[ServerProcess]:
    arguments = (
        *("--model", MODEL, "--chips", "4", "--disable-uvicorn-access-log"),
        *("--max-num-batched-tokens", "512", "--max-model-len", str(CONTEXT_TOKENS)),
        *("--clock", f"dilated:{DILATION}"),
        *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
        *("--otlp-traces-endpoint", tray_spans.grpc_endpoint),
    )
    with started(ULTRASERVE, *arguments, environment=SOON) as server:
        server.wait_ready()
        yield server


@pytest.fixture(scope="package")
def client(tray: ServerProcess) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{tray.url}/v1", api_key="none", max_retries=0, timeout=120) as made:
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
