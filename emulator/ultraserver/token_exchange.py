"""Bytes that a layer's exchange moves between chips.

Directly, a row goes once to each chip with a part of one of its experts. Between scale-up domains
it may go once to each domain that needs it, to the chip in the sender's place there, which forwards
it over its own links (as DeepEP does for prefill); on the way back a domain's partial sums are
added up first. The faster of both counts. What is forwarded inside a domain takes its links
`stores_slower` times as long as their rate says, beside the links between domains. What goes
directly has the share between domains on all its links: over whole domains most of it leaves the
sender's, through network cards that are at most a quarter as fast.
"""

from dataclasses import replace

import numpy as np

from emulator.arrays import Bools, Float64s, Int64s
from emulator.fabric.all_to_all import AllToAll, LayerExchanges
from emulator.fabric.tier_paths import TierPaths
from emulator.fabric.tiers import Tier, tier_latency_ns
from emulator.specs.partition import Partition
from emulator.specs.placement import ExpertPlacement
from emulator.specs.system import SystemSpec
from emulator.timing.expert_distribution import ExpertDistribution
from emulator.timing.routing import ExpectedRouting


class TokenExchange:
    """The exchange of rows of `row_bytes` under one distribution on one placement.

    `needed`, float64[kinds, chips]: probability that a token of its group needs each chip.
    """

    def __init__(
        self,
        system: SystemSpec,
        partition: Partition,
        all_to_all: AllToAll,
        *,
        needed: Float64s,
        row_bytes: float,
        stores_slower: float = 1.0,
    ) -> None:
        self._system = system
        self._partition = partition
        self._all_to_all = all_to_all
        group = np.arange(partition.chips) // partition.expert_group
        self.same_group = (group[:, None] == group).astype(np.float64)  # [chips, chips]
        self._row_bytes = row_bytes
        self._stores_slower = stores_slower
        self._needed = needed
        self._per_token = row_bytes * needed[:, None, :] * self.same_group  # [kinds, chips, chips]
        self._domain_needed: Float64s | None = None

    def may_forward(self, distribution: ExpertDistribution, placement: ExpertPlacement) -> None:
        """Allow forwarding through domains, where expert groups span several; changes self."""
        width = self._system.chips.count // self._system.units
        group = self._partition.expert_group
        whole = self._partition.first_chip % width == 0 and group % width == 0 and group > width
        if self._partition.expert_tp > 1 or not whole:
            return
        slots = placement.expert_of_slot
        domains = ExpertPlacement(
            experts=placement.experts,
            ep=group // width,
            expert_of_slot=slots.reshape(len(slots), slots.shape[1] // width, -1),
        )
        by_domain = ExpectedRouting(distribution, domains).chance_needed  # [kinds, domains]
        self._domain_needed = np.repeat(by_domain, width, axis=1)  # [kinds, chips]

    def lanes(self) -> TierPaths | None:
        """The lanes that carry all bytes straight from sender to receiver, where none forwards."""
        return None if self._domain_needed is not None else self._all_to_all.tier_paths

    def links(self) -> tuple[Float64s, Int64s] | None:
        """Links that carry all bytes where chips forward by hardware alone: ns of each for one of
        a sender's tokens, [kinds, senders, links], and its ends, [links, 2], -1 for a chip that
        only forwards.
        """
        paths = self._all_to_all.graph_paths
        if paths is None or self._domain_needed is not None:
            return None
        return paths.busy_ns_by_sender(self._per_token)

    def stuck(self) -> Bools:
        """Chips without links to one that needs their tokens, [senders]."""
        needed = self._per_token.any(axis=0)
        stuck: Bools = (needed & ~self._all_to_all.reachable()).any(axis=1)
        return stuck

    @property
    def longest_latency_ns(self) -> float:
        """Of an exchange, beside its bytes."""
        return self._all_to_all.longest_latency_ns

    @property
    def received_bytes(self) -> Float64s:
        """Bytes that each chip receives of one token of its group, [kinds, chips]."""
        return self._row_bytes * self._needed

    @property
    def per_token(self) -> Float64s:
        """Bytes of one token from each chip to each, [kinds, senders, receivers]."""
        per_token: Float64s = self._per_token
        return per_token

    def of_tokens(self, tokens: Float64s) -> tuple[LayerExchanges, Float64s]:
        """Exchanges of `tokens` [chips] by kind, and bytes [kinds, chips] that leave each chip."""
        direct = self.of_bytes(tokens[:, None] * self._per_token)
        if self._domain_needed is None:
            return direct
        across, inside = self._forwarded_bytes(tokens)
        _, forwarded_bytes = self.of_bytes(across + inside)
        forwarded = self._forwarded(across + self._stores_slower * inside)
        better = forwarded.duration_ns < direct[0].duration_ns  # [kinds]
        exchanges = LayerExchanges(
            link_busy_ns=np.where(better[:, None], forwarded.link_busy_ns, direct[0].link_busy_ns),
            duration_ns=np.where(better, forwarded.duration_ns, direct[0].duration_ns),
        )
        return exchanges, np.where(better[:, None], forwarded_bytes, direct[1])

    def slower(self, tokens: Float64s) -> Float64s:
        """`stores_slower` for the kinds whose busiest link of all forwards rows inside a domain, 1
        for the others: [kinds].
        """
        if self._domain_needed is None or self._stores_slower == 1:
            return np.ones(len(self._needed))
        exchanges, _ = self.of_tokens(tokens)
        _, inside = self._forwarded_bytes(tokens)
        stored = self._forwarded(self._stores_slower * inside)
        alike = np.isclose(stored.duration_ns, exchanges.duration_ns, rtol=1e-9, atol=0.0)
        return np.where(alike, self._stores_slower, 1.0)

    def _forwarded(self, sent_bytes: Float64s) -> LayerExchanges:
        """Of bytes [kinds, sender, receiver] that are received, and then passed on."""
        straight, _ = self.of_bytes(sent_bytes)
        passing_on_ns = tier_latency_ns(self._system, Tier.TRAY)
        busy = straight.duration_ns > 0
        forwarded_ns = np.where(busy, straight.duration_ns + passing_on_ns, 0.0)
        return replace(straight, duration_ns=forwarded_ns)

    def of_bytes(self, sent_bytes: Float64s) -> tuple[LayerExchanges, Float64s]:
        """The same of known bytes [kinds, sender, receiver]."""
        leaving: Float64s = sent_bytes.sum(axis=2) - np.einsum("kcc->kc", sent_bytes)
        return self._all_to_all.exchange_layers(sent_bytes), leaving

    def _forwarded_bytes(self, tokens: Float64s) -> tuple[Float64s, Float64s]:
        """Bytes from chip to chip, [kinds, chips, chips] each, across domains and inside them, when
        domains forward rows.

        A chip sends each row to its counterparts in other domains that need it, and forwards its
        own and their rows inside its domain.
        """
        assert self._domain_needed is not None
        width = self._system.chips.count // self._system.units
        chip = np.arange(len(tokens))
        domain, place = chip // width, chip % width
        same_domain = domain[:, None] == domain
        counterparts = (place[:, None] == place) * self.same_group  # [chips, chips], itself too
        lane_tokens = counterparts @ tokens  # [chips]
        across = tokens[:, None] * self._domain_needed[:, None, :] * (counterparts * ~same_domain)
        inside = lane_tokens[:, None] * self._needed[:, None, :] * same_domain
        return self._row_bytes * across, self._row_bytes * inside
