from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from vllm.v1.metrics.stats import SchedulerStats

from serving.front_door.engine_capacity import EngineCapacity
from serving.plugin.stat_logger import EmulatedStatLogger
from tests.serving.metrics.snapshots import snapshot
from tests.serving.own_metrics import own_metrics
from tests.serving.plugin.engine_config import BLOCK_TOKENS, engine_config


@pytest.fixture
def logger() -> Iterator[EmulatedStatLogger]:
    config = engine_config(chips=2)
    config.cache_config.num_gpu_blocks = 100
    with own_metrics():
        yield EmulatedStatLogger(config, [0])


def test_all_ranks_count_until_a_snapshot_says_which_are_up(logger: EmulatedStatLogger) -> None:
    manager = SimpleNamespace(stat_loggers=[logger])
    engine = SimpleNamespace(vllm_config=logger.vllm_config, logger_manager=manager)
    capacity = EngineCapacity(engine)

    assert capacity().seats == 2 * 6
    assert capacity().kv_tokens == 2 * 100 * BLOCK_TOKENS
    assert capacity().prefill_tokens_per_step == 2 * 64
    assert capacity().dilation == 1.0

    payload = snapshot(ranks_up=1, dilation=4.0).to_payload()
    logger.record(SchedulerStats(running_lora_adapters=payload), None)

    assert capacity().seats == 6
    assert capacity().kv_tokens == 100 * BLOCK_TOKENS
    assert capacity().dilation == 4.0


def test_an_engine_that_logs_nothing_has_what_its_configuration_says() -> None:
    config = engine_config(chips=1)
    config.cache_config.num_gpu_blocks = 100

    capacity = EngineCapacity(SimpleNamespace(vllm_config=config, logger_manager=None))

    assert capacity().seats == 6
