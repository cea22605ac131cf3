"""Ranks that compute prompts and ranks that decode: who takes a request, and when it goes on.

The first ranks prefill. A request comes to one of them; with its first token it goes on to a rank
that decodes, and its KV follows (`kv_connector`). Where no rank of a role is there, those of the
other do its work: a request never waits for a role.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request

from emulator.specs.step import KvTransfer
from serving.engine.step_report import StepReport
from serving.plugin import request_migration as migration
from serving.plugin.kv_connector import BegunTransfers, PromptKv, RankKvConnector

Flags = NDArray[np.bool_]


class RankRoles:
    """Roles of `ranks`, of which the first `prefill_ranks` prefill; without any, all do both.

    With some, all have connectors.
    """

    def __init__(self, ranks: Sequence[Scheduler], prefill_ranks: int) -> None:
        self._ranks = ranks
        self._prefill: Flags = np.arange(len(ranks)) < prefill_ranks
        self._kv = PromptKv()
        self._to_rank: dict[str, int] = {}  # of transfers under way
        for number, rank in enumerate(ranks):
            if isinstance(rank.connector, RankKvConnector):
                rank.connector.join(number, self._kv)

    def takes(self, ranks: Flags) -> Flags:
        """Those of `ranks` that take a request whose tokens are to be computed."""
        prefill: Flags = ranks & self._prefill
        return prefill if prefill.any() else ranks

    def send_on(
        self,
        open_ranks: Callable[[Request], Flags],
        put: Callable[[Request, Flags], bool],
    ) -> None:
        """Let requests that have their next token go on from ranks that prefill.

        `open_ranks`: that may take a request, [ranks]; `put` gives it one of some ranks.
        """
        leaving: list[tuple[Request, Flags]] = []
        for number in np.flatnonzero(self._prefill).tolist():
            rank = self._ranks[number]
            for request in [each for each in rank.running if _can_go_on(each)]:
                ranks: Flags = open_ranks(request) & ~self._prefill
                if ranks.any():
                    self._kv.hold(number, rank, request)
                    migration.take_one(rank, request)
                    leaving.append((request, ranks))
        for request, ranks in leaving:
            assert put(request, ranks), "a rank that is open takes it"

    def begun(self, decisions: Iterable[SchedulerOutput]) -> tuple[KvTransfer, ...]:
        """The transfers that begin with a lockstep's decisions."""
        begun: list[KvTransfer] = []
        for decision in decisions:
            meta = decision.kv_connector_metadata
            begun += meta.transfers if isinstance(meta, BegunTransfers) else ()
        self._to_rank |= {each.request_id: each.to_rank for each in begun}
        return tuple(begun)

    def ended(self, report: StepReport | None) -> Mapping[int, KVConnectorOutput]:
        """What the connectors of ranks hear of transfers that have ended."""
        outputs: dict[int, KVConnectorOutput] = {}
        if report is None:
            return outputs
        for names, has_failed in ((report.kv_received, False), (report.kv_failed, True)):
            for name in names:
                rank = self._to_rank.pop(name)
                output = outputs.setdefault(rank, KVConnectorOutput(finished_recving=set()))
                assert output.finished_recving is not None
                output.finished_recving.add(name)  # a failed one, too, has ended
                if has_failed:
                    output.failed_recving.add(name)
        return outputs

    @property
    def hold_kv(self) -> bool:
        """Whether blocks of a rank are held for a request of another."""
        return bool(self._kv)

    def lose(self, ranks: Iterable[int]) -> None:
        """Forget what ranks hold that lost it."""
        for rank in ranks:
            self._kv.lose(rank)


def _can_go_on(request: Request) -> bool:
    """Whether all tokens but the last, which is new, are computed, and vLLM can load them.

    Further input of a streaming session would find its rank changed; a request that asked for
    scores of its prompt reads no KV that it has not computed itself.
    """
    return (
        bool(request.num_output_tokens)
        and request.num_computed_tokens == request.num_tokens - 1
        and not request.resumable
        and not request.skip_reading_prefix_cache
    )
