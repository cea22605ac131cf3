"""The gateway's families. Labels are classes, outcomes and reasons: never keys."""

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
    unit="s",
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
DOOR: Final = (REQUESTS, REFUSED, WAIT, IN_FLIGHT, WAITING, WAITING_TOKENS, LIMIT)
