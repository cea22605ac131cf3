"""What vLLM's own tests claim of its scheduler and prefix cache, held on the compiled ones.

The claims are of vLLM's tests/v1/core/test_scheduler.py and test_prefix_caching.py, in our words
and with numbers worked by hand, on one rank. What cannot apply: multimodal input, encoder budgets,
LoRA, salts, grammars, pooling, stop tokens (a simulated reply has its length), KV and encoder
connectors, KV events, asynchronous scheduling, pipeline parallelism, streaming sessions, hybrid
models (sliding windows and Mamba have KV groups of their own), block numbers and hash functions
(contents have keys here), and what no option reaches: watermarks, unchunked prefill, an adaptive
threshold.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from loadgen.workloads.traffic import PromptBlocks, Traffic
from serving.simulator.lockstep_schedulers import LockstepSchedulers
from serving.traffic.engine_limits import EngineLimits

BLOCK = 16
LIMITS = EngineLimits(
    max_num_batched_tokens=1_024,
    max_num_seqs=16,
    kv_blocks_per_rank=1_000,
    block_tokens=BLOCK,
    max_model_len=4_096,
    prefill_policy="none",
)


@dataclass(kw_only=True)
class Rank:
    """Requests on one rank, which arrive one after another, at the times 0, 1, 2 and so on.

    `names`: of the blocks of each prompt; equal names stand for equal beginnings.
    """

    prompts: Sequence[int]
    outputs: Sequence[int]
    limits: EngineLimits = LIMITS
    names: Sequence[Sequence[int]] | None = None
    priorities: Sequence[int] | None = None
    schedulers: LockstepSchedulers = field(init=False)
    now: int = 0

    def __post_init__(self) -> None:
        prompt_tokens = np.array(self.prompts)
        blocks = None
        if self.names is not None:
            blocks = PromptBlocks.of(self.names, tokens=BLOCK, prompt_tokens=prompt_tokens)
        traffic = Traffic(
            arrival_s=np.arange(len(prompt_tokens)) * 1e-9,
            prompt_tokens=prompt_tokens,
            output_tokens=np.array(self.outputs),
            blocks=blocks,
            priority=None if self.priorities is None else np.array(self.priorities),
        )
        made = LockstepSchedulers.replicas(traffic, self.limits, 1, 1)
        self.schedulers = made[0]

    def admit(self, requests: int) -> None:
        """Let the next ones come."""
        for _ in range(requests):
            self.schedulers.put(self.now, begins=True)
            self.now += 1

    def step(self) -> dict[int, int]:
        """Run a step; returns the new tokens of its requests, in the order of its rows."""
        count = len(self.schedulers.schedule(now_ns=0).rank)
        rows = self.schedulers.arrays.rows[:count][["request", "new"]].tolist()
        self.schedulers.give_tokens(1)
        return dict(rows)

    def of(self, name: str) -> list[int]:
        """A field of all requests."""
        values: list[int] = self.schedulers.arrays.requests[name].tolist()
        return values

    @property
    def used(self) -> int:
        """KV blocks in use."""
        return self.schedulers.queues[0].kv_blocks_used


def test_all_prompts_that_fit_are_scheduled_whole_and_in_order() -> None:
    rank = Rank(prompts=[10] * 10, outputs=[2] * 10)
    rank.admit(10)

    assert list(rank.step().items()) == [(number, 10) for number in range(10)]
    assert rank.schedulers.queues[0].waiting == 0


@pytest.mark.parametrize("caching", [False, True])
def test_prompts_share_a_step_s_tokens_and_a_long_one_takes_no_more_than_the_threshold(
    caching: bool,
) -> None:
    limits = replace(LIMITS, long_prefill_token_threshold=400, prefix_caching=caching)
    rank = Rank(prompts=[800] * 3, outputs=[9] * 3, limits=limits)
    rank.admit(3)

    assert rank.step() == {0: 400, 1: 400, 2: 1_024 - 800}
    assert rank.step() == {0: 400, 1: 400, 2: 1_024 - 800}
    # Two decode now, and the third has what is left of its prompt.
    assert rank.step() == {0: 1, 1: 1, 2: 800 - 2 * 224}
    assert rank.step() == {0: 1, 1: 1, 2: 1}


def test_the_threshold_does_not_bind_a_request_that_is_alone() -> None:
    limits = replace(LIMITS, long_prefill_token_threshold=400)
    rank = Rank(prompts=[800, 800], outputs=[9, 9], limits=limits)
    rank.admit(1)
    assert rank.step() == {0: 800}
    rank.admit(1)
    assert rank.step() == {0: 1, 1: 400}


def test_decodes_go_before_waiting_prompts_within_the_budget() -> None:
    limits = replace(LIMITS, max_num_batched_tokens=16)
    rank = Rank(prompts=[14, 30], outputs=[9, 9], limits=limits)
    rank.admit(1)
    rank.step()
    rank.admit(1)

    assert rank.step() == {0: 1, 1: 15}
    assert rank.step() == {0: 1, 1: 15}
    assert rank.step() == {0: 1, 1: 1}


def test_no_more_requests_run_than_there_are_seats() -> None:
    rank = Rank(prompts=[10] * 3, outputs=[2] * 3, limits=replace(LIMITS, max_num_seqs=2))
    rank.admit(3)

    assert list(rank.step()) == [0, 1]
    assert list(rank.step()) == [0, 1]
    assert list(rank.step()) == [2]


def test_requests_end_at_their_length_and_leave_nothing_behind() -> None:
    rank = Rank(prompts=[10, 20, 30], outputs=[1, 2, 3])
    rank.admit(3)

    assert [list(rank.step()) for _ in range(4)] == [[0, 1, 2], [1, 2], [2], []]
    assert rank.used == rank.schedulers.requests == 0


def test_aborted_requests_are_gone_whether_they_run_or_wait() -> None:
    rank = Rank(prompts=[10] * 3, outputs=[9] * 3, limits=replace(LIMITS, max_num_seqs=2))
    rank.admit(3)
    rank.step()
    rank.schedulers.abort(0)
    rank.schedulers.abort(2)

    assert rank.schedulers.requests == 1
    assert rank.used == 1
    assert rank.step() == {1: 1}


def test_without_blocks_the_last_to_come_is_preempted_and_begins_anew() -> None:
    # Each prompt fills two of the four blocks; its first decode wants a third.
    rank = Rank(prompts=[32, 32], outputs=[9, 9], limits=replace(LIMITS, kv_blocks_per_rank=5))
    rank.admit(2)
    assert rank.step() == {0: 32, 1: 32}

    assert rank.step() == {0: 1}
    assert rank.of("preemptions") == [0, 1]
    assert rank.of("computed") == [33, 0]
    while 0 in (rows := rank.step()):
        assert rows == {0: 1}
    # It keeps the token that it had, and computes it again with its prompt, of which the first
    # block is still cached: request 0 took the second.
    assert rows == {1: 33 - 16}
    assert rank.of("tokens_left")[1] == 7


def test_nothing_new_starts_in_a_step_that_preempts() -> None:
    limits = replace(LIMITS, kv_blocks_per_rank=5, prefix_caching=False)
    rank = Rank(prompts=[32, 32, 1], outputs=[9, 9, 9], limits=limits)
    rank.admit(2)
    rank.step()
    rank.admit(1)

    # A block is free after the preemption; the small request waits behind the preempted one.
    assert rank.step() == {0: 1}
    assert rank.schedulers.queues[0].waiting == 2


def test_a_prompt_starts_once_all_of_it_has_blocks_though_a_piece_would_fit() -> None:
    limits = replace(LIMITS, kv_blocks_per_rank=5, max_num_batched_tokens=32)
    rank = Rank(prompts=[16, 64], outputs=[3, 3], limits=limits)
    rank.admit(2)

    # Request 0 has one block, from its second token on two; request 1 wants all four.
    assert [rank.step() for _ in range(3)] == [{0: 16}, {0: 1}, {0: 1}]
    assert rank.step() == {1: 32}


PRIORITY = replace(LIMITS, scheduling_policy="priority", max_num_seqs=1)


@pytest.mark.parametrize(
    ("priorities", "order"),
    [
        ([2, 0, 1], [1, 2, 0]),  # the lowest goes first
        ([0, 0, 0], [0, 1, 2]),  # then who came first
        ([1, 0, 1, 0], [1, 3, 0, 2]),
        ([3, -5, 2], [1, 2, 0]),
    ],
)
def test_waiting_requests_go_by_priority_then_by_arrival(
    priorities: list[int], order: list[int]
) -> None:
    count = len(priorities)
    rank = Rank(prompts=[10] * count, outputs=[1] * count, limits=PRIORITY, priorities=priorities)
    rank.admit(count)

    assert [list(rank.step()) for _ in range(count)] == [[number] for number in order]


def test_priorities_count_for_nothing_first_come_first_served() -> None:
    limits = replace(LIMITS, max_num_seqs=1)
    rank = Rank(prompts=[10] * 3, outputs=[1] * 3, limits=limits, priorities=[2, 0, 1])
    rank.admit(3)

    assert [list(rank.step()) for _ in range(3)] == [[0], [1], [2]]


def test_an_urgent_request_that_has_a_seat_and_blocks_preempts_no_other() -> None:
    limits = replace(PRIORITY, max_num_seqs=3)
    rank = Rank(prompts=[30] * 3, outputs=[9] * 3, limits=limits, priorities=[5, 5, 0])
    rank.admit(2)
    rank.step()
    rank.admit(1)

    assert rank.step() == {0: 1, 1: 1, 2: 30}
    assert rank.of("preemptions") == [0, 0, 0]


@pytest.mark.parametrize(
    ("priorities", "victim"),
    [
        ([1, 0], 0),  # the less urgent one, though it came first
        ([0, 1], 1),
        ([1, 1], 1),  # of equal ones the last to come
    ],
)
def test_the_least_urgent_request_is_preempted(priorities: list[int], victim: int) -> None:
    limits = replace(PRIORITY, max_num_seqs=2, kv_blocks_per_rank=5)
    rank = Rank(prompts=[32, 32], outputs=[9, 9], limits=limits, priorities=priorities)
    rank.admit(2)
    rank.step()

    assert rank.step() == {1 - victim: 1}
    assert [count > 0 for count in rank.of("preemptions")] == [victim == 0, victim == 1]


def cached(names: Sequence[Sequence[int]], *, tokens: int = 55, **limits: int) -> Rank:
    """Prompts that begin with named blocks, one at a time on the rank; replies of one token."""
    count = len(names)
    bounds = replace(LIMITS, **limits)  # type: ignore[arg-type]
    return Rank(prompts=[tokens] * count, outputs=[1] * count, limits=bounds, names=names)


def test_full_blocks_are_found_and_what_follows_is_computed() -> None:
    # Three full blocks of 55 tokens; the fourth, of 7, is never shared.
    rank = cached([[1, 2, 3], [1, 2, 3], [1, 2, 9], [8, 2, 3]])
    for new in (55, 55 - 48, 55 - 32, 55):  # a block counts as long as all before it do
        rank.admit(1)
        assert list(rank.step().values()) == [new]
    assert rank.of("hits") == [0, 48, 32, 0]


def test_blocks_in_use_are_shared() -> None:
    rank = Rank(prompts=[55, 53], outputs=[9, 9], names=[[1, 2, 3], [1, 2, 3]])
    rank.admit(1)
    rank.step()
    assert rank.used == 4
    rank.admit(1)

    assert rank.step() == {0: 1, 1: 5}
    assert rank.used == 5


def test_of_a_prompt_that_is_cached_whole_the_last_block_is_computed() -> None:
    rank = cached([[1, 2, 3], [1, 2, 3]], tokens=48)
    rank.admit(1)
    rank.step()
    rank.admit(1)

    assert rank.step() == {1: 16}


def test_blocks_that_a_reply_fills_are_cached_too() -> None:
    # Five blocks. At 33 tokens both want a third one, and there is one: request 1 is preempted.
    # Request 0 ends within its three, so request 1 finds both that its 33 tokens had filled.
    rank = Rank(prompts=[17, 17], outputs=[32, 40], limits=replace(LIMITS, kv_blocks_per_rank=6))
    rank.admit(2)
    while not any(rank.of("preemptions")):
        rank.step()
    assert rank.of("tokens") == [34, 33]
    while 1 not in (rows := rank.step()):
        assert rows == {0: 1}
    assert rows == {1: 33 - 32}


def test_without_prefix_caching_nothing_is_found() -> None:
    rank = cached([[1, 2, 3], [1, 2, 3]], prefix_caching=False)
    rank.admit(2)

    assert rank.step() == {0: 55, 1: 55}


def test_blocks_without_content_are_taken_first_then_those_longest_unused() -> None:
    # Ten blocks. Two prompts fill three each, and leave four blocks without content. The third
    # prompt takes those four, and of the cached ones the two of the first prompt that were freed
    # first: its last ones.
    rank = Rank(
        prompts=[49, 49, 96, 49, 49],
        outputs=[1] * 5,
        limits=replace(LIMITS, kv_blocks_per_rank=11),
        names=[[1, 2, 3], [4, 5, 6], [20, 21, 22, 23, 24, 25], [1, 2, 3], [4, 5, 6]],
    )
    for new in (49, 49, 96):
        rank.admit(1)
        assert list(rank.step().values()) == [new]

    hits = [rank.schedulers.load_tokens - rank.schedulers.tokens_left(each) for each in (3, 4)]
    assert hits == [16, 48]


def test_a_hit_that_is_free_takes_a_free_block_too() -> None:
    # Six blocks. Request 0's three are free and cached, request 1 holds three. Request 2 would hit
    # two of the free ones and take two more: four, of three.
    rank = Rank(
        prompts=[48, 47, 63],
        outputs=[1, 9, 1],
        limits=replace(LIMITS, kv_blocks_per_rank=7),
        names=[[1, 2, 3], [7, 8], [1, 2, 9]],
    )
    rank.admit(2)
    rank.step()
    assert rank.used == 3
    rank.admit(1)

    assert rank.step() == {1: 1}
    assert rank.schedulers.queues[0].waiting == 1


def test_a_reset_cache_finds_nothing_and_is_refused_while_blocks_are_in_use() -> None:
    rank = Rank(prompts=[55, 55], outputs=[2, 1], names=[[1, 2, 3], [1, 2, 3]])
    rank.admit(1)
    rank.step()
    with pytest.raises(AssertionError):
        rank.schedulers.forget_prefixes([0])
    rank.step()
    rank.schedulers.forget_prefixes([0])
    rank.admit(1)

    assert rank.step() == {1: 55}


def test_drafts_are_scheduled_with_the_token_before_them_and_the_wrong_ones_given_back() -> None:
    limits = replace(LIMITS, speculative_tokens=3, acceptance=(1.0, 1.0, 0.0))
    rank = Rank(prompts=[10], outputs=[10], limits=limits)
    rank.admit(1)

    assert rank.step() == {0: 10}
    # Two of three are right: three tokens a step, and the position of the third is given back.
    assert [rank.step() for _ in range(3)] == [{0: 4}] * 3
    assert rank.of("tokens") == [20]
    assert rank.schedulers.requests == 0


def test_drafts_fit_into_the_budget_of_a_step() -> None:
    limits = replace(
        LIMITS, max_num_batched_tokens=6, max_num_seqs=2, speculative_tokens=3, acceptance=(0.0,)
    )
    rank = Rank(prompts=[3, 3], outputs=[9, 9], limits=limits)
    rank.admit(2)
    rank.step()

    assert rank.step() == {0: 4, 1: 2}


def test_with_drafts_the_last_cached_block_is_computed_anew() -> None:
    limits = replace(LIMITS, speculative_tokens=1, acceptance=(0.0,))
    rank = Rank(prompts=[55, 55], outputs=[1, 1], limits=limits, names=[[1, 2, 3], [1, 2, 3]])
    rank.admit(1)
    rank.step()
    rank.admit(1)

    assert rank.step() == {1: 55 - 32}
