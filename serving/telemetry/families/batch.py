"""The families of batches, on a server with a batch directory. No label is a key or a batch."""

from typing import Final

from serving.telemetry.families.family import Family

BATCHES: Final = Family(
    "ultraserve_batch_batches",
    "Batches that are not over, by status.",
    labels=("status",),
)
ENDED: Final = Family(
    "ultraserve_batch_ended",
    "Batches that this server has ended, by status.",
    kind="counter",
    labels=("status",),
)
PENDING: Final = Family(
    "ultraserve_batch_pending_requests",
    "Requests of batches that wait to be sent: for the night, for a seat, or for the load to fall.",
)
UNDER_WAY: Final = Family(
    "ultraserve_batch_running_requests",
    "Requests of batches that were sent and are not answered; some wait for their turn.",
)
REQUESTS: Final = Family(
    "ultraserve_batch_requests",
    "What came of requests of batches: completed, failed, expired or cancelled, which have their "
    "line; put_off and retried, which are sent again.",
    kind="counter",
    labels=("outcome",),
)
HELD_GROUPS: Final = Family(
    "ultraserve_batch_held_groups",
    "Free groups that stay in service for requests of batches.",
)
BATCH: Final = (BATCHES, ENDED, PENDING, UNDER_WAY, REQUESTS, HELD_GROUPS)
