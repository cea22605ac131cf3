"""KV that is asked for after its prompt, of which a part was cached where it was computed."""

from dataclasses import replace

import numpy as np
import pytest

from emulator.fabric.kv_transfer import prompt_transfer_ns
from emulator.specs.batch import StepBatch
from emulator.specs.fault import Fault, FaultKind
from emulator.specs.models import model_by_name
from emulator.specs.systems import system_by_name
from emulator.ultraserver.step_cost import StepCost
from loadgen.workloads.traffic import PromptBlocks, Traffic
from serving.simulator import SchedulerLimits, TimedCall, simulate
from serving.wire.control_call import InjectRequest
from tests.serving.simulator.test_pools import MODEL, SYSTEM, alike, apart, engine

PROMPT_TOKENS = 700
SENT_NS = prompt_transfer_ns(
    system_by_name(SYSTEM),
    model_by_name(MODEL),
    prompt_tokens=PROMPT_TOKENS,
    from_chips=1,
    to_chips=1,
)
POOLS = replace(engine(1), prefill=engine(2))


def prompts(arrival_s: list[float], output_tokens: int, *, same: bool = True) -> Traffic:
    """The same prompt several times, or as many others."""
    traffic = alike(arrival_s, PROMPT_TOKENS, output_tokens)
    blocks = apart(traffic)
    if same:
        blocks = PromptBlocks(
            names=np.zeros_like(blocks.names), end_tokens=blocks.end_tokens, begin=blocks.begin
        )
    return replace(traffic, blocks=blocks)


class Steps:
    """Begins and ends of the steps of `POOLS`, by their engine's ranks."""

    def __init__(self) -> None:
        self.begins_ns: dict[int, list[int]] = {1: [], 2: []}
        self.ends_ns: dict[int, list[int]] = {1: [], 2: []}
        self.computed: list[int] = []
        """Tokens of prompts where they are decoded."""

    def see(self, cost: StepCost, batch: StepBatch, *, begin_ns: int, queues: object) -> None:
        del queues
        self.begins_ns[batch.ranks].append(begin_ns)
        self.ends_ns[batch.ranks].append(begin_ns + cost.duration_ns)
        if batch.ranks == 1:
            self.computed += batch.new_tokens[batch.new_tokens > 1].tolist()


@pytest.mark.long
def test_of_two_prompts_that_are_alike_the_second_is_asked_for() -> None:
    steps = Steps()
    simulate(POOLS, prompts([1.0, 2.0], 1), on_step=steps.see)
    first_ns, second_ns = steps.ends_ns[2]
    assert steps.begins_ns[1] == [first_ns, second_ns + round(SENT_NS)]
    assert not steps.computed


@pytest.mark.long
@pytest.mark.parametrize("same", [True, False])
def test_what_was_not_pushed_is_lost_with_its_rank(same: bool) -> None:
    """What the second engine waits for, and has no seat for yet, it computes itself."""
    one_seat = engine(1, schedulers=SchedulerLimits(max_num_seqs=1))
    pools = replace(one_seat, prefill=engine(2))
    for_chip = {True: 0, False: 1}  # that has computed some of those which wait
    fault = InjectRequest(fault=Fault(kind=FaultKind.LOSE_CHIP, chip=for_chip[same]))
    calls = [TimedCall(at_s=1.3, call=fault, replica=1)]
    steps = Steps()
    traffic = prompts([1.0] + [1.1] * 4, 60, same=same)
    assert simulate(pools, traffic, calls=calls, on_step=steps.see).served.finished.all()
    assert bool(steps.computed) == same


@pytest.mark.long
def test_an_idle_engine_does_not_wait_for_kv_that_is_lost() -> None:
    twice = prompts([1.0, 2.0], 5)
    undisturbed = Steps()
    simulate(POOLS, twice, on_step=undisturbed.see)
    lost_s = (undisturbed.ends_ns[2][1] + SENT_NS / 2) / 1e9
    fault = InjectRequest(fault=Fault(kind=FaultKind.LOSE_CHIP, chip=0))
    calls = [TimedCall(at_s=lost_s, call=fault, replica=1)]
    steps = Steps()
    assert simulate(POOLS, twice, calls=calls, on_step=steps.see).served.finished.all()
    assert steps.begins_ns[1][5] / 1e9 == pytest.approx(lost_s, abs=1e-8)
