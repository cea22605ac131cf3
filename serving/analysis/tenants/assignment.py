"""Which groups serve which model and work for which tenant, once their numbers are known. Pure.

As few groups move as can be. Of those that move, groups that drain go back first, then the lowest
numbers, as in `handover_machine.wishes`.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from serving.analysis.tenants.fleet_groups import IDLE, FleetGroups, Use
from serving.policy.day_night.handover import HandoverPhase


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlace:
    """Where a group is: what it serves or served, and the tenant that has it or is to.

    `is_leased`: it neither serves nor returns. `drains`: on its way out.
    """

    model: int
    tenant: int | None
    is_leased: bool
    drains: bool


def places(fleet: FleetGroups) -> tuple[GroupPlace, ...]:
    """Of all groups."""
    found = []
    for group, model in enumerate(fleet.model):
        phase, bound = fleet.phase(group), fleet.bound[group]
        leased = phase in (HandoverPhase.DRAINING, HandoverPhase.TRAINING)
        tenant = bound if leased and bound != len(fleet.pools) - 1 else None
        drains = phase is HandoverPhase.DRAINING
        found.append(GroupPlace(model=model, tenant=tenant, is_leased=leased, drains=drains))
    return tuple(found)


def assigned(
    at: Sequence[GroupPlace], models: Sequence[int], tenants: Sequence[int]
) -> tuple[Use, ...]:
    """Uses of all groups, with so many for each model and each tenant; the others idle."""
    uses: list[Use | None] = [None] * len(at)

    def give(use: Use, count: int, ranked: Iterable[int]) -> int:
        """How many are missing."""
        for group in ranked:
            if count and uses[group] is None:
                uses[group] = use
                count -= 1
        return count

    missing = [
        give(Use(model=model), count, _serving(at, model)) for model, count in enumerate(models)
    ]
    for tenant, count in enumerate(tenants):
        give(Use(tenant=tenant), count, _of_tenant(at, tenant))
    for model, count in enumerate(missing):
        give(Use(model=model), count, _by_way(at, model))
    for tenant, count in enumerate(tenants):
        has = sum(use is not None and use.tenant == tenant for use in uses)
        give(Use(tenant=tenant), count - has, _to_lease(at))
    return tuple(IDLE if use is None else use for use in uses)


def _serving(at: Sequence[GroupPlace], model: int) -> Iterator[int]:
    return (n for n, place in enumerate(at) if place.model == model and not place.is_leased)


def _of_tenant(at: Sequence[GroupPlace], tenant: int) -> list[int]:
    """Those to stay first: of the groups that are there, then that drain, the highest numbers."""
    own = [n for n, place in enumerate(at) if place.tenant == tenant]
    return sorted(own, key=lambda n: (at[n].drains, -n))


def _by_way(at: Sequence[GroupPlace], model: int) -> list[int]:
    """The shortest way to serve it first."""

    def way(n: int) -> tuple[bool, bool, bool, int]:
        place = at[n]
        cancels = place.drains and place.model == model
        return (not cancels, not place.is_leased, place.drains, n)

    return sorted(range(len(at)), key=way)


def _to_lease(at: Sequence[GroupPlace]) -> list[int]:
    """Groups that are out, then those that drain, then those that serve."""
    return sorted(range(len(at)), key=lambda n: (not at[n].is_leased, at[n].drains, n))
