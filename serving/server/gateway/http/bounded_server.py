"""The limits and the TLS of a server's HTTP connections, by the gateway's settings."""

import ssl
from collections.abc import Callable, Sequence
from functools import partial

import uvicorn
from prometheus_client import CollectorRegistry

from serving.access.key_ring import KeyRing
from serving.access.renewed_context import RenewedContext
from serving.server.gateway.gateway_settings import GatewaySettings
from serving.server.gateway.http.bounded_protocol import HttpIngress, bound_connections
from serving.server.gateway.http.http_access import key_of
from serving.server.gateway.ingress_account import IngressAccount
from serving.server.gateway.ingress_limits import IngressLimits, Limit
from serving.server.gateway.permits.permit_messages import ClientsHeld
from serving.telemetry.gateway_metrics import IngressMetrics


def measured_ingress(
    settings: GatewaySettings,
    registry: CollectorRegistry | None = None,
    *,
    others: Callable[[], Sequence[ClientsHeld]] = tuple,
) -> IngressAccount:
    """The account of what clients make this process hold.

    Metrics of `registry` show it with what they make the `others` of the server hold.
    """
    metrics = IngressMetrics(Limit, registry)
    account = IngressAccount(IngressLimits.of(settings.body_bytes_max), on_refusal=metrics.refused)
    metrics.follow(
        keyed_bytes=lambda: account.keyed_bytes + sum(held.keyed_bytes for held in others()),
        stranger_bytes=lambda: (
            account.stranger_bytes + sum(held.stranger_bytes for held in others())
        ),
        strangers=lambda: account.strangers + sum(held.strangers for held in others()),
    )
    return account


def bound_server(
    config: uvicorn.Config, settings: GatewaySettings, account: IngressAccount, keys: KeyRing
) -> None:
    """Give every later connection the account's limits, and TLS if the settings have it."""
    bound_connections(config, HttpIngress(account, partial(key_of, keys)), _tls(config, settings))


def _tls(config: uvicorn.Config, settings: GatewaySettings) -> Callable[[], ssl.SSLContext] | None:
    if settings.tls is None:
        return None
    context = RenewedContext(
        settings.tls, protocols=("http/1.1",), port="HTTP", ciphers=config.ssl_ciphers
    )
    return context.present
