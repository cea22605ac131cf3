"""What a run in virtual time shows, from the tables of its pools and the logs of their engines."""

from collections.abc import Sequence

import numpy as np

from emulator.arrays import Bools, Float64s, Int64s
from emulator.units import NS_PER_S
from loadgen.workloads.traffic import Traffic
from serving.simulator.engine_pool import EnginePool
from serving.simulator.request_arrivals import RequestArrivals
from serving.simulator.run_log import NO_TOKENS, token_log, totals_of
from serving.simulator.scheduler_arrays import NONE
from serving.traffic.serving_run import Ending, ServingRun


def serving_run(
    traffic: Traffic,
    arrivals: RequestArrivals,
    pools: Sequence[EnginePool],
    *,
    failed: Bools,
    ending: Ending,
    has_tokens: bool,
) -> ServingRun:
    """The run so far of `pools`, of which the first one decodes and the last one gets the prompts.

    `failed`: a mask [requests]. Without a log of tokens there are totals.
    """
    requests = pools[0].requests
    engines = [engine for pool in pools for engine in pool.engines]
    logs = [engine.log for engine in engines]
    totals = totals_of(logs)
    tokens = token_log(logs) if has_tokens else NO_TOKENS
    sent, token_request = ~arrivals.unsent, tokens.token_request
    if not sent.all():
        token_request = (sent.cumsum(dtype=np.int32) - 1)[token_request]
    return ServingRun(
        traffic=traffic if sent.all() else traffic.chosen(sent),
        ending=ending,
        arrival_s=arrivals.arrival_s()[sent],
        first_token_s=in_seconds(requests["first_token_ns"][sent]),
        last_token_s=in_seconds(requests["last_token_ns"][sent]),
        token_request=token_request,
        step_end_s=tokens.end_ns / NS_PER_S,
        step_tokens=tokens.step_tokens,
        totals=None if has_tokens else totals.served,
        busy_s=totals.busy_ns / NS_PER_S,
        joules=sum(engine.joules(totals.end_ns) for engine in engines),
        preemptions=sum(int(pool.requests["preemptions"].sum()) for pool in pools),
        kv_blocks_used_max=max(each.schedulers.kv_blocks_used_max for each in engines),
        empty_rank_steps=sum(each.schedulers.empty_rank_steps for each in engines),
        hits=pools[-1].requests["hits"][sent],
        failed=failed[sent],
    )


def in_seconds(times_ns: Int64s) -> Float64s:
    """Of each request, [requests]; NaN where there is none."""
    return np.where(times_ns == NONE, np.nan, times_ns / NS_PER_S)
