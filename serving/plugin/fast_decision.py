"""A step that the fast scheduler decides: its work in arrays."""

from dataclasses import dataclass

from vllm.v1.core.sched.output import CachedRequestData

from emulator.specs.batch import StepBatch
from serving.engine.scheduler_state import SchedulerState
from serving.plugin.merge import LockstepOutput


@dataclass(kw_only=True)
class FastDecision(LockstepOutput):
    """A decision whose work is all in `batch`: it names no request, and has no `by_rank`."""

    batch: StepBatch

    @classmethod
    def of(cls, batch: StepBatch, state: SchedulerState, *, continues: bool) -> "FastDecision":
        """One of `batch`; the rest as in `LockstepOutput`."""
        return cls(
            scheduled_new_reqs=[],
            scheduled_cached_reqs=CachedRequestData.make_empty(),
            num_scheduled_tokens={},
            total_num_scheduled_tokens=int(batch.new_tokens.sum()),
            scheduled_spec_decode_tokens={},
            scheduled_encoder_inputs={},
            finished_req_ids=set(),
            free_encoder_mm_hashes=[],
            state=state,
            continues=continues,
            batch=batch,
        )
