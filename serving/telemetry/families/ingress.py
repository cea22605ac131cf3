"""The families of what clients make the server hold; see serving.server.gateway.ingress_account."""

from typing import Final

from serving.telemetry.families.family import Family

HELD: Final = Family(
    name="ultraserve_ingress_held_bytes",
    unit="bytes",
    labels=("credential",),
    help="Bytes of heads, bodies and messages that the server holds, by whether their sender has "
    "shown a key (key) or not (none).",
)
STRANGERS: Final = Family(
    name="ultraserve_ingress_unauthenticated_connections",
    help="Connections, and calls of gRPC that wait for their message, without a key so far.",
)
REFUSED: Final = Family(
    name="ultraserve_ingress_refused",
    kind="counter",
    labels=("limit",),
    help="Connections, requests and calls that were refused or closed, by the limit that they "
    "reached.",
)
INGRESS: Final = (HELD, STRANGERS, REFUSED)
