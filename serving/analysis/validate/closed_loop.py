"""A closed loop of users over prefill and decode workers, in steady state; times in seconds.

Each user has one request at a time: prefill, then decode. Concurrency and durations depend on each
other: a fixed point, found by damped rounds for all rows at once. Little's law holds by
construction: requests per second x (time to first token + decoding) = users.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Bools = NDArray[np.bool_]
Float64s = NDArray[np.float64]

ROUNDS: Final = 25
DAMPING: Final = 0.5
BENCHMARK_ROUNDS: Final = 10
"""Requests of a run for each user, of InferenceX's client (num_prompts = 10 x conc)."""
LENGTH_SPREAD: Final = 0.2
"""Lengths lie between 80 % and 100 %: users that began together drift apart by this share."""
_LEAST_FREE_SHARE: Final = 0.2  # assumed: decodes get at least this part of a worker's time
_CAPPED_SHARE: Final = (
    0.99  # of the prefill workers' capacity: above it nothing but queueing is left
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepTimes:
    """Seconds of each row's steps.

    Attributes:
        decode_s: a decode step of a worker, by its batch: [rows, grid].
        solo_s, full_s: a prefill pass of one prompt; a full pass, per prompt: [rows].
        solo_steal_s, full_steal_s: decodes' wait for one of these prompts on shared workers:
            [rows].
    """

    decode_s: Float64s
    solo_s: Float64s
    full_s: Float64s
    solo_steal_s: Float64s
    full_steal_s: Float64s


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoopRows(StepTimes):
    """Inputs of each row's loop; all [rows] but the two of the decode grid.

    Attributes:
        batches: decode batches of one worker, ascending: [rows, grid].
        tokens_per_step: of a sequence, above 1 with speculation.
        slots: sequences that a decode worker's cache holds.
        front_end_s: of a request on its way in, and of its first token on its way out.
        handover_s: KV transfer of a prompt between two pools.
    """

    users: Float64s
    output_tokens: Float64s
    disaggregated: Bools
    prefill_workers: Float64s
    decode_workers: Float64s
    slots: Float64s
    batches: Float64s
    tokens_per_step: Float64s
    front_end_s: Float64s
    handover_s: Float64s


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoopTimes:
    """All [rows]: seconds, requests per second, and sequences that decode on a worker.

    `ttft_s` is the mean of a benchmark run that starts all users at once, `steady_ttft_s` its
    limit.
    """

    tpot_s: Float64s
    ttft_s: Float64s
    steady_ttft_s: Float64s
    requests_per_s: Float64s
    batch: Float64s


def closed_loop(rows: LoopRows) -> LoopTimes:
    """The steady state of every row.

    Prefill passes hold more prompts as their workers fill up. On shared workers a decode step grows
    by rho / (1 - rho), rho the prompts' part of a worker's time. Throughput is the users' demand,
    limited by prefill workers and the decode cache.
    """
    users, osl = rows.users, rows.output_tokens
    prompt_s = np.minimum(rows.solo_s, rows.full_s)
    capacity = rows.prefill_workers / prompt_s
    slots = rows.slots * rows.decode_workers
    rate, batch = users / (osl * 0.03), users / rows.decode_workers
    wait_s, tpot_s = rows.solo_s.copy(), np.full(len(users), 0.02)
    for _ in range(ROUNDS):
        filled = np.clip(rate * rows.solo_s / rows.prefill_workers, 0, 1)
        steal_s = _between(
            rows.solo_steal_s, np.minimum(rows.solo_steal_s, rows.full_steal_s), filled
        )
        step_s = _decode_s(rows, batch)
        stolen = rate * steal_s
        held_up_s = stolen * step_s / np.maximum(1 - stolen, _LEAST_FREE_SHARE)
        new_tpot_s = np.where(rows.disaggregated, step_s, step_s + held_up_s)
        behind_s = np.where(rows.disaggregated, 0.0, step_s / 2)  # half a step until it is joined
        new_wait_s = rows.solo_s + behind_s + rows.front_end_s + rows.handover_s
        free_rate = users / (new_wait_s + osl * new_tpot_s)
        most = np.minimum(capacity, slots / (osl * new_tpot_s))
        new_wait_s = np.where(free_rate > most, users / most - osl * new_tpot_s, new_wait_s)
        tpot_s = _between(tpot_s, new_tpot_s, DAMPING)
        wait_s = _between(wait_s, new_wait_s, DAMPING)
        rate = _between(rate, np.minimum(free_rate, most), DAMPING)
        decoding = np.clip(rate * osl * tpot_s, 1e-9, np.minimum(users, slots))
        batch = decoding / rows.decode_workers
    burst_s = np.where(
        rate >= _CAPPED_SHARE * capacity, 0.0, _burst_s(rows, prompt_s, wait_s + osl * tpot_s)
    )
    ttft_s = wait_s + burst_s
    return LoopTimes(
        tpot_s=tpot_s,
        ttft_s=ttft_s,
        steady_ttft_s=wait_s,
        requests_per_s=users / (ttft_s + osl * tpot_s),
        batch=batch,
    )


def _between(first: Float64s, second: Float64s, share: Float64s | float) -> Float64s:
    blended: Float64s = first + (second - first) * share
    return blended


def _decode_s(rows: LoopRows, batch: Float64s) -> Float64s:
    """A token's time at `batch` sequences a worker, linear between the grid's batches: [rows]."""
    grid, every = rows.batches, np.arange(len(batch))
    at = np.clip(batch, grid[:, 0], grid[:, -1])
    upper = np.clip((grid < at[:, None]).sum(axis=1), 1, max(1, grid.shape[1] - 1))
    upper = np.minimum(upper, grid.shape[1] - 1)
    lower = np.maximum(upper - 1, 0)
    low, high = grid[every, lower], grid[every, upper]
    share = np.where(high > low, (at - low) / np.where(high > low, high - low, 1.0), 0.0)
    step_s = _between(rows.decode_s[every, lower], rows.decode_s[every, upper], share)
    return step_s / rows.tokens_per_step


def _burst_s(rows: LoopRows, prompt_s: Float64s, cycle_s: Float64s) -> Float64s:
    """Mean wait in the first rounds of a run, on top of the steady time to first token: [rows].

    At the start a user waits for half of all prompts. In round r users come within the spread of r
    requests' lengths, which grows with the root of r.
    """
    work_s = rows.users * prompt_s / rows.prefill_workers
    total_s = work_s / 2
    for later in range(1, BENCHMARK_ROUNDS):
        apart_s = LENGTH_SPREAD * cycle_s * np.sqrt(later)
        total_s = total_s + np.maximum(0.0, work_s - apart_s) / 2
    return total_s / BENCHMARK_ROUNDS
