"""Replicas with roles: a prompt is computed by one, and decoded by another."""

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.errors import ConfigError
from serving.policy.rank_roles import RankRole
from serving.server.replicas.prompt_apart import held_kv, prompt_alone, with_kv
from serving.server.replicas.replica_roles import ReplicaRoles, parse_roles
from tests.e2e.server_process import HOST, free_port
from tests.serving.server.replicas.small_replicas import SmallReplica, made_text, small_service
from tests.serving.server.replicas.test_replica_service import (
    PATH,
    batch_of,
    body,
    in_loop,
    streamed,
)

P, D = RankRole.PREFILL, RankRole.DECODE
ROLES = "prefill=2,decode=2"


def asked_for(replica: SmallReplica) -> list[tuple[str, int, Any]]:
    """Prompts, tokens, and the engine that has the KV, or True where it is to be held."""
    return [
        (
            each["prompt"],
            each["max_tokens"],
            (params := each.get("kv_transfer_params") or {}).get("remote_engine_id")
            or params.get("do_remote_decode"),
        )
        for each in replica.answered
    ]


@pytest.mark.parametrize("streams", [False, True])
@in_loop
async def test_a_prompt_is_computed_by_one_replica_and_decoded_by_another(streams: bool) -> None:
    async with small_service(count=2, roles="prefill=1,decode=1") as service:
        if streams:
            text, _ = await streamed(service, prompt="a", seed=1)
        else:
            answer = await service.http.post(PATH, json=body(seed=1))
            assert answer.headers["x-ultraserve-replica"] == "1"
            text = answer.json()["choices"][0]["text"]

        assert text == made_text("a", 1, 40)
        prefills, decodes = service.replicas
        assert asked_for(prefills) == [("a", 1, True)]
        pushed_to = prefills.answered[0]["kv_transfer_params"]["push_to"]
        assert (pushed_to["port"], pushed_to["engine_id"]) == (decodes.kv_port, "replica-1")
        assert asked_for(decodes) == [("a", 40, "e0")]
        assert "stream" not in prefills.answered[0], "its only token goes nowhere"
        assert [each.load_tokens for each in service.live.all] == [0, 0]


@in_loop
async def test_round_robin_takes_turns_in_each_role() -> None:
    async with small_service(count=4, roles=ROLES, router="round-robin") as service:
        for _ in range(4):
            assert (await service.http.post(PATH, json=body())).status_code == 200
        assert [len(each.answered) for each in service.replicas] == [2, 2, 2, 2]


@pytest.mark.long
@in_loop
async def test_prompts_of_a_killed_replica_are_computed_by_another() -> None:
    async with small_service(count=4, roles=ROLES) as service:
        service.replicas[0].gap_s = service.replicas[1].gap_s = 0.3
        requests = [
            asyncio.create_task(service.http.post(PATH, json=body(prompt=f"p{number}", seed=2)))
            for number in range(6)
        ]
        await asyncio.sleep(0.15)
        assert [each.in_flight for each in service.live.all] == [3, 3, 0, 0]
        service.replicas[0].signal(signal.SIGKILL)

        for number, answer in enumerate(await asyncio.gather(*requests)):
            text = answer.json()["choices"][0]["text"]
            assert text == made_text(f"p{number}", 2, 40)
        decoded = [each for replica in service.replicas[2:] for each in asked_for(replica)]
        assert {(tokens, held) for _, tokens, held in decoded} == {(40, "e1")}
        assert len(decoded) == 6
        assert await service.replays() == {("whole", "lost"): 3}


@pytest.mark.long
@in_loop
async def test_streams_of_a_killed_replica_that_decodes_are_prefilled_again_and_go_on() -> None:
    async with small_service(count=4, roles=ROLES) as service:
        service.replicas[2].gap_s = service.replicas[3].gap_s = 0.02
        begun: list[str] = []
        streams = [
            asyncio.create_task(streamed(service, begun=begun, prompt=f"p{number}", seed=3))
            for number in range(4)
        ]
        async with asyncio.timeout(20.0):
            while len(begun) < 4:
                await asyncio.sleep(0.01)
        service.replicas[2].signal(signal.SIGKILL)
        texts = [text for text, _ in await asyncio.gather(*streams)]

        assert texts == [made_text(f"p{number}", 3, 40) for number in range(4)]
        prompts = [each for replica in service.replicas[:2] for each in asked_for(replica)]
        assert len(prompts) == 4 + 2, "two are computed again"
        assert len(asked_for(service.replicas[3])) == 4
        assert await service.metric("ultraserve_broken_streams_total") == 0


@pytest.mark.parametrize(("killed", "left"), [(0, 1), (1, 0)])
@in_loop
async def test_one_role_alone_does_all(killed: int, left: int) -> None:
    async with small_service(count=2, roles="prefill=1,decode=1") as service:
        service.replicas[killed].fails_to_start = True
        service.replicas[killed].signal(signal.SIGKILL)
        await service.ready(1)
        answer = await service.http.post(PATH, json=body(seed=1))

        assert answer.json()["choices"][0]["text"] == made_text("a", 1, 40)
        assert asked_for(service.replicas[left]) == [("a", 40, None)]


@pytest.mark.parametrize("is_reached", [False, True])
@in_loop
async def test_unread_kv_goes_to_another_replica(is_reached: bool) -> None:
    async with small_service(count=4, roles=ROLES) as service:
        if is_reached:
            service.replicas[2].refuses = 503
        else:
            service.live.all[2].url = f"http://{HOST}:{free_port()}"
        answer = await service.http.post(PATH, json=body(seed=1))

        assert answer.json()["choices"][0]["text"] == made_text("a", 1, 40)
        prompts = [each for replica in service.replicas[:2] for each in asked_for(replica)]
        assert prompts == [("a", 1, True)]
        assert asked_for(service.replicas[3]) == [("a", 40, "e0")]
        assert await service.replays() == {("whole", "unavailable"): 1}


@pytest.mark.parametrize("killed", [0, 1])
@in_loop
async def test_batches_go_on_where_one_role_does_all(tmp_path: Path, killed: int) -> None:
    async with small_service(count=2, roles="prefill=1,decode=1", batches=tmp_path) as service:
        service.replicas[killed].fails_to_start = True
        service.replicas[killed].signal(signal.SIGKILL)
        await service.ready(1)
        async with asyncio.timeout(20.0):
            async for batch in batch_of(service, 6):
                assert batch["status"] != "failed"
        assert len(service.replicas[1 - killed].answered) == 6


@in_loop
async def test_a_refusal_of_all_that_prefill_is_the_answer() -> None:
    async with small_service(count=2, roles="prefill=1,decode=1") as service:
        service.replicas[0].refuses = 429
        assert (await service.http.post(PATH, json=body())).status_code == 429
        assert not service.replicas[1].answered, "its prompts are for others"
        service.replicas[0].refuses = 400  # it is the one that decodes that says what is wrong
        assert (await service.http.post(PATH, json=body(seed=1))).status_code == 200
        assert asked_for(service.replicas[1]) == [("a", 40, None)]


@pytest.mark.parametrize(
    "more", [{"n": 2}, {"echo": True}, {"prompt": ["a", "b"]}, {"prompt_logprobs": 0}]
)
@in_loop
async def test_what_is_about_a_prompt_or_several_answers_stays_on_one_that_decodes(
    more: dict[str, Any],
) -> None:
    async with small_service(count=2, roles="prefill=1,decode=1") as service:
        assert (await service.http.post(PATH, json=body(**more))).status_code == 200
        assert not service.replicas[0].answered
        assert len(service.replicas[1].answered) == 1


@pytest.mark.long
@in_loop
async def test_only_the_router_says_where_kv_is() -> None:
    params = {"do_remote_prefill": True, "remote_host": "10.0.0.1", "remote_port": 22}
    async with small_service(count=2, roles="prefill=1,decode=1") as service:
        answer = await service.http.post(PATH, json=body(kv_transfer_params=params))
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "kv_transfer_params"
        assert not any(each.answered for each in service.replicas)
        assert (await service.http.post(PATH, json=body(kv_transfer_params=None))).is_success
        assert [len(each.answered) for each in service.replicas] == [1, 1]
    async with small_service() as service:
        assert (await service.http.post(PATH, json=body(kv_transfer_params=params))).is_success
        assert service.replicas[0].answered[0]["kv_transfer_params"] == params


def test_the_request_for_a_prompt_is_vllms_proxys() -> None:
    asked = {
        "messages": [{"role": "user", "content": "a"}],
        "max_completion_tokens": 9,
        "min_tokens": 4,
        "stream": True,
        "stream_options": {"include_usage": True},
        "seed": 3,
    }
    alone = prompt_alone("/v1/chat/completions", json.dumps(asked).encode())
    assert alone is not None
    assert json.loads(alone) == {
        "messages": asked["messages"],
        "max_completion_tokens": 1,
        "max_tokens": 1,
        "seed": 3,
        "kv_transfer_params": {"do_remote_decode": True},
    }


@given(
    st.binary(max_size=30)
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=2)
            | st.dictionaries(
                st.sampled_from(["prompt", "n", "max_tokens", "kv_transfer_params"]),
                inner,
                max_size=3,
            )
        ),
        max_leaves=6,
    ).map(lambda said: json.dumps(said).encode())
)
def test_whatever_comes_stays_whole_or_is_asked_for_one_token(said: bytes) -> None:
    alone = prompt_alone(PATH, said)
    if alone is not None:
        assert json.loads(alone)["max_tokens"] == 1
    held = held_kv(said)
    assert json.loads(with_kv(b"{}", held)).get("kv_transfer_params", {}) == held


def test_roles_are_of_the_replicas_in_their_order() -> None:
    assert parse_roles("prefill=1,decode=2", 3) == ReplicaRoles(first=(P, D, D))
    assert parse_roles("both=1, prefill=1", 2) == ReplicaRoles(first=(RankRole.BOTH, P))
    assert parse_roles(None, 2) is None


def test_roles_that_follow_the_load_begin_as_said_or_half() -> None:
    assert parse_roles("auto, prefill=1,decode=2", 3) == ReplicaRoles(
        first=(P, D, D), follow_load=True
    )
    assert parse_roles("auto", 5) == ReplicaRoles(first=(P, P, D, D, D), follow_load=True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("prefill=1,decode=1", "3 replicas in all"),
        ("prefill=3", "one that decodes"),
        ("decode=3", "one that prefills"),
        ("prefil=1,decode=2", "prefill=1,decode=2"),
        ("prefill=-1,decode=4", "prefill=1,decode=2"),
        ("prefill,decode=2", "prefill=1,decode=2"),
        ("prefill=1,decode=2,auto", "prefill=1,decode=2.*, after auto"),
        ("auto,prefill=1,both=2", "prefill and decode alone with auto"),
        ("auto,prefill=1,decode=1", "3 replicas in all"),
    ],
)
def test_roles_that_do_not_fit_are_refused(text: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=f"replica_roles={text}: expected .*{expected}"):
        parse_roles(text, 3)
