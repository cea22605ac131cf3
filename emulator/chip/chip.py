"""One chip as a pure state machine: a command in, one effect out.

A chip holds some head groups of an attention replica with their KV cache, as many parts of its
dense networks, and some experts. With several chips per rank, their parts are summed
(`PartialSums`, `Reduce`); tokens leave for the experts (`Dispatch`) and come back (`Combine`). No
clock, no sockets, no other chips.
"""

from collections.abc import Callable

import msgspec
import numpy as np

from emulator.arrays import Float32s, Int64s
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
from emulator.chip.draft_model import DraftModel
from emulator.chip.effects import (
    CommandDone,
    Dispatch,
    Effect,
    ExpertRows,
    ExpertWeights,
    PartialSums,
    StepDone,
    dispatched_tokens,
)
from emulator.chip.guesses import Guesses
from emulator.chip.request_table import RequestTable
from emulator.chip.step_output import no_output, sample_step
from emulator.compute.architecture import Architecture
from emulator.compute.attention_kernel import Places, Spans
from emulator.compute.decoder import (
    Joined,
    OutputHead,
    Routed,
    add_up,
    batch_rotation,
    decoder_layers,
    embed,
    layer_table,
    places_of,
)
from emulator.compute.draft_layer import (
    draft_logits,
    enter_draft_layer,
    leave_draft_layer,
    model_output,
)
from emulator.compute.layer_table import LayerTable
from emulator.compute.mapped_matrix import are_mapped
from emulator.compute.paged_kv import PagedKv
from emulator.compute.rope import Rotation
from emulator.compute.token_batch import Span, TokenBatch, make_token_batch
from emulator.compute.weights import ExpertSet, ModelShard, MoeWeights
from emulator.specs.kv_blocks import KvBlocks
from emulator.specs.step import RankOutput

RunLayers = Callable[[Float32s, LayerTable, PagedKv, Places, Spans], Float32s]
"""Computes all layers together with other chips, from their input [tokens, hidden], the layers and
their cache, and the places of the tokens; returns the last one's output.
"""


class _RunningStep:
    """The step in progress, from `BeginStep` to the end of the last layer.

    `joined` is None until the attention of `layer` is summed, `routed` until its tokens are
    dispatched. `batch` are the step's tokens, or in the layer that drafts those of a pass; `output`
    is there from the model's last layer on, also where the step is repeated.
    """

    __slots__ = (
        "angles",
        "batch",
        "command",
        "guess_rows",
        "guesses",
        "joined",
        "layer",
        "output",
        "routed",
        "step_batch",
        "x",
    )

    def __init__(self, command: BeginStep, batch: TokenBatch) -> None:
        self.command = command
        self.step_batch = self.batch = batch
        self.angles: Rotation
        self.x: Float32s  # [tokens, hidden], the layer's input
        self.output: RankOutput | None = None
        self.guesses: Guesses | None = None
        self.guess_rows: Int64s = np.zeros(0, dtype=np.int64)  # of the batch, that guess
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

    With `run_layers`, layers that have a `table` take no message.

    With a layer that drafts, every attending chip samples, and goes on into that layer with the
    tokens: up to `draft_tokens` passes, each a layer like others. A `draft_model` is the leading
    chip's alone, after the last layer.
    """

    def __init__(
        self,
        shard: ModelShard,
        kv: PagedKv,
        *,
        tp: int = 1,
        tp_index: int = 0,
        draft_tokens: int = 0,
        draft_model: DraftModel | None = None,
    ) -> None:
        self._hold(shard)
        self._kv = kv
        self._tp = tp
        self._tp_index = tp_index
        self._draft_tokens = draft_tokens
        self._draft_model = draft_model
        self._expert_layers = shard.architecture.expert_layers
        if shard.drafts is not None:
            self._expert_layers += (shard.architecture.layers,)
        self._moe_layer = {layer: place for place, layer in enumerate(self._expert_layers)}
        self._requests = RequestTable()
        self._running: _RunningStep | None = None
        self.run_layers: RunLayers | None = None

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
        assert (shard.drafts is None) == (self._shard.drafts is None)
        self._hold(shard)

    def _hold(self, shard: ModelShard) -> None:
        """Prepare the weights; with a layer that drafts there is no `table`."""
        self._shard = shard
        self._layers = decoder_layers(shard)
        self._head = OutputHead(shard)
        self.table = layer_table(self._layers) if shard.drafts is None else None

    def _begin(self, command: BeginStep) -> Effect:
        assert self._running is None, "a step began before the last one ended"
        step = command.step
        if self._shard.drafts is None:  # or else it has sampled them itself
            for request_id, token in zip(
                command.sampled_ids, command.sampled_tokens.tolist(), strict=True
            ):
                self._requests[request_id].append(token)
        self._requests.apply(step)
        for source, target in step.block_copies:
            self._kv.copy_block(source, target)
            if self._draft_model is not None:
                self._draft_model.copy_block(source, target)
        if step.is_idle:
            return StepDone(output=no_output(step.rank))
        batch = make_token_batch(self._requests.spans(step.scheduled), self._kv.block_tokens)
        self._kv.check(batch.spans.tables)
        self._running = _RunningStep(command, batch)
        return self._enter_model(self._running)

    def _repeat(self) -> Effect:
        running = self._running
        assert running is not None, "there is no step to repeat"
        if running.guesses is not None:
            running.guesses.end()
            running.guesses = None
        return self._enter_model(running)

    def _enter_model(self, running: _RunningStep) -> Effect:
        running.batch = running.step_batch
        running.angles = batch_rotation(self._shard, running.batch)
        running.x = embed(self._shard, running.batch)
        if self.run_layers is None or self.table is None:
            return self._enter_layer(running, 0)
        places = places_of(running.batch, running.angles)
        x = self.run_layers(running.x, self.table, self._kv, places, running.batch.spans)
        running.layer = len(self._layers) - 1
        return self._end_layer(running, x)

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
        own = dispatched_tokens(len(routed.chosen), self._tp_index, self._tp)
        return Dispatch(
            layer=moe_layer,
            hidden=routed.joined.hidden[own],
            chosen=routed.chosen[own],
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
        layers = self._shard.architecture.layers
        if running.layer + 1 < layers:
            return self._enter_layer(running, running.layer + 1)
        if self._shard.drafts is not None:
            is_model = running.layer < layers
            spans, hidden = self._drawn(running) if is_model else self._guess(running)
            if spans:
                return self._enter_draft_layer(running, spans, hidden)
        self._running = None
        return StepDone(output=self._finish(running))

    def _drawn(self, running: _RunningStep) -> tuple[list[Span], Float32s]:
        """The first pass of the layer that drafts, over the model's output, with sampled tokens."""
        if running.output is None:
            running.output = self._sample(running)
        step = running.command.step
        running.guesses = guesses = Guesses(
            self._requests,
            step,
            running.output.request_ids,
            count=self._draft_tokens,
            shift=1,
            block_tokens=self._kv.block_tokens,
        )
        spans, running.guess_rows = guesses.first_pass(step.scheduled)
        lengths = np.array([len(span.token_ids) for span in spans])
        before = np.cumsum(lengths) - lengths
        rows = np.arange(lengths.sum()) + np.repeat(running.batch.spans.starts - before, lengths)
        return spans, model_output(self._shard, running.x[rows])

    def _guess(self, running: _RunningStep) -> tuple[list[Span], Float32s]:
        """The guesses of a pass, and the next one, if any."""
        assert running.guesses is not None, "the layer that drafts came without guesses"
        hidden = leave_draft_layer(self._shard, running.x[running.guess_rows])
        spans, rows = running.guesses.take(draft_logits(self._shard, hidden))
        running.guess_rows = np.arange(len(spans))
        return spans, hidden[rows]

    def _enter_draft_layer(
        self, running: _RunningStep, spans: list[Span], hidden: Float32s
    ) -> Effect:
        running.batch = batch = make_token_batch(spans, self._kv.block_tokens)
        self._kv.check(batch.spans.tables)
        running.angles = batch_rotation(self._shard, batch)
        running.x = enter_draft_layer(self._shard, batch.token_ids, batch.spans.positions, hidden)
        return self._enter_layer(running, self._shard.architecture.layers)

    def _finish(self, running: _RunningStep) -> RankOutput:
        drafts = running.guesses.end() if running.guesses is not None else {}
        if self._tp_index:
            return no_output(running.command.step.rank)
        output = running.output or self._sample(running)
        if self._draft_model is not None:
            step = running.command.step
            drafts = self._draft_model.draft(self._requests, step, output.request_ids)
        return msgspec.structs.replace(output, drafts=drafts) if drafts else output

    def _sample(self, running: _RunningStep) -> RankOutput:
        return sample_step(
            self._head, self._requests, running.command, running.step_batch, running.x
        )

    def expert_places(self, moe_layer: int) -> tuple[int, ...]:
        """The layers whose experts move with those of one: the layer that drafts, with the last."""
        arch = self._shard.architecture
        drafts = self._shard.drafts is not None and moe_layer == arch.draft_place - 1
        return (moe_layer, arch.draft_place) if drafts else (moe_layer,)

    def _move_experts(self, command: SendExperts | TakeExperts) -> Effect:
        places = self.expert_places(command.layer)
        if isinstance(command, SendExperts):
            assert not self.maps_experts(command.layer), "mapped experts are loaded, not sent"
            sets = [self._experts(place) for place in places]
            return ExpertWeights(
                layer=command.layer,
                gate_up=np.concatenate([each.gate_up[command.slots] for each in sets], axis=2),
                down=np.concatenate([each.down[command.slots] for each in sets], axis=2),
                biases=np.concatenate([each.biases[command.slots] for each in sets], axis=1),
            )
        parts = (
            np.split(command.gate_up, len(places), axis=2),
            np.split(command.down, len(places), axis=2),
            np.split(command.biases, len(places), axis=1),
        )
        for place, gate_up, down, biases in zip(places, *parts, strict=True):
            arriving = ExpertSet(gate_up=gate_up, down=down, biases=biases)
            self.take_experts(place, command.slots, arriving)
        return CommandDone()

    def maps_experts(self, moe_layer: int) -> bool:
        """Whether a layer's experts are in the checkpoint's pages."""
        return are_mapped(self._experts(moe_layer).gate_up)

    def take_experts(self, moe_layer: int, slots: list[int], arriving: ExpertSet) -> None:
        """Replace the experts in `slots` of a layer, one each, between steps."""
        experts = self._experts(moe_layer)
        experts.gate_up[slots] = arriving.gate_up
        experts.down[slots] = arriving.down
        experts.biases[slots] = arriving.biases
