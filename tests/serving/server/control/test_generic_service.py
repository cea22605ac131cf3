"""Every rpc of control.proto has a row in the table, and one answer; no call needs code of its own.

A call that the engine answers is a message of control.proto, a row with its types, and a method of
the engine: what is between them is derived. So is the client.
"""

import asyncio
from types import NoneType
from typing import Any, NamedTuple

import pytest
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from emulator.errors import ConfigError
from protos.ultraserve.v1 import control_pb2 as pb
from serving.engine import live_engine
from serving.server.control.control_messages import request_fields, request_message
from serving.server.control.control_service import ControlService
from serving.server.control.engine_watch import EngineWatch
from serving.server.control.generic_service import (
    SERVICE,
    EngineAnswers,
    answers,
    generic_service,
)
from serving.server.control.last_replies import LastReplies
from serving.server.gateway.snapshot_poller import SnapshotPoller
from serving.wire import control_call
from serving.wire.control_call import (
    FORMER_NAMES,
    GET_REST,
    GET_STATE,
    HEAL,
    RPCS,
    ControlRequest,
)
from tests.serving.server.control.small_engine import SmallEngine

STREAMS = {method.name for method in SERVICE.methods if method.server_streaming}


class Call(NamedTuple):
    """What gRPC says of a call before it has a handler."""

    method: str
    invocation_metadata: tuple[tuple[str, str], ...] = ()


def test_every_unary_method_of_the_proto_has_a_row_and_every_row_a_method() -> None:
    assert set(RPCS) | STREAMS | set(FORMER_NAMES) == set(SERVICE.methods_by_name)
    assert not set(RPCS) & (STREAMS | set(FORMER_NAMES))


@pytest.mark.parametrize("name", RPCS)
def test_the_engine_s_request_has_the_fields_of_the_call_s(name: str) -> None:
    row, described = RPCS[name], SERVICE.methods_by_name[name]
    fields = [field.name for field in described.input_type.fields]

    if row.asks is not None:
        assert list(row.asks.__struct_fields__) == fields
    assert len(described.output_type.fields) == (0 if row.shows is NoneType else 1)


def test_every_request_has_a_method_of_the_engine() -> None:
    assert set(live_engine._ANSWERS) == set(ControlRequest.__subclasses__())


def handlers(engine: SmallEngine, functions: object | None = None) -> Any:
    watch = EngineWatch(engine)
    if functions is None:
        functions = ControlService(engine, watch=watch, hardware=SnapshotPoller(engine))
    return generic_service(functions, EngineAnswers(engine, LastReplies(engine), watch))


def test_every_method_of_the_proto_has_a_handler_that_reads_and_writes_its_messages() -> None:
    service = handlers(SmallEngine())

    for name in {*RPCS, *STREAMS}:
        method = SERVICE.methods_by_name[name]
        handler = service.service(Call(f"/{SERVICE.full_name}/{method.name}"))
        request, response = map(GetMessageClass, (method.input_type, method.output_type))
        assert handler.response_streaming == method.server_streaming
        assert type(handler.request_deserializer(request().SerializeToString())) is request
        assert handler.response_serializer(response()) == b""


def layout(message: Any) -> list[Any]:
    """What sets a message's bytes: number, type and repetition of each field."""
    return [
        (each.number, each.type, each.is_repeated, each.message_type and layout(each.message_type))
        for each in message.fields
    ]


@pytest.mark.parametrize(("old", "new"), FORMER_NAMES.items())
def test_a_deprecated_method_has_the_handler_and_the_bytes_of_its_new_name(
    old: str, new: str
) -> None:
    service = handlers(SmallEngine())
    was, now = SERVICE.methods_by_name[old], SERVICE.methods_by_name[new]

    assert was.GetOptions().deprecated
    assert not now.GetOptions().deprecated
    assert layout(was.input_type) == layout(now.input_type)
    assert layout(was.output_type) == layout(now.output_type)
    before, after = (service.service(Call(f"/{SERVICE.full_name}/{one}")) for one in (old, new))
    assert before is after


async def called(engine: SmallEngine, name: str, request: Message) -> Any:
    handler = handlers(engine).service(Call(f"/{SERVICE.full_name}/{name}"))
    return await handler.unary_unary(request, None)


def test_what_the_engine_says_becomes_the_response() -> None:
    engine = SmallEngine()
    state = asyncio.run(called(engine, "GetState", pb.GetStateRequest())).state
    healed = asyncio.run(called(engine, "Heal", pb.HealRequest(chip=1)))

    assert len(state.chips) == len(engine.state.chips)
    assert healed.HasField("report")
    assert engine.lines == ['{"method":"state"}', '{"method":"heal","chip":1,"rack":null}']


def test_a_call_that_nothing_answers_is_our_own_mistake() -> None:
    with pytest.raises(AssertionError, match="who answers"):
        handlers(SmallEngine(), functions=object())


def test_a_call_of_the_engine_s_has_no_function_beside_it() -> None:
    with pytest.raises(AssertionError, match="the engine answers GetState"):
        answers(GET_STATE)
    assert answers(GET_REST)


def test_fields_become_a_request_and_the_request_the_same_fields() -> None:
    request = request_message(pb.HealRequest, {"chip": 0, "rack": None})

    assert request == pb.HealRequest(chip=0)
    assert request_fields(request) == {"chip": 0, "rack": None}
    assert RPCS[HEAL.name].asks is control_call.HealRequest
    with pytest.raises(KeyError, match="dwarf"):
        request_message(pb.HealRequest, {"dwarf": 1})
    with pytest.raises(ConfigError, match="rack=-1: expected at least 0"):
        request_fields(pb.HealRequest(rack=-1))


def test_a_word_becomes_the_enum_s_number_and_an_empty_one_the_server_s_own_choice() -> None:
    assert request_message(pb.SleepRequest, {"level": 2, "mode": ""}) == pb.SleepRequest(level=2)
    waits = request_message(pb.SleepRequest, {"mode": "wait"})
    assert request_fields(waits) == {"level": 0, "mode": "wait"}
    with pytest.raises(ConfigError, match="mode=later: expected one of abort, wait, keep"):
        request_message(pb.SleepRequest, {"mode": "later"})
