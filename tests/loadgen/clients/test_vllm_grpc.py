import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import trustme

from loadgen.clients.client import ClientSpec, Reply
from loadgen.clients.open_client import open_client
from loadgen.clients.reply_stream import CHUNKS_BEYOND_MAX
from loadgen.clients.server_json import TOKENS_MAX
from loadgen.errors import OptionError
from loadgen.records.request import Message, Request
from loadgen.records.result import ABORTED, STREAM, TIMEOUT
from tests.loadgen.clients.known_engine import KnownEngine

REQUEST = Request(
    request_id=0,
    traffic_class="a",
    session_id=0,
    turn=0,
    messages=(Message(role="user", content=(5, 6, 7)),),
    input_tokens=3,
    output_tokens=4,
)


def send(
    engine: KnownEngine,
    *requests: Request,
    cancel_after_s: float | None = None,
    chunks: list[int] | None = None,
    **options: Any,
) -> list[Reply]:
    async def play() -> list[Reply]:
        replies = []
        async with engine.serving() as target:
            spec = ClientSpec(
                api="grpc",
                url="http://unused",
                grpc_target=target,
                model="m",
                **{"timeout_s": 20, **options},
            )
            on_chunks = ([] if chunks is None else chunks).append
            async with open_client(spec, on_chunks=on_chunks) as client:
                for request in requests or (REQUEST,):
                    sent = asyncio.ensure_future(client.send(request))
                    if cancel_after_s is not None:
                        asyncio.get_running_loop().call_later(cancel_after_s, sent.cancel)
                    replies.append(await sent)
                if cancel_after_s is not None:
                    for _ in range(100):
                        if engine.cancelled:
                            break
                        await asyncio.sleep(0.02)
        return replies

    return asyncio.run(play())


def test_a_reply_has_a_stamp_for_every_token_and_the_server_s_counts() -> None:
    chunks: list[int] = []
    (reply,) = send(KnownEngine(), chunks=chunks)

    assert (reply.error, reply.message) == (None, "")
    assert (reply.input_tokens, reply.output_tokens, reply.cached_tokens) == (3, 4, 2)
    assert (sum(chunks), len(reply.chunk_ns), reply.token_ids, reply.text) == (4, 4, None, None)
    times = [reply.sent_ns, *reply.chunk_ns.tolist(), reply.ended_ns]
    assert times == sorted(times)


def test_a_reply_that_is_kept_has_its_ids() -> None:
    (reply,) = send(KnownEngine(), replace(REQUEST, keep_reply=True))

    assert reply.token_ids == (5, 6, 7, 5)


def test_the_request_on_the_wire_says_what_http_would() -> None:
    engine = KnownEngine()
    schema = {"type": "object"}
    send(
        engine,
        REQUEST,
        replace(REQUEST, output_schema=schema),
        key="sk-1",
        headers={"X-Tenant": "a"},
        temperature=0.5,
        extra_body={"top_k": 3, "min_p": 0.25},
    )
    first, second = engine.requests

    assert list(first.tokenized.input_ids) == [5, 6, 7]
    params = first.sampling_params
    assert (params.temperature, params.max_tokens, params.top_k) == (0.5, 4, 3)
    assert (params.min_p, params.ignore_eos, first.stream) == (0.25, True, True)
    assert json.loads(second.sampling_params.json_schema) == schema
    assert not second.sampling_params.ignore_eos
    assert first.request_id != second.request_id
    assert engine.metadata[0]["authorization"] == "Bearer sk-1"
    assert engine.metadata[0]["x-tenant"] == "a"


def test_a_refusal_is_an_error_of_its_code_in_one_line() -> None:
    (reply,) = send(KnownEngine(code=grpc.StatusCode.RESOURCE_EXHAUSTED))

    assert (reply.error, reply.message) == ("RESOURCE_EXHAUSTED", "no [2Jroom")


def test_a_server_that_is_not_there_is_unavailable() -> None:
    async def ask() -> Reply:
        async with KnownEngine().serving() as target:
            pass
        spec = ClientSpec(api="grpc", url="http://a", grpc_target=target, model="m", timeout_s=20)
        async with open_client(spec, on_chunks=lambda _: None) as client:
            return await client.send(REQUEST)

    assert asyncio.run(ask()).error == "UNAVAILABLE"


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        (KnownEngine(completes=False), "ended before its completion"),
        (KnownEngine(finish_reason="abort"), "'abort'"),
        (KnownEngine(finish_reason="error"), "'error'"),
    ],
)
def test_a_reply_that_is_not_complete_is_an_error_and_keeps_what_came(
    engine: KnownEngine, words: str
) -> None:
    (reply,) = send(engine)

    assert (reply.error, len(reply.chunk_ns)) == (STREAM, 4)
    assert words in reply.message


@pytest.mark.parametrize(
    ("engine", "chunks", "words"),
    [
        (KnownEngine(endless=True, cached_tokens=TOKENS_MAX + 1), 0, "a count of more than"),
        (KnownEngine(endless=True, at_once=CHUNKS_BEYOND_MAX + 5), 0, "far more than was asked"),
        (KnownEngine(at_once=CHUNKS_BEYOND_MAX // 4), 4, ""),
    ],
)
def test_a_reply_out_of_its_bounds_is_an_error_and_its_call_is_ended(
    engine: KnownEngine, chunks: int, words: str
) -> None:
    (reply,) = send(engine, cancel_after_s=20 if words else None)

    assert (reply.error, len(reply.chunk_ns)) == (STREAM if words else None, chunks)
    assert words in reply.message
    assert engine.cancelled == bool(words)


@pytest.mark.long
def test_a_reply_that_does_not_end_in_time_is_a_timeout() -> None:
    (reply,) = send(KnownEngine(endless=True), timeout_s=0.3)

    assert (reply.error, reply.message) == (TIMEOUT, "no complete reply within 0.3 s")
    assert len(reply.chunk_ns) == 1


@pytest.mark.long
def test_a_cancelled_request_is_an_aborted_reply_and_ends_at_the_server() -> None:
    engine = KnownEngine(endless=True)
    (reply,) = send(engine, cancel_after_s=0.3)

    assert (reply.error, len(reply.chunk_ns), engine.cancelled) == (ABORTED, 1, 1)


def test_stamps_follow_the_server_s_steps() -> None:
    """Of a request that the machine does not hold up; it may hold up some."""
    assert any(0.025 < _gap_s() < 0.045 for _ in range(8))


def _gap_s() -> float:
    (reply,) = send(KnownEngine(step_s=0.03), replace(REQUEST, output_tokens=6))
    return float(np.median(np.diff(reply.chunk_ns))) / 1e9


def test_fields_that_grpc_has_no_place_for_are_refused_before_anything_is_sent() -> None:
    engine = KnownEngine()
    with pytest.raises(OptionError, match=r"--extra-body=.*SamplingParams"):
        send(engine, extra_body={"guided": 1})
    assert not engine.requests


def test_a_channel_is_encrypted_by_the_given_certificates(tmp_path: Path) -> None:
    ca = trustme.CA()
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    cert = ca.issue_cert("localhost")
    credentials = grpc.ssl_server_credentials(
        [(cert.private_key_pem.bytes(), b"".join(pem.bytes() for pem in cert.cert_chain_pems))]
    )

    async def ask() -> Reply:
        async with KnownEngine().serving(credentials) as target:
            spec = ClientSpec(
                api="grpc",
                url="https://a",
                grpc_target=target,
                model="m",
                timeout_s=20,
                ca=tmp_path / "ca.pem",
            )
            async with open_client(spec, on_chunks=lambda _: None) as client:
                return await client.send(REQUEST)

    assert asyncio.run(ask()).error is None
