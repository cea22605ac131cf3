"""KV events of all ranks, as vLLM publishes them (`--kv-events-config`), at one endpoint.

A batch names its rank as `data_parallel_rank`: a rank's blocks are its own, and a block that one
rank has removed may lie in another. Contract: `vllm.distributed.kv_events`.
"""

import copy
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_events import EventBatch, EventPublisher, EventPublisherFactory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vllm.config import VllmConfig
    from vllm.v1.core.sched.scheduler import Scheduler


def without_publishers(vllm_config: "VllmConfig") -> "VllmConfig":
    """A config for the ranks' schedulers, which collect events and have no endpoint each."""
    config = copy.copy(vllm_config)
    config.kv_events_config = copy.copy(vllm_config.kv_events_config)
    if config.kv_events_config is not None:
        config.kv_events_config.publisher = "null"
    return config


def publish_together(ranks: "Sequence[Scheduler]", vllm_config: "VllmConfig") -> None:
    """Let the ranks publish at the endpoint of `vllm_config`, if it has one."""
    shared = EventPublisherFactory.create(vllm_config.kv_events_config)
    for number, rank in enumerate(ranks):
        rank.kv_event_publisher = RankPublisher(shared, number)


class RankPublisher(EventPublisher):
    """One rank's part of a publisher that the ranks share; rank 0's end is its end."""

    def __init__(self, shared: EventPublisher, rank: int) -> None:
        super().__init__(rank)
        self._shared = shared

    def publish(self, events: EventBatch) -> None:
        """Publish a batch of the rank's."""
        events.data_parallel_rank = self._data_parallel_rank
        self._shared.publish(events)

    def get_publisher_config(self) -> Any:
        """The shared one's."""
        return self._shared.get_publisher_config()

    def shutdown(self) -> None:
        """End the shared publisher with rank 0."""
        if self._data_parallel_rank == 0:
            self._shared.shutdown()
