"""A live server shared by the tests of HTTP, spans, metrics, dashboards and the console.

Four chips with a rank each, experts spread over them, day and night by hand. Started once by the
fixture `live_server` of tests/conftest.py, for tests that come last. A test heals what it breaks,
and totals do not start at zero; the one test that ends the engine is marked `ends_live_server`, and
runs last in whatever order files are named.
"""

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.e2e.server_process import ULTRASERVE, ServerProcess, started
from tests.e2e.span_collector import SOON

MODEL = "small-moe"
CHIPS = 4
CONTEXT_TOKENS = 4096
DILATION = 20  # about what two idle cores keep up with; nothing depends on keeping up
UNMOVED_TRIES = 4
"""Stretches to look at until one has no move of experts in it."""
_CLIENTS = 3
_ANSWER_TOKENS = 40
_ANSWER_WALL_S = 120.0
_CORPUS_FILES = 20


def write_corpus(folder: Path) -> Path:
    """Text to train on: enough files that some are held out."""
    folder.mkdir()
    for number in range(_CORPUS_FILES):
        lines = (f"line {line} of file {number}: the bridge stands.\n" for line in range(100))
        (folder / f"{number}.txt").write_text("".join(lines))
    return folder


@contextmanager
def live_server_started(folder: Path, *, spans_endpoint: str) -> Iterator[ServerProcess]:
    """The ready server, which sends its spans; `folder` is empty, for a training job's files."""
    arguments = (
        *("--model", MODEL, "--chips", str(CHIPS), "--max-model-len", str(CONTEXT_TOKENS)),
        *("--max-num-batched-tokens", "512", "--disable-uvicorn-access-log"),
        *("--clock", f"dilated:{DILATION}", "--eplb", "50"),
        *("--day-night", "manual", "--group-chips", "2", "--lend-chips", "2"),
        *("--train-dir", str(folder / "training"), "--batch-directory", str(folder / "batches")),
        *("--train-corpus", str(write_corpus(folder / "corpus"))),
        *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
        *("--otlp-traces-endpoint", spans_endpoint),
    )
    with started(ULTRASERVE, *arguments, environment=SOON) as server:
        server.wait_ready()
        yield server


class Load:
    """A context of a few clients that ask in turn.

    `answered` counts; leaving waits for the last answers and raises failures.
    """

    def __init__(self, url: str) -> None:
        self.answered = 0
        self._url = url
        self._ended = threading.Event()
        self._failures: list[Exception] = []
        self._threads = [
            threading.Thread(target=self._ask, args=(number,)) for number in range(_CLIENTS)
        ]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()
        if self._failures and error == (None, None, None):
            raise self._failures[0]

    def _ask(self, number: int) -> None:
        with httpx.Client(timeout=_ANSWER_WALL_S) as client:
            for turn in itertools.count():
                if self._ended.is_set():
                    return
                body = {
                    "model": MODEL,
                    "prompt": [9 + number] * (16 + 8 * (turn % 5)),
                    "max_tokens": _ANSWER_TOKENS,
                    "temperature": 0.0,
                    "ignore_eos": True,
                }
                try:
                    client.post(f"{self._url}/v1/completions", json=body).raise_for_status()
                except httpx.HTTPError as failure:
                    self._failures.append(failure)
                    return
                self.answered += 1
