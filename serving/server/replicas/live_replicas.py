"""All replicas of a service: started, watched, started again, chosen for requests.

A replica is asked each second whether it is ready, and is started again, later each time, when its
process has ended. One that no longer answers is killed.
"""

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Final

import aiohttp

from serving.errors import ServerFailed
from serving.policy.rank_roles import RankRole
from serving.policy.routing import ROUTERS, prefix_aware, routed
from serving.server.gateway.http.request_work import asked_in
from serving.server.replicas.engine_silence import ENGINE_LOOK_EVERY_S
from serving.server.replicas.kv_event_feed import KvEventFeed
from serving.server.replicas.live_replica import LiveReplica, ReplicaState
from serving.server.replicas.prefix_memory import block_hashes
from serving.server.replicas.replica_place import ReplicaPlace
from serving.server.replicas.replica_process import ReplicaProcess
from serving.server.replicas.replica_roles import RequestPart

logger = logging.getLogger("ultraserve.replicas")

LOOK_EVERY_S: Final = 1.0
"""Wall seconds between two questions to a replica."""

ANSWER_WITHIN_S: Final = 3.0
DOUBT_S_MAX: Final = 10.0
"""Wall seconds without an answer after which a replica gets no more requests: three questions."""

SILENT_S_MAX: Final = 30.0
"""Wall seconds without an answer after which a replica that was up is killed. Assumed: above any
pause of a busy API process, below a client's patience."""

ENGINE_DOUBT_S_MAX: Final = 30.0
"""Wall seconds without an answer of its engine after which a replica gets no more requests."""

ENGINE_SILENT_S_MAX: Final = 300.0
"""Wall seconds until it is killed: an engine answers between two steps. Assumed: no step takes so
long to compute."""

RESTART_S_MIN: Final = 1.0
RESTART_S_MAX: Final = 60.0
"""Wall seconds from a replica's end to its next start: doubled with each start that fails."""

END_S: Final = 60.0
"""Wall seconds in which a replica without requests ends; its chips, Ray and Python take seconds."""


async def _nothing_to_prepare(_: LiveReplica) -> str:
    return ""


async def _answers_at_once(_: LiveReplica) -> float:
    return 0.0


class LiveReplicas:
    """The replicas, by number; `processes` are theirs, in the same order.

    `failed` is done, with ServerFailed, where a first start fails before any replica was ready: the
    settings are wrong, and no start will succeed; and where a defect ends a watch. `prepare` is
    asked of each process that is ready for the first time, until it returns no reason why it may
    not take requests yet; `engine_age_s` now and then, for the age of its engine's last answer in
    wall seconds, None where nothing new is known: a replica whose engine hangs says that it is
    ready. At `silence_s_max` it is killed. `came` is called for each replica that
    becomes ready.
    """

    def __init__(
        self,
        places: Sequence[ReplicaPlace],
        processes: Sequence[ReplicaProcess],
        session: aiohttp.ClientSession,
        *,
        router: str,
        silence_s_max: float = ENGINE_SILENT_S_MAX,
    ) -> None:
        self.all = tuple(LiveReplica(place=place) for place in places)
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._processes = processes
        self._session = session
        self._router = ROUTERS[router]
        self.feed: KvEventFeed | None = None
        self._silence_s_max = silence_s_max
        self.engine_age_s: Callable[[LiveReplica], Awaitable[float | None]] = _answers_at_once
        self.prepare: Callable[[LiveReplica], Awaitable[str]] = _nothing_to_prepare
        self.came: Callable[[LiveReplica], None] = lambda _: None
        self._chosen = dict.fromkeys(RequestPart, 0)
        self._some_ready = asyncio.Event()
        self._was_ready = False
        self._look_soon = [asyncio.Event() for _ in places]
        self._tasks: list[asyncio.Task[None]] = []

    # ---- for requests

    @property
    def ready(self) -> list[LiveReplica]:
        """Those that take requests."""
        return [each for each in self.all if each.is_ready]

    async def choose(
        self,
        hashes: Sequence[int],
        *,
        part: RequestPart = RequestPart.WHOLE,
        without: Collection[int] = (),
        first_choice: LiveReplica | None = None,
        last_choice: int | None = None,
    ) -> LiveReplica | None:
        """The replica for a request's part, with a prompt of these block hashes; waits until one is
        ready. Where none of its role is, each of them does all. `first_choice` is chosen where it
        can be, as the prompt's KV went there; `last_choice` where there is no other, as the holder
        of that KV, which would read from itself.

        None where all of them are among `without`.
        """
        while not (ready := self.ready):
            await self._some_ready.wait()
        of_role = [each for each in ready if part.is_of(each.role)] or ready
        among = [each for each in of_role if each.place.number not in without]
        among = [each for each in among if each.place.number != last_choice] or among
        if not among:
            return None
        if first_choice in among:
            return first_choice
        number = routed(self._router, hashes, among, arrived=self._chosen[part])
        self._chosen[part] += 1
        return among[number]

    @property
    def have_roles(self) -> bool:
        """Whether prompts may go from one to another."""
        return any(each.place.role is not None for each in self.all)

    @property
    def ready_to_decode(self) -> list[LiveReplica]:
        """Ready ones that clients get tokens from."""
        return [each for each in self.ready if each.role is not RankRole.PREFILL]

    async def hashes_of(self, body: bytes) -> Sequence[int]:
        """The blocks of a prompt, where a replica is chosen by them."""
        if self._router is not prefix_aware:
            return ()
        if self.feed is not None:
            return await self.feed.hashes(body)
        return block_hashes(asked_in(body))

    def distrust(self, replica: LiveReplica, reason: str) -> None:
        """Send it nothing until it has said that it is ready."""
        if replica.is_ready:
            self._become(replica, ReplicaState.NOT_READY, reason)
        self._look_soon[replica.place.number].set()

    # ---- for the service

    def start(self) -> None:
        """Start all."""
        if self.feed is not None:
            self.feed.start(self.all)
        self._tasks = [
            asyncio.create_task(
                self.or_fail(
                    partial(self._keep, replica, process), f"replica {replica.place.number} is"
                )
            )
            for replica, process in zip(self.all, self._processes, strict=True)
        ]

    async def stop(self, *, at_once: bool = False) -> None:
        """End all, killing what has not ended in time."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for process in self._processes:
            process.signal(signal.SIGKILL if at_once else signal.SIGTERM)
        await asyncio.gather(*(self._end(each) for each in self._processes))
        if self.feed is not None:
            await self.feed.stop()

    async def _end(self, process: ReplicaProcess) -> None:
        if process.is_started and await process.ended(END_S) is None:
            process.signal(signal.SIGKILL)
            await process.ended()

    async def or_fail(self, watch: Callable[[], Awaitable[None]], what: str) -> None:
        """Watch; an exception is `failed`, since nothing would watch again."""
        try:
            await watch()
        except Exception as error:
            logger.exception("%s not watched any more", what)
            if not self.failed.done():
                words = f"{what} not watched any more: {type(error).__name__}: {error}"
                self.failed.set_exception(ServerFailed(words))

    async def _keep(self, replica: LiveReplica, process: ReplicaProcess) -> None:
        """Start the replica, watch it, and start it again, for ever."""
        wait_s = RESTART_S_MIN
        while True:
            replica.pid, replica.url = await process.start()
            replica.kv_port = process.kv_port
            self._become(replica, ReplicaState.STARTING)
            was_ready = await self._watch(replica, process)
            code = await process.ended()
            replica.pid = None
            replica.prefixes.clear()
            replica.fingerprint = ""
            replica.is_prepared = False
            self._become(replica, ReplicaState.GONE, f"it ended with code {code}")
            if not was_ready and not self._was_ready and not self.failed.done():
                words = f"replica {replica.place.number} ended with code {code} before it was ready"
                self.failed.set_exception(ServerFailed(words))
            wait_s = RESTART_S_MIN if was_ready else min(2 * wait_s, RESTART_S_MAX)
            await asyncio.sleep(wait_s)
            replica.restarts += 1

    async def _watch(self, replica: LiveReplica, process: ReplicaProcess) -> bool:
        """Ask until the process ends; whether it was ready at any time."""
        ended = asyncio.ensure_future(process.ended())
        soon = self._look_soon[replica.place.number]
        ended.add_done_callback(lambda _: soon.set())
        was_ready, answered_s = False, time.monotonic()
        replica.is_prepared = False
        replica.engine_answered_s = time.monotonic()
        replica.engine_asked_s = 0.0
        try:
            while not ended.done():
                soon.clear()
                answered = await self._look(replica, process, was_ready=was_ready)
                was_ready = was_ready or replica.is_ready
                if answered or not was_ready:
                    answered_s = time.monotonic()
                else:
                    self._doubt(replica, process, time.monotonic() - answered_s)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_EVERY_S):  # `wait_for` may lose a cancellation
                        await soon.wait()
        finally:
            ended.cancel()
        return was_ready

    def _doubt(self, replica: LiveReplica, process: ReplicaProcess, silent_s: float) -> None:
        """Send nothing more to a replica that has not answered, and kill it after a while."""
        if silent_s > DOUBT_S_MAX:
            self._become(replica, ReplicaState.NOT_READY, f"no answer for {silent_s:.0f} s")
        if silent_s > SILENT_S_MAX:
            logger.error("replica %d is killed: no answer", replica.place.number)
            process.signal(signal.SIGKILL)

    async def _look(
        self, replica: LiveReplica, process: ReplicaProcess, *, was_ready: bool
    ) -> bool:
        """Ask whether it is ready; whether it answered. Kills it where its engine hangs."""
        timeout = aiohttp.ClientTimeout(total=ANSWER_WITHIN_S)
        try:
            async with self._session.get(f"{replica.url}/readyz", timeout=timeout) as response:
                reason = (await response.text()).strip()
        except TimeoutError:
            return False  # it is busy, or hangs: time tells
        except (aiohttp.ClientError, OSError) as error:
            if was_ready:
                self._become(replica, ReplicaState.NOT_READY, f"no answer: {type(error).__name__}")
            return False
        silent_s = await self._engine_silent_s(replica)
        if was_ready and silent_s > self._silence_s_max:
            logger.error("replica %d is killed: its engine hangs", replica.place.number)
            process.signal(signal.SIGKILL)
        is_doubtful = silent_s > ENGINE_DOUBT_S_MAX
        doubt = f"no answer of its engine for {silent_s:.0f} s" if is_doubtful else ""
        if response.status == 200:
            reason = doubt or await self._not_yet(replica)
            state = ReplicaState.NOT_READY if reason else ReplicaState.READY
            self._become(replica, state, reason)
        elif was_ready:
            self._become(replica, ReplicaState.NOT_READY, reason)
        return True

    async def _not_yet(self, replica: LiveReplica) -> str:
        """Why a process is not yet what the one before it was, or ""."""
        if replica.is_prepared:
            return ""
        reason = await self.prepare(replica)
        replica.is_prepared = not reason
        replica.engine_answered_s = time.monotonic()  # it was not asked meanwhile
        return reason

    async def _engine_silent_s(self, replica: LiveReplica) -> float:
        """Wall seconds without an answer of its engine at the last question about it."""
        if time.monotonic() - replica.engine_asked_s >= ENGINE_LOOK_EVERY_S:
            asked_s = replica.engine_asked_s = time.monotonic()
            age_s = await self.engine_age_s(replica)
            if age_s is not None:
                replica.engine_answered_s = asked_s - age_s
        return max(0.0, replica.engine_asked_s - replica.engine_answered_s)

    def _become(self, replica: LiveReplica, state: ReplicaState, reason: str = "") -> None:
        if replica.become(state, reason):
            words = f": {reason}" if reason else ""
            logger.info("replica %d is %s%s", replica.place.number, state, words)
            if replica.is_ready:
                self.came(replica)
        self._was_ready = self._was_ready or replica.is_ready
        if self.ready:
            self._some_ready.set()
        else:
            self._some_ready.clear()
