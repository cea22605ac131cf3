import pickle
import struct
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, get_args

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from emulator.actors.codec import HEAD_BYTES, Codec, Message, packet_bytes
from emulator.chip.commands import (
    BeginStep,
    Combine,
    Hang,
    JoinExchange,
    JoinStep,
    LoadExperts,
    LoadWeights,
    Reduce,
    RepeatStep,
    ReportCondition,
    ResetRank,
    RunExperts,
    SendExperts,
    SendKv,
    StopChip,
    TakeExperts,
    TakeKv,
)
from emulator.chip.effects import (
    ChipFailed,
    ChipReady,
    CommandDone,
    Condition,
    Dispatch,
    ExpertRows,
    ExpertWeights,
    NotLoaded,
    PartialSums,
    StepBroken,
    StepDone,
)
from emulator.chip.training_commands import (
    ApplyGradients,
    BeginTraining,
    CombineGradients,
    CombineSums,
    SendTrainingState,
    TrainExperts,
    TrainExpertsBackward,
)
from emulator.chip.training_effects import (
    ExpertGradients,
    ExpertSums,
    GradientDispatch,
    Gradients,
    Scored,
    TrainingDispatch,
    TrainingStateRead,
)
from emulator.errors import ChannelError
from emulator.specs.kv_blocks import KvBlocks
from emulator.specs.sampling import SamplingSpec
from emulator.specs.step import NewRequest, RankOutput, RankStep, RowLogprobs, Scheduled


def same(left: Any, right: Any) -> bool:
    """Equality of messages: types, fields, and the bits of arrays."""
    if type(left) is not type(right):
        return False
    if isinstance(left, np.ndarray):
        equal = left.dtype == right.dtype and left.shape == right.shape
        return equal and left.tobytes() == right.tobytes()
    if is_dataclass(left):
        return all(same(getattr(left, f.name), getattr(right, f.name)) for f in fields(left))
    if isinstance(left, msgspec.Struct):
        return all(same(getattr(left, f), getattr(right, f)) for f in left.__struct_fields__)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    return bool(left == right)


# --- every message kind -------------------------------------------------------------------------

names = st.text(max_size=8)
small = st.integers(0, 2**31 - 1)
layers = st.integers(0, 200)
token_ids = st.lists(small, max_size=5)


def array(dtype: Any, dimensions: int) -> st.SearchStrategy[np.ndarray]:
    shapes = arrays.array_shapes(min_dims=dimensions, max_dims=dimensions, min_side=0, max_side=5)
    return arrays.arrays(dtype, shapes)


f32 = np.float32
row_logprobs = st.builds(
    RowLogprobs, token_ids=array(np.int32, 2), logprobs=array(f32, 2), ranks=array(np.int32, 1)
)
sampling = st.builds(
    SamplingSpec,
    temperature=st.floats(0, 2),
    top_k=small,
    top_p=st.floats(0.01, 1),
    min_p=st.floats(0, 1),
    repetition_penalty=st.floats(0.1, 10),
    presence_penalty=st.floats(-2, 2),
    frequency_penalty=st.floats(-2, 2),
    seed=st.integers(-(2**63), 2**64 - 1),
    min_tokens=small,
    stop_token_ids=st.tuples(small, small),
    logit_bias=st.just(()) | st.tuples(st.tuples(small, st.floats(-100, 100))),
    bad_words=st.just(()) | st.tuples(st.tuples(small), st.tuples(small, small)),
    allowed_token_ids=st.none() | st.tuples(small, small, small),
    logprobs=st.none() | st.integers(-1, 20),
    logprob_token_ids=st.none() | st.tuples(small),
    prompt_logprobs=st.none() | st.integers(-1, 20),
    uses_grammar=st.booleans(),
)
rank_step = st.builds(
    RankStep,
    rank=st.integers(0, 143),
    new=st.lists(
        st.builds(
            NewRequest,
            request_id=names,
            token_ids=token_ids,
            prompt_tokens=small,
            sampling=sampling,
            block_ids=token_ids,
        ),
        max_size=2,
    ),
    scheduled=st.lists(
        st.builds(
            Scheduled,
            request_id=names,
            first_position=small,
            new_tokens=small,
            new_block_ids=token_ids,
            replaces_blocks=st.booleans(),
        ),
        max_size=2,
    ),
    finished=st.lists(names, max_size=2),
    block_copies=st.lists(st.tuples(small, small), max_size=2),
    grammar_rows=st.lists(names, max_size=2),
)
factors = st.floats(0, 1e6)
scored = st.builds(Scored, loss_sum=factors, counted=small, balance=factors)
MESSAGES: dict[type, st.SearchStrategy[Any]] = {
    BeginStep: st.builds(
        BeginStep,
        step=rank_step,
        grammar_bitmask=array(np.int32, 2),
        sampled_ids=st.lists(names, max_size=3),
        sampled_tokens=array(np.int32, 1),
    ),
    RepeatStep: st.just(RepeatStep()),
    JoinStep: st.just(JoinStep()),
    JoinExchange: st.builds(
        JoinExchange,
        chips=small,
        layers=small,
        experts=small,
        experts_per_token=small,
        slots=small,
        hidden=small,
        groups=small,
        tokens=small,
        path=names,
    ),
    Reduce: st.builds(Reduce, layer=layers, rows=array(f32, 3)),
    RunExperts: st.builds(
        RunExperts,
        layer=layers,
        rows=array(f32, 2),
        row_of_pair=array(np.int64, 1),
        counts=array(np.int64, 1),
    ),
    Combine: st.builds(Combine, layer=layers, expert_rows=array(f32, 3)),
    SendExperts: st.builds(SendExperts, layer=layers, slots=token_ids),
    TakeExperts: st.builds(
        TakeExperts,
        layer=layers,
        slots=token_ids,
        gate_up=array(f32, 3),
        down=array(f32, 3),
        biases=array(f32, 2),
    ),
    SendKv: st.builds(SendKv, blocks=token_ids),
    TakeKv: st.builds(TakeKv, blocks=token_ids, keys=array(f32, 5), values=array(f32, 4)),
    LoadExperts: st.builds(LoadExperts, layer=layers, slots=token_ids, experts=token_ids),
    LoadWeights: st.builds(LoadWeights, weights_dir=names, experts=st.lists(token_ids, max_size=3)),
    ResetRank: st.just(ResetRank()),
    ReportCondition: st.just(ReportCondition()),
    Hang: st.just(Hang()),
    StopChip: st.just(StopChip()),
    ChipReady: st.builds(ChipReady, chip=layers),
    Dispatch: st.builds(Dispatch, layer=layers, hidden=array(f32, 2), chosen=array(np.int64, 2)),
    PartialSums: st.builds(PartialSums, layer=layers, rows=array(f32, 3)),
    ExpertRows: st.builds(ExpertRows, layer=layers, rows=array(f32, 2)),
    ExpertWeights: st.builds(
        ExpertWeights, layer=layers, gate_up=array(f32, 3), down=array(f32, 3), biases=array(f32, 2)
    ),
    KvBlocks: st.builds(KvBlocks, keys=array(f32, 5), values=array(f32, 4)),
    CommandDone: st.just(CommandDone()),
    StepBroken: st.just(StepBroken()),
    Condition: st.builds(Condition, cpu_s=st.floats(0, 1e9), pss_bytes=small, rss_bytes=small),
    StepDone: st.builds(
        StepDone,
        output=st.builds(
            RankOutput,
            rank=layers,
            request_ids=st.lists(names, max_size=3),
            token_ids=array(np.int32, 1),
            logprobs=st.none() | row_logprobs,
            prompt_logprobs=st.dictionaries(names, row_logprobs, max_size=2),
        ),
    ),
    ChipFailed: st.builds(ChipFailed, reason=st.text()),
    NotLoaded: st.builds(NotLoaded, reason=st.text()),
    BeginTraining: st.builds(
        BeginTraining,
        tokens=array(np.int32, 2),
        targets=array(np.int32, 2),
        loss_scale=factors,
        evaluates=st.booleans(),
        ends_step=st.booleans(),
    ),
    TrainExperts: st.builds(
        TrainExperts,
        layer=layers,
        rows=array(f32, 2),
        row_of_pair=array(np.int64, 1),
        counts=array(np.int64, 1),
        weights=array(f32, 1),
    ),
    CombineSums: st.builds(CombineSums, layer=layers, rows=array(f32, 2)),
    TrainExpertsBackward: st.builds(TrainExpertsBackward, layer=layers, rows=array(f32, 2)),
    CombineGradients: st.builds(
        CombineGradients,
        layer=layers,
        rows=array(f32, 2),
        weights=array(f32, 2),
        expert_share=array(f32, 1),
        balance_scale=factors,
    ),
    ApplyGradients: st.builds(
        ApplyGradients, dense=array(f32, 1), learning_rate=factors, clip_factor=factors
    ),
    SendTrainingState: st.builds(SendTrainingState, dense=st.booleans()),
    TrainingDispatch: st.builds(
        TrainingDispatch,
        layer=layers,
        hidden=array(f32, 2),
        chosen=array(np.int64, 2),
        weights=array(f32, 2),
    ),
    ExpertSums: st.builds(ExpertSums, layer=layers, rows=array(f32, 2)),
    GradientDispatch: st.builds(GradientDispatch, layer=layers, rows=array(f32, 2)),
    ExpertGradients: st.builds(
        ExpertGradients, layer=layers, rows=array(f32, 2), weights=array(f32, 1)
    ),
    Scored: scored,
    Gradients: st.builds(
        Gradients, scored=scored, dense=array(f32, 1), experts_squared_norm=factors
    ),
    TrainingStateRead: st.builds(
        TrainingStateRead,
        **dict.fromkeys(TrainingStateRead.__dataclass_fields__, array(f32, 1)),
    ),
}


def test_no_kind_of_message_is_forgotten_here() -> None:
    assert set(MESSAGES) == set(get_args(Message))


@pytest.mark.long
@pytest.mark.parametrize("kind", MESSAGES)
@given(data=st.data())
def test_every_message_comes_back_bit_for_bit(kind: type, data: st.DataObject) -> None:
    message = data.draw(MESSAGES[kind])
    sender, receiver = Codec(), Codec()

    returned = receiver.decode(sender.encode(message))

    assert type(returned) is kind
    assert same(returned, message)


def test_messages_do_not_leave_arrays_behind_for_the_next() -> None:
    codec = Codec()
    one = ExpertRows(layer=0, rows=np.ones((2, 2), dtype=np.float32))
    two = ExpertRows(layer=1, rows=np.zeros((3, 2), dtype=np.float32))

    packets = [codec.encode(message) for message in (one, two, one)]

    assert packets[0] == packets[2]
    decoded = [codec.decode(packet) for packet in packets]
    assert all(map(same, decoded, (one, two, one)))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda x: x[::2], id="every other row"),
        pytest.param(lambda x: x.T, id="transposed"),
        pytest.param(lambda x: x[:, 1:3], id="some columns"),
        pytest.param(lambda x: np.broadcast_to(x[:1], x.shape), id="broadcast"),
    ],
)
def test_an_array_that_is_not_contiguous_travels_too(
    change: Callable[[np.ndarray], np.ndarray],
) -> None:
    rows = change(np.arange(24, dtype=np.float32).reshape(6, 4))

    returned = Codec().decode(Codec().encode(ExpertRows(layer=0, rows=rows)))

    assert isinstance(returned, ExpertRows)
    assert returned.rows.tolist() == rows.tolist()


@pytest.mark.parametrize("layer", [3, 300, 70_000])  # headers of different lengths
def test_a_received_array_lies_aligned_in_its_packet_and_cannot_be_written(layer: int) -> None:
    packet = Codec().encode(
        RunExperts(
            layer=layer,
            rows=np.ones((3, 5), dtype=np.float32),
            row_of_pair=np.arange(7),
            counts=np.arange(3),
        )
    )

    message = Codec().decode(packet)

    assert isinstance(message, RunExperts)
    start = np.frombuffer(packet, dtype=np.uint8).ctypes.data
    for received in (message.rows, message.row_of_pair, message.counts):
        assert 0 < received.ctypes.data - start < len(packet), "a view, no copy"
        assert (received.ctypes.data - start) % 16 == 0
        assert not received.flags.writeable


@pytest.mark.parametrize("dtype", [np.float64, np.uint8, np.bool_, ">f4"])
def test_an_array_of_another_type_is_not_sent(dtype: Any) -> None:
    with pytest.raises(ValueError, match="not in"):
        Codec().encode(ExpertRows(layer=0, rows=np.zeros((1, 1), dtype=dtype)))


# --- what is no message -------------------------------------------------------------------------

PACKET = Codec().encode(
    BeginStep(
        step=RankStep(
            rank=1,
            new=[
                NewRequest(
                    request_id="r",
                    token_ids=[1, 2],
                    prompt_tokens=2,
                    sampling=SamplingSpec(temperature=0.5, seed=3),
                    block_ids=[4],
                )
            ],
            scheduled=[],
            finished=[],
        ),
        grammar_bitmask=np.ones((2, 3), dtype=np.int32),
    )
)


@given(st.binary(max_size=300))
def test_noise_is_a_channel_error(noise: bytes) -> None:
    with pytest.raises(ChannelError):
        Codec().decode(noise)


def test_a_packet_that_was_cut_anywhere_is_a_channel_error() -> None:
    whole = len(PACKET.rstrip(b"\0"))
    for length in range(whole):
        with pytest.raises(ChannelError):
            Codec().decode(PACKET[:length])


def test_a_packet_with_any_bit_flipped_is_a_channel_error_or_some_message() -> None:
    codec = Codec()
    refused = 0
    for bit in range(8 * len(PACKET)):
        damaged = bytearray(PACKET)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            assert isinstance(codec.decode(bytes(damaged)), get_args(Message))
        except ChannelError:
            refused += 1
    assert refused > len(PACKET)


@pytest.mark.parametrize("frames", [2, 1_000, 2**32 - 1])
def test_a_packet_that_promises_more_frames_than_it_has_is_refused_at_once(frames: int) -> None:
    with pytest.raises(ChannelError, match="shorter"):
        Codec().decode(struct.pack("<QHHI", 16, 3, 0, frames))


def test_a_packet_is_laid_out_as_described() -> None:
    packet = Codec().encode(ExpertRows(layer=1, rows=np.ones((1, 2), dtype=np.float32)))

    header = msgspec.msgpack.encode({"layer": 1, "rows": (1, 0, (1, 2))})
    size, kind, zeros, frames, header_bytes, array_bytes = struct.unpack_from("<QHHIQQ", packet)
    assert (size, zeros, frames) == (len(packet), 0, 2)
    assert packet_bytes(packet[:HEAD_BYTES]) == len(packet)
    assert get_args(Message)[kind] is ExpertRows
    assert (header_bytes, array_bytes) == (len(header), 8)
    assert packet[32 : 32 + len(header)] == header
    second = 32 + -(-len(header) // 16) * 16
    assert packet[second : second + 8] == struct.pack("<ff", 1, 1)
    assert len(packet) == second + 16


def test_an_array_that_is_not_as_large_as_its_header_says_is_refused() -> None:
    packet = Codec().encode(ExpertRows(layer=0, rows=np.zeros((2, 3), dtype=np.float32)))
    shape = packet.index(b"\x92\x02\x03")  # msgpack's [2, 3]

    with pytest.raises(ChannelError, match="6 elements"):
        Codec().decode(packet[:shape] + b"\x92\x02\x04" + packet[shape + 3 :])


class Bomb:
    """Unpickling it is noticed."""

    exploded = False

    @staticmethod
    def explode() -> None:
        Bomb.exploded = True

    def __reduce__(self) -> Any:
        return Bomb.explode, ()


def test_nothing_is_unpickled() -> None:
    pickled = pickle.dumps(Bomb())
    pickle.loads(pickled)
    assert Bomb.exploded, "the bomb works"
    Bomb.exploded = False
    body = struct.pack("<QQ", len(pickled), 0) + pickled

    for kind in range(len(get_args(Message))):
        for packet in (pickled, struct.pack("<QHHI", 16 + len(body), kind, 0, 1) + body):
            with pytest.raises(ChannelError):
                Codec().decode(packet)

    assert not Bomb.exploded
