"""The wire and our types say the same, field by field and word by word."""

import types
import typing
from collections.abc import Iterator
from enum import StrEnum
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.errors import ConfigError
from emulator.specs.fault import Fault, FaultKind
from protos.ultraserve.v1 import (
    admission_pb2,
    control_pb2,
    day_night_pb2,
    fault_pb2,
    hardware_pb2,
    lease_pb2,
    machine_pb2,
    placement_pb2,
    power_pb2,
    recording_pb2,
    roles_pb2,
    sleep_pb2,
    system_pb2,
    watch_pb2,
    weights_pb2,
)
from serving.policy.day_night.handover import HandoverPhase, JobPhase
from serving.server.control import control_messages
from serving.server.control.control_messages import (
    answered,
    fault_from_message,
    from_message,
    respond,
    to_message,
)
from serving.server.control.sleep_calls import MODES
from serving.server.day_night.day_night_settings import PUBLISH
from serving.server.training.job_spec import TrainingPace
from serving.wire.control_call import (
    FORMER_NAMES,
    RPCS,
    FaultReport,
    HealReport,
)
from serving.wire.day_night_state import JobPhaseWord, PaceWord, PublishWord
from serving.wire.machine_state import (
    FOR_MAINTENANCE,
    FOR_TRAINING,
    CutLink,
    FaultRecord,
    PhaseWord,
    Plain,
    RankState,
)
from serving.wire.telemetry import MachineEvent, Telemetry
from tests.serving.telemetry.machine_states import a_broken_chip, a_state, anything_of, faults

ENUMS: dict[str, type[StrEnum]] = {
    "Phase": HandoverPhase,
    "JobPhase": JobPhase,
    "TrainingPace": TrainingPace,
}
"""Of fields that our types have as text, because the words' own package is not below theirs."""

PUBLISH_RULE = StrEnum("PublishRule", {word.upper(): word for word in PUBLISH})
PURPOSE = StrEnum("LeasePurpose", {word.upper(): word for word in (FOR_TRAINING, FOR_MAINTENANCE)})
REST_MODE = StrEnum("RestMode", {word.upper(): word for word in MODES})

RENAMED = {
    "HardwareReport": "MachineSnapshot",
    "PowerReport": "MachinePower",
    "Event": "MachineEvent",
    "ExpertLoad": "ExpertChoices",
    "StepTimes": "StepDurations",
    "StackState": "StackUsage",
    "Phase": "HandoverPhase",
}
"""Messages that keep an older name on the wire, and our types of them."""

FILES = [
    *(admission_pb2, day_night_pb2, fault_pb2, lease_pb2, machine_pb2, placement_pb2, power_pb2),
    *(hardware_pb2, recording_pb2, roles_pb2, sleep_pb2, system_pb2, watch_pb2, weights_pb2),
    control_pb2,
]


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
            if inner is str and below is not None:
                inner = {**ENUMS, "PublishRule": PUBLISH_RULE, "LeasePurpose": PURPOSE}[below.name]
            if below is not None and typing.get_origin(inner) is None:
                yield from pairs(inner, below)


ANSWERS: dict[str, typing.Any] = {
    **{row.name: row.shows for row in RPCS.values() if row.shows is not types.NoneType},
    "WatchTelemetry": Telemetry,
    "WatchEvents": MachineEvent,
}
"""What the first field of each method's response says; ResetPrefixCache's has none."""

SERVICE = control_pb2.DESCRIPTOR.services_by_name["ControlService"]
ALL = list(
    dict.fromkeys(
        pair
        for name, kind in ANSWERS.items()
        for pair in pairs(kind, SERVICE.methods_by_name[name].output_type.fields[0].message_type)
    )
)


def test_every_method_and_every_message_is_reached() -> None:
    reached = {descriptor.name for _, descriptor in ALL} | {REST_MODE.__name__}
    there = {
        name
        for file in FILES
        for kinds in (file.DESCRIPTOR.message_types_by_name, file.DESCRIPTOR.enum_types_by_name)
        for name, descriptor in kinds.items()
        if not descriptor.GetOptions().deprecated
    }

    assert set(SERVICE.methods_by_name) == {*ANSWERS, *FORMER_NAMES, "ResetPrefixCache"}
    of_calls = {
        each.name for call in SERVICE.methods for each in (call.input_type, call.output_type)
    }
    assert reached == there - of_calls


def test_every_method_has_a_request_and_a_response_of_its_own() -> None:
    for method in SERVICE.methods:
        assert method.input_type.name == f"{method.name}Request"
        assert method.output_type.name == f"{method.name}Response"


@pytest.mark.parametrize(("kind", "descriptor"), ALL, ids=[kind.__name__ for kind, _ in ALL])
def test_a_message_has_the_fields_and_an_enum_the_words_of_its_type(
    kind: typing.Any, descriptor: typing.Any
) -> None:
    assert kind.__name__ == RENAMED.get(descriptor.name, descriptor.name)
    if issubclass(kind, StrEnum):
        words = [control_messages._word(descriptor, value.number) for value in descriptor.values]
        assert words == ["unspecified", *kind]
    else:
        assert encoded_names(kind) == [field.name for field in descriptor.fields]


def encoded_names(kind: typing.Any) -> list[str]:
    """The names of a type's fields on the wire."""
    return list(getattr(kind, "__struct_encode_fields__", None) or typing.get_type_hints(kind))


def test_vllm_s_modes_are_the_wire_s() -> None:
    descriptor = sleep_pb2.RestMode.DESCRIPTOR
    words = [control_messages._word(descriptor, value.number) for value in descriptor.values]

    assert words == ["unspecified", *MODES]


@pytest.mark.parametrize(
    ("alias", "words"),
    [
        (PhaseWord, [*HandoverPhase]),
        (JobPhaseWord, [*JobPhase]),
        (PublishWord, [*PUBLISH]),
        (PaceWord, [*TrainingPace]),
    ],
)
def test_a_word_that_is_text_here_is_one_of_its_own_package(
    alias: typing.Any, words: list[str]
) -> None:
    (meta,) = alias.__metadata__

    assert meta.pattern == f"^({'|'.join(words)})$"


@pytest.mark.parametrize(("kind", "descriptor"), ALL, ids=[kind.__name__ for kind, _ in ALL])
def test_what_may_be_none_may_be_absent_on_the_wire(
    kind: typing.Any, descriptor: typing.Any
) -> None:
    if kind is Fault or issubclass(kind, StrEnum):
        return
    for name, hint in zip(encoded_names(kind), typing.get_type_hints(kind).values(), strict=True):
        optional = types.NoneType in typing.get_args(hint)
        field = descriptor.fields_by_name[name]
        assert field.has_presence or not optional, name
        assert optional or field.message_type or not field.has_presence, name


@pytest.mark.long
@given(st.sampled_from(sorted(set(ANSWERS.values()), key=lambda kind: kind.__name__)), st.data())
def test_any_answer_survives_the_wire(kind: typing.Any, data: st.DataObject) -> None:
    value = data.draw(anything_of(kind))
    method = next(name for name, one in ANSWERS.items() if one is kind)
    response = getattr(control_pb2, f"{method}Response")
    wire = respond(response, value).SerializeToString()

    assert answered(response.FromString(wire), kind) == value


def test_an_answer_of_nothing_is_there_all_the_same() -> None:
    response = respond(control_pb2.HealResponse, HealReport(healed=()))

    assert response.HasField("report")


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
    message = machine_pb2.RankState(
        rank=1,
        up=True,
        requests_running=3,
        requests_waiting=4,
        kv_blocks_used=5,
        kv_blocks=6,
        version=7,
    )

    assert to_message(rank, machine_pb2.RankState) == message
    assert from_message(message, RankState) == rank


def test_enums_maps_and_lists_by_hand() -> None:
    message = to_message(a_broken_chip(), machine_pb2.ChipState)

    assert message.health == machine_pb2.CHIP_HEALTH_SLOW
    assert message.rank == 1
    assert message.stacks[0].failed
    assert dict(message.stacks[1].owner_bytes) == {"kv": 10**9, "weights/experts": 5 * 10**8}
    assert message.cut_links == [
        machine_pb2.CutLink(tier=fault_pb2.LINK_TIER_CROSS_RACK, lanes_cut=4, lanes=16)
    ]


def test_what_a_fault_has_no_use_for_is_absent() -> None:
    message = to_message(Fault(kind=FaultKind.LOSE_CHIP, chip=0), fault_pb2.Fault)

    assert [field.name for field, _ in message.ListFields()] == ["kind", "chip"]
    assert fault_from_message(message) == Fault(kind=FaultKind.LOSE_CHIP, chip=0)


def test_a_spare_has_no_rank_and_rank_0_is_one() -> None:
    first, _, spare = to_message(a_state(), machine_pb2.MachineState).chips

    assert first.HasField("rank")
    assert first.rank == 0
    assert not spare.HasField("rank")


def test_a_recovery_of_nothing_but_zeros_is_there() -> None:
    (record,) = a_state().faults
    assert record.recovery is not None
    zeros: dict[str, Any] = dict.fromkeys(typing.get_type_hints(type(record.recovery)), 0)
    zeros |= {"moved": (), "failed": ()}
    record = msgspec.structs.replace(record, recovery=type(record.recovery)(**zeros))

    assert from_message(to_message(record, fault_pb2.FaultRecord), FaultRecord) == record


@given(faults())
def test_any_fault_survives_the_wire(fault: Fault) -> None:
    wire = to_message(fault, fault_pb2.Fault).SerializeToString()
    assert fault_from_message(fault_pb2.Fault.FromString(wire)) == fault


@pytest.mark.parametrize(
    ("message", "line"),
    [
        (fault_pb2.Fault(), "kind=unspecified: expected one of lose-chip, hang-chip, "),
        (fault_pb2.Fault(kind=99), "kind=99: expected one of lose-chip, "),  # type: ignore[arg-type]
        (
            fault_pb2.Fault(kind=fault_pb2.FAULT_KIND_LOSE_CHIP),
            "chip=-1: expected a chip of the partition",
        ),
        (
            fault_pb2.Fault(kind=fault_pb2.FAULT_KIND_SLOW_CHIP, chip=1, factor=float("nan")),
            "factor=nan: expected a number above 1",
        ),
        (
            fault_pb2.Fault(
                kind=fault_pb2.FAULT_KIND_CUT_LINK, chip=1, tier=fault_pb2.LINK_TIER_UNSPECIFIED
            ),
            "tier=unspecified: expected one of tray, backplane, cross-rack",
        ),
        (
            fault_pb2.Fault(kind=fault_pb2.FAULT_KIND_CUT_LINK, chip=1),
            "tier=None: expected one of tray, backplane, cross-rack",
        ),
        (
            fault_pb2.Fault(kind=fault_pb2.FAULT_KIND_PULL_SWITCH_TRAY),
            "rack=-1: expected a rack of the system",
        ),
    ],
)
def test_a_fault_that_cannot_be_is_one_line(message: fault_pb2.Fault, line: str) -> None:
    with pytest.raises(ConfigError) as raised:
        fault_from_message(message)

    assert str(raised.value).startswith(line)


class PartOfCutLink(Plain, frozen=True, kw_only=True):
    lanes: int


def test_a_field_that_only_one_side_has_is_our_own_mistake() -> None:
    with pytest.raises(AssertionError):
        to_message(PartOfCutLink(lanes=1), machine_pb2.CutLink)
    with pytest.raises(AssertionError):
        to_message(a_state(), machine_pb2.RankState)
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        from_message(machine_pb2.CutLink(), RankState)


def test_an_answer_without_what_must_be_there_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="unspecified"):
        from_message(machine_pb2.CutLink(lanes=3), CutLink)


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (
            FaultReport(accepted=False, survivable=True, reason="r"),
            fault_pb2.FaultReport(accepted=False, survivable=True, reason="r"),
        ),
        (
            FaultReport(accepted=True, survivable=False, reason="", number=1),
            fault_pb2.FaultReport(accepted=True, survivable=False, reason="", number=1),
        ),
        (HealReport(healed=(2, 5)), fault_pb2.HealReport(healed=[2, 5])),
        (HealReport(healed=()), fault_pb2.HealReport()),
    ],
)
def test_a_reply_s_tag_is_the_message_s_type(
    reply: FaultReport | HealReport, message: fault_pb2.FaultReport | fault_pb2.HealReport
) -> None:
    assert to_message(reply, type(message)) == message
    assert from_message(message, type(reply)) == reply
