"""A made-up load on a live fleet, without vLLM: equal requests spread over its ranks."""

import time

from emulator.fleet import Fleet
from emulator.specs.sampling import SamplingSpec
from emulator.specs.step import NewRequest, RankStep, Scheduled


class FleetLoad:
    """`requests` greedy requests of `prompt_tokens`, dealt to the ranks in turn."""

    def __init__(self, fleet: Fleet, *, requests: int, prompt_tokens: int) -> None:
        self._fleet = fleet
        self._prompt_tokens = prompt_tokens
        self._position = prompt_tokens
        ranks = range(min(fleet.chips, requests))
        self._names = {
            rank: [f"load-{index}" for index in range(rank, requests, fleet.chips)]
            for rank in ranks
        }

    def prefill(self) -> float:
        """Compute all prompts in one step; returns its wall seconds."""
        blocks_each = -(-(self._prompt_tokens + 256) // 32)
        steps = []
        for rank, names in self._names.items():
            new = [
                NewRequest(
                    request_id=name,
                    token_ids=[
                        300 + (13 * position + 7 * index) % 700
                        for position in range(self._prompt_tokens)
                    ],
                    prompt_tokens=self._prompt_tokens,
                    sampling=SamplingSpec(temperature=0.0),
                    block_ids=list(range(1 + index * blocks_each, 1 + (index + 1) * blocks_each)),
                )
                for index, name in enumerate(names)
            ]
            steps.append(self._step(rank, 0, self._prompt_tokens, new))
        return self._timed(steps)

    def decode(self) -> float:
        """Compute one token of every request; returns the step's wall seconds."""
        steps = [self._step(rank, self._position, 1, []) for rank in self._names]
        self._position += 1
        return self._timed(steps)

    def finish(self) -> None:
        """End all requests."""
        steps = [
            RankStep(rank=rank, new=[], scheduled=[], finished=names)
            for rank, names in self._names.items()
        ]
        self._fleet.step(steps, {})

    def _step(self, rank: int, position: int, tokens: int, new: list[NewRequest]) -> RankStep:
        scheduled = [
            Scheduled(request_id=name, first_position=position, new_tokens=tokens)
            for name in self._names[rank]
        ]
        return RankStep(rank=rank, new=new, scheduled=scheduled, finished=[])

    def _timed(self, steps: list[RankStep]) -> float:
        started = time.perf_counter()
        self._fleet.step(steps, {})
        return time.perf_counter() - started
