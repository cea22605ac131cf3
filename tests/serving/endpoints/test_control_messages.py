"""The wire and our types say the same, field by field and word by word."""

import types
import typing
from collections.abc import Iterator
from enum import StrEnum

import msgspec
import pytest
from hypothesis import given, settings

from emulator.errors import ConfigError
from emulator.specs.fault import Fault, FaultKind, LinkTier
from protos.ultraserve.v1 import control_pb2 as pb
from serving.controller.day_night_state import DayNightState
from serving.endpoints import control_messages
from serving.endpoints.control_messages import fault_from_message, from_message, to_message
from serving.endpoints.engine_rest import EngineRest
from serving.metrics.control_call import (
    FaultReport,
    HealReport,
    LeaseReport,
    RecordingState,
    VersionReport,
)
from serving.metrics.machine_state import (
    ChipHealth,
    CutLink,
    FaultRecord,
    FaultStage,
    MachineState,
    Plain,
    RankState,
)
from serving.metrics.step_record import StepPhase
from serving.metrics.step_recording import StepPage, StepRelief
from tests.serving.metrics.machine_states import a_broken_chip, a_state, anything_of, faults


def pairs(kind: typing.Any, descriptor: typing.Any) -> Iterator[tuple[typing.Any, typing.Any]]:
    """Each of our types below `kind` with the descriptor of its message or enum."""
    yield kind, descriptor
    if descriptor is None or not hasattr(descriptor, "fields_by_name"):
        return
    for name, hint in typing.get_type_hints(kind).items():
        inner = hint
        while typing.get_origin(inner) in (tuple, types.UnionType, typing.Union):
            inner = next(one for one in typing.get_args(inner) if one is not types.NoneType)
        field = descriptor.fields_by_name.get(name)
        if isinstance(inner, type) and field is not None:
            below = field.enum_type or field.message_type
            if below is not None and typing.get_origin(inner) is None:
                yield from pairs(inner, below)


ALL = [
    *pairs(MachineState, pb.MachineState.DESCRIPTOR),
    *pairs(FaultReport, pb.FaultReport.DESCRIPTOR),
    *pairs(HealReport, pb.HealReport.DESCRIPTOR),
    *pairs(RecordingState, pb.RecordingState.DESCRIPTOR),
    *pairs(StepPage, pb.StepPage.DESCRIPTOR),
    *pairs(StepRelief, pb.StepRelief.DESCRIPTOR),
    *pairs(LeaseReport, pb.LeaseReport.DESCRIPTOR),
    *pairs(VersionReport, pb.VersionReport.DESCRIPTOR),
    *pairs(DayNightState, pb.DayNightState.DESCRIPTOR),
    *pairs(EngineRest, pb.EngineRest.DESCRIPTOR),
]


def test_every_message_is_reached() -> None:
    reached = {descriptor.name for _, descriptor in ALL}
    file = pb.DESCRIPTOR
    answered = {name for name in file.message_types_by_name if not name.endswith("Request")}
    asked = {method.input_type.name for method in file.services_by_name["Control"].methods}

    assert reached == {*answered, *file.enum_types_by_name}
    assert asked == {*file.message_types_by_name} - answered


@pytest.mark.parametrize(("kind", "descriptor"), ALL, ids=[kind.__name__ for kind, _ in ALL])
def test_a_message_has_the_fields_and_an_enum_the_words_of_its_type(
    kind: typing.Any, descriptor: typing.Any
) -> None:
    assert kind.__name__ == descriptor.name
    if issubclass(kind, StrEnum):
        words = [control_messages._word(descriptor, value.number) for value in descriptor.values]
        assert words == ["unspecified", *kind]
    else:
        assert list(typing.get_type_hints(kind)) == [field.name for field in descriptor.fields]


@pytest.mark.parametrize(("kind", "descriptor"), ALL, ids=[kind.__name__ for kind, _ in ALL])
def test_what_may_be_none_may_be_absent_on_the_wire(
    kind: typing.Any, descriptor: typing.Any
) -> None:
    if kind is Fault or issubclass(kind, StrEnum):
        return
    for name, hint in typing.get_type_hints(kind).items():
        optional = types.NoneType in typing.get_args(hint)
        field = descriptor.fields_by_name[name]
        assert field.has_presence or not optional, name
        assert optional or field.message_type or not field.has_presence, name


def test_a_rank_by_hand() -> None:
    rank = RankState(
        rank=1,
        up=True,
        requests_running=3,
        requests_waiting=4,
        kv_blocks_used=5,
        kv_blocks=6,
        version=7,
    )
    message = pb.RankState(
        rank=1,
        up=True,
        requests_running=3,
        requests_waiting=4,
        kv_blocks_used=5,
        kv_blocks=6,
        version=7,
    )

    assert to_message(rank, pb.RankState) == message
    assert from_message(message, RankState) == rank


def test_enums_maps_and_lists_by_hand() -> None:
    message = to_message(a_broken_chip(), pb.ChipState)

    assert message.health == pb.CHIP_HEALTH_SLOW
    assert message.rank == 1
    assert message.stacks[0].failed
    assert dict(message.stacks[1].owner_bytes) == {"kv": 10**9, "weights.experts": 5 * 10**8}
    assert message.cut_links == [pb.CutLink(tier=pb.LINK_TIER_CROSS_RACK, lanes_cut=4, lanes=16)]


def test_what_a_fault_has_no_use_for_is_absent() -> None:
    message = to_message(Fault(kind=FaultKind.LOSE_CHIP, chip=0), pb.Fault)

    assert [field.name for field, _ in message.ListFields()] == ["kind", "chip"]
    assert fault_from_message(message) == Fault(kind=FaultKind.LOSE_CHIP, chip=0)


def test_a_spare_has_no_rank_and_rank_0_is_one() -> None:
    first, _, spare = to_message(a_state(), pb.MachineState).chips

    assert first.HasField("rank")
    assert first.rank == 0
    assert not spare.HasField("rank")


def test_a_recovery_of_nothing_but_zeros_is_there() -> None:
    (record,) = a_state().faults
    assert record.recovery is not None
    zeros = dict.fromkeys(typing.get_type_hints(type(record.recovery)), 0)
    record = msgspec.structs.replace(record, recovery=type(record.recovery)(**zeros))

    assert from_message(to_message(record, pb.FaultRecord), FaultRecord) == record


@given(anything_of(MachineState))
@settings(max_examples=25, deadline=None)
def test_any_state_survives_the_wire(state: MachineState) -> None:
    wire = to_message(state, pb.MachineState).SerializeToString()
    assert from_message(pb.MachineState.FromString(wire), MachineState) == state


@given(anything_of(StepPage))
@settings(max_examples=25, deadline=None)
def test_any_page_of_steps_survives_the_wire(page: StepPage) -> None:
    wire = to_message(page, pb.StepPage).SerializeToString()
    assert from_message(pb.StepPage.FromString(wire), StepPage) == page


@given(faults())
def test_any_fault_survives_the_wire(fault: Fault) -> None:
    wire = to_message(fault, pb.Fault).SerializeToString()
    assert fault_from_message(pb.Fault.FromString(wire)) == fault


@pytest.mark.parametrize(
    ("message", "line"),
    [
        (pb.Fault(), "kind=unspecified: expected one of lose-chip, hang-chip, "),
        (pb.Fault(kind=99), "kind=99: expected one of lose-chip, "),  # type: ignore[arg-type]
        (pb.Fault(kind=pb.FAULT_KIND_LOSE_CHIP), "chip=-1: expected a chip of the partition"),
        (
            pb.Fault(kind=pb.FAULT_KIND_SLOW_CHIP, chip=1, factor=float("nan")),
            "factor=nan: expected a number above 1",
        ),
        (
            pb.Fault(kind=pb.FAULT_KIND_CUT_LINK, chip=1, tier=pb.LINK_TIER_UNSPECIFIED),
            "tier=unspecified: expected one of tray, backplane, cross-rack",
        ),
        (
            pb.Fault(kind=pb.FAULT_KIND_CUT_LINK, chip=1),
            "tier=None: expected one of tray, backplane, cross-rack",
        ),
        (pb.Fault(kind=pb.FAULT_KIND_PULL_SWITCH_TRAY), "rack=-1: expected a rack of the system"),
    ],
)
def test_a_fault_that_cannot_be_is_one_line(message: pb.Fault, line: str) -> None:
    with pytest.raises(ConfigError) as raised:
        fault_from_message(message)

    assert str(raised.value).startswith(line)


class PartOfCutLink(Plain, frozen=True, kw_only=True):
    lanes: int


def test_a_field_that_only_one_side_has_is_our_own_mistake() -> None:
    with pytest.raises(AssertionError):
        to_message(PartOfCutLink(lanes=1), pb.CutLink)
    with pytest.raises(AssertionError):
        to_message(a_state(), pb.RankState)
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        from_message(pb.CutLink(), RankState)


def test_an_answer_without_what_must_be_there_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="unspecified"):
        from_message(pb.CutLink(lanes=3), CutLink)


def test_the_enums_are_the_ones_of_the_contract() -> None:
    assert {kind for kind, _ in ALL if issubclass(kind, StrEnum)} == {
        FaultKind,
        LinkTier,
        ChipHealth,
        FaultStage,
        StepPhase,
    }


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (
            FaultReport(accepted=False, survivable=True, reason="r"),
            pb.FaultReport(accepted=False, survivable=True, reason="r"),
        ),
        (
            FaultReport(accepted=True, survivable=False, reason="", number=1),
            pb.FaultReport(accepted=True, survivable=False, reason="", number=1),
        ),
        (HealReport(healed=(2, 5)), pb.HealReport(healed=[2, 5])),
        (HealReport(healed=()), pb.HealReport()),
    ],
)
def test_a_reply_s_tag_is_the_message_s_type(
    reply: FaultReport | HealReport, message: pb.FaultReport | pb.HealReport
) -> None:
    assert to_message(reply, type(message)) == message
    assert from_message(message, type(reply)) == reply
