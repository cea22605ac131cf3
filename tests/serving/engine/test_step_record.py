"""One step as a record: by hand from a batch, and whole from a cost."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.specs.batch import StepBatch
from emulator.specs.calibration import ROOFLINE
from emulator.specs.models import model_by_name
from emulator.specs.overlap import Overlap
from emulator.specs.partition import Partition
from emulator.specs.systems import system_by_name
from emulator.ultraserver.step_cost import StepCostModel
from serving.engine.scheduler_state import RankQueues
from serving.engine.step_batch import prefill_and_decode_tokens
from serving.engine.step_recording import StepRecording
from serving.wire.step_record import StepPhase, phase_of
from tests.serving.telemetry.recorded_steps import costing

COSTS = {
    overlap: StepCostModel(
        system_by_name("trn3-nl72x2"),
        model_by_name("qwen3-30b-a3b"),
        Partition(chips=4, tp=2, ep=4, lnc=2),
        overlap=overlap,
        calibration=ROOFLINE,
    )
    for overlap in Overlap
}
COST = COSTS[Overlap.NONE]


def batch(*rows: tuple[int, int, int], ranks: int = 2) -> StepBatch:
    """Of each request: rank, new tokens, context."""
    rank, new, context = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    return StepBatch(
        ranks=ranks,
        rank=rank,
        new_tokens=new,
        context_tokens=context,
        logit_rows=np.bincount(rank, minlength=ranks).astype(np.int64),
    )


def test_a_token_over_a_context_decodes_and_all_others_are_of_a_prompt() -> None:
    prefill, decode = prefill_and_decode_tokens(
        batch((0, 1, 40), (0, 1, 1), (0, 7, 0), (1, 1, 0), (1, 5, 20))
    )

    assert prefill.tolist() == [7, 6]
    assert decode.tolist() == [2, 0]


@pytest.mark.parametrize(
    ("prompt", "tokens", "phase"),
    [
        (0, 10, StepPhase.DECODE),
        (1, 10, StepPhase.MIXED),
        (89, 100, StepPhase.MIXED),
        (90, 100, StepPhase.PREFILL),
        (10, 10, StepPhase.PREFILL),
    ],
)
def test_nine_tenths_of_prompt_tokens_make_a_prefill(
    prompt: int, tokens: int, phase: StepPhase
) -> None:
    assert phase_of(prompt, tokens) is phase


def test_a_record_says_what_the_cost_says() -> None:
    work = batch((0, 1, 300), (0, 64, 0), (1, 1, 900))
    cost = COST.cost(work)
    recording = StepRecording(1)
    recording.add(
        cost,
        work,
        costing=costing(),
        loads=None,
        begin_ns=17,
        pause_ns=5,
        chips=np.array([0, 1, 4, 3]),
        queues=[
            RankQueues(running=2, waiting=1, kv_blocks_used=24),
            RankQueues(running=1, waiting=0, kv_blocks_used=57),
        ],
    )
    (record,) = recording.records()

    assert (record.step, record.begin_ns, record.pause_ns) == (0, 17, 5)
    assert record.end_ns == 17 + cost.duration_ns
    assert (record.prefill_tokens, record.decode_tokens) == ((64, 0), (1, 1))
    assert record.tokens == 66
    assert record.phase is StepPhase.PREFILL
    assert (record.requests_running, record.requests_waiting) == ((2, 1), (1, 0))
    assert record.kv_blocks_used == (24, 57)
    assert record.chips == (0, 1, 4, 3)
    assert {busy.engine for busy in record.engines} == set(cost.engine_ns)
    for busy in record.engines:
        assert list(busy.busy_ns) == cost.engine_ns[busy.engine].tolist()
    for name in ("flops", "hbm_bytes", "link_bytes"):
        assert list(getattr(record, name)) == getattr(cost, name).tolist()
    assert list(record.watts) == cost.chip_watts.tolist()
    assert (record.parts_ns, record.bound) == (cost.parts_ns, cost.bound)


@given(
    st.lists(
        st.tuples(st.integers(0, 1), st.integers(1, 3_000), st.integers(0, 20_000)),
        min_size=1,
        max_size=12,
    ),
    st.sampled_from(Overlap),
)
def test_no_engine_is_busy_for_longer_than_its_step(
    rows: list[tuple[int, int, int]], overlap: Overlap
) -> None:
    """What is drawn as one span from the step's begin never reaches into the next step."""
    cost = COSTS[overlap].cost(batch(*rows))

    for name, busy_ns in cost.engine_ns.items():
        assert busy_ns.max() <= cost.duration_ns, name
    assert sum(cost.parts_ns.values()) == pytest.approx(cost.duration_ns, abs=1.001)  # rounded up
