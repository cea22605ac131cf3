"""A service of replicas over HTTP: nothing accepted is lost, and keys and limits hold once."""

import asyncio
import gc
import json
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import wraps
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from serving.access.secret import draw_secret, hash_of
from serving.errors import ServerFailed
from serving.server.replicas import live_replicas
from serving.server.replicas.live_replica import LiveReplica
from serving.server.replicas.live_replicas import LiveReplicas
from tests.serving.server.replicas.small_replicas import (
    PROMPT_TOKENS,
    SmallReplica,
    SmallService,
    made_text,
    small_service,
)
from tests.serving.server.replicas.test_replica_choice import replica

PATH = "/v1/completions"
TOKENS = 40


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*args: Any, **named: Any) -> None:
        asyncio.run(test(*args, **named))

    return run


def body(prompt: Any = "a", tokens: int = TOKENS, **more: Any) -> dict[str, Any]:
    return {"model": "small", "prompt": prompt, "max_tokens": tokens, **more}


async def streamed(
    service: SmallService, *, begun: list[str] | None = None, **asked: Any
) -> tuple[str, list[dict[str, Any]]]:
    """The text of a stream, and its events; its prompt is added to `begun` at the first."""
    events: list[dict[str, Any]] = []
    async with service.http.stream("POST", PATH, json=body(stream=True, **asked)) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                events.append(json.loads(line[6:]))
                if begun is not None and len(events) == 1:
                    begun.append(asked["prompt"])
    choices = [choice for event in events for choice in event.get("choices", [])]
    return "".join(choice["text"] for choice in choices), events


@pytest.mark.long
def test_replicas_that_end_before_they_are_watched_leave_no_watch_behind(
    recwarn: pytest.WarningsRecorder,
) -> None:
    async def use() -> None:
        async with aiohttp.ClientSession() as session:
            processes: Any = [SmallReplica(0)]
            live = LiveReplicas([replica(0).place], processes, session, router="round-robin")
            live.start()
            await live.stop(at_once=True)

    asyncio.run(use())
    gc.collect()
    assert [str(each.message) for each in recwarn] == []


async def batch_of(service: SmallService, count: int) -> AsyncIterator[dict[str, Any]]:
    """A batch of so many requests, now and then until it is completed."""
    lines = [
        {"custom_id": f"c{n}", "method": "POST", "url": PATH, "body": body(f"p{n}", seed=n)}
        for n in range(count)
    ]
    file = ("in.jsonl", "\n".join(map(json.dumps, lines)))
    said = await service.http.post("/v1/files", files={"file": file}, data={"purpose": "batch"})
    asked = {"input_file_id": said.json()["id"], "endpoint": PATH, "completion_window": "24h"}
    batch = (await service.http.post("/v1/batches", json=asked)).json()
    async with asyncio.timeout(60.0):
        while batch["status"] != "completed":
            await asyncio.sleep(0.05)
            batch = (await service.http.get(f"/v1/batches/{batch['id']}")).json()
            yield batch


@pytest.mark.long
@pytest.mark.parametrize("asked", [{"seed": 3}, {"temperature": 0}, {}])
@in_loop
async def test_streams_of_a_killed_replica_go_on_and_each_token_comes_once(
    asked: dict[str, Any],
) -> None:
    async with small_service() as service:
        for each in service.replicas:
            each.gap_s = 0.02
        begun: list[str] = []
        streams = [
            asyncio.create_task(streamed(service, begun=begun, prompt=f"p{number}", **asked))
            for number in range(8)
        ]
        async with asyncio.timeout(20.0):
            while len(begun) < 8:
                await asyncio.sleep(0.01)
        assert service.live.all[0].in_flight == service.live.all[1].in_flight == 4
        service.replicas[0].signal(signal.SIGKILL)
        ended = await asyncio.gather(*streams)

        seeds = {each["prompt"]: each.get("seed") for each in service.replicas[1].answered}
        assert len(seeds) == 8
        for number, (text, events) in enumerate(ended):
            assert text == made_text(f"p{number}", seeds[f"p{number}"], TOKENS)
            assert len({(event["id"], event["created"]) for event in events}) == 1
            assert events[-1]["choices"][0]["finish_reason"] == "length"
            assert events[-1]["system_fingerprint"] == "v1"
            assert all("usage" not in event for event in events)
        assert [each.fingerprint for each in service.live.all] == ["", "v1"]
        assert await service.replays() == {("begun", "lost"): 4}
        assert await service.metric('ultraserve_replica_lost_requests_total{replica="0"}') == 4
        assert await service.metric("ultraserve_broken_streams_total") == 0
        assert [each.load_tokens for each in service.live.all] == [0, 0]


@pytest.mark.long
@in_loop
async def test_a_replica_that_has_ended_is_started_again_and_used() -> None:
    async with small_service() as service:
        service.replicas[0].signal(signal.SIGKILL)
        await service.ready(1)
        await service.ready(2)

        assert service.replicas[0].starts == 2
        answers = [(await service.http.post(PATH, json=body(tokens=2))) for _ in range(2)]
        assert [answer.headers["x-ultraserve-replica"] for answer in answers] == ["0", "0"]
        assert await service.metric('ultraserve_replica_restarts_total{replica="0"}') == 1


@pytest.mark.long
@in_loop
async def test_a_request_that_is_not_streamed_is_answered_by_another() -> None:
    async with small_service() as service:
        service.replicas[0].gap_s = 0.05
        request = asyncio.create_task(service.http.post(PATH, json=body(seed=1)))
        await asyncio.sleep(0.1)
        service.replicas[0].signal(signal.SIGKILL)
        answer = await request

        assert answer.status_code == 200
        assert answer.headers["x-ultraserve-replica"] == "1"
        assert answer.json()["choices"][0]["text"] == made_text("a", 1, TOKENS)


@pytest.mark.long
@in_loop
async def test_a_stream_that_nothing_decides_is_broken_off_with_an_error() -> None:
    async with small_service() as service:
        service.replicas[0].gap_s = 0.02
        stream = asyncio.create_task(streamed(service, prompt=["a", "a"]))
        await asyncio.sleep(0.1)
        service.replicas[0].signal(signal.SIGKILL)
        text, events = await stream

        assert 0 < len(text) < TOKENS
        assert events[-1]["error"]["code"] == "replica_lost"
        assert await service.metric("ultraserve_broken_streams_total") == 1
        failed = 'ultraserve_admission_requests_total{class="interactive",outcome="failed"}'
        assert await service.metric(failed) == 1


@pytest.mark.long
@in_loop
async def test_a_refusal_is_the_answer_when_all_refuse() -> None:
    async with small_service() as service:
        service.replicas[0].refuses = 429
        assert (await service.http.post(PATH, json=body())).status_code == 200
        assert await service.replays() == {("whole", "refused"): 1}
        service.replicas[1].refuses = 429
        answer = await service.http.post(PATH, json=body())

        assert answer.status_code == 429
        assert await service.replays() == {("whole", "refused"): 3}, "attempts"
        assert answer.json()["error"]["message"] == "refused by 1"


@in_loop
async def test_a_drained_replica_gets_nothing_and_loses_nothing() -> None:
    async with small_service() as service:
        service.replicas[0].refuses = 503
        service.replicas[0].not_ready = "the server is drained"
        answers = [await service.http.post(PATH, json=body(tokens=2)) for _ in range(3)]

        assert [answer.headers["x-ultraserve-replica"] for answer in answers] == ["1"] * 3
        listed = (await service.http.get("/replicas")).json()["replicas"]
        assert [each["state"] for each in listed] == ["not ready", "ready"]
        assert listed[0]["lost_requests"] == 0


@pytest.mark.parametrize("turns", range(4))
@in_loop
async def test_a_service_ends_while_it_comes_to_doubt_a_replica(turns: int) -> None:
    async with small_service() as service:
        service.live.distrust(service.live.all[0], "a request was lost")
        for _ in range(turns):
            await asyncio.sleep(0)
        async with asyncio.timeout(5.0):
            await service.live.stop(at_once=True)


@pytest.mark.long
@in_loop
async def test_replicas_that_say_they_are_ready_and_refuse_are_asked_now_and_then() -> None:
    async with small_service() as service:
        for each in service.replicas:
            each.refuses = 503
        request = asyncio.create_task(service.http.post(PATH, json=body(tokens=2)))
        await asyncio.sleep(1.3)
        assert sum(each.requests for each in service.live.all) < 8
        service.replicas[1].refuses = None

        assert (await request).status_code == 200


@pytest.mark.long
@in_loop
async def test_a_replica_that_no_longer_answers_is_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live_replicas, "ANSWER_WITHIN_S", 0.1)
    monkeypatch.setattr(live_replicas, "DOUBT_S_MAX", 0.1)
    monkeypatch.setattr(live_replicas, "SILENT_S_MAX", 0.4)
    monkeypatch.setattr(live_replicas, "LOOK_EVERY_S", 0.05)
    async with small_service() as service:
        service.replicas[0].is_silent = True
        await service.ready(1)
        async with asyncio.timeout(10.0):
            while service.replicas[0].starts < 2:
                await asyncio.sleep(0.02)


@pytest.mark.long
@in_loop
async def test_streams_of_a_replica_whose_engine_hangs_go_on_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live_replicas, "LOOK_EVERY_S", 0.05)
    monkeypatch.setattr(live_replicas, "ENGINE_LOOK_EVERY_S", 0.05)
    monkeypatch.setattr(live_replicas, "ENGINE_DOUBT_S_MAX", 0.3)
    async with small_service(silence_s_max=1.0) as service:
        for each in service.replicas:
            each.gap_s = 0.02
        begun: list[str] = []
        streams = [
            asyncio.create_task(streamed(service, begun=begun, prompt=f"p{number}", seed=number))
            for number in range(4)
        ]
        async with asyncio.timeout(20.0):
            while len(begun) < 4:
                await asyncio.sleep(0.01)
        service.replicas[0].hung_s = time.monotonic()
        await service.ready(1)
        assert "no answer of its engine" in service.live.all[0].reason
        for number, (text, _) in enumerate(await asyncio.gather(*streams)):
            assert text == made_text(f"p{number}", number, TOKENS)
        await service.ready(2)
        assert service.replicas[0].starts == 2


@pytest.mark.slow
@in_loop
async def test_of_two_hundred_streams_at_once_none_is_lost_with_replicas_that_are_killed() -> None:
    async with small_service(count=3) as service:
        service.http.timeout = 60.0
        for each in service.replicas:
            each.gap_s = 0.03
        begun: list[str] = []
        streams = [
            asyncio.create_task(streamed(service, begun=begun, prompt=f"p{number}", seed=number))
            for number in range(200)
        ]
        for killed in (0, 1):
            wanted = 60 * (killed + 1)
            async with asyncio.timeout(40.0):
                while len(begun) < wanted:
                    await asyncio.sleep(0.01)
            service.replicas[killed].signal(signal.SIGKILL)
        for number, (text, events) in enumerate(await asyncio.gather(*streams)):
            assert text == made_text(f"p{number}", number, TOKENS)
            assert events[-1]["choices"][0]["finish_reason"] == "length"
        assert await service.metric("ultraserve_broken_streams_total") == 0
        assert [each.load_tokens for each in service.live.all] == [0, 0, 0]


@pytest.mark.long
@in_loop
async def test_a_slow_reader_gets_the_whole_text_though_its_replica_is_killed() -> None:
    async with small_service() as service:
        sent = body(tokens=3_000, stream=True, seed=1)
        text, killed = "", False
        async with service.http.stream("POST", PATH, json=sent, timeout=60.0) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    text += "".join(each["text"] for each in json.loads(line[6:])["choices"])
                if len(text) < 200:
                    await asyncio.sleep(0.01)
                elif not killed:
                    killed = True
                    service.replicas[0].signal(signal.SIGKILL)
        assert text == made_text("a", 1, 3_000)


@pytest.mark.long
@in_loop
async def test_a_batch_is_answered_by_all_replicas_and_once_though_one_is_killed(
    tmp_path: Path,
) -> None:
    async with small_service(batches=tmp_path) as service:
        for each in service.replicas:
            each.gap_s = 0.005
        killed = False
        async for batch in batch_of(service, 60):
            if not killed and batch["request_counts"]["completed"] >= 10:
                killed = True
                assert all(each.requests for each in service.live.all)
                service.replicas[0].signal(signal.SIGKILL)
        output = await service.http.get(f"/v1/files/{batch['output_file_id']}/content")
        answers = [json.loads(line) for line in output.text.splitlines()]
        assert {
            each["custom_id"]: each["response"]["body"]["choices"][0]["text"] for each in answers
        } == {f"c{n}": made_text(f"p{n}", n, TOKENS) for n in range(60)}
        assert len(answers) == 60
        assert service.replicas[1].answered[0]["class"] == "batch"
        assert await service.metric('ultraserve_batch_requests_total{outcome="completed"}') == 60


@pytest.mark.long
@in_loop
async def test_one_key_and_its_limits_hold_for_all_replicas(tmp_path: Path) -> None:
    secret, file = draw_secret(), tmp_path / "keys.toml"
    file.write_text(
        f'[[key]]\nname = "alice"\nhash = "{hash_of(secret)}"\n'
        "concurrent = 2\ntokens_per_minute = 600\n"
    )
    file.chmod(0o600)
    async with small_service(key_file=file) as service:
        assert (await service.http.post(PATH, json=body())).status_code == 401
        assert (await service.http.get("/metrics")).status_code == 401
        service.http.headers["Authorization"] = f"Bearer {secret}"
        for each in service.replicas:
            each.gap_s = 0.05
        two = [asyncio.create_task(streamed(service, prompt=str(n))) for n in range(2)]
        async with asyncio.timeout(20.0):
            while [each.in_flight for each in service.live.all] != [1, 1]:
                await asyncio.sleep(0.01)
        third = await service.http.post(PATH, json=body())
        assert (third.status_code, third.json()["error"]["code"]) == (429, "concurrent")
        await asyncio.gather(*two)

        answer = await service.http.post(PATH, json=body(tokens=1))
        used = 600 - int(answer.headers["x-ratelimit-remaining-tokens"])
        counted = 2 * (PROMPT_TOKENS + TOKENS)  # by the replicas; 5 a second come back
        assert counted - 15 < used <= counted + 3
        assert service.replicas[0].answered[0]["class"] == "interactive"


@pytest.mark.long
@in_loop
async def test_a_client_that_goes_is_gone_for_its_replica() -> None:
    async with small_service() as service:
        service.replicas[0].gap_s = 0.05
        stream = asyncio.create_task(streamed(service))
        await asyncio.sleep(0.2)
        stream.cancel()
        async with asyncio.timeout(5.0):
            while not service.replicas[0].cut_off:
                await asyncio.sleep(0.01)

        assert service.live.all[0].load_tokens == 0
        aborted = 'ultraserve_admission_requests_total{class="interactive",outcome="aborted"}'
        assert await service.metric(aborted) == 1


@in_loop
async def test_pages_are_of_the_service_and_of_all_replicas() -> None:
    async with small_service() as service:
        page = (await service.http.get("/metrics")).text

        assert 'vllm:steps_total{replica="0",engine="0"} 1.0' in page
        assert 'vllm:steps_total{replica="1",engine="0"} 2.0' in page
        assert page.count("# TYPE vllm:steps_total counter") == 1
        assert "9.0" not in page  # the gateway's families are the service's
        assert (await service.http.get("/v1/models/small")).json() == {"id": "small"}
        assert (await service.http.get("/readyz")).status_code == 200
        assert (await service.http.post("/replicas")).status_code == 405


@pytest.mark.long
@in_loop
async def test_without_a_ready_replica_a_request_is_refused() -> None:
    async with small_service() as service:
        for each in service.replicas:
            each.not_ready = "it sleeps"
        await service.ready(0)
        answer = await service.http.post(PATH, json=body())

        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_rank_up")
        assert "it sleeps" in (await service.http.get("/readyz")).text
        assert (await service.http.get("/v1/models")).status_code == 503


@pytest.mark.long
@in_loop
async def test_a_signal_lets_what_runs_end_and_nothing_new_begin() -> None:
    async with small_service(drain_wall_s_max=10.0) as service:
        service.replicas[0].gap_s = 0.02
        stream = asyncio.create_task(streamed(service, seed=1))
        await asyncio.sleep(0.1)
        signal.raise_signal(signal.SIGTERM)
        await asyncio.sleep(0.05)
        refused = await service.http.post(PATH, json=body())
        text, _ = await stream

        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        assert text == made_text("a", 1, TOKENS)
        assert await asyncio.wait_for(service.running, 10.0) == 0


@in_loop
async def test_a_service_whose_first_start_fails_says_so() -> None:
    async with small_service(ready=False) as service:
        for each in service.replicas:
            each.fails_to_start = True
        with pytest.raises(ServerFailed, match=r"replica . ended with code -9 before it was ready"):
            await asyncio.wait_for(service.running, 10.0)


@in_loop
async def test_a_service_with_a_replica_that_nobody_watches_ends_and_says_so() -> None:
    async def broken(_: LiveReplica) -> str:
        raise ValueError("two and three")

    async with small_service(ready=False) as service:
        service.live.prepare = broken
        with pytest.raises(ServerFailed, match="not watched any more: ValueError: two and three"):
            await asyncio.wait_for(service.running, 10.0)


@pytest.mark.long
@in_loop
async def test_time_in_which_a_replica_is_prepared_is_no_silence_of_its_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live_replicas, "LOOK_EVERY_S", 0.02)
    monkeypatch.setattr(live_replicas, "ENGINE_LOOK_EVERY_S", 0.1)

    async def slow(_: LiveReplica) -> str:
        await asyncio.sleep(1.0)
        return ""

    async with small_service(ready=False, silence_s_max=0.5) as service:
        service.live.prepare = slow
        await service.ready(2)
        await asyncio.sleep(0.3)
        assert [each.starts for each in service.replicas] == [1, 1]
