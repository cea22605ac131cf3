"""A LockstepScheduler with ranks that remember by value, and clients that keep their output."""

from collections import defaultdict
from typing import Any

from vllm.v1.engine import EngineCoreOutputs, FinishReason
from vllm.v1.structured_output import StructuredOutputManager

from emulator.specs.step import KvTransfer
from serving.engine.step_report import StepReport
from serving.plugin.lockstep_scheduler import LockstepScheduler
from serving.plugin.merge import LockstepOutput
from serving.plugin.request_place import WEIGHTS_KEY
from serving.plugin.translate import TimedOutput
from tests.serving.plugin.engine_config import BLOCK_TOKENS, engine_config, kv_pool
from tests.serving.plugin.lockstep_workload import EOS_ID, Arrival, chosen_token, model_output
from tests.serving.plugin.rank_memory import RankMemory

MAX_MODEL_LEN = 512
BLOCKS = 60


def expected_tokens(arrival: Arrival) -> list[int]:
    """The synthetic model's text for an undisturbed request."""
    tokens: list[int] = []
    while len(tokens) < arrival.max_tokens:
        position = len(arrival.prompt) + len(tokens)
        if position >= MAX_MODEL_LEN:
            break
        tokens.append(chosen_token(arrival.name, position))
        if tokens[-1] == EOS_ID and not arrival.ignore_eos:
            break
    return tokens


class Machine:
    """A LockstepScheduler, its ranks' memory, and its clients' output.

    KV that moves between ranks is there at the end of the step `transfer_steps` after the one that
    it begins with.
    """

    def __init__(
        self, ranks: int, blocks: int = BLOCKS, *, transfer_steps: int = 0, **arguments: Any
    ) -> None:
        config = engine_config(ranks, **arguments)
        self.scheduler = LockstepScheduler(
            vllm_config=config,
            kv_cache_config=kv_pool(config, blocks),
            structured_output_manager=StructuredOutputManager(config),
            block_size=BLOCK_TOKENS,
            hash_block_size=BLOCK_TOKENS,
            log_stats=True,
        )
        self.memory = [RankMemory(blocks) for _ in range(ranks)]
        self.received: dict[str, list[int]] = defaultdict(list)
        self.weights: dict[str, list[str]] = {}
        self.ended: dict[str, FinishReason] = {}
        self.moved = 0
        self.transfer_steps = transfer_steps
        self.sending: list[tuple[int, KvTransfer]] = []  # with the steps left
        self.sent_tokens = 0

    def step(
        self,
        *,
        lost: tuple[int, ...] = (),
        answered: bool = False,
        up: tuple[bool, ...] | None = None,
        end_s: float = 1.0,
        **reported: Any,
    ) -> LockstepOutput:
        """One lockstep until `end_s`, in which ranks are `lost` before or after they answered.

        `reported` are further arguments of the report.
        """
        output = self.scheduler.schedule()
        sampled: dict[str, int] = {}
        names: list[str] = []
        for rank, (memory, decision) in enumerate(zip(self.memory, output.by_rank, strict=True)):
            tokens = memory.run(decision)
            if rank not in lost or answered:
                sampled |= tokens
                names.extend(decision.num_scheduled_tokens)
        for rank in lost:
            self.moved += len(self.scheduler.ranks[rank].requests)
            self.memory[rank].lose()
        received, failed = self._move_kv(output, lost, up)
        report = StepReport(
            kv_received=received,
            kv_failed=failed,
            begin_s=0.0,
            end_s=end_s,
            epochs=None,
            lost_ranks=lost,
            ranks_up=up,
            **reported,
        )
        result = TimedOutput(**vars(model_output(names, sampled)), report=report)
        self._receive(self.scheduler.update_from_output(output, result))
        self.check()
        return output

    def _move_kv(
        self, output: LockstepOutput, lost: tuple[int, ...], up: tuple[bool, ...] | None
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """What the engine does with KV: names of requests whose is there, and whose never will."""
        begun = [(self.transfer_steps, each) for each in output.state.kv_transfers]
        under_way, self.sending = [*self.sending, *begun], []
        down = set(lost) | {number for number, is_up in enumerate(up or ()) if not is_up}
        received, failed = [], []
        for steps, each in under_way:
            if {each.from_rank, each.to_rank} & down:
                failed.append(each.request_id)
            elif steps:
                self.sending.append((steps - 1, each))
            else:
                kv = self.memory[each.from_rank].kv[each.from_blocks]
                self.memory[each.to_rank].kv[each.to_blocks] = kv
                self.sent_tokens += each.tokens
                received.append(each.request_id)
        return tuple(received), tuple(failed)

    def _receive(self, results: dict[int, EngineCoreOutputs]) -> None:
        living = set(self.living())
        for outputs in results.values():
            for output in outputs.outputs:
                assert output.request_id not in self.ended, "an output after the end"
                self.received[output.request_id].extend(output.new_token_ids)
                params: dict[str, Any] = output.kv_transfer_params or {}
                names = self.weights.get(output.request_id, [])
                self.weights[output.request_id] = params.get(WEIGHTS_KEY, names)
                if output.finish_reason is not None and output.request_id not in living:
                    self.ended[output.request_id] = output.finish_reason

    def check(self) -> None:
        """A request lives once, on a rank that is up; a rank without any holds no KV."""
        living = self.living()
        assert len(living) == len(set(living))
        assert not set(living) & self.ended.keys()
        for rank, is_up in zip(self.scheduler.ranks, self.scheduler.ranks_up, strict=True):
            assert is_up or not rank.requests
            if not rank.requests and not self.scheduler._roles.hold_kv:
                pool = rank.kv_cache_manager.block_pool
                assert pool.get_num_free_blocks() == pool.num_gpu_blocks - 1  # the null block

    def living(self) -> list[str]:
        """Requests of the ranks that have not ended."""
        return [
            name
            for rank in self.scheduler.ranks
            for name, request in rank.requests.items()
            if not request.is_finished()
        ]

    def finish(self) -> None:
        for _ in range(5_000):
            if not self.scheduler.has_requests():
                return
            self.step()
        raise AssertionError("the requests do not end")


def long_arrival(name: str, tokens: int = 20, *, max_tokens: int = 30) -> Arrival:
    """A request with its own prompt, that gets all its tokens."""
    first = 3 + int.from_bytes(name.encode(), "big") % 400
    prompt = tuple(range(first, first + tokens))
    return Arrival(name=name, prompt=prompt, max_tokens=max_tokens, ignore_eos=True)


def rank_of(machine: Machine, name: str) -> int:
    (rank,) = (n for n, rank in enumerate(machine.scheduler.ranks) if name in rank.requests)
    return rank
