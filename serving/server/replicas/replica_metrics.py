"""The service's page of metrics: its own families, and its replicas' with a label `replica`.

What the gateway counts is of the service alone, where each request passes once; of its families the
replicas keep the wait for the first token, which they see exactly.
"""

import asyncio
from collections.abc import Callable, Mapping
from itertools import product
from typing import Final

import aiohttp
from prometheus_client import CollectorRegistry, generate_latest

from serving.server.replicas.live_replica import LiveReplica
from serving.server.replicas.live_replicas import LiveReplicas
from serving.server.replicas.merged_metrics import MergedMetrics
from serving.server.replicas.replay_counters import ReplayReason
from serving.telemetry.families import batch, gateway, replicas
from serving.telemetry.families.family import Family
from serving.telemetry.page.text_page import TextPage

_WITHIN_S: Final = 3.0
"""Wall seconds for a replica's page; a scraper as in deploy/prometheus gives up after 4."""

_OF_SERVICE: Final = frozenset(
    family.name
    for family in (*gateway.GATEWAY, *gateway.INGRESS, *batch.BATCH)
    if family is not gateway.WAIT
)


class ReplicaMetrics:
    """Counts what becomes of requests, and makes the page; `registry` has the gateway's."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._replays = dict.fromkeys(product(("whole", "begun"), ReplayReason), 0)
        self._broken = 0

    def replayed(self, reason: ReplayReason, *, begun: bool) -> None:
        """After an attempt a replica is looked for again; `begun`: amid the stream."""
        self._replays["begun" if begun else "whole", reason] += 1

    def broken(self) -> None:
        """A stream that had begun could not go on."""
        self._broken += 1

    async def page(self, live: LiveReplicas, session: aiohttp.ClientSession) -> bytes:
        """The page now; a replica that does not answer is missing from it."""
        pages = await asyncio.gather(*(_page_of(each, session) for each in live.all))
        numbers = [str(each.place.number) for each in live.all]
        of_replicas = dict(zip(numbers, pages, strict=True))
        # Beside the loop, which other requests' tokens wait for.
        return await asyncio.to_thread(self._merged, self._own(live), of_replicas)

    def _merged(self, own: str, of_replicas: Mapping[str, str]) -> bytes:
        merged = MergedMetrics()
        merged.add(own, {})
        merged.add(generate_latest(self._registry).decode(), {}, keeps=_is_of_service)
        for number, page in of_replicas.items():
            merged.add(page, {"replica": number}, keeps=lambda name: not _is_of_service(name))
        return merged.text().encode()

    def _own(self, live: LiveReplicas) -> str:
        page = TextPage()
        figures: dict[Family, Callable[[LiveReplica], float]] = {
            replicas.READY: lambda each: each.is_ready,
            replicas.IN_FLIGHT: lambda each: each.in_flight,
            replicas.LOAD_TOKENS: lambda each: each.load_tokens,
            replicas.SENT: lambda each: each.requests,
            replicas.LOST: lambda each: each.losses,
            replicas.RESTARTS: lambda each: each.restarts,
            replicas.ROLE_CHANGES: lambda each: each.role_changes,
        }
        for family, figure in figures.items():
            rows = [((str(each.place.number),), float(figure(each))) for each in live.all]
            page.add(family, rows)
        if live.have_roles:
            roles = [((str(each.place.number), str(each.role)), 1.0) for each in live.all]
            page.add(replicas.ROLE, roles)
        page.add(replicas.REPLAYS, [(how, float(n)) for how, n in self._replays.items()])
        page.one(replicas.BROKEN, float(self._broken))
        return page.text()


def _is_of_service(family: str) -> bool:
    """Whether the family is the gateway's; counters' names in a page end in _total."""
    return family.removesuffix("_total").removesuffix("_created") in _OF_SERVICE


async def _page_of(replica: LiveReplica, session: aiohttp.ClientSession) -> str:
    if not replica.url:
        return ""
    timeout = aiohttp.ClientTimeout(total=_WITHIN_S)
    try:
        async with session.get(f"{replica.url}/metrics", timeout=timeout) as response:
            return await response.text() if response.status == 200 else ""
    except (aiohttp.ClientError, OSError):
        return ""
