"""One chip as a pure state machine: a command in, one effect out.

A chip holds some head groups of an attention replica with their KV cache, as many parts of its
dense networks, and some experts. With several chips per rank, their parts are summed
(`PartialSums`, `Reduce`); tokens leave for the experts (`Dispatch`) and come back (`Combine`). No
clock, no sockets, no other chips.
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
    CommandDone,
    Dispatch,
    Effect,
    ExpertRows,
    ExpertWeights,
    KvBlocks,
    PartialSums,
    StepDone,
)
from emulator.chip.request_table import RequestTable
from emulator.chip.step_output import no_output, sample_step
from emulator.compute.architecture import Architecture
from emulator.compute.decoder import (
    Joined,
    Routed,
    add_up,
    batch_rotation,
    decoder_layers,
    embed,
)
from emulator.compute.mapped_matrix import are_mapped
from emulator.compute.paged_kv import PagedKv
from emulator.compute.rope import Rotation
from emulator.compute.token_batch import TokenBatch, make_token_batch
from emulator.compute.weights import ExpertSet, ModelShard, MoeWeights
from emulator.specs.step import RankOutput


class _RunningStep:
    """The step in progress, from `BeginStep` to the end of the last layer.

    `joined` is None until the attention of `layer` is summed, `routed` until its tokens are
    dispatched.
    """

    __slots__ = ("angles", "batch", "command", "joined", "layer", "routed", "x")

    def __init__(
        self, command: BeginStep, batch: TokenBatch, angles: Rotation, x: Float32s
    ) -> None:
        self.command = command
        self.batch = batch
        self.angles = angles
        self.x = x  # [tokens, hidden], the layer's input
        self.layer = 0
        self.joined: Joined | None = None
        self.routed: Routed | None = None


class Chip:
    """Attending chip `tp_index` of its rank's `tp`, with its shard; from `tp` on, with experts
    alone.

    States: idle, or in a step at some layer. `BeginStep` enters a step (and ends it at once without
    tokens), `Combine` moves to the next layer, the last of which samples and returns to idle; with
    several chips per rank, `Reduce` comes after attention and after a dense network. Dense layers
    of a rank of one chip take no message. `RepeatStep` restarts at the first layer. `RunExperts`
    works in any state; experts, and blocks of the KV cache, move between steps.
    """

    def __init__(self, shard: ModelShard, kv: PagedKv, *, tp: int = 1, tp_index: int = 0) -> None:
        self._shard = shard
        self._layers = decoder_layers(shard)
        self._kv = kv
        self._tp = tp
        self._tp_index = tp_index
        self._expert_layers = shard.architecture.expert_layers
        self._moe_layer = {layer: place for place, layer in enumerate(self._expert_layers)}
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
        self._layers = decoder_layers(shard)

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
        self._kv.check(batch.spans.tables)
        angles = batch_rotation(self._shard, batch)
        self._running = _RunningStep(command, batch, angles, embed(self._shard, batch))
        return self._enter_layer(self._running, 0)

    def _repeat(self) -> Effect:
        running = self._running
        assert running is not None, "there is no step to repeat"
        running.x = embed(self._shard, running.batch)
        return self._enter_layer(running, 0)

    def _enter_layer(self, running: _RunningStep, layer: int) -> Effect:
        running.layer, running.joined, running.routed = layer, None, None
        attended = self._layers[layer].attend(self._kv, running.x, running.batch, running.angles)
        if self._tp > 1:
            return PartialSums(layer=layer, rows=attended)
        return self._feed_forward(running, attended)

    def _reduce(self, command: Reduce) -> Effect:
        running = self._running
        assert running is not None, "a reduce came outside a step"
        assert command.layer == running.layer, f"a reduce of layer {command.layer} came in another"
        assert running.routed is None, "a layer was reduced after its dispatch"
        if running.joined is None:
            return self._feed_forward(running, command.rows)
        return self._end_layer(running, add_up(running.joined.residual, command.rows))

    def _feed_forward(self, running: _RunningStep, attended: Float32s) -> Effect:
        layer = self._layers[running.layer]
        running.joined = joined = layer.add_attention(running.x, attended)
        if layer.has_experts:
            running.routed = layer.route(joined)
            return self._dispatch(running.routed, self._moe_layer[running.layer])
        addends = layer.run_dense_part(joined)
        if self._tp > 1:
            return PartialSums(layer=running.layer, rows=addends)
        return self._end_layer(running, add_up(joined.residual, addends))

    def _dispatch(self, routed: Routed, moe_layer: int) -> Dispatch:
        tokens = len(routed.chosen)
        first = tokens * self._tp_index // self._tp
        end = tokens * (self._tp_index + 1) // self._tp
        return Dispatch(
            layer=moe_layer,
            hidden=routed.joined.hidden[first:end],
            chosen=routed.chosen[first:end],
        )

    def _run_experts(self, command: RunExperts) -> ExpertRows:
        # Slots that are not counted are for placements to come.
        layer = self._layers[self._expert_layers[command.layer]]
        out = layer.run_experts(command.rows, command.row_of_pair, command.counts)
        return ExpertRows(layer=command.layer, rows=out)

    def _experts(self, moe_layer: int) -> ExpertSet:
        weights = self._shard.layers[self._expert_layers[moe_layer]].feed_forward
        assert isinstance(weights, MoeWeights), moe_layer
        return weights.experts

    def _combine(self, command: Combine) -> Effect:
        running = self._running
        assert running is not None, "a combine came outside a step"
        moe_layer = self._moe_layer.get(running.layer)
        assert command.layer == moe_layer, f"a combine of layer {command.layer} came in another"
        assert running.routed is not None, "a combine came before its layer's reduce"
        x = self._layers[running.layer].combine(running.routed, command.expert_rows)
        return self._end_layer(running, x)

    def _end_layer(self, running: _RunningStep, x: Float32s) -> Effect:
        running.x = x
        if running.layer + 1 < self._shard.architecture.layers:
            return self._enter_layer(running, running.layer + 1)
        self._running = None
        return StepDone(output=self._finish(running, x))

    def _finish(self, running: _RunningStep, x: Float32s) -> RankOutput:
        if self._tp_index:
            return no_output(running.command.step.rank)
        return sample_step(self._shard, self._requests, running.command, running.batch, x)

    def _move_experts(self, command: SendExperts | TakeExperts) -> Effect:
        experts = self._experts(command.layer)
        if isinstance(command, SendExperts):
            assert not self.maps_experts(command.layer), "mapped experts are loaded, not sent"
            return ExpertWeights(
                layer=command.layer,
                gate_up=experts.gate_up[command.slots],
                down=experts.down[command.slots],
                biases=experts.biases[command.slots],
            )
        arriving = ExpertSet(gate_up=command.gate_up, down=command.down, biases=command.biases)
        return self.take_experts(command.layer, command.slots, arriving)

    def maps_experts(self, moe_layer: int) -> bool:
        """Whether a layer's experts are in the checkpoint's pages."""
        return are_mapped(self._experts(moe_layer).gate_up)

    def take_experts(self, moe_layer: int, slots: list[int], arriving: ExpertSet) -> CommandDone:
        """Replace the experts in `slots` of a layer, one each, between steps."""
        experts = self._experts(moe_layer)
        experts.gate_up[slots] = arriving.gate_up
        experts.down[slots] = arriving.down
        experts.biases[slots] = arriving.biases
        return CommandDone()
