"""A seeded workload for schedulers: requests and synthetic tokens."""

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import LogprobsLists, ModelRunnerOutput
from vllm.v1.request import Request

from tests.serving.plugin.engine_config import BLOCK_TOKENS, block_hasher

EOS_ID = 2


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """A request made anew for each scheduler, since schedulers change it."""

    name: str
    prompt: tuple[int, ...]
    max_tokens: int
    logprobs: int | None = None
    client: int = 0
    ignore_eos: bool = False

    def request(self) -> Request:
        params = SamplingParams(
            max_tokens=self.max_tokens, logprobs=self.logprobs, ignore_eos=self.ignore_eos
        )
        params.update_from_generation_config({}, EOS_ID)
        return Request(
            self.name,
            list(self.prompt),
            params,
            None,
            client_index=self.client,
            arrival_time=0.0,
            block_hasher=block_hasher(BLOCK_TOKENS),
        )


@dataclass(frozen=True, kw_only=True)
class Turn:
    """Events before one step, and aborts during it."""

    arrivals: tuple[Arrival, ...] = ()
    aborts: tuple[str, ...] = ()
    late_aborts: tuple[str, ...] = ()
    pause: PauseState | None = None
    reset: bool | None = None  # reset_prefix_cache with reset_running_requests = this


def random_workload(seed: int, *, turns: int, rate: float, clients: int = 1) -> list[Turn]:
    """Arrivals with shared prefixes, aborts at any time, pauses and resets; unpaused at the end."""
    rng = np.random.default_rng(seed)
    prefixes = [rng.integers(3, 1000, BLOCK_TOKENS * 3).tolist() for _ in range(3)]
    names: list[str] = []
    workload = []
    for _ in range(turns):
        arrivals = []
        for _ in range(rng.poisson(rate)):
            shared = prefixes[rng.integers(3)][: rng.integers(0, BLOCK_TOKENS * 3 + 1)]
            own = rng.integers(3, 1000, rng.integers(1, 100)).tolist()
            arrivals.append(
                Arrival(
                    name=f"request-{len(names)}",
                    prompt=(*shared, *own),
                    max_tokens=int(rng.integers(1, 40)),
                    logprobs=None if rng.random() < 0.7 else int(rng.integers(0, 4)),
                    client=int(rng.integers(clients)),
                )
            )
            names.append(arrivals[-1].name)
        chosen = [name for name in names if rng.random() < 0.004]
        cut = int(rng.integers(len(chosen) + 1))
        chance = rng.random()
        pauses = {0: PauseState.PAUSED_NEW, 1: PauseState.PAUSED_ALL}
        workload.append(
            Turn(
                arrivals=tuple(arrivals),
                aborts=tuple(chosen[:cut]),
                late_aborts=tuple(chosen[cut:]),
                pause=pauses.get(int(chance * 40), PauseState.UNPAUSED if chance > 0.5 else None),
                reset=bool(rng.integers(2)) if rng.random() < 0.03 else None,
            )
        )
    return [*workload, Turn(pause=PauseState.UNPAUSED)]


def chosen_token(name: str, position: int) -> int:
    """The synthetic model's token: a hash, the end token one time in 25."""
    value = zlib.crc32(f"{name}:{position}".encode())
    return EOS_ID if value % 25 == 0 else 3 + value % 997


def computed(output: SchedulerOutput, lengths: dict[str, int], names: Iterable[str]) -> list[str]:
    """Those of `names` that get a token: their scheduled tokens reach their end.

    `lengths` holds each request's tokens so far; it grows by the tokens given.
    """
    at = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
    cached = output.scheduled_cached_reqs
    at |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    counts = output.num_scheduled_tokens
    done = [name for name in names if at[name] + counts[name] == lengths[name]]
    for name in done:
        lengths[name] += 1
    return done


def model_output(order: Sequence[str], sampled: dict[str, int]) -> ModelRunnerOutput:
    """One row for each of `order`; empty for those without a sampled token."""
    row = {name: index for index, name in enumerate(order)}
    tokens = np.array([[sampled.get(name, 0)] * 4 for name in order], dtype=np.int32)
    ranks = np.array([zlib.crc32(name.encode()) % 1000 for name in order], dtype=np.int32)
    return ModelRunnerOutput(
        req_ids=list(order),
        req_id_to_index=row,
        sampled_token_ids=[[sampled[name]] if name in sampled else [] for name in order],
        logprobs=LogprobsLists(tokens, tokens * np.float32(-0.5), ranks, None) if order else None,
    )
