"""A batch on a whole server that is killed in the middle: every request is answered once."""

import json
import signal
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from openai import OpenAI

from tests.e2e.server_process import ULTRASERVE, ServerProcess, started

pytestmark = pytest.mark.engine

MODEL = "small-moe"
REQUESTS = 60


def lines() -> bytes:
    bodies = (
        {
            "custom_id": f"request-{number}",
            "method": "POST",
            "url": "/v1/completions",
            "body": {
                "model": MODEL,
                "prompt": f"line {number}",
                "max_tokens": 24,
                "ignore_eos": True,
                "temperature": 0.0,
            },
        }
        for number in range(REQUESTS)
    )
    return b"".join(json.dumps(body).encode() + b"\n" for body in bodies)


def server(directory: Path) -> AbstractContextManager[ServerProcess]:
    return started(
        ULTRASERVE,
        *("--model", MODEL, "--chips", "2", "--max-model-len", "512", "--max-num-seqs", "4"),
        *("--clock", "dilated:20", "--batch-directory", str(directory)),
    )


def client_of(process: ServerProcess) -> OpenAI:
    process.wait_ready()
    return OpenAI(base_url=f"{process.url}/v1", api_key="none", timeout=60)


def answered(directory: Path, batch_id: str) -> int:
    journal = directory / "batches" / batch_id / "output.jsonl"
    return journal.read_bytes().count(b"\n") if journal.exists() else 0


@pytest.mark.slow
def test_a_killed_server_s_batch_ends_with_each_request_once(tmp_path: Path) -> None:
    directory = tmp_path / "batches"
    with server(directory) as process, client_of(process) as client:
        file = client.files.create(file=("night.jsonl", lines()), purpose="batch")
        batch = client.batches.create(
            input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
        )
        process.wait_until(lambda: answered(directory, batch.id) >= 10, "ten answers")
        process.signal(signal.SIGKILL)
        process.wait_end()
    before = answered(directory, batch.id)
    assert 10 <= before < REQUESTS
    with server(directory) as process, client_of(process) as client:
        process.wait_until(
            lambda: client.batches.retrieve(batch.id).status == "completed", "the batch's end"
        )
        ended = client.batches.retrieve(batch.id)
        assert ended.request_counts is not None
        assert ended.request_counts.completed == REQUESTS
        assert ended.output_file_id is not None
        content = client.files.content(ended.output_file_id).text
        output = [json.loads(line) for line in content.splitlines()]
        names = [line["custom_id"] for line in output]
        assert sorted(names) == sorted(f"request-{number}" for number in range(REQUESTS))
        usages = {line["response"]["body"]["usage"]["completion_tokens"] for line in output}
        assert usages == {24}
