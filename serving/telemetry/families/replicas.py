"""The families of a service of several engines (`ultraserve serve --replicas`)."""

from typing import Final

from serving.telemetry.families.family import Family

_REPLICA: Final = ("replica",)

READY: Final = Family(
    "ultraserve_replica_ready", "Whether the replica takes requests, 1 or 0.", labels=_REPLICA
)
IN_FLIGHT: Final = Family(
    "ultraserve_replica_requests_in_flight",
    "Requests that the service has sent to the replica and that have not ended.",
    labels=_REPLICA,
)
LOAD_TOKENS: Final = Family(
    "ultraserve_replica_load_tokens",
    "Tokens of these requests, by which the router compares: of prompts, estimated, and made.",
    labels=_REPLICA,
)
SENT: Final = Family(
    "ultraserve_replica_requests",
    "Requests that the service has sent to the replica.",
    kind="counter",
    labels=_REPLICA,
)
LOST: Final = Family(
    "ultraserve_replica_lost_requests",
    "Requests that the replica did not bring to their end, and that another took over if any can.",
    kind="counter",
    labels=_REPLICA,
)
RESTARTS: Final = Family(
    "ultraserve_replica_restarts",
    "Starts of the replica after its first.",
    kind="counter",
    labels=_REPLICA,
)
ROLE: Final = Family(
    "ultraserve_replica_role",
    "1 for the role that the replica has, of prefill, decode and both; none without roles.",
    labels=("replica", "role"),
)
ROLE_CHANGES: Final = Family(
    "ultraserve_replica_role_changes",
    "Changes of the replica's role, by an operator or the load.",
    kind="counter",
    labels=_REPLICA,
)
REPLAYS: Final = Family(
    "ultraserve_replays",
    "Attempts at requests, or at their prompts, after which the service looked for a replica "
    "again, by whether the client had a part of the answer, and by why: the replica was lost or "
    "unavailable, it refused (429), or prompts were shared with one that came to prefill.",
    kind="counter",
    labels=("begun", "reason"),
)
BROKEN: Final = Family(
    "ultraserve_broken_streams",
    "Streams that had begun and could not go on on another replica.",
    kind="counter",
)
REPLICAS: Final = (
    *(READY, IN_FLIGHT, LOAD_TOKENS, SENT, LOST, RESTARTS, ROLE, ROLE_CHANGES, REPLAYS, BROKEN),
)
