"""Replicas whose roles change while requests run: every request is answered, each token once."""

import asyncio
import signal
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from emulator.errors import ConfigError
from serving.policy.rank_roles import RankRole
from serving.server.replicas.role_changes import above_share
from tests.serving.server.replicas.small_replicas import SmallService, made_text, small_service
from tests.serving.server.replicas.test_replica_roles import asked_for
from tests.serving.server.replicas.test_replica_service import PATH, body, in_loop, streamed

P, D, BOTH = RankRole.PREFILL, RankRole.DECODE, RankRole.BOTH


def roles(service: SmallService) -> list[RankRole | None]:
    return [each.role for each in service.live.all]


def posted(service: SmallService, prompt: str, **more: Any) -> "asyncio.Task[str]":
    async def text() -> str:
        answer = await service.http.post(PATH, json=body(prompt=prompt, seed=1, **more))
        assert answer.status_code == 200, answer.text
        said: str = answer.json()["choices"][0]["text"]
        return said

    return asyncio.create_task(text())


async def until(service: SmallService, number: int, requests: int) -> None:
    """Until so many have come to a replica."""
    async with asyncio.timeout(20.0):
        while len(service.replicas[number].answered) < requests:
            await asyncio.sleep(0.005)


@pytest.mark.long
@in_loop
async def test_the_next_request_goes_by_the_new_role_and_what_runs_ends_where_it_is() -> None:
    async with small_service(count=3, roles="prefill=1,decode=2") as service:
        for each in service.replicas:
            each.gap_s = 0.01
        stream = asyncio.create_task(streamed(service, prompt="a", seed=1))
        await until(service, 1, 1)
        service.roles.change(1, P)
        assert roles(service) == [P, P, D]
        service.roles.change(0, D)
        answer = await service.http.post(PATH, json=body(prompt="b", seed=1))

        assert answer.json()["choices"][0]["text"] == made_text("b", 1, 40)
        assert (await stream)[0] == made_text("a", 1, 40)
        assert asked_for(service.replicas[1]) == [("a", 40, "e0"), ("b", 1, True)]
        assert await service.metric('ultraserve_replica_role_changes_total{replica="1"}') == 1
        assert await service.metric('ultraserve_replica_role{replica="1",role="prefill"}') == 1
        listed = (await service.http.get("/replicas")).json()["replicas"]
        assert [each["role"] for each in listed] == ["decode", "prefill", "decode"]
        assert await service.metric("ultraserve_broken_streams_total") == 0


@in_loop
async def test_kv_of_a_replica_that_prefills_no_more_is_read_by_another() -> None:
    async with small_service(count=3, roles="prefill=2,decode=1") as service:
        service.replicas[0].gap_s = 0.2
        request = posted(service, "a")
        await until(service, 0, 1)
        service.roles.change(0, D)

        assert await request == made_text("a", 1, 40)
        assert asked_for(service.replicas[0]) == [("a", 1, True)]
        assert asked_for(service.replicas[2]) == [("a", 40, "e0")]


@in_loop
async def test_the_holder_of_kv_does_not_read_it() -> None:
    async with small_service(count=2, roles="prefill=1,decode=1") as service:
        service.replicas[0].gap_s = 0.1
        request = posted(service, "a", tokens=2)
        await until(service, 0, 1)
        service.roles.change(0, BOTH)
        service.replicas[1].refuses = 429

        assert await request == made_text("a", 1, 2)
        assert asked_for(service.replicas[0]) == [("a", 1, True), ("a", 2, None)]


@in_loop
async def test_a_replica_that_prefills_reads_kv_where_none_decodes_any_more() -> None:
    async with small_service(count=3, roles="prefill=2,decode=1") as service:
        service.replicas[0].gap_s = 0.4
        request = posted(service, "a")
        await until(service, 0, 1)
        service.replicas[2].fails_to_start = True
        service.replicas[2].signal(signal.SIGKILL)
        await service.ready(2)

        assert await request == made_text("a", 1, 40)
        assert asked_for(service.replicas[1]) == [("a", 40, "e0")]


@in_loop
async def test_a_replica_that_refused_a_prompt_may_decode() -> None:
    async with small_service(count=3, roles="prefill=2,decode=1") as service:
        service.replicas[0].refuses = 429
        service.replicas[1].gap_s = 0.2
        request = posted(service, "a")
        await until(service, 1, 1)
        service.roles.change(0, D)
        service.replicas[0].refuses = None
        service.replicas[2].refuses = 429

        assert await request == made_text("a", 1, 40)
        assert asked_for(service.replicas[0]) == [("a", 40, "e1")]


@in_loop
async def test_where_roles_follow_the_load_no_replica_does_both() -> None:
    async with small_service(count=3, roles="auto,prefill=1,decode=2") as service:
        with pytest.raises(ConfigError, match="role=both: expected prefill or decode, as "):
            service.roles.change(1, BOTH)
        service.roles.change(1, P)
        assert roles(service) == [P, P, D]


@in_loop
async def test_the_last_replica_of_a_side_keeps_its_role() -> None:
    async with small_service(count=3, roles="prefill=1,decode=2") as service:
        with pytest.raises(ConfigError, match=r"role=decode: .*no other replica prefills"):
            service.roles.change(0, D)
        service.roles.change(2, P)
        with pytest.raises(ConfigError, match=r"role=prefill: .*no other replica decodes"):
            service.roles.change(1, P)
        service.roles.change(1, D)
        assert roles(service) == [P, D, P]
        assert [each.role_changes for each in service.live.all] == [0, 0, 1]


@pytest.mark.long
@in_loop
async def test_a_replica_that_starts_again_has_the_role_that_it_was_given() -> None:
    async with small_service(count=3, roles="prefill=1,decode=2") as service:
        service.replicas[2].signal(signal.SIGKILL)
        await service.ready(2)
        service.roles.change(2, P)
        await service.ready(3)
        answers = await asyncio.gather(*(posted(service, f"p{number}") for number in range(2)))
        assert answers == [made_text(f"p{number}", 1, 40) for number in range(2)]
        assert [len(each.answered) for each in service.replicas] == [1, 2, 1]


@pytest.mark.long
@pytest.mark.parametrize("router", ["least-loaded", "round-robin"])
@in_loop
async def test_prompts_that_wait_are_shared_with_a_replica_that_comes_to_prefill(
    router: str,
) -> None:
    async with small_service(count=3, roles="prefill=1,decode=2", router=router) as service:
        service.replicas[0].gap_s = 0.8
        requests = [posted(service, f"p{number}", tokens=2) for number in range(8)]
        await until(service, 0, 8)
        service.roles.change(1, P)

        assert await asyncio.gather(*requests) == [made_text(f"p{n}", 1, 2) for n in range(8)]
        moved = sorted(asked_for(service.replicas[1]))
        assert moved == [(f"p{number}", 1, True) for number in range(4, 8)], "the last half"
        assert service.replicas[0].cut_off == 4
        assert await service.replays() == {("whole", "shared"): 4}
        held = sorted(holder for _, _, holder in asked_for(service.replicas[2]))
        assert held == ["e0"] * 4 + ["e1"] * 4
        assert [each.load_tokens + each.prompt_tokens for each in service.live.all] == [0, 0, 0]


@pytest.mark.long
@in_loop
async def test_prompts_are_shared_with_a_replica_that_was_not_ready_for_its_role() -> None:
    async with small_service(count=3, roles="prefill=1,decode=2") as service:
        replica, one = service.replicas[1], service.live.all[1]
        replica.not_ready = "drained"
        service.live.distrust(one, "it is drained")
        service.replicas[0].gap_s = 0.8
        requests = [posted(service, f"p{number}", tokens=2) for number in range(8)]
        await until(service, 0, 8)
        service.roles.change(1, P)
        assert service.replicas[0].cut_off == 0
        replica.not_ready = None
        service.live.distrust(one, "asked again soon")

        assert await asyncio.gather(*requests) == [made_text(f"p{n}", 1, 2) for n in range(8)]
        moved = sorted(asked_for(replica))
        assert moved == [(f"p{number}", 1, True) for number in range(4, 8)]
        assert await service.replays() == {("whole", "shared"): 4}


@pytest.mark.long
@in_loop
async def test_two_bursts_with_nothing_between_are_no_load_that_lasts() -> None:
    async with small_service(
        count=3, roles="auto,prefill=1,decode=2", dilation=1.0, step_tokens=20
    ) as service:
        service.replicas[0].gap_s = 60.0
        for burst in (1, 2):
            requests = [posted(service, f"{number}" + 40 * "a") for number in range(9)]
            await until(service, 0, 9 * burst)
            await asyncio.sleep(0.3)
            for request in requests:
                request.cancel()
            await asyncio.wait(requests)
            await asyncio.sleep(0.9)
        assert [each.role_changes for each in service.live.all] == [0, 0, 0]


@pytest.mark.long
@in_loop
async def test_roles_follow_the_load_there_and_back() -> None:
    async with small_service(
        count=3, roles="auto,prefill=1,decode=2", dilation=0.1, step_tokens=20
    ) as service:
        service.replicas[0].gap_s = 1.0
        requests = [posted(service, f"{number}" + 40 * "a", tokens=2) for number in range(9)]
        async with asyncio.timeout(20.0):
            while roles(service) != [P, P, D]:
                await asyncio.sleep(0.01)
        assert service.live.all[0].in_flight, "while its prompts wait"
        texts = await asyncio.gather(*requests)
        assert texts == [made_text(f"{number}" + 40 * "a", 1, 2) for number in range(9)]
        assert asked_for(service.replicas[1]), "it has had a share"

        for each in service.replicas:
            each.gap_s = 0.05
        text, _ = await streamed(service, prompt="b", seed=1)  # 14 pieces or more
        assert text == made_text("b", 1, 40)
        assert roles(service) == [P, D, D]
        assert [each.role_changes for each in service.live.all] == [0, 2, 0]


@pytest.mark.long
@in_loop
async def test_no_role_changes_while_there_is_no_request() -> None:
    async with small_service(count=3, roles="auto,prefill=2,decode=1", dilation=0.02) as service:
        await asyncio.sleep(0.3)
        assert roles(service) == [P, P, D]
        service.replicas[2].gap_s = 0.02
        await streamed(service, prompt="b", seed=1)
        assert roles(service) == [P, D, D]


@pytest.mark.long
@in_loop
async def test_a_lost_side_is_made_anew_from_the_other() -> None:
    async with small_service(
        count=3, roles="auto,prefill=1,decode=2", dilation=0.1, step_tokens=1
    ) as service:
        service.replicas[0].fails_to_start = True
        service.replicas[0].signal(signal.SIGKILL)
        await service.ready(2)
        for each in service.replicas:
            each.gap_s = 0.02
        texts = await asyncio.gather(*(posted(service, f"p{number}") for number in range(4)))
        assert texts == [made_text(f"p{number}", 1, 40) for number in range(4)]
        assert roles(service) == [P, P, D]


Action = tuple[str, int, RankRole]

ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["ask", "ask", "stream", "stream", "change", "change", "kill", "wait"]),
        st.integers(0, 3),
        st.sampled_from([P, D, BOTH]),
    ),
    min_size=8,
    max_size=24,
)


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(["", "auto,"]), ACTIONS)
def test_whatever_changes_and_dies_each_request_is_answered_once(
    policy: str, actions: list[Action]
) -> None:
    asyncio.run(_play(f"{policy}prefill=2,decode=2", actions))


async def _play(asked: str, actions: Sequence[Action]) -> None:
    async with small_service(count=4, roles=asked, dilation=0.05, step_tokens=4) as service:
        for each in service.replicas:
            each.gap_s = 0.004
        answers: list[asyncio.Task[Any]] = []
        kills = 0
        for number, (action, replica, role) in enumerate(actions):
            prompt = f"p{number}"
            if action == "ask":
                answers.append(posted(service, prompt))
            elif action == "stream":
                answers.append(asyncio.create_task(_text(service, prompt)))
            elif action == "change":
                _change(service, replica, role)
            elif action == "kill" and kills < 2:  # a third loss of one request is its own fault
                kills += 1
                service.replicas[replica].signal(signal.SIGKILL)
            else:
                await asyncio.sleep(0.02)
            _check_sides(service)
        made = [n for n, (action, _, _) in enumerate(actions) if action in ("ask", "stream")]
        assert await asyncio.gather(*answers) == [made_text(f"p{n}", 1, 40) for n in made]
        _check_sides(service)
        for each in service.live.all:
            held = (each.in_flight, each.load_tokens, each.prompt_tokens, each.decodes)
            assert (*held, len(each.prompts)) == (0, 0, 0, 0, 0)
        assert await service.metric("ultraserve_broken_streams_total") == 0


async def _text(service: SmallService, prompt: str) -> str:
    return (await streamed(service, prompt=prompt, seed=1))[0]


def _change(service: SmallService, number: int, role: RankRole) -> None:
    before = roles(service)
    try:
        service.roles.change(number, role)
    except ConfigError:
        assert roles(service) == before


def _check_sides(service: SmallService) -> None:
    assert {P, BOTH} & set(roles(service))
    assert {D, BOTH} & set(roles(service))


@given(st.lists(st.lists(st.integers(1, 50), max_size=8), min_size=1, max_size=5))
def test_no_replica_gives_away_more_than_is_above_its_share(held: list[list[int]]) -> None:
    share = sum(map(sum, held)) / len(held)
    for prompts, count in zip(held, above_share(held), strict=True):
        left = prompts[: len(prompts) - count]
        assert not count or sum(left) >= share
        assert not left or sum(left[:-1]) < share, "no more could go"


def test_the_first_of_a_replicas_prompts_stay() -> None:
    assert above_share([[5, 1, 1, 1], []]) == [3, 0]
    assert above_share([[8], []]) == [0, 0], "one is not cut"
    assert above_share([[2, 2], [2, 2], [2, 2, 2, 2]]) == [0, 0, 1]
