"""Small fleets whose nights can be computed by hand."""

from dataclasses import replace
from typing import Any

import numpy as np

from serving.analysis.day.training_yield import GroupHandover
from serving.analysis.tenants.batch_pool import BatchPool
from serving.analysis.tenants.fleet_groups import FleetGroups, FleetTimes, Use
from serving.analysis.tenants.job_pool import JobPool
from serving.analysis.tenants.tenant import (
    BatchInferenceTenant,
    Resharding,
    Submission,
    TrainingTenant,
)
from serving.analysis.tenants.tenant_pool import TenantPool
from tests.serving.analysis.day.days import HANDOVER, trained

IDLE_WATTS = 100.0
SLOWER = replace(HANDOVER, drain_s=40.0, restore_s=90.0)


def job(groups: int = 4, *, least: int = 2, **changes: Any) -> TrainingTenant:
    """A group trains 10 tokens/s, from `least` groups on; saves 10 s, starts in 20."""
    fields: dict[str, Any] = {
        "name": "job",
        "priority": 0,
        "weight": 1.0,
        "trained": trained(groups, least=least),
    }
    return TrainingTenant(**(fields | changes))


def elastic(groups: int = 4, *, least: int = 2) -> Resharding:
    """5 s between any two sizes, after 1 s of the step."""
    seconds = np.full((groups + 1, groups + 1), np.inf)
    seconds[least:, least:] = 5.0
    np.fill_diagonal(seconds, 0.0)
    seconds[:least, :least] = np.inf
    return Resharding(
        seconds=seconds, joules=np.zeros_like(seconds), finish_s=np.full(groups + 1, 1.0)
    )


def batch(groups: int = 4, *submissions: Submission, **changes: Any) -> BatchInferenceTenant:
    """A group serves 2 requests/s of 5 tokens at 250 W, once it has loaded for 50 s."""
    fields: dict[str, Any] = {
        "name": "batch",
        "priority": 0,
        "weight": 1.0,
        "model": "a model",
        "groups": groups,
        "groups_least": 1,
        "groups_most": groups,
        "requests_per_s": 2.0,
        "watts_at_work": 250.0,
        "idle_watts": IDLE_WATTS,
        "in_flight": 40.0,
        "load_s": 50.0,
        "load_joules": 6_000.0,
        "prompt_tokens": 100.0,
        "output_tokens": 5.0,
        "submissions": submissions or (Submission(at_s=0.0, requests=600.0, due_s=400.0),),
    }
    return BatchInferenceTenant(**(fields | changes))


def job_pool(tenant: TrainingTenant, groups: int = 4) -> JobPool:
    return JobPool(tenant, groups=groups, group_idle_watts=IDLE_WATTS)


def batch_pool(tenant: BatchInferenceTenant, groups: int = 4) -> BatchPool:
    return BatchPool(tenant, groups=groups, group_idle_watts=IDLE_WATTS)


def fleet(
    *tenants: TenantPool,
    first: tuple[int, ...] = (0, 0, 0, 0),
    models: tuple[GroupHandover, ...] = (HANDOVER, SLOWER),
) -> FleetGroups:
    return FleetGroups(
        models=models[: max(first) + 1],
        tenants=tenants,
        first=first,
        group_idle_watts=IDLE_WATTS,
    )


def uses(text: str) -> tuple[Use, ...]:
    """`a` and `b` are models, digits tenants, `-` idles: "aa0-"."""
    found = []
    for letter in text:
        if letter == "-":
            found.append(Use())
        elif letter.isdigit():
            found.append(Use(tenant=int(letter)))
        else:
            found.append(Use(model="ab".index(letter)))
    return tuple(found)


def seconds_of(times: FleetTimes) -> float:
    """Group-seconds of all."""
    names = ("serving_s", "leaving_s", "restoring_s", "paused_s", "training_s", "idle_s")
    every = (*times.models, *times.tenants)
    return float(sum(getattr(each, name) for each in every for name in names))
