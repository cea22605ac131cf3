"""The scheduler's message to the engine with each decision, besides the work itself."""

from dataclasses import dataclass

from emulator.specs.step import KvMove
from serving.engine.fault_log import Moved
from serving.policy.rank_roles import Roles


@dataclass(frozen=True, slots=True, kw_only=True)
class RankQueues:
    """Queues of one rank's scheduler, and the KV blocks that its requests hold."""

    running: int
    waiting: int
    kv_blocks_used: int

    @property
    def is_empty(self) -> bool:
        """Whether it has no request, and no blocks of one that left and whose KV has yet to."""
        return not (self.running or self.waiting or self.kv_blocks_used)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerState:
    """The ranks' queues, and counts since the start.

    `empty_rank_steps` counts, over all locksteps, ranks without a token while another rank had
    some; `arrived_requests` requests ever added; `unplaced_requests` those that wait for a rank, as
    all are closed or a step is under way; `moved_requests` those that lost ranks handed to others;
    `moved` left a rank since the decision before. `closed_ranks` take no new request, as the engine
    asked. `has_tokens`: the decision has something to compute. `kv_transfers` begin with it.
    `rank_roles`: what the ranks do, empty where roles do not change.
    """

    rank_states: tuple[RankQueues, ...] = ()
    arrived_requests: int = 0
    unplaced_requests: int = 0
    moved_requests: int = 0
    empty_rank_steps: int = 0
    moved: tuple[Moved, ...] = ()
    closed_ranks: tuple[int, ...] = ()
    has_tokens: bool = False
    kv_transfers: tuple[KvMove, ...] = ()
    rank_roles: Roles = ()

    @property
    def requests_of_ranks(self) -> list[int | None]:
        """Of each rank; None where it takes none."""
        return [
            None if rank in self.closed_ranks else queues.running + queues.waiting
            for rank, queues in enumerate(self.rank_states)
        ]

    @property
    def waiting(self) -> int:
        """Requests that wait, on a rank or for one."""
        return sum(queues.waiting for queues in self.rank_states) + self.unplaced_requests

    @property
    def has_requests(self) -> bool:
        """Whether a request was left on any rank."""
        return any(queues.running or queues.waiting for queues in self.rank_states)
