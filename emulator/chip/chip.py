"""One chip as a pure state machine: a command in, one effect out.

A chip holds some head groups of an attention replica with their KV cache, and some experts. With
several chips per rank, their attention is summed (`Attended`, `Reduce`); tokens leave for the
experts (`Dispatch`) and come back (`Combine`). No clock, no sockets, no other chips.
"""

from emulator.arrays import Float32s
from emulator.chip.commands import (
    BeginStep,
    Combine,
    Command,
    Reduce,
    RepeatStep,
    ResetRank,
    RunExperts,
    SendExperts,
    SendKv,
    TakeExperts,
    TakeKv,
)
from emulator.chip.effects import (
    Attended,
    CommandDone,
    Dispatch,
    Effect,
    ExpertRows,
    ExpertWeights,
    KvBlocks,
    StepDone,
)
from emulator.chip.request_table import RequestTable
from emulator.chip.step_output import no_output, sample_step
from emulator.compute.architecture import Architecture
from emulator.compute.checkpoint import ModelShard
from emulator.compute.experts import run_experts
from emulator.compute.paged_kv import PagedKv
from emulator.compute.qwen3_moe import (
    Routed,
    attend,
    batch_rotation,
    combine_experts,
    embed,
    route_tokens,
)
from emulator.compute.rope import Rotation
from emulator.compute.token_batch import TokenBatch, make_token_batch
from emulator.specs.step import RankOutput


class _RunningStep:
    """The step in progress, from `BeginStep` to the last layer's `Combine`.

    `routed` is None until the tokens of `layer` are dispatched.
    """

    __slots__ = ("angles", "batch", "command", "layer", "routed", "x")

    def __init__(
        self, command: BeginStep, batch: TokenBatch, angles: Rotation, x: Float32s
    ) -> None:
        self.command = command
        self.batch = batch
        self.angles = angles
        self.x = x  # [tokens, hidden], the layer's input
        self.layer = 0
        self.routed: Routed | None = None


class Chip:
    """Attending chip `tp_index` of its rank's `tp`, with its shard; from `tp` on, with experts
    alone.

    States: idle, or in a step at some layer. `BeginStep` enters a step (and ends it at once without
    tokens), `Combine` moves to the next layer, the last of which samples and returns to idle; with
    several chips per rank, `Reduce` lies between. `RepeatStep` restarts at the first layer.
    `RunExperts` works in any state; experts, and blocks of the KV cache, move between steps.
    """

    def __init__(self, shard: ModelShard, kv: PagedKv, *, tp: int = 1, tp_index: int = 0) -> None:
        self._shard = shard
        self._kv = kv
        self._tp = tp
        self._tp_index = tp_index
        self._requests = RequestTable()
        self._running: _RunningStep | None = None

    def handle(self, command: Command) -> Effect:
        """Carry out `command`; returns its effect."""
        match command:
            case BeginStep():
                return self._begin(command)
            case Combine():
                return self._combine(command)
            case Reduce():
                return self._reduce(command)
            case RunExperts():
                return self._run_experts(command)
            case RepeatStep():
                return self._repeat()
            case SendExperts() | TakeExperts():
                return self._move_experts(command)
            case SendKv():
                keys, values = self._kv.read_blocks(command.blocks)
                return KvBlocks(keys=keys, values=values)
            case TakeKv():
                self._kv.write_blocks(command.blocks, command.keys, command.values)
                return CommandDone()
            case ResetRank():
                self._requests, self._running = RequestTable(), None
                return CommandDone()
            case _:
                raise AssertionError(f"a chip does not handle {type(command).__name__}")

    @property
    def architecture(self) -> Architecture:
        """The architecture of all weights that it may hold."""
        return self._shard.architecture

    def renew(self, shard: ModelShard) -> None:
        """Replace the weights, between steps and without tokens in the KV cache.

        Architecture, groups and slots stay.
        """
        assert self._running is None, "other weights came in a step"
        assert shard.architecture == self._shard.architecture
        assert shard.groups == self._shard.groups
        self._shard = shard

    def _begin(self, command: BeginStep) -> Effect:
        assert self._running is None, "a step began before the last one ended"
        step = command.step
        for request_id, token in zip(
            command.sampled_ids, command.sampled_tokens.tolist(), strict=True
        ):
            self._requests[request_id].append(token)
        self._requests.apply(step)
        for source, target in step.block_copies:
            self._kv.copy_block(source, target)
        if step.is_idle:
            return StepDone(output=no_output(step.rank))
        batch = make_token_batch(self._requests.spans(step.scheduled), self._kv.block_tokens)
        angles = batch_rotation(self._shard, batch)
        self._running = _RunningStep(command, batch, angles, embed(self._shard, batch))
        return self._enter_layer(self._running, 0)

    def _repeat(self) -> Effect:
        running = self._running
        assert running is not None, "there is no step to repeat"
        running.x = embed(self._shard, running.batch)
        return self._enter_layer(running, 0)

    def _enter_layer(self, running: _RunningStep, layer: int) -> Effect:
        running.layer, running.routed = layer, None
        attended = attend(self._shard, self._kv, layer, running.x, running.batch, running.angles)
        if self._tp > 1:
            return Attended(layer=layer, rows=attended)
        return self._route(running, layer, attended)

    def _reduce(self, command: Reduce) -> Effect:
        running = self._running
        assert running is not None, "a reduce came outside a step"
        assert command.layer == running.layer, f"a reduce of layer {command.layer} came in another"
        assert running.routed is None, "a layer was reduced twice"
        return self._route(running, command.layer, command.rows)

    def _route(self, running: _RunningStep, layer: int, attended: Float32s) -> Dispatch:
        routed = route_tokens(self._shard, layer, running.x, attended)
        running.routed = routed
        tokens = len(routed.hidden)
        first = tokens * self._tp_index // self._tp
        end = tokens * (self._tp_index + 1) // self._tp
        return Dispatch(
            layer=layer, hidden=routed.hidden[first:end], chosen=routed.chosen[first:end]
        )

    def _run_experts(self, command: RunExperts) -> ExpertRows:
        weights = self._shard.layers[command.layer]
        rows = command.rows[command.row_of_pair]  # [pairs, hidden]
        used = len(command.counts)  # slots beyond are for placements to come
        out = run_experts(rows, command.counts, weights.gate_up[:used], weights.down[:used])
        return ExpertRows(layer=command.layer, rows=out)

    def _combine(self, command: Combine) -> Effect:
        running = self._running
        assert running is not None, "a combine came outside a step"
        assert command.layer == running.layer, f"a combine of layer {command.layer} came in another"
        assert running.routed is not None, "a combine came before its layer's reduce"
        running.x = combine_experts(running.routed, command.expert_rows)
        if command.layer + 1 < self._shard.architecture.layers:
            return self._enter_layer(running, command.layer + 1)
        self._running = None
        return StepDone(output=self._finish(running, running.x))

    def _finish(self, running: _RunningStep, x: Float32s) -> RankOutput:
        if self._tp_index:
            return no_output(running.command.step.rank)
        return sample_step(self._shard, self._requests, running.command, running.batch, x)

    def _move_experts(self, command: SendExperts | TakeExperts) -> Effect:
        weights = self._shard.layers[command.layer]
        if isinstance(command, SendExperts):
            return ExpertWeights(
                layer=command.layer,
                gate_up=weights.gate_up[command.slots],
                down=weights.down[command.slots],
            )
        weights.gate_up[command.slots] = command.gate_up
        weights.down[command.slots] = command.down
        return CommandDone()
