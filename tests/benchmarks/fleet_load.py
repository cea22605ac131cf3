"""A synthetic load on a live fleet, without vLLM: equal requests over its ranks."""

import time

from emulator.data import SMALL_MOE_DIR
from emulator.fleet import Fleet
from emulator.specs.placement import ExpertPlacement
from emulator.specs.sampling import SamplingSpec
from emulator.specs.step import NewRequest, RankStep, Scheduled
from emulator.ultraserver.lockstep import StepResult

SMALL_MOE_LAYERS, SMALL_MOE_EXPERTS = 4, 144


def small_moe_fleet(chips: int, *, kv_blocks: int, tp: int = 1) -> Fleet:
    """An unstarted fleet of the bundled model, its experts spread evenly over all chips."""
    placement = ExpertPlacement.even(
        layers=SMALL_MOE_LAYERS, experts=SMALL_MOE_EXPERTS, chips=chips, ep=chips
    )
    return Fleet(
        weights_dir=SMALL_MOE_DIR,
        placement=placement,
        tp=tp,
        kv_blocks=kv_blocks,
        block_tokens=32,
    )


class FleetLoad:
    """`requests` greedy requests of `prompt_tokens`, dealt to the ranks in turn.

    `last` is the last step's result. A request has blocks for `generated_max` tokens.
    """

    def __init__(
        self, fleet: Fleet, *, requests: int, prompt_tokens: int, generated_max: int = 256
    ) -> None:
        self.last = StepResult(outputs={})
        self._fleet = fleet
        self._prompt_tokens = prompt_tokens
        self._blocks_each = -(-(prompt_tokens + generated_max) // 32)
        self._position = prompt_tokens
        all_ranks = fleet.chips // fleet.tp
        self._names = {
            rank: [f"load-{index}" for index in range(rank, requests, all_ranks)]
            for rank in range(min(all_ranks, requests))
        }

    def prefill(self) -> float:
        """Compute all prompts in one step; returns its wall seconds."""
        steps = []
        for rank, names in self._names.items():
            new = [
                self._request(name, index, 1 + index * self._blocks_each)
                for index, name in enumerate(names)
            ]
            steps.append(self._step(rank, 0, self._prompt_tokens, new))
        return self._timed(steps)

    def _request(self, name: str, index: int, first_block: int) -> NewRequest:
        return NewRequest(
            request_id=name,
            token_ids=[
                300 + (13 * position + 7 * index) % 700 for position in range(self._prompt_tokens)
            ],
            prompt_tokens=self._prompt_tokens,
            sampling=SamplingSpec(temperature=0.0),
            block_ids=list(range(first_block, first_block + self._blocks_each)),
        )

    def decode(self) -> float:
        """Compute one token of every request; returns the step's wall seconds."""
        steps = [self._step(rank, self._position, 1, []) for rank in self._names]
        self._position += 1
        return self._timed(steps)

    def finish(self) -> None:
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
        self.last = self._fleet.step(steps, {})
        return time.perf_counter() - started
