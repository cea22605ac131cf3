"""A server stops whenever it is told to, and leaves nothing: no process, no port, no file.

Also stock `vllm serve`, which must be the same engine; it is the one that Ctrl-C ends when up.
"""

import json
import signal
import time
from collections.abc import Callable, Iterator

import httpx
import pytest
from openai import OpenAI
from tokenizers import Tokenizer

from emulator.data import SMALL_MOE_DIR
from tests.e2e.server_process import ULTRASERVE, VLLM, ServerProcess, started
from tests.emulator.chip.in_process import InProcessChips
from tests.emulator.chip.in_process import serve as serve_in_process

pytestmark = [pytest.mark.engine, pytest.mark.slow]

PROMPTS = ["The old bridge", "import numpy as np\n", "Four chips stand in a row, and the first of"]
BOUNDS = ("--max-num-batched-tokens", "512", "--max-model-len", "4096")
TRAY = ("--model", "qwen3-30b-a3b", "--chips", "4", *BOUNDS)

# Moments of a start, in their order: what has been started, or how long it has been.
MOMENTS: dict[str, Callable[[ServerProcess], bool]] = {
    "vLLM is being imported": lambda server: server.imports("torch"),
    "the engine's process starts": lambda server: server.runs("EngineCore"),
    "Ray starts": lambda server: server.runs("gcs_server"),
    "Ray has started": lambda server: server.runs("raylet/raylet"),
    "chips start": lambda server: server.runs("ray::ChipWorker"),
    "the clock is calibrated": lambda server: "emulated chips (small-moe) ready" in server.log(),
}


def end_of(server: ServerProcess, number: signal.Signals, *, group: bool) -> int:
    """Tell the server to stop; returns its code when nothing of it is left."""
    server.signal(number, group=group)
    code = server.wait_end()
    assert server.left_over() == [], server.log()
    return code


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize(("number", "group"), [(signal.SIGINT, True), (signal.SIGTERM, False)])
def test_a_signal_at_any_moment_of_the_start_ends_everything(
    moment: str, number: signal.Signals, group: bool
) -> None:
    with started(ULTRASERVE, *TRAY) as server:
        server.wait_until(lambda: MOMENTS[moment](server), moment)

        assert end_of(server, number, group=group) in (128 + number, -number)


@pytest.mark.parametrize("seconds", [0.3, 1.0, 2.0, 4.0])
def test_a_signal_at_any_second_of_the_start_ends_everything(seconds: float) -> None:
    with started(ULTRASERVE, *TRAY) as server:
        started_s = time.monotonic()
        server.wait_until(lambda: time.monotonic() - started_s > seconds, f"{seconds} s")

        assert end_of(server, signal.SIGTERM, group=False) != 0


@pytest.fixture
def busy() -> Iterator[ServerProcess]:
    """A server with a request that takes longer than it has when the server ends."""
    with started(ULTRASERVE, *TRAY, "--clock", "dilated:10", "--drain-timeout", "5") as server:
        server.wait_ready()
        body = {"model": "qwen3-30b-a3b", "prompt": [9], "max_tokens": 3000, "ignore_eos": True}
        with (
            httpx.Client(base_url=server.url, timeout=60) as client,
            client.stream("POST", "/v1/completions", json=body | {"stream": True}) as response,
        ):
            lines = response.iter_lines()  # without a name it would end the response
            next(lines)
            yield server


@pytest.mark.parametrize(("number", "group"), [(signal.SIGINT, True), (signal.SIGTERM, False)])
def test_a_signal_while_requests_run_ends_everything_in_time(
    number: signal.Signals, group: bool, busy: ServerProcess
) -> None:
    told_s = time.monotonic()
    assert end_of(busy, number, group=group) == 0
    assert time.monotonic() - told_s < 30.0
    assert "1 requests are aborted" in busy.log()


def test_a_second_signal_waits_for_nobody(busy: ServerProcess) -> None:
    busy.signal(signal.SIGTERM)
    busy.wait_until(lambda: "the server ends" in busy.log(), "notice")

    told_s = time.monotonic()
    assert end_of(busy, signal.SIGTERM, group=False) == 128 + signal.SIGTERM
    assert time.monotonic() - told_s < 10.0


@pytest.fixture(scope="module")
def stock() -> Iterator[ServerProcess]:
    settings = json.dumps({"ultraserve": {"chips": 2, "clock": "real"}})
    arguments = (str(SMALL_MOE_DIR), *BOUNDS, "--additional-config", settings)
    with started(VLLM, *arguments) as server:
        server.wait_ready()
        yield server


def test_stock_vllm_gives_the_tokens_of_four_chips(stock: ServerProcess) -> None:
    tokenizer = Tokenizer.from_file(str(SMALL_MOE_DIR / "tokenizer.json"))
    prompts = {prompt: tokenizer.encode(prompt).ids for prompt in PROMPTS}
    expected = serve_in_process(InProcessChips(SMALL_MOE_DIR, chips=4), prompts, new_tokens=24)

    with OpenAI(base_url=f"{stock.url}/v1", api_key="none", max_retries=0) as client:
        for prompt in PROMPTS:
            answer = client.completions.create(
                model=str(SMALL_MOE_DIR),
                prompt=prompt,
                max_tokens=24,
                temperature=0.0,
                extra_body={"return_token_ids": True, "ignore_eos": True},
            )
            assert answer.choices[0].token_ids == expected[prompt]  # type: ignore[attr-defined]


def test_stock_vllm_says_what_it_emulates(stock: ServerProcess) -> None:
    page = httpx.get(f"{stock.url}/metrics").text

    (info,) = (line for line in page.splitlines() if line.startswith("ultraserve_info{"))
    for label in ('chips="2"', 'time_model="small-moe"', 'weights="small-moe"', 'clock="real"'):
        assert label in info
    assert "ultraserve_clock_dilation 1.0" in page.splitlines()
    assert "vllm:time_to_first_token_seconds_sum" in page
    assert "2 emulated chips (small-moe) ready" in stock.log()


def test_ctrl_c_ends_stock_vllm_and_everything_it_started(stock: ServerProcess) -> None:
    assert stock.runs("raylet/raylet")
    assert stock.runs("ray::ChipWorker")

    assert end_of(stock, signal.SIGINT, group=True) == 0
