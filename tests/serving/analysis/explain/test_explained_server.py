"""A server's recorded step, explained from what its control service tells."""

import numpy as np
import pytest

from emulator.data import SMALL_MOE_DIR
from emulator.errors import ConfigError
from emulator.specs.batch import StepBatch
from serving.analysis.explain.explained_server import RecordedLoad, step_of_server, typical_step
from serving.engine.deployment import Deployment, resolve_deployment
from serving.engine.engine_description import describe_engine
from serving.engine.scheduler_state import RankQueues
from serving.engine.step_recording import StepRecording
from serving.settings import Settings
from serving.wire.step_record import StepPhase, StepRecord
from serving.wire.system_description import SystemDescription


def deployed(**settings: object) -> Deployment:
    given = {"chips": 2, "model": "qwen3-30b-a3b", "computes": False, "routing": "uniform"}
    return resolve_deployment(Settings(**{**given, **settings}), SMALL_MOE_DIR)  # type: ignore[arg-type]


def described(deployment: Deployment) -> SystemDescription:
    return describe_engine(deployment, dilation=1.0, kv_blocks=1_000)


def batch(*requests: tuple[int, int, int]) -> StepBatch:
    """Requests (rank, new tokens, context) on two ranks."""
    rank, new, context = np.array(requests, dtype=np.int64).T
    return StepBatch(
        ranks=2,
        rank=rank,
        new_tokens=new,
        context_tokens=context,
        logit_rows=np.bincount(rank, minlength=2),
    )


def recorded(deployment: Deployment, *batches: StepBatch) -> tuple[StepRecord, ...]:
    costing = deployment.machine(0.9).costing()
    recording = StepRecording(1)
    begin_ns = 0
    for each in batches:
        cost = costing.cost(each)
        recording.add(
            cost,
            each,
            costing=costing,
            loads=None,
            begin_ns=begin_ns,
            pause_ns=0,
            chips=np.arange(2),
            queues=[RankQueues(running=1, waiting=0, kv_blocks_used=1)] * 2,
        )
        begin_ns += cost.duration_ns
    return recording.records()


UNEVEN = batch((0, 1, 3_000), (0, 1, 3_000), (0, 1, 3_000), (1, 1, 3_000))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"overlap": "full", "calibration": "roofline"},
        {"assumptions": ("hop=switch-chip", "dma=spec")},
        {"assumptions": ("dma=spec", "hbm_bandwidth=2x", "switch_hop=230ns", "pue=1.2")},
        {"assumptions": ("links=aws_text", "link_cross_rack_bytes_per_s=1TB/s")},
        {"routing": "zipf:1.2"},
    ],
)
def test_equal_contexts_are_found_and_the_step_is_the_recorded_one(
    settings: dict[str, object],
) -> None:
    deployment = deployed(**settings)
    (step,) = recorded(deployment, UNEVEN)

    question, (compared,), _ = step_of_server(described(deployment), step)

    assert question.system == deployment.system
    assert isinstance(question.load, RecordedLoad)
    assert question.load.context_tokens == pytest.approx(3_000, abs=1)
    assert question.counted().duration_ns() == pytest.approx(step.duration_ns, rel=1e-4)
    assert compared.ns == step.duration_ns


def test_a_prompt_beside_decodes_is_one_new_prompt() -> None:
    deployment = deployed()
    (step,) = recorded(deployment, batch((0, 1, 500), (1, 1, 500), (1, 700, 0)))
    question, _, _ = step_of_server(described(deployment), step)
    assert question.counted().duration_ns() == pytest.approx(step.duration_ns, rel=1e-3)


def test_the_median_step_of_the_longest_phase_is_typical() -> None:
    decodes = [batch((0, 1, context), (1, 1, context)) for context in (100, 9_000, 3_000)]
    steps = recorded(deployed(), batch((0, 4_000, 0)), *decodes)
    assert typical_step(steps, StepPhase.DECODE).step == 3
    assert typical_step(steps, None).phase is StepPhase.PREFILL
    with pytest.raises(ConfigError, match=r"phase=mixed.*decode, prefill"):
        typical_step(steps, StepPhase.MIXED)


def test_weights_outside_the_catalog_are_refused() -> None:
    deployment = deployed()
    (step,) = recorded(deployment, UNEVEN)
    own = described(deployed(model=None, routing=None))
    with pytest.raises(ConfigError, match="model"):
        step_of_server(own, step)
