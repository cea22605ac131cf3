"""Ranks that prefill send requests on with their KV: no text changes, nothing is lost or kept."""

from typing import Any

import numpy as np
import pytest
from vllm.v1.engine import FinishReason
from vllm.v1.request import RequestStatus

from serving.policy import kv_in_flight
from serving.policy.rank_roles import RankRole
from tests.serving.plugin.engine_config import BLOCK_TOKENS
from tests.serving.plugin.lockstep_machine import (
    Machine,
    expected_tokens,
    long_arrival,
    rank_of,
)
from tests.serving.plugin.lockstep_workload import random_workload


def machine(ranks: int = 2, prefill_ranks: int | str = 1, **arguments: Any) -> Machine:
    return Machine(ranks, prefill_ranks=prefill_ranks, **arguments)


def test_a_request_goes_on_with_its_first_token_and_its_kv_is_not_computed_again() -> None:
    one, moves = long_arrival("one", 20), machine()
    moves.scheduler.add_request(one.request())
    assert rank_of(moves, "one") == 0

    (transfer,) = moves.step().state.kv_transfers
    assert (transfer.with_step, transfer.is_last) == (True, True), "layers go as they are computed"
    assert (transfer.from_rank, transfer.to_rank, transfer.tokens) == (0, 1, 20)
    assert len(transfer.from_blocks) == len(transfer.to_blocks) == 2
    assert moves.received["one"] == expected_tokens(one)[:1], "the prefilling rank's token"
    assert rank_of(moves, "one") == 1

    decoded = moves.step()
    assert [output.num_scheduled_tokens for output in decoded.by_rank] == [{}, {"one": 1}]
    (new,) = decoded.by_rank[1].scheduled_new_reqs
    assert new.num_computed_tokens == 20
    moves.finish()
    assert moves.received["one"] == expected_tokens(one)


def test_ranks_that_decode_go_on_while_kv_is_on_its_way() -> None:
    moves = machine(transfer_steps=3)
    early, late = long_arrival("early", 20), long_arrival("late", 40)
    moves.scheduler.add_request(early.request())
    for _ in range(6):
        moves.step()
    moves.scheduler.add_request(late.request())
    moves.step()
    for _ in range(3):
        assert moves.step().num_scheduled_tokens == {"early": 1}
    assert moves.step().num_scheduled_tokens == {"early": 1, "late": 1}
    moves.finish()
    assert moves.received == {each.name: expected_tokens(each) for each in (early, late)}


def test_what_the_next_rank_has_in_its_cache_does_not_cross_the_links() -> None:
    moves = machine()
    one, same = long_arrival("one", 50), long_arrival("two", 50)
    moves.scheduler.add_request(one.request())
    moves.finish()
    assert moves.sent_tokens == 50

    again = same.request()
    again.prompt_token_ids[:] = list(one.prompt)
    again._all_token_ids[:] = list(one.prompt)
    again.block_hashes = []
    again.update_block_hashes()
    moves.scheduler.add_request(again)
    moves.finish()
    assert moves.sent_tokens == 50 + 50 - 3 * BLOCK_TOKENS


def test_a_chunk_of_a_prompt_goes_while_the_next_is_computed() -> None:
    moves = machine(transfer_steps=1)
    one = long_arrival("one", 150)
    moves.scheduler.add_request(one.request())
    begun = [each for _ in range(3) for each in moves.step().state.kv_transfers]
    assert [(each.tokens, each.is_last) for each in begun] == [
        (64, False),
        (64, False),
        (22, True),
    ]
    assert moves.sent_tokens == 2 * 64, "before the prompt's last token is computed"
    moves.finish()
    assert moves.received["one"] == expected_tokens(one)
    assert moves.sent_tokens == 150


def test_a_request_whose_first_token_is_its_last_sends_nothing() -> None:
    moves = machine()
    moves.scheduler.add_request(long_arrival("one", max_tokens=1).request())
    moves.finish()
    assert not moves.sent_tokens


@pytest.mark.parametrize("tokens_max", [1, 30, 70])
def test_what_may_not_go_yet_goes_later_and_no_more_is_ever_on_its_way(
    monkeypatch: pytest.MonkeyPatch, tokens_max: int
) -> None:
    token_bytes = 2 * 4  # of `kv_pool`: a key and a value of one float
    monkeypatch.setattr(kv_in_flight, "KV_IN_FLIGHT_BYTES_MAX", tokens_max * token_bytes)
    moves = machine(transfer_steps=2)
    arrivals = [long_arrival(name, 40) for name in ("one", "two", "three", "four")]
    for arrival in arrivals:
        moves.scheduler.add_request(arrival.request())
    while moves.scheduler.has_requests():
        moves.step()
        on_way = [each.tokens for _, each in moves.sending]
        assert sum(on_way) <= tokens_max or len(on_way) == 1
    assert moves.received == {each.name: expected_tokens(each) for each in arrivals}
    assert moves.sent_tokens == 4 * 40


def test_a_request_without_room_waits_and_its_first_rank_keeps_its_blocks() -> None:
    moves = machine(blocks=12)  # 11 of 16 tokens
    big, next_one = long_arrival("big", 100, max_tokens=40), long_arrival("next", 80)
    moves.scheduler.add_request(big.request())
    for _ in range(5):
        moves.step()
    moves.scheduler.add_request(next_one.request())
    for _ in range(4):
        moves.step()
    first, second = (rank.kv_cache_manager.block_pool for rank in moves.scheduler.ranks)
    assert rank_of(moves, "next") == 1
    assert len(moves.received["next"]) == 1
    assert first.get_num_free_blocks() == 11 - 5, "held"
    assert second.get_num_free_blocks() == 4, "no room"
    moves.finish()
    assert moves.received == {each.name: expected_tokens(each) for each in (big, next_one)}


def test_a_cancelled_request_frees_the_blocks_of_both_ranks() -> None:
    moves = machine(transfer_steps=2)
    moves.scheduler.add_request(long_arrival("computes", 120).request())
    moves.step()
    assert [each.request_id for _, each in moves.sending] == ["computes"]
    moves.scheduler.finish_requests("computes", RequestStatus.FINISHED_ABORTED)
    moves.scheduler.add_request(long_arrival("travels").request())
    moves.step()
    assert rank_of(moves, "travels") == 1
    moves.scheduler.finish_requests("travels", RequestStatus.FINISHED_ABORTED)
    assert moves.scheduler.has_requests(), "the blocks that are written are not free yet"
    moves.finish()
    for rank in moves.scheduler.ranks:
        pool = rank.kv_cache_manager.block_pool
        assert pool.get_num_free_blocks() == pool.num_gpu_blocks - 1
        assert not rank.requests
    assert not moves.scheduler._places


@pytest.mark.parametrize("lost", [0, 1, 2])
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_rank_that_is_lost_at_any_moment_loses_no_token(lost: int, steps: int) -> None:
    moves = machine(3, transfer_steps=2)
    arrivals = [long_arrival(name, 30) for name in ("one", "two")]
    for arrival in arrivals:
        moves.scheduler.add_request(arrival.request())
    for _ in range(steps):
        moves.step()
    moves.step(lost=(lost,), up=(True, True, True))
    moves.finish()
    assert moves.received == {each.name: expected_tokens(each) for each in arrivals}
    assert set(moves.ended.values()) <= {FinishReason.LENGTH, FinishReason.STOP}


def test_without_a_rank_that_decodes_prefilling_ranks_decode() -> None:
    moves = machine()
    moves.step(lost=(1,))
    one = long_arrival("one")
    moves.scheduler.add_request(one.request())
    for _ in range(5):
        moves.step()
    assert rank_of(moves, "one") == 0
    moves.step(up=(True, True))
    assert rank_of(moves, "one") == 1
    moves.finish()
    assert moves.received["one"] == expected_tokens(one)
    assert moves.sent_tokens == 20 + 5


def test_without_a_rank_that_prefills_the_others_take_requests() -> None:
    moves = machine()
    moves.step(lost=(0,))
    one = long_arrival("one")
    moves.scheduler.add_request(one.request())
    assert rank_of(moves, "one") == 1
    moves.finish()
    assert moves.received["one"] == expected_tokens(one)


def test_kv_goes_to_ranks_with_the_weights_that_made_it_and_to_no_other() -> None:
    moves = machine(3)
    one = long_arrival("one")
    moves.scheduler.add_request(one.request())
    moves.step(weights=("old", "new", "old"))
    assert rank_of(moves, "one") == 2
    two = long_arrival("two")
    moves.scheduler.add_request(two.request())
    moves.step(weights=("old", "new", "new"))
    assert rank_of(moves, "two") == 0
    moves.finish()
    assert moves.received["two"] == expected_tokens(two)


def test_requests_that_vllm_could_not_load_stay_where_they_are() -> None:
    moves = machine()
    scored = long_arrival("scored").request()
    assert scored.sampling_params is not None
    scored.sampling_params.prompt_logprobs = 1
    scored.skip_reading_prefix_cache = True
    moves.scheduler.add_request(scored)
    moves.step()
    moves.step()
    assert rank_of(moves, "scored") == 0


def test_the_caches_are_not_emptied_while_kv_is_held() -> None:
    moves = machine(transfer_steps=1)
    moves.scheduler.add_request(long_arrival("one").request())
    moves.step()
    assert not moves.scheduler.reset_prefix_cache(reset_running_requests=True)
    moves.finish()
    assert moves.scheduler.reset_prefix_cache()


@pytest.mark.long
@pytest.mark.parametrize("prefill_policy", ["none", "balanced:4:32:64", "staggered:2"])
@pytest.mark.parametrize("prefill_ranks", [1, 2])
def test_a_random_workload_has_the_same_text_with_losses(
    prefill_policy: str, prefill_ranks: int
) -> None:
    moves = Machine(
        4,
        blocks=30,
        transfer_steps=1,
        prefill_ranks=prefill_ranks,
        prefill_policy=prefill_policy,
    )
    rng = np.random.default_rng(1)
    arrivals = {}
    aborted: set[str] = set()
    for turn in random_workload(3, turns=60, rate=0.8):
        for arrival in turn.arrivals:
            arrivals[arrival.name] = arrival
            moves.scheduler.add_request(arrival.request())
        gone = moves.scheduler.finish_requests(
            [*turn.aborts, *turn.late_aborts], RequestStatus.FINISHED_ABORTED
        )
        aborted |= {request.request_id for request in gone}
        lost = (int(rng.integers(4)),) if rng.random() < 0.1 else ()
        moves.step(lost=lost, up=(True,) * 4)
    moves.finish()
    assert moves.sent_tokens > 0
    for name in arrivals.keys() - aborted:
        assert moves.received[name] == expected_tokens(arrivals[name]), name


def test_a_rank_that_prefills_no_more_keeps_no_blocks_elsewhere_for_what_it_has_begun() -> None:
    moves = machine(ranks=3)
    one = long_arrival("one", 150)
    moves.scheduler.add_request(one.request())
    moves.step()
    next_rank, other = (1, 2) if moves.scheduler.ranks[1].kv_cache_manager.usage else (2, 1)
    pool = moves.scheduler.ranks[next_rank].kv_cache_manager.block_pool
    assert pool.num_gpu_blocks - 1 - pool.get_num_free_blocks() == 10, "kept for all 150 tokens"

    swapped = ((other, RankRole.PREFILL), (0, RankRole.DECODE))
    moves.step(role_changes=swapped)
    moves.step()
    assert rank_of(moves, "one") == 0, "what it has begun stays"
    assert pool.get_num_free_blocks() == pool.num_gpu_blocks - 1
    moves.finish()
    assert moves.received["one"] == expected_tokens(one)


P, D = RankRole.PREFILL, RankRole.DECODE


def waiting_prompts(moves: Machine, *names: str) -> None:
    """Add prompts that wait for more than two steps of one rank, of 64 tokens."""
    for name in names:
        moves.scheduler.add_request(long_arrival(name, 150).request())


def test_prompts_that_are_all_given_up_are_no_load_that_lasts() -> None:
    moves = machine(3, prefill_ranks="auto")
    waiting_prompts(moves, "one", "two")
    moves.step(end_s=1.0)
    moves.scheduler.finish_requests(None, RequestStatus.FINISHED_ABORTED)
    assert not moves.step(end_s=1.0).total_num_scheduled_tokens
    waiting_prompts(moves, "three", "four")
    moves.step(end_s=3.0)
    assert moves.scheduler._roles.roles == (P, D, D)
    moves.step(end_s=4.0)
    assert moves.scheduler._roles.roles == (P, P, D), "it has lasted"


def test_a_load_lasts_where_only_kv_on_its_way_is_left_at_a_steps_end() -> None:
    moves = machine(3, prefill_ranks="auto", transfer_steps=3)
    moves.scheduler.add_request(long_arrival("sent").request())
    waiting_prompts(moves, "one", "two")
    moves.step(end_s=1.0)
    moves.scheduler.finish_requests(["one", "two"], RequestStatus.FINISHED_ABORTED)
    moves.step(end_s=1.0)
    assert moves.living() == ["sent"]
    assert not any(rank.running for rank in moves.scheduler.ranks)
    waiting_prompts(moves, "three", "four")
    moves.step(end_s=2.0)
    assert moves.scheduler._roles.roles == (P, P, D)
