"""The server that measurements are held against: what it claims to have done, it has done."""

import os
import signal
import socket
import time

import numpy as np
import openai
import pytest

from tests.loadgen.truth_process import truth_of, truth_process
from tests.loadgen.truth_server import Delay, KnownDelays, ServedRequest, parse_delay


def test_the_truth_of_three_tokens_after_5_ms_at_gaps_of_2_ms_is_found_by_hand() -> None:
    truth = truth_of(
        [
            ServedRequest(arrived_ns=10_000_000, tokens=3, written_ns=[15_000_000, 0, 19_000_000]),
            ServedRequest(arrived_ns=0, tokens=1, written_ns=[7_000_000]),
        ]
    )

    assert truth.ttft_ms.tolist() == [5.0, 7.0]
    assert truth.tpot_ms.tolist() == [2.0]


def test_delays_are_read_as_written() -> None:
    assert parse_delay("5ms") == Delay(low_s=0.005, high_s=0.005)
    assert parse_delay("20ms-1.5s") == Delay(low_s=0.02, high_s=1.5)


def plans(seed: int) -> list[tuple[int, int]]:
    delays = KnownDelays(
        parse_delay("20ms-80ms"), parse_delay("2ms-8ms"), chunks_per_write=1, seed=seed
    )
    return [delays.plan(4, 0)[1:] for _ in range(50)]


@pytest.mark.long
def test_one_seed_plans_the_same_delays_and_another_others_all_within_their_bounds() -> None:
    ttft_ns, itl_ns = np.array(plans(1)).T

    assert plans(1) == plans(1) != plans(2)
    assert 20e6 <= ttft_ns.min() < 30e6
    assert 70e6 < ttft_ns.max() <= 80e6
    assert 2e6 <= itl_ns.min() < 3e6
    assert 7e6 < itl_ns.max() <= 8e6


@pytest.mark.process
def test_a_request_came_when_the_kernel_had_it_however_late_the_server_reads_it() -> None:
    body = b'{"prompt":[1],"max_tokens":2}'
    head = b"POST /v1/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body)
    with truth_process() as server:
        port = int(server.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as connection:
            os.kill(server.pid, signal.SIGSTOP)
            sent_ns = time.monotonic_ns()
            connection.sendall(head + body)
            came_ns = time.monotonic_ns()
            time.sleep(0.2)
            os.kill(server.pid, signal.SIGCONT)
            while not connection.recv(65_536).endswith(b"0\r\n\r\n"):
                pass

    (request,) = server.served
    # Two clocks are read to bring the stamp to this one: a few microseconds, more when disturbed.
    assert sent_ns - 1_000_000 < request.arrived_ns < came_ns + 20_000_000
    assert request.written_ns[0] - sent_ns > 200_000_000


@pytest.mark.process
@pytest.mark.parametrize(
    "options", [("--ttft", "30ms", "--itl", "5ms"), (), ("--chunks-per-write", "3")]
)
def test_openai_s_own_client_reads_what_is_served_and_its_times_enclose_the_truth(
    options: tuple[str, ...],
) -> None:
    with truth_process(*options) as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        before_ns = time.monotonic_ns()
        chunks = list(
            client.completions.create(
                model=client.models.list().data[0].id,
                prompt=[1, 2, 3],
                max_tokens=8,
                stream=True,
                stream_options={"include_usage": True},
            )
        )
        after_ns = time.monotonic_ns()
        chat = list(
            client.chat.completions.create(
                model="known",
                messages=[{"role": "user", "content": "two words"}],
                max_completion_tokens=2,
                stream=True,
            )
        )

    (usage,) = [chunk.usage for chunk in chunks if chunk.usage]
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == " word" * 8
    assert (usage.prompt_tokens, usage.completion_tokens) == (3, 8)
    assert [chunk.choices[0].finish_reason for chunk in chat if chunk.choices] == [None, "length"]
    first, second = server.served
    assert (first.tokens, second.tokens) == (8, 2)
    assert before_ns < first.arrived_ns <= first.written_ns[0] <= first.written_ns[-1] < after_ns
    if options[:1] == ("--ttft",):
        # Its loop counts whole milliseconds and rounds: a chunk may be half of one early.
        planned_ms = 30 + 5 * np.arange(8)
        written_ms = (np.array(first.written_ns) - first.arrived_ns) / 1e6
        assert (written_ms >= planned_ms - 1).all()
