"""Roles of replicas that change while the service runs: as an operator asks, or by the load.

A role is the router's choice alone, and so another one holds from the next request on: nothing is
drained, and what decodes on a replica ends there. KV that it holds is read as before. One that
comes to prefill takes a share of the others' prompts, the last ones sent, begun or not.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Final

from emulator.errors import ConfigError
from serving.policy.rank_roles import (
    LOOK_EVERY_S,
    RankRole,
    RoleDecider,
    RoleLoad,
    with_role,
)
from serving.server.replicas.live_replica import LiveReplica
from serving.server.replicas.live_replicas import LiveReplicas

logger = logging.getLogger("ultraserve.replicas")

_LOOK_WALL_S_MIN: Final = 0.01


class RoleChanges:
    """Changes the roles of `live`, a decided one with `decider`; `dilation`: wall seconds of an
    emulated one.
    """

    def __init__(self, live: LiveReplicas, decider: RoleDecider | None, *, dilation: float) -> None:
        self._live = live
        self._decider = decider
        self._dilation = dilation

    def change(self, number: int, role: RankRole) -> None:
        """Give a replica another role; raises ConfigError where no other one prefills, or decodes,
        and for `both` where the load decides, which has no use for it. One that is not ready has it
        once it is.
        """
        if self._decider is not None and role is RankRole.BOTH:
            raise ConfigError("role", role.value, "prefill or decode, as roles follow the load")
        with_role(_roles(self._live.all), number, role, of="replica")
        self._give(self._live.all[number], role, "as asked")

    async def follow_load(self) -> None:
        """Let the decider change roles, for ever; does nothing without one."""
        while self._decider is not None:
            await asyncio.sleep(max(_LOOK_WALL_S_MIN, LOOK_EVERY_S * self._dilation))
            self._look(self._decider)

    def _look(self, decider: RoleDecider) -> None:
        now_s = time.monotonic() / self._dilation
        if not decider.is_due(now_s):
            return
        ready = self._live.ready
        load = RoleLoad(
            prompt_tokens=sum(each.prompt_tokens for each in ready),
            decodes=sum(each.decodes for each in ready),
        )
        roles = _roles(ready)
        words = f"{load.prompt_tokens:,} prompt tokens wait, {load.decodes:,} requests decode"
        for replica, role in zip(ready, decider.decide(roles, load, now_s), strict=True):
            self._give(replica, role, words)

    def _give(self, replica: LiveReplica, role: RankRole, why: str) -> None:
        if role is replica.role:
            return
        before, replica.role = replica.role, role
        replica.role_changes += 1
        logger.info("replica %d: %s, after %s: %s", replica.place.number, role, before, why)
        self.share_with(replica)

    def share_with(self, replica: LiveReplica) -> None:
        """Where it is ready and prefills, now or again: let it have prompts of the others."""
        if not (replica.is_ready and replica.role is RankRole.PREFILL):
            return
        ready = self._live.ready
        shared = share_prompts([each for each in ready if each.role is RankRole.PREFILL])
        if shared:
            logger.info(
                "replica %d prefills: %d prompts are sent anew", replica.place.number, shared
            )


def _roles(replicas: Sequence[LiveReplica]) -> tuple[RankRole, ...]:
    return tuple(each.role for each in replicas if each.role is not None)


def share_prompts(prefilling: Sequence[LiveReplica]) -> int:
    """Have prompts that were sent there sent anew, so that others of them take some; how many."""
    held = [tuple(each.prompts.values()) for each in prefilling]
    counts = above_share(held)
    for replica, count in zip(prefilling, counts, strict=True):
        newest = list(replica.prompts)[len(replica.prompts) - count :]
        for task in newest:
            task.cancel()
    return sum(counts)


def above_share(held: Sequence[Sequence[int]]) -> list[int]:
    """How many of each replica's last prompts are above an equal share.

    `held`: their tokens, in order, [replicas][prompts].
    """
    share = sum(map(sum, held)) / max(1, len(held))
    counts = []
    for prompts in held:
        left, count = sum(prompts), 0
        for tokens in reversed(prompts):
            if left - tokens < share:
                break
            left, count = left - tokens, count + 1
        counts.append(count)
    return counts
