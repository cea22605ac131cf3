"""The gateway's families: admission, and what clients make it hold. No label is a key."""

from typing import Final

from serving.telemetry.families.family import Family

_CLASS: Final = ("class",)

REQUESTS: Final = Family(
    name="ultraserve_admission_requests",
    kind="counter",
    labels=("class", "outcome"),
    help="Requests that came to the gateway, by class of work and outcome: entered, then finished, "
    "aborted, failed, or refused (also of those that had entered and waited).",
)
REFUSED: Final = Family(
    name="ultraserve_admission_refused",
    kind="counter",
    labels=("class", "reason"),
    help="Requests that were refused, by class of work and reason.",
)
WAIT: Final = Family(
    name="ultraserve_admission_wait_seconds",
    kind="histogram",
    labels=_CLASS,
    help="Emulated seconds from entering to the first token, by class of work.",
)
IN_FLIGHT: Final = Family(
    name="ultraserve_admission_in_flight",
    labels=_CLASS,
    help="Requests that have entered and not left, by class of work.",
)
WAITING: Final = Family(
    name="ultraserve_admission_waiting_requests",
    labels=_CLASS,
    help="Requests that wait for their turn or their first token, by class of work.",
)
WAITING_TOKENS: Final = Family(
    name="ultraserve_admission_waiting_tokens",
    labels=_CLASS,
    help="Prompt tokens of the requests that wait, by class of work.",
)
LIMIT: Final = Family(
    name="ultraserve_admission_limit",
    labels=("limit",),
    help="The bounds of the gateway by name, as it was started; absent where there is none.",
)
GATEWAY: Final = (REQUESTS, REFUSED, WAIT, IN_FLIGHT, WAITING, WAITING_TOKENS, LIMIT)

HELD_BYTES: Final = Family(
    name="ultraserve_ingress_held_bytes",
    labels=("credential",),
    help="Bytes of heads, bodies and messages that the server holds, by whether their sender has "
    "shown a key (key) or not (none).",
)
UNAUTHENTICATED: Final = Family(
    name="ultraserve_ingress_unauthenticated_connections",
    help="Connections, and calls of gRPC that wait for their message, without a key so far.",
)
INGRESS_REFUSED: Final = Family(
    name="ultraserve_ingress_refused",
    kind="counter",
    labels=("limit",),
    help="Connections, requests and calls that were refused or closed, by the limit that they "
    "reached.",
)
INGRESS: Final = (HELD_BYTES, UNAUTHENTICATED, INGRESS_REFUSED)
