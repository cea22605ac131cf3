"""Calls in JSON say what the same calls say over gRPC, and fail as they do."""

import base64
import json
import re
from typing import Any

import grpc
import pytest
from google.protobuf import json_format
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.rpc import error_details_pb2
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protos.ultraserve.v1 import control_pb2 as pb
from serving.server.console.call_answer import HTTP_STATUS
from serving.server.control import control_guard
from serving.server.control.control_address import ControlAddress
from serving.server.control.control_guard import GuardLimits
from serving.server.control.json_calls import _CODES
from tests.serving.server.control import raw_call
from tests.serving.server.control.drawn_messages import messages
from tests.serving.server.control.http_calls import SERVICE, browser, with_key
from tests.serving.server.control.small_engine import SmallEngine, control_server

METHODS = pb.DESCRIPTOR.services_by_name["ControlService"].methods
UNARY = [each.name for each in METHODS if not each.server_streaming]
STREAMS = [each.name for each in METHODS if each.server_streaming]

Said = tuple[str, Any]


def request_of(method: str) -> type[Message]:
    described = pb.DESCRIPTOR.services_by_name["ControlService"].methods_by_name[method]
    return GetMessageClass(described.input_type)


def response_of(method: str) -> type[Message]:
    described = pb.DESCRIPTOR.services_by_name["ControlService"].methods_by_name[method]
    return GetMessageClass(described.output_type)


def over_grpc(address: ControlAddress, method: str, request: Message) -> Said:
    """An answer's message, or a code with its words and details."""
    with raw_call.stub_at(address) as stub:
        try:
            call = getattr(stub, method)
            return "OK", call(request, timeout=10, metadata=raw_call.with_key(address))
        except grpc.RpcError as error:
            return error.code().name, (error.details(), raw_call.details_of(error))


def over_json(address: ControlAddress, method: str, request: Message) -> Said:
    body = json_format.MessageToJson(request)
    with browser(address) as client:
        response = client.post(
            f"{SERVICE}/{method}",
            content=body,
            headers={**with_key(address), "Content-Type": "application/json"},
        )
    if response.status_code == 200:
        return "OK", json_format.Parse(response.content, response_of(method)())
    said = response.json()
    assert HTTP_STATUS[said["code"]] == response.status_code
    code = {word: code.name for code, word in _CODES.items()}[said["code"]]
    return code, (said["message"], [unpacked(each) for each in said.get("details", [])])


def without_key(said: Said) -> Said:
    """The same without the idempotency key that the server made up for this call."""
    code, what = said
    if code == "OK":
        return said
    words, details = what
    return code, (re.sub(r"(idempotency-key) [0-9a-f]+", r"\1 KEY", words), details)


def unpacked(detail: dict[str, Any]) -> Message:
    """A detail by its bytes, which say what its readable copy does."""
    kind = getattr(error_details_pb2, detail["type"].rpartition(".")[2])
    padded = detail["value"] + "=" * (-len(detail["value"]) % 4)
    message: Message = kind.FromString(base64.b64decode(padded))
    assert json_format.MessageToDict(message) == detail["debug"]
    return message


def test_there_are_calls_to_compare() -> None:
    assert len(UNARY) >= 25
    assert set(STREAMS) == {"WatchTelemetry", "WatchEvents"}


@pytest.mark.long
def test_every_method_answers_in_json_what_it_answers_over_grpc() -> None:
    with control_server(SmallEngine()) as one, control_server(SmallEngine()) as other:
        for method in UNARY:
            request = request_of(method)()
            in_json = without_key(over_json(one, method, request))
            assert in_json == without_key(over_grpc(other, method, request)), method


@pytest.mark.long
@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_whatever_is_asked_of_a_machine_is_answered_alike(
    servers: tuple[ControlAddress, ControlAddress], data: st.DataObject
) -> None:
    method = data.draw(st.sampled_from(["InjectFault", "Heal", "GetSteps", "SetPhase", "Drain"]))
    request = data.draw(messages(request_of(method)))
    one, other = servers
    in_json = without_key(over_json(one, method, request))
    assert in_json == without_key(over_grpc(other, method, request))


@pytest.fixture(scope="module")
def servers() -> Any:
    with control_server(SmallEngine()) as one, control_server(SmallEngine()) as other:
        yield one, other


def post(address: ControlAddress, path: str, **given: Any) -> tuple[int, dict[str, Any]]:
    headers = {**with_key(address), **given.pop("headers", {})}
    with browser(address) as client:
        response = client.post(f"{SERVICE}/{path}", headers=headers, **given)
    return response.status_code, response.json()


def test_a_zero_is_there_and_names_are_as_javascript_has_them(address: ControlAddress) -> None:
    status, said = post(address, "GetState", json={})
    assert status == 200
    chip = said["state"]["chips"][0]
    assert (chip["chip"], chip["rank"], chip["slowFactor"]) == (0, 0, 1.0)
    assert said["state"]["steps"] == "1234"  # 64 bits are a string


def test_an_empty_message_is_an_empty_object(address: ControlAddress) -> None:
    headers = {"Content-Type": "application/json; charset=utf-8"}
    assert post(address, "GetState", content=b" {}", headers=headers)[0] == 200


@pytest.mark.parametrize(
    "body", ["", "{", "[]", "null", '{"nope": 1}', '{"chip": "x"}', '{"chip": 1e99}', "\xff"]
)
def test_what_is_no_message_is_an_invalid_argument_in_one_line(
    body: str, address: ControlAddress
) -> None:
    headers = {"Content-Type": "application/json"}
    status, said = post(address, "Heal", content=body.encode("latin-1"), headers=headers)
    assert (status, said["code"]) == (400, "invalid_argument")
    assert "\n" not in said["message"]
    assert said["details"][0]["debug"]["reason"] == "UNREADABLE_MESSAGE"


@pytest.mark.long
def test_deep_nesting_and_long_bodies_are_refused(address: ControlAddress) -> None:
    headers = {"Content-Type": "application/json"}
    deep = '{"fault": ' * 5_000 + "{}" + "}" * 5_000
    assert post(address, "InjectFault", content=deep, headers=headers)[0] == 400
    status, said = post(address, "Publish", json={"note": "x" * 300_000})
    assert (status, said["code"]) == (413, "resource_exhausted")
    status, said = post(address, "Publish", json={"note": "x" * 100_000})
    assert (status, said["code"]) == (429, "resource_exhausted")  # the service's own limit


@pytest.mark.long
def test_only_json_is_taken_so_that_no_form_can_ask(address: ControlAddress) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "application/proto"):
        status, _ = post(address, "GetState", content=b"{}", headers={"Content-Type": kind})
        assert status == 415


@pytest.mark.long
def test_a_method_that_there_is_not_and_a_stream_are_unimplemented(
    address: ControlAddress,
) -> None:
    assert post(address, "Nope", json={})[0] == 404
    for method in STREAMS:
        status, said = post(address, method, json={})
        assert (status, said["code"]) == (501, "unimplemented")
        assert "/stream" in said["message"]


def test_another_verb_is_told_which_one_it_is(address: ControlAddress) -> None:
    with browser(address) as client:
        response = client.get(f"{SERVICE}/GetState", headers=with_key(address))
    assert (response.status_code, response.headers["Allow"]) == (405, "POST")


@pytest.mark.long
def test_a_call_ends_with_its_client_s_time_and_with_the_guard_s(engine: SmallEngine) -> None:
    engine.silent = True
    with control_server(engine, limits=GuardLimits(look_wall_s_max=0.5)) as address:
        status, said = post(address, "GetState", json={}, headers={"Connect-Timeout-Ms": "100"})
        assert (status, said["code"]) == (504, "deadline_exceeded")
        status, said = post(address, "GetState", json={})
        assert (status, said["code"]) == (504, "deadline_exceeded")
        assert said["details"][0]["debug"]["reason"] == "TIME_LIMIT"
        status, said = post(address, "GetState", json={}, headers={"Connect-Timeout-Ms": "soon"})
        assert (status, said["code"]) == (400, "invalid_argument")
        engine.silent = False


@pytest.mark.long
def test_a_change_with_an_idempotency_key_is_done_once(engine: SmallEngine) -> None:
    lose, other = ({"fault": {"kind": "FAULT_KIND_LOSE_CHIP", "chip": chip}} for chip in (1, 2))
    with control_server(engine) as address:

        def asked(body: dict[str, Any], key: str) -> tuple[int, dict[str, Any]]:
            return post(address, "InjectFault", json=body, headers={"Idempotency-Key": key})

        first, again = asked(lose, "night-7"), asked(lose, "night-7")
        taken, bad = asked(other, "night-7"), asked(other, "k" * 200)

    assert first[0] == 200
    assert again == first
    assert [record.fault.chip for record in engine.state.faults] == [1]
    assert (taken[0], bad[0]) == (400, 400)
    assert bad[1]["message"].endswith("expected 1 to 128 printable ASCII characters")


def test_a_call_in_json_has_the_room_of_calls(
    engine: SmallEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_guard, "CALLS_MAX", 0)
    with control_server(engine) as address:
        status, said = post(address, "GetState", json={})
    assert (status, said["code"]) == (429, "resource_exhausted")
    assert [each["type"] for each in said["details"]][1:] == [
        *("google.rpc.RetryInfo", "google.rpc.QuotaFailure")
    ]


def test_codes_are_connect_s() -> None:
    assert set(_CODES.values()) - {"ok"} == set(HTTP_STATUS)
    assert json.loads(json.dumps(HTTP_STATUS))["resource_exhausted"] == 429
