import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from serving.plugin.stat_logger import EmulatedStatLogger
from serving.policy.admission.capacity import NO_TIME, BacklogTimes
from serving.server.gateway.engine_times import EngineCapacity, backlog_times
from tests.serving.own_metrics import own_metrics
from tests.serving.plugin.engine_config import BLOCK_TOKENS, engine_config
from tests.serving.wire.engine_statuses import status, writer_for


@pytest.fixture
def logger() -> Iterator[EmulatedStatLogger]:
    config = engine_config(chips=2)
    config.cache_config.num_gpu_blocks = 100
    with own_metrics():
        yield EmulatedStatLogger(config, [0])


def test_all_ranks_count_until_the_status_says_which_are_up(logger: EmulatedStatLogger) -> None:
    manager = SimpleNamespace(stat_loggers=[logger])
    engine = SimpleNamespace(vllm_config=logger.vllm_config, logger_manager=manager)
    capacity = EngineCapacity(engine, promises=False)

    assert capacity().seats == 2 * 6
    assert capacity().kv_tokens == 2 * 100 * BLOCK_TOKENS
    assert capacity().prefill_tokens_per_step == 2 * 64
    assert capacity().dilation == 1.0

    engine_side = writer_for(logger)
    engine_side.write(status(ranks_up=1, dilation=4.0))

    assert capacity().seats == 6
    assert capacity().kv_tokens == 100 * BLOCK_TOKENS
    assert capacity().dilation == 4.0


def test_an_engine_that_logs_nothing_has_what_its_configuration_says() -> None:
    config = engine_config(chips=1)
    config.cache_config.num_gpu_blocks = 100

    capacity = EngineCapacity(
        SimpleNamespace(vllm_config=config, logger_manager=None), promises=False
    )

    assert capacity().seats == 6


@pytest.mark.parametrize("promises", [True, False])
def test_a_start_waits_for_the_times_of_a_backlog_only_where_first_tokens_are_promised(
    promises: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end = threading.Event()

    def found(*args: Any, **more: Any) -> BacklogTimes:
        assert promises or may_end.wait(10)
        return backlog_times(*args, **more)

    monkeypatch.setattr("serving.server.gateway.engine_times.backlog_times", found)
    config = engine_config(chips=1)
    config.cache_config.num_gpu_blocks = 100
    engine = SimpleNamespace(vllm_config=config, logger_manager=None)
    others = set(threading.enumerate())  # of tests before
    capacity = EngineCapacity(engine, promises=promises)
    assert (capacity().backlog_times is NO_TIME) is not promises

    began = set(threading.enumerate()) - others
    finding = [each for each in began if each.name == "backlog times"]
    assert bool(finding) is not promises
    may_end.set()
    for thread in finding:
        thread.join(10)
    assert capacity().backlog_times is not NO_TIME
    assert capacity().seats == 6
