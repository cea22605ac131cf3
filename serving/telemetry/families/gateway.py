"""The gateway's families: admission, and what clients make it hold. No label is a key."""

from typing import Final

from serving.telemetry.families.family import Family

_CLASS: Final = ("class",)

REQUESTS: Final = Family(
    "ultraserve_admission_requests",
    "Requests that came to the gateway, by class of work and outcome: entered, then finished, "
    "aborted, failed, or refused (also of those that had entered and waited).",
    kind="counter",
    labels=("class", "outcome"),
)
REFUSED: Final = Family(
    "ultraserve_admission_refused",
    "Requests that were refused, by class of work and reason.",
    kind="counter",
    labels=("class", "reason"),
)
WAIT: Final = Family(
    "ultraserve_admission_wait_seconds",
    "Emulated seconds from entering to the first token, by class of work.",
    kind="histogram",
    labels=_CLASS,
)
IN_FLIGHT: Final = Family(
    "ultraserve_admission_in_flight",
    "Requests that have entered and not left, by class of work.",
    labels=_CLASS,
)
WAITING: Final = Family(
    "ultraserve_admission_waiting_requests",
    "Requests that wait for their turn or their first token, by class of work.",
    labels=_CLASS,
)
WAITING_TOKENS: Final = Family(
    "ultraserve_admission_waiting_tokens",
    "Prompt tokens of the requests that wait, by class of work.",
    labels=_CLASS,
)
LIMIT: Final = Family(
    "ultraserve_admission_limit",
    "The bounds of the gateway by name, as it was started; absent where there is none.",
    labels=("limit",),
)
GATEWAY: Final = (REQUESTS, REFUSED, WAIT, IN_FLIGHT, WAITING, WAITING_TOKENS, LIMIT)

HELD_BYTES: Final = Family(
    "ultraserve_ingress_held_bytes",
    "Bytes of heads, bodies and messages that the server holds, by whether their sender has "
    "shown a key (key) or not (none).",
    labels=("credential",),
)
UNAUTHENTICATED: Final = Family(
    "ultraserve_ingress_unauthenticated_connections",
    "Connections, and calls of gRPC that wait for their message, without a key so far.",
)
INGRESS_REFUSED: Final = Family(
    "ultraserve_ingress_refused",
    "Connections, requests and calls that were refused or closed, by the limit that they reached.",
    kind="counter",
    labels=("limit",),
)
INGRESS: Final = (HELD_BYTES, UNAUTHENTICATED, INGRESS_REFUSED)
