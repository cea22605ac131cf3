"""What a request has drawn: its share of each step by the tokens computed in it, and its outputs'
word of it. vLLM's own schedulers decide the steps.
"""

from dataclasses import astuple
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm.v1.engine import EngineCoreOutputs, FinishReason

from serving.engine.request_trace import RequestTrace
from serving.engine.step_report import StepEnergy
from serving.plugin.merge import LockstepOutput
from tests.serving.plugin.lockstep_machine import Machine, long_arrival
from tests.serving.plugin.lockstep_workload import Arrival

ENDPOINT = "http://127.0.0.1:1"  # nobody listens: a scheduler exports nothing
FACILITY = 1.5  # of a made-up machine


class Traced(Machine):
    """Ranks of two chips each, whose steps draw energy; keeps what the last outputs say of it."""

    def __init__(self, ranks: int, **arguments: Any) -> None:
        super().__init__(ranks, **({"otlp_traces_endpoint": ENDPOINT} | arguments))
        self.seats = np.arange(2 * ranks, dtype=np.int64)
        self.told: dict[str, RequestTrace] = {}
        self.outputs_told = 0

    def draw(
        self, joules: float, *, ranks: tuple[int, ...] | None = None, **what: Any
    ) -> LockstepOutput:
        """One step in which `ranks` (all) computed."""
        energy = StepEnergy(
            chip_joules=joules,
            facility_joules=FACILITY * joules,
            ranks=tuple(range(len(self.memory))) if ranks is None else ranks,
            chip_of_position=self.seats,
            tp=2,
        )
        return self.step(energy=energy, **what)

    def _receive(self, results: dict[int, EngineCoreOutputs]) -> None:
        super()._receive(results)
        for outputs in results.values():
            for output in outputs.outputs:
                trace = RequestTrace.of_output(output)
                if trace is not None:
                    self.told[output.request_id] = trace
                    self.outputs_told += 1


def arrive(machine: Machine, name: str, **given: Any) -> None:
    machine.scheduler.add_request(long_arrival(name, **given).request())


def test_a_step_s_joules_go_by_its_tokens_and_by_nothing_else() -> None:
    machine = Traced(2)
    arrive(machine, "long", tokens=30, max_tokens=2)
    machine.draw(60.0)  # 30 tokens of one prompt
    arrive(machine, "short", tokens=9, max_tokens=1)

    counts = machine.draw(
        5.0
    ).num_scheduled_tokens  # a decode on one rank, a prompt on the other: 0.5 J a token

    assert counts == {"long": 1, "short": 9}
    assert machine.told == {
        "long": RequestTrace(
            dilation=machine.told["long"].dilation,
            ranks=(0,),
            chips=(0, 1),
            prefill_chip_joules=60.0,
            prefill_facility_joules=90.0,
            decode_chip_joules=0.5,
            decode_facility_joules=0.75,
        ),
        "short": RequestTrace(
            dilation=machine.told["short"].dilation,
            ranks=(1,),
            chips=(2, 3),
            prefill_chip_joules=4.5,
            prefill_facility_joules=6.75,
        ),
    }
    assert machine.told["long"].chip_joules == 60.5
    assert machine.told["long"].facility_joules == 90.75


def test_a_prompt_of_several_steps_is_prefill_until_its_first_token() -> None:
    machine = Traced(1, max_num_batched_tokens=16)
    arrive(machine, "a", tokens=40, max_tokens=3)

    tokens = [machine.draw(1.0).num_scheduled_tokens["a"] for _ in range(5)]

    assert tokens == [16, 16, 8, 1, 1]
    assert machine.told["a"].prefill_chip_joules == 3.0
    assert machine.told["a"].decode_chip_joules == 2.0


def test_a_prefix_hit_bears_nothing() -> None:
    machine = Traced(1)
    arrive(machine, "first", tokens=33, max_tokens=1)
    machine.draw(1.0)
    again = Arrival(name="again", prompt=long_arrival("first", 33).prompt, max_tokens=1)
    machine.scheduler.add_request(again.request())
    arrive(machine, "other", tokens=9, max_tokens=1)

    counts = machine.draw(10.0).num_scheduled_tokens

    assert counts == {"again": 1, "other": 9}  # two blocks of 16 tokens are there
    assert machine.told["again"].chip_joules == 1.0


def test_what_is_computed_again_on_another_rank_is_borne_again() -> None:
    machine = Traced(2)
    arrive(machine, "a", tokens=20, max_tokens=3)
    machine.draw(4.0)

    machine.draw(1.0, lost=(0,), ranks=(1,), up=(False, True))  # its own rank did not answer
    machine.draw(8.0, ranks=(1,))
    machine.finish()

    trace = machine.told["a"]
    assert trace.ranks == (0, 1)
    assert trace.chips == (2, 3)
    assert trace.prefill_chip_joules == 4.0
    assert trace.decode_chip_joules == 8.0  # the prompt and a token again; nobody bore the 1 J


def test_a_spare_that_took_a_seat_is_among_the_chips() -> None:
    machine = Traced(1)
    arrive(machine, "a", max_tokens=2)
    machine.draw(1.0)
    machine.seats = np.array([0, 7])
    machine.draw(1.0)

    assert machine.told["a"].chips == (0, 7)


def test_only_what_may_be_a_last_output_tells() -> None:
    machine = Traced(1)
    arrive(machine, "plain", max_tokens=5)
    stopped = long_arrival("stopped", max_tokens=5).request()
    stopped.sampling_params.stop = ["END"]
    machine.scheduler.add_request(stopped)

    for _ in range(4):
        machine.draw(1.0)

    assert machine.told.keys() == {"stopped"}  # the API's process may find its string at any time
    assert machine.outputs_told == 4
    machine.draw(1.0)
    assert machine.told.keys() == {"plain", "stopped"}


def test_a_request_that_failed_before_it_was_computed_has_an_empty_trace() -> None:
    machine = Traced(1)
    arrive(machine, "a")
    machine.step(lost=(0,), up=(False,))

    assert machine.told["a"] == RequestTrace(machine.told["a"].dilation)


def test_a_request_that_fails_after_its_first_token_names_the_weights_that_made_it() -> None:
    machine = Traced(1)
    arrive(machine, "a")
    machine.draw(1.0, weights=("v1-a",))
    machine.step(lost=(0,), up=(False,), weights=("v1-a",))

    assert machine.ended == {"a": FinishReason.ERROR}
    assert machine.weights["a"] == ["v1-a"]


def test_a_request_that_comes_back_to_a_rank_names_it_again() -> None:
    trace = RequestTrace(10.0)
    for rank in (0, 0, 1, 0):
        trace.at(rank, (2 * rank, 2 * rank + 1))

    assert (trace.ranks, trace.chips) == ((0, 1, 0), (0, 1))


def test_a_trace_is_told_as_it_was() -> None:
    trace = RequestTrace(10.0)
    message = trace.message()
    trace.at(3, (6, 7))
    trace.decode_chip_joules += 1.0

    assert message == RequestTrace(10.0).message()
    assert RequestTrace(*trace.message()) == trace


@pytest.mark.long
@given(st.builds(RequestTrace))
def test_a_message_is_every_field_in_its_order(trace: RequestTrace) -> None:
    assert trace.message() == astuple(trace)


def test_without_tracing_outputs_are_left_as_they_are() -> None:
    machine = Traced(1, otlp_traces_endpoint=None)
    arrive(machine, "a", max_tokens=2)
    machine.draw(1.0)
    (place,) = machine.scheduler._places.values()
    machine.draw(1.0)

    assert place.trace is None
    assert machine.ended.keys() == {"a"}
    assert machine.told == {}


@pytest.mark.long
@settings(max_examples=12)
@given(
    seed=st.integers(0, 2**32 - 1),
    joules=st.lists(st.floats(0.0, 1e6), min_size=8, max_size=8),
    loss=st.sampled_from([None, (0, False), (1, False), (1, True)]),
)
def test_the_shares_of_all_requests_are_the_energy_of_all_steps(
    seed: int, joules: list[float], loss: tuple[int, bool] | None
) -> None:
    rng = np.random.default_rng(seed)
    machine = Traced(3, max_num_batched_tokens=32)
    drawn = 0.0
    for number, step_joules in enumerate(joules):
        for each in range(rng.integers(0, 4)):
            arrive(
                machine,
                f"{number}-{each}",
                tokens=int(rng.integers(1, 90)),
                max_tokens=int(rng.integers(1, 6)),
            )
        lost, answered = ((loss[0],), loss[1]) if loss and number == 4 else ((), False)
        ranks = tuple(rank for rank in range(3) if rank not in lost or answered)
        output = machine.draw(step_joules, ranks=ranks, lost=lost, answered=answered)
        if any(output.by_rank[rank].total_num_scheduled_tokens for rank in ranks):
            drawn += step_joules
    machine.finish()

    chips = sum(trace.chip_joules for trace in machine.told.values())
    facility = sum(trace.facility_joules for trace in machine.told.values())
    assert chips == pytest.approx(drawn, rel=1e-9, abs=1e-9)
    assert facility == pytest.approx(FACILITY * drawn, rel=1e-9, abs=1e-9)


def test_joules_below_zero_are_refused() -> None:
    with pytest.raises(ValueError, match=r"joules are at least 0: -1\.0 chip, 2\.0 facility"):
        StepEnergy(
            chip_joules=-1.0,
            facility_joules=2.0,
            ranks=(0,),
            chip_of_position=np.zeros(1, dtype=np.int64),
            tp=1,
        )
