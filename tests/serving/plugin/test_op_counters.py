"""vLLM's families of work per GPU, against the engine's own meters."""

from collections.abc import Iterator

import pytest
from prometheus_client import REGISTRY
from vllm.v1.metrics.perf import PerfStats

from serving.plugin.stat_logger import EmulatedStatLogger
from tests.serving.own_metrics import own_metrics
from tests.serving.plugin.engine_config import engine_config
from tests.serving.plugin.seen_engine import Seen

pytestmark = pytest.mark.long


@pytest.fixture
def logger() -> Iterator[EmulatedStatLogger]:
    settings = {"chips": 4, "clock": "real"}
    config = engine_config(additional_config={"ultraserve": settings})
    config.cache_config.num_gpu_blocks = 100
    with own_metrics():
        yield EmulatedStatLogger(config, [0])


def value(name: str) -> float:
    (found,) = (
        sample.value
        for family in REGISTRY.collect()
        for sample in family.samples
        if sample.name == f"vllm:estimated_{name}_per_gpu_total"
    )
    return found


def test_work_is_the_mean_chip_s_whatever_vllm_estimates(logger: EmulatedStatLogger) -> None:
    seen = Seen(spares=1)
    for _ in range(2):
        seen.step(0, 1, 2, 3)
        look = seen.look()
        logger.take_snapshot(look)
        logger.perf_metrics_prom.observe(PerfStats(num_flops_per_gpu=10**15))
        flops = sum(meters.flops for meters in look.meters)
        assert flops > 0
        assert value("flops") == pytest.approx(flops / 4)
        hbm_bytes = sum(meters.hbm_bytes for meters in look.meters)
        assert value("read_bytes") == pytest.approx(hbm_bytes / 4)
        assert value("write_bytes") == 0
